"""Parquet files whose columns differ from file to file: each value as the schema has it, or kept aside as text.

Spark's reader drops columns that the schema has not, and stops at a file whose column has another type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_ROWS = 10_000


def tables(file: Any, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch, list[list[tuple[str, str]] | None]]]:
    """Yield the number of the first row, rows in a schema, and for each row what has no place in the schema."""
    opened = pq.ParquetFile(file, page_checksum_verification=True)
    names = _named(opened.schema_arrow.names, schema.names)
    first_row = 0
    for found in opened.iter_batches(BATCH_ROWS):
        batch = found.rename_columns(names)
        extra: list[list[tuple[str, str]]] = [[] for _ in range(batch.num_rows)]
        columns = [_column(batch, field, extra) for field in schema]
        known = set(schema.names)
        for name in batch.schema.names:
            if name not in known:
                _keep(extra, name, batch.column(name))
        yield first_row, pa.RecordBatch.from_arrays(columns, schema=schema), [each or None for each in extra]
        first_row += batch.num_rows


def _named(found: list[str], wanted: list[str]) -> list[str]:
    """Return the names of columns, in the schema's spelling where the case alone differs; ``ArrowInvalid`` if one is
    there twice.
    """
    folded = [name.casefold() for name in found]
    known = {name.casefold(): name for name in wanted if name not in found and folded.count(name.casefold()) == 1}
    names = [name if name in wanted else known.get(name.casefold(), name) for name in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"column {twice[0]!r} is there twice"
        raise pa.ArrowInvalid(message)
    return names


def _column(batch: pa.RecordBatch, field: pa.Field, extra: list[list[tuple[str, str]]]) -> pa.Array:
    """Return a column in its type; values that do not fit are null, and kept aside."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    found = batch.column(field.name)
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()  # a categorical of pandas or polars
    if found.type == field.type:
        return found
    try:
        return _cast(found, field.type)
    except (pa.ArrowException, ValueError):
        return _one_by_one(found, field, extra)


def _cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast where nothing is lost by it: a number is no text, no time and no truth value, a time in nanoseconds must be
    whole microseconds, a struct must not have more fields, at any depth, and a decimal is not rounded. A ``DOUBLE`` has
    the digits that it holds, as everywhere.
    """
    way = _way(found.type, kind)
    made = pc.cast(found if way == found.type else pc.cast(found, way, safe=True), kind, safe=True)
    if pa.types.is_floating(kind) and pa.types.is_floating(found.type):
        _check_finite(found, made)
    return made


def _check_finite(found: pa.Array, made: pa.Array) -> None:
    if pc.any(pc.and_(pc.is_inf(made), pc.is_finite(found))).as_py():
        message = "a number that is too large"
        raise pa.ArrowInvalid(message)


_SORTS = (
    ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    ("moment", (pa.types.is_timestamp,)),
    ("day", (pa.types.is_date,)),
    ("time", (pa.types.is_time,)),
    ("duration", (pa.types.is_duration,)),
    ("truth", (pa.types.is_boolean,)),
)


def _sort_of(kind: pa.DataType) -> str:
    """Return what values of a type are. A value of another sort has another meaning, also where Arrow can cast it."""
    return next((sort for sort, tests in _SORTS if any(test(kind) for test in tests)), "")


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_MISMATCH = "another kind of value, or another shape"


def _way(found: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return the type by way of which values are cast: a number that becomes a decimal is a text in between, because
    Arrow would round it. ``ArrowInvalid`` if the cast would change or leave out something, at any depth.
    """
    if pa.types.is_null(found):
        return found
    if pa.types.is_dictionary(found):
        return _way(found.value_type, kind)
    if pa.types.is_struct(found) and pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        if any(field.name not in known for field in found):
            raise pa.ArrowInvalid(_MISMATCH)
        return pa.struct([(field.name, _way(field.type, known[field.name])) for field in found])
    if pa.types.is_map(found) and pa.types.is_map(kind):
        return pa.map_(_way(found.key_type, kind.key_type), _way(found.item_type, kind.item_type))
    if any(test(found) for test in _LISTS) and any(test(kind) for test in _LISTS):
        return pa.list_(_way(found.value_type, kind.value_type))
    if pa.types.is_nested(found) or pa.types.is_nested(kind) or _sort_of(found) != _sort_of(kind):
        raise pa.ArrowInvalid(_MISMATCH)
    return pa.string() if pa.types.is_floating(found) and pa.types.is_decimal(kind) else found


def _one_by_one(found: pa.Array, field: pa.Field, extra: list[list[tuple[str, str]]]) -> pa.Array:
    values: list[Any] = []
    for row, value in enumerate(found):
        if not value.is_valid:
            values.append(None)
            continue
        try:
            values.append(_cast(found.slice(row, 1), field.type)[0].as_py())
        except (pa.ArrowException, ValueError):
            values.append(None)
            extra[row].append((field.name, _text(value)))
    return pa.array(values, field.type)


def _keep(extra: list[list[tuple[str, str]]], name: str, column: pa.Array) -> None:
    for row, value in enumerate(column):
        if value.is_valid:
            extra[row].append((name, _text(value)))


def _text(value: pa.Scalar) -> str:
    """Return a value as JSON; a time in nanoseconds as its text, for Python has none."""
    if pa.types.is_timestamp(value.type) and value.type.unit == "ns":
        return msgspec.json.encode(pc.cast(value, pa.string()).as_py()).decode()
    found = _spelled(value.as_py())
    try:
        return msgspec.json.encode(found).decode()
    except (TypeError, msgspec.MsgspecError, ValueError):
        return msgspec.json.encode(str(found)).decode()


def _spelled(value: Any) -> Any:
    """Return a value in which numbers that are not finite, which JSON has not, are texts, as Spark writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _spelled(each) for name, each in value.items()}
    return [_spelled(each) for each in value] if isinstance(value, list | tuple) else value  # a map is of tuples
