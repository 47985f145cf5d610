"""What users give, checked: one record, or a table of them. Everything refused is ``InvalidArgument``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.format import compute as pc
from oncelog.format.payload import tables
from oncelog.format.payload.arrays import integers, present
from oncelog.format.payload.schema import BITS, FIELDS, HEADERS, SEQUENCE, START, VALUE, schema_of
from oncelog.types import Record

_BYTES = (bytes, bytearray, memoryview)
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_COLUMN_BYTES_MAX = (1 << 31) - 1
_VIEW_BYTES = 16
"""An element of a column of string views; it begins with the length."""
_LABELS = ("stream", "type", "producer", "tenant")


def refused(column: str, row: int | None, rule: str) -> InvalidArgument:
    """Return the error of a table that cannot be taken: which column breaks which rule, and in which row first."""
    error = InvalidArgument(f"{column if row is None else f'{column}, row {row}'}: {rule}")
    error.column, error.row, error.rule = column, row, rule
    return error


def _refuse(column: str, row: int | None, rule: str) -> NoReturn:
    raise refused(column, row, rule)


def _has_no_more(record: Record) -> bool:
    """Tell whether a record has no more than a value and an id."""
    return (
        record.headers is None
        and record.sequence is None
        and record.stream is None
        and record.type is None
        and record.producer is None
        and record.tenant is None
    )


def exact(record: Record) -> Record:
    """Return a record whose texts and numbers are of Python's own types: a subclass may encode as something else, and
    what one part of the writer has checked another would store differently.
    """
    if type(record.value) is bytes and (record.id is None or type(record.id) is str) and _has_no_more(record):
        return record  # the plain record of most appends: a loop over its fields costs more than storing it
    changes: dict[str, Any] = {}
    for name in ("id", "stream", "type", "producer", "tenant"):
        text = getattr(record, name)
        if type(text) is not str and isinstance(text, str):
            changes[name] = str.__str__(text)
    sequence = record.sequence
    if type(sequence) is not int and isinstance(sequence, int) and not isinstance(sequence, bool):
        changes["sequence"] = int.__add__(sequence, 0)
    if type(record.value) is not bytes and isinstance(record.value, bytes | bytearray | memoryview):
        changes["value"] = memoryview(record.value).tobytes()
    if isinstance(record.headers, Mapping):
        headers: Mapping[Any, Any] = record.headers
        changes["headers"] = {
            str.__str__(name) if isinstance(name, str) else name: (
                memoryview(value).tobytes() if isinstance(value, _BYTES) else value
            )
            for name, value in headers.items()
        }
    return msgspec.structs.replace(record, **changes) if changes else record


def check_record(record: Record) -> None:
    """Check one record's types and limits. A value may be any bytes-like: the caller makes it bytes."""
    value = record.value
    if type(value) is not bytes:
        _check_value_type(value)
    elif len(value) > limits.VALUE_BYTES_MAX:
        _refuse_value(len(value), None)
    if record.id is not None and not _check_text("id", record.id, limits.ID_BYTES_MAX):
        _refuse("id", None, "is empty, must have at least 1 byte; leave it out for a record without an id")
    if record.stream is not None:
        _check_text("stream", record.stream, limits.LABEL_BYTES_MAX)
    if record.type is not None:
        _check_text("type", record.type, limits.LABEL_BYTES_MAX)
    if record.headers is not None:
        _check_headers(record.headers)
    if record.producer is not None:
        _check_text("producer", record.producer, limits.LABEL_BYTES_MAX)
    if record.sequence is not None:
        _check_sequence(record.sequence)
    if record.tenant is not None:
        _check_text("tenant", record.tenant, limits.LABEL_BYTES_MAX)


def _check_value_type(value: object) -> None:
    if isinstance(value, str):
        _refuse("value", None, "is str, must be bytes: encode it, as in value.encode()")
    if not isinstance(value, bytes | bytearray | memoryview):
        _refuse("value", None, f"is {type(value).__name__}, must be bytes: encode it, as in oncelog.json.encode(value)")
    size_bytes = memoryview(value).nbytes
    if size_bytes > limits.VALUE_BYTES_MAX:
        _refuse_value(size_bytes, None)


def _check_text(name: str, text: object, bytes_max: int) -> int:
    if not isinstance(text, str):
        _refuse(name, None, f"is {type(text).__name__}, must be str")
    size_bytes = len(text) if text.isascii() else _utf8_bytes(name, text)
    if size_bytes > bytes_max:
        _refuse_text(name, size_bytes, bytes_max, None)
    return size_bytes


def _utf8_bytes(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        message = f"{name}: has a lone surrogate at character {error.start}, must be text that UTF-8 can hold"
        raise InvalidArgument(message) from error


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        _refuse("headers", None, f"is {type(headers).__name__}, must be a mapping of str to bytes")
    if len(headers) > limits.HEADERS_MAX:
        _refuse("headers", None, f"has {len(headers)}, must have at most {limits.HEADERS_MAX}")
    size_bytes = 0
    for name, value in headers.items():
        size_bytes += _check_text("headers: a name", name, limits.LABEL_BYTES_MAX)
        if not isinstance(value, bytes | bytearray | memoryview):
            _refuse("headers", None, f"{name!r} is {type(value).__name__}, must be bytes")
        size_bytes += memoryview(value).nbytes
    if size_bytes > limits.HEADER_BYTES_MAX:
        _refuse("headers", None, f"has {size_bytes} bytes, must have at most {limits.HEADER_BYTES_MAX}")


def _check_sequence(sequence: object) -> None:
    if not isinstance(sequence, int) or isinstance(sequence, bool):
        _refuse("sequence", None, f"is {type(sequence).__name__}, must be int")
    if not _INT64_MIN <= sequence <= _INT64_MAX:
        _refuse("sequence", None, f"is {sequence}, must fit 64 bits")


def _refuse_value(size_bytes: int, row: int | None) -> NoReturn:
    _refuse("value", row, f"has {size_bytes} bytes, must have at most {limits.VALUE_BYTES_MAX}")


def _refuse_text(name: str, size_bytes: int, bytes_max: int, row: int | None) -> NoReturn:
    _refuse(name, row, f"has {size_bytes} bytes in UTF-8, must have at most {bytes_max}")


def normalise(given: tables.Tabular) -> pa.RecordBatch:
    """Return a user's table as a payload: canonical order and types, all-null columns left out.

    Refuses unknown and repeated columns, a missing ``value``, wrong types, null values, text that is not UTF-8, and
    a column too large for one batch. Limits are for ``check_limits``.
    """
    given = tables.table_of(given)
    _check_names(given.schema.names)
    mask = 0
    arrays = []
    for bit, field in FIELDS.items():
        if bit == START or field.name not in given.schema.names:
            continue
        array = _canonical(bit, given.column(field.name))
        if bit == VALUE or array.null_count < len(array):
            mask |= bit
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))


def _check_names(names: list[str]) -> None:
    allowed = [name for name in BITS if name != "start"]
    for name in names:
        if name not in allowed:
            _refuse(name, None, f"unknown column, there are {', '.join(allowed)}")
        if names.count(name) > 1:
            _refuse(name, None, f"is there {names.count(name)} times, must be there once")
    if "value" not in names:
        _refuse("value", None, "missing, must be there")


def _canonical(bit: int, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    field = FIELDS[bit]
    _check_type(bit, field.name, column.type)
    if bit == VALUE and column.null_count:
        _refuse(field.name, _first(column.is_null()), "is null, must have a value")
    if column.nbytes > _COLUMN_BYTES_MAX:
        _refuse(field.name, None, f"has {column.nbytes} bytes, must have at most {_COLUMN_BYTES_MAX}: append in parts")
    _validate(field.name, column)
    array = _one(column) if isinstance(column, pa.ChunkedArray) else column
    if array.type.equals(field.type):
        return array
    _check_spread(field.name, array)
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        return _cast_part(field, array, error)


def _check_spread(name: str, array: pa.Array) -> None:
    """Refuse a column that names one long text many times: spelled out, it would fill the memory."""
    size_bytes = spelled_bytes(array)
    if size_bytes > _COLUMN_BYTES_MAX:
        _refuse(name, None, f"has {size_bytes} bytes spelled out, must have at most {_COLUMN_BYTES_MAX}")


def spelled_bytes(array: pa.Array) -> int:
    """Return how many bytes the texts of a column have that may name one text many times; 0 for another column."""
    kind = array.type
    if pa.types.is_dictionary(kind) and (_is_text(kind.value_type) or _is_bytes(kind.value_type)):
        lengths = _lengths(array.dictionary).take(array.indices)
    elif _is_view(array.type):
        lengths = _lengths(array)
    else:
        return 0
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0)


def _lengths(array: pa.Array) -> pa.Array:
    """Return the lengths in bytes. Arrow has no function for those of views."""
    if not _is_view(array.type):
        return pc.binary_length(array)
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW_BYTES // 4)
    return pa.array(views[array.offset : array.offset + len(array), 0], mask=~present(array))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece; one that is in one piece already is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cast_part(field: pa.Field, array: pa.Array, error: Exception) -> pa.Array:
    if pa.types.is_integer(array.type):
        _refuse(field.name, _first(pc.greater(array, pa.scalar(_INT64_MAX, pa.uint64()))), "does not fit 64 bits")
    # A slice far into a large column has offsets beyond 32 bits until it is copied.
    try:
        return array.take(integers(np.arange(len(array)))).cast(field.type)
    except pa.ArrowException:
        raise refused(field.name, None, f"cannot become {field.type}: {error}") from error


def _validate(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    try:
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not _is_ascii(chunk):
                chunk.validate(full=True)
    except pa.ArrowInvalid as error:
        _refuse_invalid(name, column, error)


def _is_ascii(array: pa.Array) -> bool:
    """Tell, at a tenth of the cost of looking for UTF-8, whether a string column is valid and plain ASCII."""
    if not array.type.equals(pa.string()) or len(array) == 0:
        return False
    array.view(pa.binary()).validate(full=True)
    marks = _marks(array)
    first, last = int(marks[0]), int(marks[-1])
    return first == last or bool(np.frombuffer(array.buffers()[2], np.int8, last - first, first).min() >= 0)


def _marks(array: pa.Array) -> NDArray[np.int32]:
    """Return the offsets of a binary or string array that is not empty."""
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def _refuse_invalid(name: str, column: pa.Array | pa.ChunkedArray, error: Exception) -> NoReturn:
    for row in range(len(column)):
        try:
            column.slice(row, 1).validate(full=True)
        except pa.ArrowInvalid:
            raise refused(name, row, f"not a valid {column.type}: {error}") from error
    raise refused(name, None, f"not a valid {column.type}: {error}") from error


def _check_type(bit: int, name: str, kind: pa.DataType) -> None:
    spelled = kind.value_type if pa.types.is_dictionary(kind) else kind
    if bit == VALUE:
        fits = _is_bytes(spelled) or _is_text(spelled)
    elif pa.types.is_null(kind):
        fits = True
    elif bit == SEQUENCE:
        fits = pa.types.is_integer(kind)
    elif bit == HEADERS:
        fits = pa.types.is_map(kind) and _is_text(kind.key_type) and _is_bytes(kind.item_type)
    else:
        fits = _is_text(spelled)
    if not fits:
        _refuse(name, None, f"is {kind}, must be {FIELDS[bit].type}{' or string' if bit == VALUE else ''}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _first(flags: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.index(flags, pa.scalar(value=True)).as_py())


def check_limits(payload: pa.RecordBatch) -> None:
    """Check every row of a payload against ``limits``; the message names column, first offending row and rule."""
    for name, column in zip(payload.schema.names, payload.columns, strict=True):
        if name == "value":
            _check_lengths(name, column, 0, limits.VALUE_BYTES_MAX)
        elif name == "id":
            _check_lengths(name, column, 1, limits.ID_BYTES_MAX)
        elif name in _LABELS:
            _check_lengths(name, column, 0, limits.LABEL_BYTES_MAX)
        elif name == "headers":
            _check_header_column(column)


def _check_lengths(name: str, column: pa.Array, bytes_min: int, bytes_max: int) -> None:
    if len(column) and not column.null_count:
        sizes_bytes = np.diff(_marks(column))
        if sizes_bytes.min() >= bytes_min and sizes_bytes.max() <= bytes_max:
            return
    lengths = pc.binary_length(column)
    span = pc.min_max(lengths).as_py()
    if span["min"] is None or (span["min"] >= bytes_min and span["max"] <= bytes_max):
        return
    row = _first(pc.or_(pc.less(lengths, bytes_min), pc.greater(lengths, bytes_max)))
    _refuse(name, row, f"has {lengths[row].as_py()} bytes, must have {bytes_min} to {bytes_max}")


def _check_header_column(column: pa.MapArray) -> None:
    marks = np.asarray(column.offsets)
    first, count = int(marks[0]), int(marks[-1] - marks[0])
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    rows = np.repeat(np.arange(len(column)), np.diff(marks))
    if values.null_count:
        _refuse("headers", int(rows[_first(values.is_null())]), "a header is null, must have bytes")
    name_bytes = np.asarray(pc.binary_length(names))
    total_bytes = np.bincount(rows, name_bytes + np.asarray(pc.binary_length(values)), len(column))
    _check_most(np.diff(marks), limits.HEADERS_MAX, "headers", np.arange(len(column)))
    _check_most(total_bytes, limits.HEADER_BYTES_MAX, "bytes", np.arange(len(column)))
    _check_most(name_bytes, limits.LABEL_BYTES_MAX, "bytes in a header's name", rows)
    _check_unique(names, rows)


def _check_most(found: NDArray[np.number], most: int, unit: str, rows: NDArray[np.int64]) -> None:
    over = np.flatnonzero(found > most)
    if over.size:
        _refuse("headers", int(rows[over[0]]), f"has {int(found[over[0]])} {unit}, must have at most {most}")


def _check_unique(names: pa.Array, rows: NDArray[np.int64]) -> None:
    encoded = names.dictionary_encode()
    pairs = rows * max(len(encoded.dictionary), 1) + np.asarray(encoded.indices)
    ordered = np.sort(pairs)
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if repeated.size:
        row, code = divmod(int(ordered[repeated[0]]), len(encoded.dictionary))
        _refuse("headers", row, f"has the name {encoded.dictionary[code].as_py()!r} twice, must have it once")
