"""What a pipeline did, as a page: what came, what was stored of it, how long it took and how far behind it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from oncelog.spark.pipeline import history
from oncelog.spark.pipeline.history import BatchDone, Ended, Event, Settled, Started, Summed
from oncelog.spark.pipeline.pipeline import Outcome
from oncelog.spark.report import page, plots
from oncelog.spark.report.page import Figure, Section
from oncelog.spark.report.plots import PlotMark, Series
from oncelog.types import moment

COLUMNS_MAX = 200
_Event = TypeVar("_Event")


def of_run(outcome: Outcome, events: list[Event]) -> str:
    """Return the page of a pipeline: figures of all of its runs, plots of the last one and of what it went on with."""
    last_run = history.recent(events)
    into = history.settled(last_run)
    done = history.summed(events)
    sections = [batches(into)] if into else []
    sent_before = history.summed(events[: len(events) - len(last_run)]).exported or 0
    sections += progress(last_run, sent_before) + times(last_run)
    first, last = moment(done.began_us), moment(done.at_us)
    runs = f"{done.runs:,} run{'s' if done.runs != 1 else ''}"
    older = [event for event in last_run if isinstance(event, Summed)]
    since = f" The plots show what came since {moment(older[0].at_us):%Y-%m-%d %H:%M:%S}." if older else ""
    if done.runs > 1 and not since:
        since = " The figures count all runs, the plots show the last and what it went on with."
    return page.page(
        f"Pipeline {outcome.pipeline}",
        f"{runs}, from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC, into the log {outcome.log}.{since}",
        figures(outcome),
        sections,
        "Made by oncelog pipeline run. All figures are counted from the log and from Spark's own progress.",
    )


def figures(outcome: Outcome) -> list[Figure]:
    """Return the figures of a pipeline that matter."""
    found = [
        Figure("rows read", outcome.attempts),
        Figure("records stored", outcome.stored),
        Figure("duplicates", outcome.duplicates),
        Figure("conflicts", outcome.conflicts, None if outcome.conflicts == 0 else False),
        Figure("rows rejected", outcome.rejected, None if outcome.rejected == 0 else False),
    ]
    if outcome.left_out:
        found.append(Figure("left out by SQL", outcome.left_out))
    if outcome.rescued:
        found.append(Figure("with fields rescued", outcome.rescued, good=False))
    found.append(Figure("not accounted for", outcome.missing, outcome.missing == 0))
    if outcome.exported is not None:
        found.append(Figure("sent on", outcome.exported))
    return found


def kinds(
    stored: Sequence[float] = (), duplicates: Sequence[float] = (), conflicts: Sequence[float] = ()
) -> list[Series]:
    """Return what becomes of rows, as series of a plot."""
    return [
        Series("stored", "stored", stored),
        Series("duplicates", "duplicate", duplicates),
        Series("conflicts", "conflict", conflicts),
    ]


def batches(into: Sequence[Settled]) -> Section:
    """Return what became of the rows of each batch."""
    groups = list(_grouped(into))
    series = kinds(
        [sum(one.stored for one in group) for group in groups],
        [sum(one.duplicates for one in group) for group in groups],
        [sum(one.conflicts for one in group) for group in groups],
    )
    plot = plots.columns([_label([one.batch for one in group]) for group in groups], series, what="rows of each batch")
    text = "The rows of each batch, by what became of them."
    more = f" {len(groups[0])} batches make a column." if len(groups) < len(into) else ""
    return Section("What came in", text + more, plots.legend(series) + plot)


def _grouped(events: Sequence[_Event]) -> Iterator[Sequence[_Event]]:
    """Yield neighbours together, so that there are no more groups than a plot has room for."""
    size = -(-len(events) // COLUMNS_MAX) or 1
    return (events[start : start + size] for start in range(0, len(events), size))


def _label(group: Sequence[BatchDone]) -> str:
    return str(group[0].batch) if len(group) == 1 else f"{group[0].batch} to {group[-1].batch}"


def progress(events: Sequence[Event], sent_before: int = 0) -> list[Section]:
    """Return how the log, and what was sent on of it, grew; and how far the second was behind the first.

    ``sent_before`` is what the sink had when these events began.
    """
    seen = [group[-1] for group in _grouped([event for event in events if not isinstance(event, Ended)])]
    if len(seen) < 2:  # noqa: PLR2004 (a line has two ends)
        return []
    begin_us = min(event.at_us for event in events)
    xs = [(event.at_us - begin_us) / 1e6 for event in seen]
    marks = [PlotMark((at_us - begin_us) / 1e6, "killed") for at_us in history.kills(list(events))]
    grown = [Series("records in the log", "stored", [event.stored for event in seen])]
    exported, sent = sent_before, []
    for event in seen:
        exported = max(exported, 0 if isinstance(event, Started) else event.exported or 0)
        sent.append(exported)
    found = [*grown, *([Series("sent on", "plain", sent)] if exported else [])]
    plot = plots.lines(xs, found, what="records over time", unit="s", marks=marks)
    sections = [
        Section(
            "How it went",
            "Records over the time since the run began; where it was killed, the next one went on.",
            plots.legend(found) + plot,
        )
    ]
    if exported:
        behind = [
            Series("not yet sent on", "conflict", [event.stored - at for event, at in zip(seen, sent, strict=True)])
        ]
        plot = plots.lines(xs, behind, what="lag over time", unit="s", marks=marks, height=160)
        sections.append(Section("Lag", "Records that the log had, and the sink had not yet.", plot))
    return sections


def times(events: Sequence[Event]) -> list[Section]:
    """Return how long batches took."""
    done = [event for event in events if isinstance(event, BatchDone)]
    if not done:
        return []
    groups = list(_grouped(done))
    series = [
        Series(
            leg, style, [max((event.duration_ms for event in group if event.leg == leg), default=0) for group in groups]
        )
        for leg, style in (("into the log", "stored"), ("out of the log", "plain"))
    ]
    plot = plots.columns([_label(group) for group in groups], series, what="milliseconds of each batch", height=180)
    text = "Milliseconds from the moment a batch began to its end. The first of a run includes the start of workers."
    text += f" Of {len(groups[0])} neighbours the slowest is shown." if len(groups) < len(done) else ""
    return [Section("Latency", text, plots.legend(series) + plot)]
