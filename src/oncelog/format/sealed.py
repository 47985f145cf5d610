"""A sealed file: records as a Parquet table that other tools read as it is.

Positions are not spelled out: a record's is its file's first position plus its row. So a file that was written
elsewhere, with the same columns, can become a part of a log without being rewritten. Columns that it lacks are null;
without ``timestamp`` its records have the time of their adoption, which the manifest knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format.schema import ALL_BITS, BITS, schema_of
from oncelog.types import micros

TIMESTAMP, UPTIME, START = "timestamp", "uptime_us", "start"
ROW_GROUP_ROWS = 1 << 16
ZSTD_LEVEL = 3
STAGED_ZSTD_LEVEL = 1
"""A file that is made to be adopted is made while somebody waits. Its values, which may be anything, are compressed in
no time or not at all; what is small is sealed anew with its neighbours, and better, later."""
_NEVER_US = 1 << 62
_LABELS = ["stream", "type", "producer", "tenant"]
"""Columns whose values repeat, so that a dictionary is worth its while."""

_PAYLOAD = [field for field in schema_of(ALL_BITS) if field.name != START]
SCHEMA = pa.schema(
    [
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC"), nullable=False),
        *_PAYLOAD,
        pa.field(UPTIME, pa.int64(), nullable=False),
        pa.field(START, pa.bool_(), nullable=False),
    ]
)
"""The columns of a file that was sealed here: those of a record, when it was stored, its writer's up-time then, and
whether it begins a batch."""


class Piece:
    """Consecutive rows of a sealed file: a payload, and each row's times (``None``: the file does not say)."""

    __slots__ = ("first_row", "payload", "timestamps_us", "uptimes_us")

    def __init__(
        self,
        first_row: int,
        payload: pa.RecordBatch,
        timestamps_us: NDArray[np.int64] | None,
        uptimes_us: NDArray[np.int64] | None,
    ) -> None:
        self.first_row = first_row
        self.payload = payload
        self.timestamps_us = timestamps_us
        self.uptimes_us = uptimes_us


def to_table(
    payload: pa.RecordBatch, timestamps_us: NDArray[np.int64], uptimes_us: NDArray[np.int64]
) -> pa.RecordBatch:
    """Return a payload in the columns of a sealed file."""
    count = payload.num_rows
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    arrays = [pa.array(timestamps_us, pa.int64()).view(SCHEMA.field(0).type)]
    arrays += [present.get(field.name, pa.nulls(count, field.type)) for field in _PAYLOAD]
    arrays.append(pa.array(uptimes_us, pa.int64()))
    arrays.append(present.get(START, pa.repeat(pa.scalar(value=True), count)))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


STAGED_SCHEMA = pa.schema(_PAYLOAD)
"""The columns of a file that is made to be adopted: when it was stored is not known yet."""


def to_staged(payload: pa.RecordBatch) -> pa.RecordBatch:
    """Return a payload in the columns of a file that is made to be adopted."""
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    arrays = [present.get(field.name, pa.nulls(payload.num_rows, field.type)) for field in _PAYLOAD]
    return pa.RecordBatch.from_arrays(arrays, schema=STAGED_SCHEMA)


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> pa.Buffer:
    """Return batches of ``to_table``, or of ``to_staged`` with that schema, as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        **_compression(schema),
        use_dictionary=_LABELS,
        write_statistics=[name for name in (TIMESTAMP, "id", "stream", "type") if name in schema.names],
        write_page_checksum=True,
        store_schema=True,
    ) as writer:
        for table in _row_groups(batches, schema):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return sink.getvalue()


def _compression(schema: pa.Schema) -> dict[str, Any]:
    if TIMESTAMP in schema.names:
        return {"compression": "zstd", "compression_level": ZSTD_LEVEL}
    small = [name for name in schema.names if name not in {"value", "headers"}]
    small += ["headers.key_value.key", "headers.key_value.value"]
    return {
        "compression": {"value": "snappy"} | dict.fromkeys(small, "zstd"),
        "compression_level": dict.fromkeys(small, STAGED_ZSTD_LEVEL),
    }


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Gather small batches, so that a row group is worth its statistics."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(gathered, schema)
            gathered, rows = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered, schema)


class SealedFile:
    """A sealed file's bytes, opened for reading. Whoever opens it has checked that they are the bytes that were
    written.
    """

    def __init__(self, data: pa.Buffer, what: str) -> None:
        self._what = what
        try:
            self._file = pq.ParquetFile(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            message = f"{what} is not a Parquet file that can be read: {error}"
            raise CorruptionError(message) from error
        counts = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return int(self._starts[-1])

    def pieces(
        self, start: int, end: int, names: Sequence[str] | None = None, not_before_us: int | None = None
    ) -> Iterator[Piece]:
        """Yield the rows from ``start`` to ``end``, a row group at a time; ``names`` are the payload columns to read.

        Row groups that are older than ``not_before_us`` as a whole, by their statistics, are left out.
        """
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for number in range(first, self._file.num_row_groups):
            begin, stop = int(self._starts[number]), int(self._starts[number + 1])
            if begin >= end:
                return
            if not_before_us is not None and self._latest_us(number) < not_before_us:
                continue
            table = self._read(number, names)
            low, high = max(start, begin), min(end, stop)
            yield self._piece(table.slice(low - begin, high - low), low)

    def _latest_us(self, row_group: int) -> int:
        """Return the time of a row group's last record as far as it is known, or one after all times."""
        if TIMESTAMP not in self._file.schema_arrow.names:
            return _NEVER_US
        column = self._file.metadata.row_group(row_group).column(self._file.schema_arrow.names.index(TIMESTAMP))
        statistics = column.statistics
        if column.path_in_schema != TIMESTAMP or statistics is None or not statistics.has_min_max:
            return _NEVER_US
        return micros(statistics.max)

    def _read(self, row_group: int, names: Sequence[str] | None) -> pa.Table:
        wanted = None if names is None else [TIMESTAMP, UPTIME, START, "value", *names]
        present = self._file.schema_arrow.names
        try:
            return self._file.read_row_group(
                row_group, columns=None if wanted is None else [name for name in present if name in wanted]
            ).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            message = f"{self._what}: row group {row_group} cannot be read: {error}"
            raise CorruptionError(message) from error

    def _piece(self, table: pa.Table, first_row: int) -> Piece:
        columns = {name: _one(table.column(name)) for name in table.schema.names}
        timestamps, uptimes = columns.pop(TIMESTAMP, None), columns.pop(UPTIME, None)
        mask = 0
        arrays = []
        for field in schema_of(ALL_BITS):
            column = columns.get(field.name)
            if column is None or (field.nullable and column.null_count == len(column)):
                continue
            arrays.append(column if column.type == field.type else column.cast(field.type))
            mask |= BITS[field.name]
        payload = pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))
        return Piece(first_row, payload, _micros(timestamps), _micros(uptimes))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _micros(column: pa.Array | None) -> NDArray[np.int64] | None:
    if column is None:
        return None
    return np.asarray(column.view(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
