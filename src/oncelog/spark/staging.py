"""What a task does: check its rows, stage them as files, and say so in one message."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.dedup.content import content_ids
from oncelog.errors import InvalidArgument
from oncelog.format import intake
from oncelog.log.adoption import Staged
from oncelog.log.log import Log
from oncelog.spark.options import WriteOptions

FILE_BYTES = 128 << 20
"""How much of a task's rows go into one file: what is held in memory while it is made."""

SAMPLE_CHARACTERS = 80


class BadRows(msgspec.Struct, frozen=True, kw_only=True):
    """The first row of a task that cannot be written: its number, what is wrong with which column, and what it says."""

    row: int
    rule: str
    sample: str


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has staged, or why it has not."""

    staged: tuple[Staged, ...] = ()
    bad: BadRows | None = None


class Stager:
    """Stages the rows of one task."""

    def __init__(self, log: Log, options: WriteOptions) -> None:
        self._log = log
        self._log_id = log.log_id
        self._options = options
        self._rows = 0

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Taken:
        """Stage all rows, in files of a bounded size. A bad row is no reason to try the task again: it is told."""
        tables = self._tables(batches)
        try:
            return Taken(staged=tuple(self._log.stage(_up_to(first, tables, FILE_BYTES)) for first in tables))
        except _Refused as refused:
            return Taken(bad=refused.bad)
        except InvalidArgument as error:  # what the log itself refuses: ids without idempotence, a sequence of nobody
            return Taken(bad=BadRows(row=self._rows, rule=str(error), sample=""))

    def _tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self._table(batch)
                self._rows += batch.num_rows

    def _table(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return Spark's columns as those of a log, checked here, where a bad row can still be shown."""
        named = self._named(batch)
        try:
            payload = intake.normalise(named)
            intake.check_limits(payload)
            self._check_ids(named)
        except intake.Refused as error:
            raise _Refused(self._bad(named, error)) from error
        if self._options.ids == "content" and payload.num_rows:
            return payload.add_column(1, "id", content_ids(self._log_id, payload))
        return payload

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, names = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "value" and not pa.types.is_binary(column.type):
                column = column.cast(pa.binary())  # noqa: PLW2901
            columns.append(column)
            names.append("id" if name == self._options.id_column else name)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_ids(self, named: pa.RecordBatch) -> None:
        """Refuse a null among ids: every replay that the mark does not catch would write that row again."""
        if self._options.ids == "content" or "id" not in named.schema.names:
            return
        ids = named.column("id")
        if ids.null_count:
            row = int(pc.index(ids.is_null(), pa.scalar(value=True)).as_py())
            rule = "is null, must have an id (leave the column out for rows without ids)"
            raise intake.Refused(column="id", row=row, rule=rule)

    def _bad(self, named: pa.RecordBatch, error: intake.Refused) -> BadRows:
        rule = f"column {error.column}: {error.rule}"
        if error.row is None:
            return BadRows(row=self._rows, rule=rule, sample="")
        values = {name: named.column(name)[error.row].as_py() for name in named.schema.names}
        sample = ", ".join(f"{name}={_short(value)}" for name, value in values.items() if value is not None)
        return BadRows(row=self._rows + error.row, rule=rule, sample=sample)


class _Refused(InvalidArgument):
    def __init__(self, bad: BadRows) -> None:
        super().__init__(bad.rule)
        self.bad = bad


def _up_to(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield batches until there are so many bytes."""
    yield first
    size_bytes -= first.nbytes
    while size_bytes > 0:
        batch = next(rest, None)
        if batch is None:
            return
        size_bytes -= batch.nbytes
        yield batch


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}…"
