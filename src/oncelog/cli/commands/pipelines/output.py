"""What ``oncelog pipeline`` prints: progress, outcomes, a dry run, a check, a status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from oncelog.cli.terminal.output import Meter, note, print_facts, print_json, say
from oncelog.cli.terminal.quantities import show_count, show_duration, show_time

if TYPE_CHECKING:
    from oncelog.spark.pipeline.backfill import Filled
    from oncelog.spark.pipeline.history import BatchDone, Leg
    from oncelog.spark.pipeline.mistakes import Mistake
    from oncelog.spark.pipeline.pipeline import Outcome
    from oncelog.spark.pipeline.progress import Status
    from oncelog.spark.pipeline.rehearsal import Rehearsal

_NAMED_MAX = 5


class ShownBatches:
    """Shows on a progress bar which batches were done: into the log by their number, out of it by records."""

    def __init__(self, bar: Meter, name: str, batches: int | None) -> None:
        self._bar = bar
        self._name = name
        self._batches = batches
        self._leg: Leg | None = None
        self._rows = self._took_ms = 0

    def __call__(self, batch: BatchDone) -> None:
        """Show a batch. The rate comes from the times that Spark measured for the batch, without Spark's start."""
        if batch.leg != self._leg:
            self._leg, self._rows, self._took_ms = batch.leg, 0, 0
        self._rows += batch.rows
        self._took_ms += batch.duration_ms
        unit = "batches" if batch.leg == "into the log" else "records"
        self._bar.now(f"{self._name} {batch.leg}", unit, self._rows / max(1, self._took_ms) * 1000)
        if batch.leg == "into the log":
            total = None if self._batches is None else max(self._batches, batch.batch + 1)
            self._bar.to(batch.batch + 1, self._rows, total)
        elif batch.exported is not None:
            self._bar.to(batch.exported, self._rows, batch.stored)


def print_batch(batch: BatchDone) -> None:
    """Print a batch for programs."""
    print_json(batch)


def tell_outcome(outcome: Outcome, report: Path | None) -> None:
    """Tell what a run did."""
    facts: list[tuple[str, str | Text]] = [
        ("rows read", f"{outcome.attempts:,}"),
        ("stored", Text(f"{outcome.stored:,}", "green")),
        ("duplicates", f"{outcome.duplicates:,}"),
        ("conflicts", Text(f"{outcome.conflicts:,}", "yellow" if outcome.conflicts else "")),
        ("rows rejected", Text(f"{outcome.rejected:,}", "yellow" if outcome.rejected else "")),
    ]
    for name, count in (
        ("left out by SQL", outcome.left_out),
        ("rows with fields rescued", outcome.rescued),
        ("NOT ACCOUNTED FOR", outcome.missing),
    ):
        if count:
            facts.append((name, f"{count:,}"))
    facts += [("schema", Text(change, "yellow")) for change in outcome.widened]
    if outcome.exported is not None:
        facts.append(("sent on", f"{outcome.exported:,}"))
    batches = f" in {outcome.batches:,} {'batch' if outcome.batches == 1 else 'batches'}" if outcome.batches else ""
    took = show_duration(outcome.seconds)
    facts.append(("this run", f"{show_count(outcome.rows, 'row')}{batches}, {took}"))
    if report is not None:
        facts.append(("report", Text(str(report), "cyan")))
    print_facts([(f"{outcome.pipeline} → {outcome.log}", facts)])


def warn_of_files(replaced: Sequence[str] = (), passed_over: Sequence[str] = (), vanished: Sequence[str] = ()) -> None:
    """Tell of files that were changed after they were read, that are never read, and that were gone before."""
    again = "has changed since it was read, and is not read again: give it a new name, or backfill its day"
    never = (
        "is not read: it is in a folder inside of source.path (the option recursiveFileLookup = true reads those), or "
        "its name is not UTF-8"
    )
    gone = (
        "was listed, and was gone when it was to be read: its rows are not accounted for. Put it back, and the next "
        "run reads it; if it is gone for good, put an empty file in its place"
    )
    for files, what in ((replaced, again), (passed_over, never), (vanished, gone)):
        for file in files[:_NAMED_MAX]:
            note(("warning:", "yellow"), f" {file} {what}")
        if len(files) > _NAMED_MAX:
            note(("warning:", "yellow"), f" the same holds for {len(files) - _NAMED_MAX:,} other files")


def tell_rehearsal(done: Rehearsal) -> None:
    """Tell what a run would do."""
    facts: list[tuple[str, str | Text]] = [
        ("rows new in the source" if done.resumed else "rows in the source", f"{done.rows:,}"),
        ("would be stored", Text(f"{done.stored:,}", "green")),
        ("duplicates", f"{done.duplicates:,}"),
        ("conflicts", Text(f"{done.conflicts:,}", "yellow" if done.conflicts else "")),
        ("rejected", Text(f"{done.rejected:,}", "yellow" if done.rejected else "")),
    ]
    more = (("left out by SQL", done.left_out), ("rows with fields rescued", done.rescued), ("missing", done.missing))
    facts += [(name, f"{count:,}") for name, count in more if count]
    print_facts([(f"{done.pipeline} → {done.log}: a dry run, nothing was stored", facts)])
    for kind, samples in done.samples.items():
        for sample in samples:
            where = sample.reason or sample.id or ""
            say("  ", (f"{kind}: ", "dim"), (where, "cyan"), "  ", sample.text.rstrip("\n"))
    if done.fails:
        note(("error:", "bold red"), f" a run would stop: {done.fails}")


def tell_check(file: Path, steps: list[tuple[str, str]], schema: str | None, found: list[Mistake], *, ok: bool) -> None:
    """Tell what a pipeline would do, and its mistakes."""
    facts: list[tuple[str, str | Text]] = [(name, text) for name, text in steps]
    if schema is not None:
        facts.insert(2 if any(name == "transform" for name, _ in steps) else 1, ("columns", schema[7:-1]))
    if facts:
        print_facts([("", facts)])
        say()
    for mistake in found:
        style = "bold red" if mistake.severity == "error" else "yellow"
        where = f"{file}:{mistake.line}" if mistake.line is not None else str(file)
        key = f" {mistake.key}:" if mistake.key else ""
        say((f"{mistake.severity}:", style), f" {where}:{key} {mistake.what}")
        if mistake.suggestion:
            say("    ", (mistake.suggestion, "green"))
    if ok:
        say((str(file), "cyan"), " can be ", ("run", "bold green"))


def tell_status(found: Status) -> None:
    """Tell how far a pipeline is."""
    from oncelog.types import moment  # noqa: PLC0415 (help does not wait for pyarrow)

    state = Text(f"running: {found.running}", "green") if found.running is not None else Text("not running")
    if found.killed:
        state = Text("not running; the last run was killed: run it again", "yellow")
    times = [("last run began", found.last_started_us), ("last batch", found.last_batch_us)]
    facts: list[tuple[str, str | Text]] = [("state", state), ("runs", f"{found.runs:,}")]
    facts += [(name, show_time(moment(at_us))) for name, at_us in times if at_us is not None]
    facts += [
        ("rows read", f"{found.attempts:,}"),
        ("stored", f"{found.stored:,}"),
        ("duplicates", f"{found.duplicates:,}"),
        ("conflicts", f"{found.conflicts:,}"),
        ("rows rejected", f"{found.rejected:,}"),
    ]
    more = (("left out by SQL", found.left_out), ("rows with fields rescued", found.rescued))
    facts += [(name, f"{count:,}") for name, count in (*more, ("NOT ACCOUNTED FOR", found.missing)) if count]
    if found.behind is not None:
        facts.append(("sent on", f"{found.exported:,}; {found.behind:,} records wait"))
    if found.files is not None:
        facts.append(("files", f"{found.files.taken:,} taken, {len(found.files.waiting):,} wait"))
    print_facts([(f"{found.pipeline} → {found.log}", facts)])


class Filling:
    """Shows which parts of a backfill are done."""

    def __init__(self, bar: Meter, name: str, done: int, *, as_json: bool) -> None:
        self._bar = bar
        self._name = name
        self._done = done
        self._rows = 0
        self._as_json = as_json

    def __call__(self, filled: Filled) -> None:
        """Show a part."""
        self._done += 1
        self._rows += filled.rows
        if self._as_json:
            print_json(filled)
        self._bar.now(f"{self._name}: {filled.part} is in", "parts", 0)
        self._bar.to(self._done, self._rows)


def tell_backfill(name: str, parts: int, before: int, filled: Sequence[Filled]) -> None:
    """Tell what a backfill did."""
    sums = {key: sum(getattr(one, key) for one in filled) for key in ("rows", "stored", "duplicates", "conflicts")}
    facts: list[tuple[str, str | Text]] = [("parts", f"{parts:,}, {before:,} of them done before")]
    facts += [(key, f"{count:,}") for key, count in sums.items()]
    facts += [
        (key, f"{count:,}")
        for key in ("rejected", "left_out", "missing")
        if (count := sum(getattr(one, key) for one in filled))
    ]
    print_facts([(f"{name}: backfill", facts)])
