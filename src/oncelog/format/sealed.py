"""A sealed file: records as a Parquet table that other tools read as it is.

Positions are not spelled out: a record's is its file's first position plus its row. So a file that was written
elsewhere, with the same columns, can become a part of a log without being rewritten. Columns that it lacks are null;
without ``timestamp`` its records have the time of their adoption, which the manifest knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format import compute as pc
from oncelog.format.output import bounded_output, output
from oncelog.format.payload.arrays import booleans, flags, integers, numbers
from oncelog.format.payload.schema import ALL_BITS, BITS, schema_of
from oncelog.types import micros

TIMESTAMP, UPTIME, START = "timestamp", "uptime_us", "start"
PURGED, IDENTITY, FINGERPRINT = "purged", "identity", "fingerprint"
IDENTITY_BYTES = 16
ROW_GROUP_ROWS = 1 << 16
SEALED_COMPRESSION = "zstd"
"""At Arrow's own level, which is 1. Level 3 takes a third more time for orders in JSON, and makes them no smaller."""
STAGED_COMPRESSION = "snappy"
"""A file that is made to be adopted is made while somebody waits: its columns are compressed in no time. Small files
are sealed again with their neighbours, and better, later."""
SAMPLES, SAMPLE_BYTES, SHRINKS = 3, 1 << 15, 0.875
"""A column is not compressed when none of so many samples, each of so many bytes, shrinks to less than this share. zstd
takes longer to find out that random bytes do not shrink than all else that makes the file.
"""
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
"""The columns of a file that a writer sealed: those of a record, the time of storing, the up-time of the writer at that
time, and whether the record begins a batch.
"""


_PURGE_FIELDS = [
    pa.field(PURGED, pa.int64()),
    pa.field(IDENTITY, pa.binary(IDENTITY_BYTES)),
    pa.field(FINGERPRINT, pa.uint64()),
]
"""The columns of a purged row: the position of the record that replaces it, its own identity and its fingerprint. A
file without purged rows does not have these columns.
"""


def with_purged(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file in which rows were purged."""
    return schema if PURGED in schema.names else pa.schema([*schema, *_PURGE_FIELDS])


class Purged(msgspec.Struct, frozen=True):
    """Rows that were purged: their numbers, sorted, which records stand in their stead, and who they were."""

    rows: NDArray[np.int64]
    survivors: NDArray[np.int64]
    keys: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]

    def cut(self, start: int, end: int) -> Purged | None:
        """Return those from row ``start`` to ``end``, numbered from there; ``None`` if there are none."""
        low, high = np.searchsorted(self.rows, (start, end))
        if low == high:
            return None
        return Purged(
            self.rows[low:high] - start, self.survivors[low:high], self.keys[low:high], self.fingerprints[low:high]
        )


class Piece:
    """Consecutive rows of a sealed file: a payload, each row's times (``None``: the file does not say), and which of
    them were purged.
    """

    __slots__ = ("first_row", "payload", "purged", "timestamps_us", "uptimes_us")

    def __init__(
        self,
        first_row: int,
        payload: pa.RecordBatch,
        timestamps_us: NDArray[np.int64] | None,
        uptimes_us: NDArray[np.int64] | None,
        purged: Purged | None = None,
    ) -> None:
        self.first_row = first_row
        self.payload = payload
        self.timestamps_us = timestamps_us
        self.uptimes_us = uptimes_us
        self.purged = purged


def to_table(
    payload: pa.RecordBatch,
    timestamps_us: NDArray[np.int64],
    uptimes_us: NDArray[np.int64],
    purged: Purged | None = None,
    schema: pa.Schema | None = None,
) -> pa.RecordBatch:
    """Return a payload in the columns of a sealed file, with those of purged rows where ``schema`` has them."""
    count = payload.num_rows
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    arrays = [integers(timestamps_us).view(SCHEMA.field(0).type)]
    arrays += [present.get(field.name, pa.nulls(count, field.type)) for field in _PAYLOAD]
    arrays.append(integers(uptimes_us))
    arrays.append(present[START] if START in present else booleans(np.ones(count, np.bool_)))
    if schema is None or PURGED not in schema.names:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return pa.RecordBatch.from_arrays([*arrays, *purge_columns(purged, count)], schema=schema)


def purge_columns(purged: Purged | None, count: int) -> list[pa.Array]:
    """Return the columns that purged rows have, for so many rows."""
    if purged is None:
        return [pa.nulls(count, field.type) for field in _PURGE_FIELDS]
    at = np.full(count, -1, np.int64)
    at[purged.rows] = np.arange(len(purged.rows))
    places = integers(at, at >= 0)
    keys = pa.py_buffer(np.ascontiguousarray(purged.keys, "<u8").tobytes())
    return [
        integers(purged.survivors).take(places),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(IDENTITY_BYTES), len(purged.rows), [None, keys]).take(places),
        pa.array(purged.fingerprints, pa.uint64()).take(places),
    ]


_KEPT = (TIMESTAMP, UPTIME, START, "producer", "sequence")
"""What a purged row keeps of a record: its times, its part in a batch, and how far its producer was."""


def rewritten(file: SealedFile, purged: Purged) -> pa.Buffer:
    """Return the bytes of a file with some of its rows emptied and marked; those purged before stay so."""
    schema = with_purged(file.schema)
    tables = (_emptied(table, purged.cut(row, row + table.num_rows), schema) for row, table in file.row_groups())
    return encode((batch for table in tables for batch in table.to_batches()), schema)


def _emptied(table: pa.Table, purged: Purged | None, schema: pa.Schema) -> pa.Table:
    """Return rows with some of them emptied and marked."""
    before = _purged(table)
    purged = _joined(before, purged) if before is not None and purged is not None else purged or before
    gone = np.zeros(table.num_rows, np.bool_)
    if purged is not None:
        gone[purged.rows] = True
    columns = []
    for field in table.schema:
        column = table.column(field.name)
        if field.name not in (PURGED, IDENTITY, FINGERPRINT):
            columns.append(column if field.name in _KEPT else _without(column, field, gone))
    return pa.table([*columns, *purge_columns(purged, table.num_rows)], schema=schema)


def _without(column: pa.ChunkedArray, field: pa.Field, gone: NDArray[np.bool_]) -> pa.ChunkedArray:
    """Return a column in which some rows are empty: null, where it may be."""
    if column.null_count == len(column) or not gone.any():
        return column
    if pa.types.is_map(field.type):
        return column.take(integers(np.arange(len(gone)), ~gone))
    return pc.if_else(booleans(gone), pa.scalar(None if field.nullable else b"", field.type), column)


def _joined(first: Purged, second: Purged) -> Purged:
    rows = np.concatenate([first.rows, second.rows])
    order = np.unique(rows, return_index=True)[1]  # one that was purged before stays as it was purged then
    return Purged(
        rows[order],
        np.concatenate([first.survivors, second.survivors])[order],
        np.concatenate([first.keys, second.keys])[order],
        np.concatenate([first.fingerprints, second.fingerprints])[order],
    )


def _purged(table: pa.Table) -> Purged | None:
    """Return which rows of a table were purged; ``None`` if none were."""
    if PURGED not in table.schema.names:
        return None
    marks = _one(table.column(PURGED))
    rows = np.flatnonzero(flags(marks.is_valid()))
    if not len(rows):
        return None
    chosen = integers(rows)
    keys = b"".join(_one(table.column(IDENTITY)).take(chosen).to_pylist())
    return Purged(
        rows,
        numbers(marks.take(chosen)),
        np.frombuffer(keys, "<u8").reshape(-1, 2).astype(np.uint64),
        numbers(_one(table.column(FINGERPRINT)).take(chosen)).view(np.uint64),
    )


STAGED_SCHEMA = pa.schema(_PAYLOAD)
"""The columns of a file that is made to be adopted: when it was stored is not known yet."""


def staged_schema(names: Iterable[str]) -> pa.Schema:
    """Return the schema of a staged file that has only the given columns: the others are optional."""
    wanted = {"value", *names}
    return pa.schema([field for field in _PAYLOAD if field.name in wanted])


def to_staged(payload: pa.RecordBatch, schema: pa.Schema = STAGED_SCHEMA) -> pa.RecordBatch:
    """Return a payload in the columns of a file that is made to be adopted, all of them or those of ``schema``."""
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    assert present.keys() - {START} <= set(schema.names)
    arrays = [
        present[field.name] if field.name in present else pa.nulls(payload.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parquet() -> Any:
    """Return Arrow's module for Parquet, loaded when the first file needs it: it loads TLS and file systems, too."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    return pq


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA, bytes_max: int = 0) -> pa.Buffer:
    """Return batches of ``to_table``, or of ``to_staged`` with its schema, as the bytes of a Parquet file.

    If ``bytes_max`` is given, other threads are not in the way (``bounded_output``). A larger file is an ``OSError``.
    """
    sink, written = bounded_output(bytes_max) if bytes_max else _growing()
    row_groups = _row_groups(batches, schema)
    first = next(row_groups, None) or schema.empty_table()
    is_staged = TIMESTAMP not in schema.names
    with _parquet().ParquetWriter(
        sink,
        schema,
        compression=_compression(first, STAGED_COMPRESSION if is_staged else SEALED_COMPRESSION),
        use_dictionary=[name for name in _LABELS if name in schema.names],
        write_statistics=_told(schema),
        write_page_checksum=not is_staged,  # what is staged has a checksum as a whole, and is in a hurry
        store_schema=True,
    ) as writer:
        for table in itertools.chain([first], row_groups):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return written()


def _growing() -> tuple[Any, Callable[[], pa.Buffer]]:
    sink = output()
    return sink, sink.getvalue


def _told(schema: pa.Schema) -> list[str]:
    """Return the columns of which a row group tells what it spans."""
    told = (TIMESTAMP, "id", "stream", "type") if TIMESTAMP in schema.names else ("stream", "type")
    return [name for name in told if name in schema.names]


def _compression(first: pa.Table, codec: str) -> dict[str, str]:
    """Return how each column is compressed, by what becomes of samples of the first row group."""
    found: dict[str, str] = {}
    for field, column in zip(first.schema, first.columns, strict=True):
        if field.name == "headers":
            found |= {"headers.key_value.key": codec, "headers.key_value.value": codec}
        else:
            found[field.name] = codec if _shrinks(column, codec) else "none"
    return found


def _shrinks(column: pa.ChunkedArray, codec: str) -> bool:
    """Tell whether a column is worth compressing. One that is not of bytes is small, or has a dictionary."""
    if len(column) == 0 or not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        return True
    samples = (_sample(column.slice(number * len(column) // SAMPLES)) for number in range(SAMPLES))
    return any(pa.compress(sample, codec).size < SHRINKS * len(sample) or not sample for sample in samples)


def _sample(column: pa.ChunkedArray) -> bytes:
    """Return the first bytes of a column: of many chunks, where records came one by one."""
    parts: list[pa.Buffer] = []
    left = SAMPLE_BYTES
    for chunk in column.iterchunks():
        _, offsets, data = chunk.buffers()
        if data is not None and left:
            ends = np.frombuffer(offsets, np.int32, len(chunk) + 1, 4 * chunk.offset)
            parts.append(data.slice(int(ends[0]), min(left, int(ends[-1] - ends[0]))))
            left -= parts[-1].size
        if not left:
            break
    return b"".join(parts)


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


def raw_bytes(tail: pa.Buffer, what: str) -> int | None:
    """Return how many bytes a sealed file comes to when it is not compressed, by its last bytes; ``None`` if they do
    not hold all of its footer.
    """
    try:
        found = _parquet().read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError, ValueError):
        return None
    total = sum(int(found.row_group(number).total_byte_size) for number in range(found.num_row_groups))
    if total < 0:
        message = f"{what}: its footer says that it has {total} bytes"
        raise CorruptionError(message)
    return total


class SealedFile:
    """A sealed file's bytes, opened for reading. The caller has checked that they are the bytes that were
    written.
    """

    def __init__(self, data: pa.Buffer, what: str) -> None:
        self._what = what
        self.size_bytes = int(data.size)
        try:
            self._file = _parquet().ParquetFile(pa.BufferReader(data))
            counts = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
            self._names: list[str] = self._file.schema_arrow.names
        except (pa.ArrowException, OSError, ValueError) as error:  # names that are not UTF-8 are a ValueError
            message = f"{what} is not a Parquet file that can be read: {error}"
            raise CorruptionError(message) from error
        if min(counts, default=0) < 0 or len(set(self._names)) < len(self._names):
            message = f"{what} has a row group of {min(counts, default=0)} rows, or a column twice: {self._names}"
            raise CorruptionError(message)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])

    @property
    def has_purged(self) -> bool:
        """Whether rows of the file were purged."""
        return PURGED in self._names

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self._file.schema_arrow

    def row_groups(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the file as it is, a row group at a time, each with the number of its first row."""
        for number in range(self._file.num_row_groups):
            yield int(self._starts[number]), self._read(number, None)

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return int(self._starts[-1])

    def pieces(
        self, start: int, end: int, names: Sequence[str] | None = None, not_before_us: int | None = None
    ) -> Iterator[Piece]:
        """Yield the rows from ``start`` to ``end``, a row group at a time; ``names`` are the payload columns to read:
        then the rows have timestamps, and no up-times.

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
            yield self._checked_piece(table.slice(low - begin, high - low), low)

    def _checked_piece(self, table: pa.Table, first_row: int) -> Piece:
        """Return rows of a table; ``CorruptionError`` if its columns are not those of a sealed file."""
        try:
            return self._piece(table, first_row)
        except (pa.ArrowException, ValueError, TypeError) as error:
            message = f"{self._what}: its columns from row {first_row} on do not make sense: {error}"
            raise CorruptionError(message) from error

    def _latest_us(self, row_group: int) -> int:
        """Return the time of a row group's last record as far as it is known, or one after all times."""
        if TIMESTAMP not in self._names:
            return _NEVER_US
        column = self._file.metadata.row_group(row_group).column(self._names.index(TIMESTAMP))
        statistics = column.statistics
        if column.path_in_schema != TIMESTAMP or statistics is None or not statistics.has_min_max:
            return _NEVER_US
        return micros(statistics.max)

    def _read(self, row_group: int, names: Sequence[str] | None) -> pa.Table:
        wanted = None if names is None else [TIMESTAMP, PURGED, IDENTITY, FINGERPRINT, *names]
        present = self._names
        try:
            return self._file.read_row_group(
                row_group, columns=None if wanted is None else [name for name in present if name in wanted]
            ).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            message = f"{self._what}: row group {row_group} cannot be read: {error}"
            raise CorruptionError(message) from error

    def _piece(self, table: pa.Table, first_row: int) -> Piece:
        purged = _purged(table)
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
        if not arrays:  # of a batch without columns, nobody can tell how many rows it has
            arrays, mask = [booleans(np.ones(table.num_rows, np.bool_))], BITS[START]
        payload = pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))
        return Piece(first_row, payload, _micros(timestamps), _micros(uptimes), purged)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _micros(column: pa.Array | None) -> NDArray[np.int64] | None:
    return None if column is None else numbers(column.view(pa.int64()))  # refuses types of another width
