"""A dry run: what the next run of a pipeline would do, without doing it.

The pipeline itself runs, over what is new in its source, into a log of its own in a folder of this machine that is
removed at the end. So reading, SQL, rejection and the account are those of a run, whatever they find. Then the records
of that log are looked up in the real one: unknown, known, or known with other content. For a log behind
a server, the server is asked for each id. A copy of Spark's checkpoint tells what is new; the real log, the real
checkpoint and the sink are not touched.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import oncelog
from oncelog.clock import Clock
from oncelog.dedup.content import content_ids
from oncelog.errors import NotFound, Unsupported
from oncelog.format.payload import intake
from oncelog.log import inner
from oncelog.log.find import Compared
from oncelog.log.log import Log
from oncelog.spark.pipeline import rejects, spec
from oncelog.spark.pipeline.checks import ownership
from oncelog.spark.pipeline.history import Passing
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline, Tell
from oncelog.spark.pipeline.rows import frames, vanished_files
from oncelog.spark.pipeline.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLES = 5
_REMOVING = ("cleansource", "sourcearchivedir")
"""Options by which Spark removes files that it has read."""

_KEPT = ("into-log", frames.SCHEMA_FILE, ownership.FILE, vanished_files.FILE)
_COLUMNS = ["value", "id", "stream", "type", "tenant"]
_CONTENT = ["value", "stream", "type", "tenant"]
_TEXT_BYTES = 200
_ASKING = 16
"""How many questions are under way to a server."""


class SampleRow(msgspec.Struct, frozen=True):
    """A row, as one looks at it: its id, the beginning of its text, and where and why it was rejected."""

    id: str | None
    text: str
    reason: str = ""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do now: so many rows of each kind, with the first few of each.

    ``fails`` says why the run would stop, where the spec says that it is to stop. ``resumed`` is whether the rows are
    those that are new since the last run; else they are all that the source has. Of rows with one id and different
    content, which one is stored may differ from run to run. ``vanished`` are files that were listed before and are
    gone.
    """

    pipeline: str
    log: str
    rows: int
    stored: int
    duplicates: int
    conflicts: int
    rejected: int
    rescued: int
    left_out: int
    missing: int
    seconds: float
    resumed: bool
    fails: str | None
    samples: dict[str, list[SampleRow]]
    vanished: tuple[str, ...] = ()


def rehearse(given: Spec, folder: Path, clock: Clock, tell: Tell, spark: SparkSession | None = None) -> Rehearsal:
    """Run a pipeline without effect; ``Unsupported`` where its tasks are not on this machine."""
    if not given.run.master.startswith("local"):
        message = f"a dry run is for this machine, and {given.run.master} is elsewhere: say --master 'local[*]'"
        raise Unsupported(message)
    with tempfile.TemporaryDirectory(prefix="oncelog-dry-run-") as place, oncelog.connect(given.log.url) as db:
        real = _real(db, given)
        trial = _trial(given, Path(place), real)
        resumed = _copy_progress(given, Path(place) / "progress")
        outcome = Pipeline(trial, folder, clock, Passing()).run(tell, spark=spark)
        return _judged(given, trial, real, outcome, resumed=resumed)


def _real(db: oncelog.Database, given: Spec) -> Log | None:
    try:
        return db.log(given.log.name)
    except NotFound:
        return None


def _trial(given: Spec, place: Path, real: Log | None) -> Spec:
    """Return the pipeline with a log and a checkpoint of its own, without a sink; nothing that is found stops it."""
    replace = msgspec.structs.replace
    settings = real.settings if real is not None else given.log.settings
    options = {name: value for name, value in given.source.options.items() if name.lower() not in _REMOVING}
    return replace(
        given,
        source=replace(given.source, on_bad_row="quarantine", options=options),
        log=replace(given.log, url=(place / "data").as_uri(), on_conflict="quarantine", settings=settings),
        sink=None,
        run=replace(given.run, checkpoint=str(place / "progress")),
    )


def _copy_progress(given: Spec, target: Path) -> bool:
    """Copy how far the pipeline is; return whether that is known here."""
    known = spec.local_path(given.checkpoint)
    if known is None or not known.is_dir():
        return False
    target.mkdir(parents=True)
    for name in _KEPT:
        if (known / name).is_dir():
            shutil.copytree(known / name, target / name)
        elif (known / name).exists():
            shutil.copy2(known / name, target / name)
    return (target / _KEPT[0]).is_dir()


def _judged(given: Spec, trial: Spec, real: Log | None, outcome: Outcome, *, resumed: bool) -> Rehearsal:
    with oncelog.connect(trial.log.url) as db:
        stored = _Looked("stored", _tables(db, trial.log.name), real)
        aside = _Looked("conflicts", _tables(db, trial.log.conflicts), real)
    conflicts = stored.counts["conflicts"] + outcome.conflicts - aside.counts["duplicates"]
    samples = {kind: (stored.samples[kind] + aside.samples[kind])[:SAMPLES] for kind in stored.samples}
    samples["rejected"] = [
        SampleRow(None, one.text[:_TEXT_BYTES], _told(one)) for one in _first(rejects.rejected(trial))
    ]
    return Rehearsal(
        pipeline=given.name,
        log=given.log.name,
        rows=outcome.attempts,
        stored=stored.counts["stored"],
        duplicates=outcome.duplicates + stored.counts["duplicates"] + aside.counts["duplicates"],
        conflicts=conflicts,
        rejected=outcome.rejected,
        rescued=outcome.rescued,
        left_out=outcome.left_out,
        missing=outcome.missing,
        seconds=outcome.seconds,
        resumed=resumed,
        fails=_failure(given, outcome.rejected, conflicts),
        samples=samples,
        vanished=outcome.vanished,
    )


class _Looked:
    """Records of the trial, looked up in the real log: how many are what, and the first few of each kind."""

    def __init__(self, unknown: str, tables: Iterator[pa.RecordBatch], real: Log | None) -> None:
        self.counts = {"stored": 0, "duplicates": 0, "conflicts": 0}
        self.samples: dict[str, list[SampleRow]] = {kind: [] for kind in self.counts}
        for table in tables:
            known, other = _compared(table, real)
            for kind, chosen in ((unknown, ~known), ("duplicates", known & ~other), ("conflicts", other)):
                self.counts[kind] += int(np.count_nonzero(chosen))
                self.samples[kind] += _samples(table, chosen, SAMPLES - len(self.samples[kind]))


def _first(found: Iterator[Any]) -> list[Any]:
    return [one for one, _ in zip(found, range(SAMPLES), strict=False)]


def _told(one: rejects.RejectedRow) -> str:
    return f"{one.file}, line {one.line}: {one.reason}" if one.file else one.reason


def _tables(db: oncelog.Database, name: str) -> Iterator[pa.RecordBatch]:
    try:
        log = db.log(name)
    except NotFound:
        return
    yield from log.read_arrow(columns=_COLUMNS)


def _compared(table: pa.RecordBatch, real: Log | None) -> Compared:
    if real is None:
        nothing = np.zeros(table.num_rows, np.bool_)
        return Compared(nothing, nothing)
    # An id that is made of the content is made again by the log that is asked.
    made = real.settings.idempotence == "content"
    unnamed = table.drop_columns(["id"])
    try:
        return inner.compare(real, unnamed if made else table)
    except Unsupported:  # a server has the log
        ids = content_ids(real.log_id, intake.normalise(unnamed)) if made else table["id"]
        return _asked(ids, table, real)


def _asked(ids: pa.Array, table: pa.RecordBatch, real: Log) -> Compared:
    """Ask a server for each id, many at a time; of one that it knows, compare the record."""
    known, other = np.zeros(table.num_rows, np.bool_), np.zeros(table.num_rows, np.bool_)
    rows = table.select(_CONTENT).to_pylist()

    def ask(row: int, id: str) -> None:
        found = real.find(id, stream=rows[row]["stream"])
        if found is None:
            return
        known[row] = True
        with real.read(found.position, limit=1) as entries:
            other[row] = any(rows[row] != {name: getattr(entry, name) for name in _CONTENT} for entry in entries)

    with ThreadPoolExecutor(_ASKING) as threads:
        for asked in [threads.submit(ask, row, id) for row, id in enumerate(ids.to_pylist()) if id is not None]:
            asked.result()
    return Compared(known, other)


def _samples(table: pa.RecordBatch, chosen: np.ndarray[Any, np.dtype[np.bool_]], count: int) -> list[SampleRow]:
    rows = table.take(pa.array(np.flatnonzero(chosen)[: max(0, count)]))
    texts = [bytes(value)[:_TEXT_BYTES].decode(errors="replace") for value in rows["value"].to_pylist()]
    return [SampleRow(id, text) for id, text in zip(rows["id"].to_pylist(), texts, strict=True)]


def _failure(given: Spec, rejected: int, conflicts: int) -> str | None:
    if rejected and given.source.on_bad_row == "fail":
        return f'source.on_bad_row is "fail", and {rejected:,} rows cannot be records'
    if conflicts and given.log.on_conflict == "error":
        return f'log.on_conflict is "error", and {conflicts:,} rows have an id that is taken by other content'
    return None
