"""A backfill: files of the past into the log, part by part, where a part is a partition or a day.

Each part is read as a whole by the pipeline itself, with its transform and its identity, into the same log; what the
log has is recognised by its ids. A backfill has a checkpoint and a lease of its own inside of the pipeline's, so that
the pipeline may run meanwhile. Parts that are done are noted: a backfill that was killed goes on with the part that it
was killed in, of which the log recognises what was stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import history, spec
from oncelog.spark.pipeline.checks import ownership
from oncelog.spark.pipeline.pipeline import Pipeline
from oncelog.spark.pipeline.rows import bucket_files, frames, source_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.pipeline.whole_file import write_whole
from oncelog.spark.session import session
from oncelog.storage.local import links
from oncelog.types import micros

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER, _NOTES = "backfill", "parts.jsonl"
_SHARED = (frames.SCHEMA_FILE, ownership.FILE)
DAYS_MAX = 3660


class BackfillPart(msgspec.Struct, frozen=True):
    """A part of the source: its name, the path to read, and options that say which files there."""

    name: str
    path: str
    options: dict[str, str] = {}


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows of a part."""

    part: str
    rows: int
    stored: int
    duplicates: int
    conflicts: int
    rejected: int
    left_out: int
    missing: int
    at_us: int


def partitions(given: Spec, column: str, first: str, last: str) -> list[BackfillPart]:
    """Return the folders ``column=value`` of a source with values from ``first`` to ``last``, both of them included.

    Values are compared as numbers if all of them are numbers, else as text, as dates like 2026-01-31 are.
    """
    top = _top(given)
    found = _folders(top, column)
    if not found:
        message = f"{top}: there is no folder {column}=…: name the column of its partitions, or leave --partition out"
        raise InvalidArgument(message)
    numbers = all(each.isdecimal() for each in (first, last, *(value for value, _ in found)))
    order: Callable[[str], Any] = int if numbers else str
    chosen = [(value, name) for value, name in found if order(first) <= order(value) <= order(last)]
    chosen.sort(key=lambda part: (order(part[0]), part[1]))
    return [BackfillPart(name, f"{top}/{name}") for _, name in chosen]


def days(given: Spec, first: str, last: str) -> list[BackfillPart]:
    """Return the days from ``first`` to ``last``, both of them included, by when files were last changed (UTC)."""
    try:
        begin, end = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError as error:
        message = f"{error}: give days as in 2026-01-31, or name the column of the partitions with --partition"
        raise InvalidArgument(message) from error
    if not 0 <= (end - begin).days < DAYS_MAX:
        message = f"from {first} to {last}: must be 1 to {DAYS_MAX} days"
        raise InvalidArgument(message)
    path = _top(given)
    return [
        BackfillPart(str(day), path, _within(day))
        for day in (begin + timedelta(n) for n in range((end - begin).days + 1))
    ]


def _within(day: date) -> dict[str, str]:
    """Return Spark's options for files of a day; neither bound is included."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    before, behind = begin - timedelta(microseconds=1), begin + timedelta(days=1)
    return {"modifiedAfter": before.isoformat(), "modifiedBefore": behind.isoformat()}


def _is_over(part: BackfillPart, now_us: int) -> bool:
    """Tell whether a day was over at a time: files of a day that was not may still come, or change."""
    behind = part.options.get("modifiedBefore")
    return behind is None or micros(datetime.fromisoformat(behind)) <= now_us


def _top(given: Spec) -> str:
    """Return the folder of the source, on this machine or in a bucket."""
    source = given.source
    url = bucket_files.url_of(source.path or "")
    if url is not None and source.format.lower() in source_files.FORMATS:
        return url
    path = spec.local_path(source.path) if source.path is not None else None
    if path is None or not path.is_dir() or source.format.lower() not in FILE_FORMATS:
        message = (
            "a backfill reads files in a folder of this machine, or json, csv and parquet in a bucket: source.path is "
            "neither"
        )
        raise Unsupported(message)
    return str(path)


def _folders(top: str, column: str) -> list[tuple[str, str]]:
    """Return the values of a partition, with the folder of each."""
    if bucket_files.url_of(top) is not None:
        return bucket_files.folders(top, column)
    found = [path for path in Path(top).rglob(f"{column}=*") if path.is_dir()]
    return [(unquote(path.name.partition("=")[2]), str(path.relative_to(top))) for path in found]


class Backfill:
    """Brings parts of a source into the log of a pipeline."""

    def __init__(self, given: Spec, folder: Path, clock: Clock) -> None:
        checkpoint = spec.local_path(given.checkpoint)
        if checkpoint is None:
            message = f"{given.checkpoint}: a backfill keeps its notes in the checkpoint, which must be on this machine"
            raise Unsupported(message)
        self._spec = given
        self._folder = folder
        self._clock = clock
        self._checkpoint = checkpoint / _FOLDER

    def done(self) -> dict[str, Filled]:
        """Return the parts that are done, by their names."""
        try:
            lines = (self._checkpoint / _NOTES).read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        noted = [one for line in lines if line for one in _decoded(line)]
        return {one.part: one for one in noted}

    def run(
        self,
        parts: Sequence[BackfillPart],
        tell: Callable[[Filled], None],
        *,
        again: bool = False,
        spark: SparkSession | None,
    ) -> list[Filled]:
        """Bring parts in that are not done, or all of them; return what became of each that was read."""
        self._share()
        known = {} if again else self.done()
        filled = []
        with self._session(spark) as running:
            for part in parts:
                if part.name not in known:
                    began_us = self._clock.now_us()
                    filled.append(self._fill(part, running))
                    if _is_over(part, began_us):
                        self._note(filled[-1])
                    tell(filled[-1])
        return filled

    def _share(self) -> None:
        """Have the schema and the encoding of the pipeline: a record must be the same whichever way it comes."""
        own = self._checkpoint.parent
        if self._spec.source.schema is None and not (own / frames.SCHEMA_FILE).exists():
            message = "the columns are not known yet: write source.schema, or run the pipeline before its backfill"
            raise InvalidArgument(message)
        self._checkpoint.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
        for name in _SHARED:
            if (own / name).exists():
                write_whole(self._checkpoint / name, (own / name).read_bytes())

    @contextmanager
    def _session(self, given: SparkSession | None) -> Iterator[SparkSession]:
        run = self._spec.run
        log_file = self._checkpoint / "spark.log"
        spark = given or session.start(self._spec.name, run.master, run.conf, run.packages, log_file=log_file)
        try:
            yield spark
        finally:
            if given is None:
                spark.stop()

    def _fill(self, part: BackfillPart, spark: SparkSession) -> Filled:
        replace = msgspec.structs.replace
        source = self._spec.source
        options = {**source.options, **part.options}
        given = replace(
            self._spec,
            source=replace(source, path=part.path, streaming=False, options=options),
            sink=None,
            run=replace(self._spec.run, checkpoint=str(self._checkpoint)),
        )
        events = history.of(given, self._folder)
        before = history.summed(list(events))
        Pipeline(given, self._folder, self._clock, events).run(lambda _: None, spark=spark)
        after = history.summed(list(events))
        return Filled(
            part=part.name,
            rows=after.attempts - before.attempts,
            stored=after.settled - before.settled,
            duplicates=after.duplicates - before.duplicates,
            conflicts=after.aside - before.aside,
            rejected=after.rejected - before.rejected,
            left_out=after.left_out - before.left_out,
            missing=after.missing - before.missing,
            at_us=self._clock.now_us(),
        )

    def _note(self, filled: Filled) -> None:
        with links.append_to(self._checkpoint / _NOTES) as file:
            file.write(b"\n" + msgspec.json.encode(filled) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _decoded(line: bytes) -> list[Filled]:
    """Return a note; nothing for one that a kill cut short: its part is read again."""
    try:
        return [msgspec.json.decode(line, type=Filled)]
    except UNREADABLE:
        return []
