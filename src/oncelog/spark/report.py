"""What a pipeline did, as a page: what came, what was stored of it, how long it took and how far behind it was."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog.spark import history, page, plots
from oncelog.spark.history import Batch, Ended, Event, Settled, Started
from oncelog.spark.page import Figure, Section
from oncelog.spark.pipeline import Outcome
from oncelog.spark.plots import Mark, Series
from oncelog.types import moment


def of_run(outcome: Outcome, events: list[Event]) -> str:
    """Return the page of a pipeline: figures of all of its runs, plots of the last one and of what it went on with."""
    last_run = history.recent(events)
    into = history.settled(last_run)
    began_us = [event.at_us for event in events if isinstance(event, Started)]
    sections = [batches(into)] if into else []
    sections += progress(last_run) + times(last_run)
    first, last = moment(min(began_us, default=0)), moment(max((event.at_us for event in events), default=0))
    runs = f"{len(began_us)} run{'s' if len(began_us) != 1 else ''}"
    return page.page(
        f"Pipeline {outcome.pipeline}",
        f"{runs}, from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC, into the log {outcome.log}.",
        figures(outcome),
        sections,
        "Made by oncelog pipeline run. All figures are counted from the log and from Spark's own progress.",
    )


def figures(outcome: Outcome) -> list[Figure]:
    """Return the figures of a pipeline that matter."""
    found = [
        Figure("rows read", outcome.attempts),
        Figure("records stored", outcome.stored),
        Figure("duplicates refused", outcome.duplicates),
        Figure("conflicts aside", outcome.conflicts, None if outcome.conflicts == 0 else False),
    ]
    if outcome.exported is not None:
        found.append(Figure("sent on", outcome.exported))
    return found


def kinds(
    stored: Sequence[float] = (), duplicates: Sequence[float] = (), conflicts: Sequence[float] = ()
) -> list[Series]:
    """Return what becomes of rows, as series of a plot."""
    return [
        Series("stored", "stored", stored),
        Series("duplicates refused", "duplicate", duplicates),
        Series("conflicts quarantined", "conflict", conflicts),
    ]


def batches(into: Sequence[Settled]) -> Section:
    """Return what became of the rows of each batch."""
    series = kinds([one.stored for one in into], [one.duplicates for one in into], [one.conflicts for one in into])
    plot = plots.columns([str(one.batch.batch) for one in into], series, what="rows of each batch")
    return Section("What came in", "The rows of each batch, by what became of them.", plots.legend(series) + plot)


def progress(events: Sequence[Event]) -> list[Section]:
    """Return how the log, and what was sent on of it, grew; and how far the second was behind the first."""
    seen = [event for event in events if not isinstance(event, Ended)]
    if len(seen) < 2:  # noqa: PLR2004 (a line has two ends)
        return []
    begin_us = min(event.at_us for event in events)
    xs = [(event.at_us - begin_us) / 1e6 for event in seen]
    marks = [Mark((at_us - begin_us) / 1e6, "killed") for at_us in history.kills(list(events))]
    grown = [Series("records in the log", "stored", [event.stored for event in seen])]
    exported, sent = 0, []
    for event in seen:
        exported = max(exported, (event.exported or 0) if isinstance(event, Batch) else 0)
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
    done = [event for event in events if isinstance(event, Batch)]
    if not done:
        return []
    series = [
        Series("into the log", "stored", [event.duration_ms if event.leg == "into the log" else 0 for event in done]),
        Series(
            "out of the log", "plain", [event.duration_ms if event.leg == "out of the log" else 0 for event in done]
        ),
    ]
    plot = plots.columns([str(event.batch) for event in done], series, what="milliseconds of each batch", height=180)
    text = "Milliseconds from the moment a batch began to its end. The first of a run includes the start of workers."
    return [Section("Latency", text, plots.legend(series) + plot)]
