"""The payload of a log: its columns, from records and tables, to entries and tables.

A payload is a ``pa.RecordBatch`` with ``value`` and any of the other columns, in canonical order. A column that
would hold only nulls is left out; ``start`` (the record begins an atomic batch) is left out when it would be all true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format.payload.arrays import binaries, booleans, integers, numbers, texts
from oncelog.format.payload.schema import (
    FIELDS,
    HEADERS,
    HEADERS_TYPE,
    ID,
    PRODUCER,
    READ_SCHEMA,
    SEQUENCE,
    START,
    STREAM,
    TENANT,
    TYPE,
    VALUE,
    mask_of,
    read_schema,
    schema_of,
)
from oncelog.types import Entry, Record, moment

Timestamps: TypeAlias = int | NDArray[np.int64] | pa.Array
"""Microseconds since 1970: one for all rows, or one for each."""


_ENTRY_COLUMNS = Entry.__struct_fields__[4:]


def from_records(records: Sequence[Record], starts: Sequence[bool] | None = None) -> pa.RecordBatch:
    """Return checked records as a payload. ``starts`` has the batch-start bits; ``None`` means all true."""
    mask = VALUE
    arrays = [binaries([record.value for record in records])]
    for bit, array in _optional_arrays(records):
        mask |= bit
        arrays.append(array)
    if starts is not None and not all(starts):
        mask |= START
        arrays.append(booleans(np.array(starts, np.bool_)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))


def _optional_arrays(records: Sequence[Record]) -> list[tuple[int, pa.Array]]:
    columns: tuple[tuple[int, list[Any]], ...] = (
        (ID, [record.id for record in records]),
        (STREAM, [record.stream for record in records]),
        (TYPE, [record.type for record in records]),
        (HEADERS, [_pairs(record.headers) for record in records]),
        (PRODUCER, [record.producer for record in records]),
        (SEQUENCE, [record.sequence for record in records]),
        (TENANT, [record.tenant for record in records]),
    )
    absent = [None] * len(records)
    return [(bit, _array(bit, values)) for bit, values in columns if values != absent]


def _array(bit: int, values: list[Any]) -> pa.Array:
    if bit == SEQUENCE:
        given = np.array([0 if value is None else value for value in values], np.int64)
        return integers(given, np.array([value is not None for value in values]))
    return pa.array(values, FIELDS[bit].type) if bit == HEADERS else texts(values)


def _pairs(headers: Mapping[str, bytes] | None) -> list[tuple[str, bytes]] | None:
    return None if headers is None else list(headers.items())


def concat(batches: Sequence[pa.RecordBatch], masks: Sequence[int] | None = None) -> pa.RecordBatch:
    """Return payloads as one, in order. A column only some have is filled: ``start`` with true, others with null.

    ``masks`` says which columns each has, if that is known.
    """
    if len(batches) == 1:
        return batches[0]
    masks = [mask_of(batch.schema) for batch in batches] if masks is None else masks
    union = 0
    for mask in masks:
        union |= mask
    return pa.concat_batches(
        [batch if mask == union else _widened(batch, union) for batch, mask in zip(batches, masks, strict=True)]
    )


def _widened(batch: pa.RecordBatch, mask: int) -> pa.RecordBatch:
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [
        present[field.name] if field.name in present else _filler(field, batch.num_rows) for field in schema_of(mask)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))


def _filler(field: pa.Field, count: int) -> pa.Array:
    return pa.nulls(count, field.type) if field.nullable else booleans(np.ones(count, np.bool_))


def entries(
    payload: pa.RecordBatch, first_position: int, segment: int, first_entry: int, timestamp_us: Timestamps
) -> list[Entry]:
    """Return a payload's rows as entries."""
    count = payload.num_rows
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    given = [present.get(name) for name in _ENTRY_COLUMNS]
    while given[-1] is None:  # most records have a value, perhaps an id, and nothing else
        given.pop()
    rows: list[Iterable[Any]] = [
        range(first_position, first_position + count),
        repeat(segment),
        range(first_entry, first_entry + count),
        _moments(timestamp_us),
        *map(_objects, given),
    ]
    return list(map(Entry, *rows))


def _moments(timestamp_us: Timestamps) -> Iterable[datetime]:
    try:
        if isinstance(timestamp_us, int):
            return repeat(moment(timestamp_us))
        array = _micros_array(timestamp_us)
        if len(array) and (array == array[0]).all():  # the records of a block have one time
            return repeat(moment(int(array[0])))
        micros = array.tolist()
        known = {one: moment(one) for one in set(micros)}
    except OverflowError as error:
        message = f"a time in a block or file whose checksum holds is on no calendar: {error}"
        raise CorruptionError(message) from error
    return map(known.__getitem__, micros)


def _objects(column: pa.Array | None) -> Iterable[Any]:
    if column is None:
        return repeat(None)
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        message = f"text in a block or file whose checksum holds is not UTF-8: {error}"
        raise CorruptionError(message) from error
    if column.type.equals(HEADERS_TYPE):
        return [None if headers is None else dict(headers) for headers in found]
    return found


def _micros_array(timestamps: NDArray[np.int64] | pa.Array) -> NDArray[np.int64]:
    if isinstance(timestamps, pa.Array):
        return numbers(timestamps)
    return np.ascontiguousarray(timestamps, np.int64)


def view(  # noqa: PLR0917
    payload: pa.RecordBatch,
    first_position: int,
    segment: int,
    first_entry: int,
    timestamp_us: Timestamps,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return a payload as a reader sees it: ``READ_SCHEMA``, or the columns asked for, in the order asked for.

    The payload's buffers are shared, not copied. A column the payload lacks is all null.
    """
    schema, fields = _plan(None if columns is None else tuple(columns))
    given = payload.schema.names
    if columns and all(name in given for name in columns):
        return payload if given == columns else payload.select(columns)
    count = payload.num_rows
    present = dict(zip(given, payload.columns, strict=True))
    place = {"position": first_position, "entry": first_entry}
    arrays = []
    for name, kind in fields:
        if name in present:
            arrays.append(present[name])
        elif name in place:
            arrays.append(_counted(place[name], count))
        elif name == "segment":
            arrays.append(_repeated(segment, count))
        elif name == "timestamp":
            arrays.append(_moments_array(timestamp_us, count, kind))
        else:
            arrays.append(_nulls(count, name) if count <= _NULLS_MAX else pa.nulls(count, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_NULLS: dict[str, pa.Array] = {}
_NULLS_MAX = 1 << 16


@lru_cache(maxsize=64)
def _nulls(count: int, name: str) -> pa.Array:
    """Return so many nulls for a column. All batches share the memory of one: most records lack most columns."""
    found = _NULLS.get(name)
    if found is None or len(found) < count:
        found = pa.nulls(1 << (count - 1).bit_length() if count else 1, READ_SCHEMA.field(name).type)
        _NULLS[name] = found
    return found.slice(0, count)


@lru_cache(maxsize=8)
def _repeated(number: int, count: int) -> pa.Array:
    """Return a number so many times: blocks of one segment, and of one size, follow each other."""
    return _integers(np.full(count, number, np.int64), pa.int64())


@cache
def _plan(names: tuple[str, ...] | None) -> tuple[pa.Schema, list[tuple[str, pa.DataType]]]:
    schema = READ_SCHEMA if names is None else read_schema(names)
    return schema, [(field.name, field.type) for field in schema]


def _counted(first: int, count: int) -> pa.Array:
    """Return so many numbers from one on.

    Arrow's allocator keeps the memory of batches that are gone. The C library gives it back to the system when many are
    kept and then dropped, and clearing it again costs five times as much as the numbers.
    """
    memory = pa.allocate_buffer(8 * count)
    np.add(_counting(max(0, count - 1).bit_length())[:count], first, out=np.frombuffer(memory, np.int64))
    return pa.Array.from_buffers(pa.int64(), count, [None, memory])


@lru_cache(maxsize=4)
def _counting(bits: int) -> NDArray[np.int64]:
    return np.arange(1 << bits, dtype=np.int64)


def _moments_array(timestamp_us: Timestamps, count: int, kind: pa.DataType) -> pa.Array:
    if not isinstance(timestamp_us, int):
        return _integers(_micros_array(timestamp_us), kind)
    memory = pa.allocate_buffer(8 * count)
    np.frombuffer(memory, np.int64).fill(timestamp_us)
    return pa.Array.from_buffers(kind, count, [None, memory])


def _integers(given: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(given), [None, pa.py_buffer(given)])
