"""What a task does: check its rows, stage them as files, and say so in one message."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.dedup.content import content_ids
from oncelog.errors import InvalidArgument
from oncelog.format.payload import intake
from oncelog.format.payload.schema import HEADERS_TYPE
from oncelog.log import inner
from oncelog.log.ingest.staging import Prepared
from oncelog.log.log import Log
from oncelog.log.stored.staged import Staged
from oncelog.spark.connector.options import WriteOptions

FILE_BYTES = 48 << 20
"""How much of a task's rows go into one file. One that is made and one that is stored are held in memory."""

SAMPLE_CHARACTERS = 80


class BadRows(msgspec.Struct, frozen=True, kw_only=True):
    """The first row of a task that cannot be written: its number, what is wrong with which column, and what it says."""

    row: int
    rule: str
    sample: str


class StagedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has staged, or why it has not."""

    staged: tuple[Staged, ...] = ()
    bad: BadRows | None = None


class Stager:
    """Stages the rows of one task: while a file is stored, the next one is made of rows as they come."""

    def __init__(self, log: Log, options: WriteOptions) -> None:
        self._log = log
        self._log_id = log.log_id
        self._options = options

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedResult:
        """Stage all rows, in files of a bounded size. A bad row is returned: raised, it would have Spark try again."""
        staged: list[Staged] = []
        rows = _TaskRows(batches)
        with ThreadPoolExecutor(1, "oncelog-staging") as thread:
            under_way: Future[Staged] | None = None
            while rows:
                prepared = self._prepare(rows)
                staged += [under_way.result()] if under_way is not None else []
                if isinstance(prepared, BadRows):
                    return StagedResult(bad=prepared)
                under_way = thread.submit(inner.store, self._log, prepared)
            staged += [under_way.result()] if under_way is not None else []
        return StagedResult(staged=tuple(staged))

    def _prepare(self, rows: _TaskRows) -> Prepared | BadRows:
        """Make one file, or say which row is bad."""
        current = rows.current

        def tables() -> Iterator[pa.RecordBatch]:
            nonlocal current
            for batch in rows.take(FILE_BYTES):
                current = batch
                current = self._named(batch)
                self._check_ids(current)
                yield self._with_content_ids(current)

        try:
            names = self._named(current.slice(0, 0)).schema.names
            columns = [*names, "id"] if self._options.ids == "content" else names
            return inner.prepare(self._log, tables(), columns)
        except InvalidArgument as error:
            return _bad(current, rows.number, error)

    def _with_content_ids(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._options.ids != "content":
            return batch
        payload = intake.normalise(batch)
        return payload.add_column(1, "id", content_ids(self._log_id, payload))

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return Spark's columns as those of a log, whatever the case of their names."""
        wanted = self._options.id_column
        columns, names = [], []
        for given, column in zip(batch.schema.names, batch.columns, strict=True):
            name = "id" if wanted is not None and given.lower() == wanted.lower() else given.lower()
            names.append(name)
            if name == "value" and not pa.types.is_binary(column.type):
                columns.append(column.cast(pa.binary()))
            else:
                columns.append(_headers(column) if name == "headers" else column)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_ids(self, named: pa.RecordBatch) -> None:
        """Refuse a null among ids: every replay that the mark does not catch would write that row again."""
        if self._options.ids == "content" or "id" not in named.schema.names:
            return
        ids = named.column("id")
        if ids.null_count:
            row = int(pc.index(ids.is_null(), pa.scalar(value=True)).as_py())
            rule = "is null, must have an id (leave the column out for rows without ids)"
            raise intake.refused("id", row, rule)  # noqa: EM101


def _headers(column: pa.Array) -> pa.Array:
    """Return headers as a map of bytes; Kafka's are a list of structs."""
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
        keys, values = column.flatten().flatten()  # of a pair that is null, both are
        values = values.cast(pa.binary())
        counts = pc.fill_null(pc.list_value_length(column), 0)
        if keys.null_count:
            at = int(pc.index(keys.is_null(), pa.scalar(value=True)).as_py())
            row = int(np.searchsorted(np.cumsum(counts), at, side="right"))
            raise intake.refused("headers", row, "a header has no name, must have one")  # noqa: EM101
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
        return pa.MapArray.from_arrays(offsets, keys, values, mask=column.is_null())
    if pa.types.is_map(column.type) and not pa.types.is_binary(column.type.item_type):
        return column.cast(HEADERS_TYPE)
    return column


class _TaskRows:
    """The batches of a task, taken as they come; ``number`` is that of the first row of the ``current`` one."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._next = next(self._batches, None)
        self.number = 0

    def __bool__(self) -> bool:
        return self._next is not None

    @property
    def current(self) -> pa.RecordBatch:
        assert self._next is not None
        return self._next

    def take(self, size_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield batches, about so many bytes of them."""
        taken_bytes = 0
        while taken_bytes < size_bytes and self._next is not None:
            batch = self._next
            yield batch
            taken_bytes += batch.nbytes
            self.number += batch.num_rows
            self._next = next(self._batches, None)


def _bad(batch: pa.RecordBatch, first_row: int, error: InvalidArgument) -> BadRows:
    rule = str(error) if error.column is None else f"column {error.column}: {error.rule}"
    if error.row is None:
        return BadRows(row=first_row, rule=rule, sample="")
    values = {name: _value(batch.column(name)[error.row]) for name in batch.schema.names}
    sample = ", ".join(f"{name}={_short(value)}" for name, value in values.items() if value is not None)
    return BadRows(row=first_row + error.row, rule=rule, sample=sample)


def _value(cell: pa.Scalar) -> object:
    """Return a cell; as bytes if it is a text of Spark's that is not UTF-8."""
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return cell.as_buffer().to_pybytes() if pa.types.is_string(cell.type) else "not UTF-8"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}…"
