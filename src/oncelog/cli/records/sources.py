"""What ``append`` reads: lines, JSON lines, Arrow and Parquet, a batch at a time and in constant memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oncelog.cli.terminal.options import InputFormat
from oncelog.errors import InvalidArgument
from oncelog.format.payload.intake import spelled_bytes
from oncelog.format.payload.ipc import Malformed, inflated_bytes
from oncelog.format.payload.schema import FIELDS, HEADERS_TYPE, READ_SCHEMA
from oncelog.limits import INPUT_BATCH_BYTES_MAX, VALUE_BYTES_MAX
from oncelog.shapes import UNREADABLE

BATCH_BYTES = 8 << 20
BATCH_RECORDS = 1 << 16
STDIN = Path("-")

_ARROW_FILE_MAGIC = b"ARROW1"
_ARROW_FILE_HEAD_BYTES = 8
_PIPE_BYTES = 1 << 20
_FORMATS: dict[str, InputFormat] = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_ASSIGNED = ("position", "segment", "entry", "timestamp")
"""What ``cat`` writes and a log assigns again."""


class Refusal(NamedTuple):
    """A line, or row, that did not get in, and why."""

    place: int
    reason: str


class SourceBatch(NamedTuple):
    """Records in columns, the line (or row) each came from, the lines that are no records, and how much was read."""

    records: pa.RecordBatch
    places: Sequence[int]
    refusals: Sequence[Refusal]
    size_bytes: float


@dataclass(frozen=True)
class Fields:
    """Where in a document, or in which column, the id and the value are."""

    id: str | None = None
    value: str | None = None

    def __bool__(self) -> bool:
        """Tell whether one of them was named."""
        return self.id is not None or self.value is not None


def format_of(path: Path, fields: Fields) -> InputFormat:
    """Return the format of a file for which none was named: its name decides."""
    return _FORMATS.get(path.suffix, "jsonl" if fields else "lines")


def batches(path: Path, format: InputFormat, fields: Fields) -> Iterator[SourceBatch]:
    """Yield what is in a file, or on stdin, in the order it is there."""
    with contextlib.ExitStack() as stack:
        stream: BinaryIO = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
        if format == "lines":
            yield from _line_batches(stream)
        elif format == "jsonl":
            yield from _json_batches(stream, _record if not fields else _document(fields))
        else:
            yield from _column_batches(path, stream, format, fields)


def given(values: Sequence[bytes], fields: Fields) -> SourceBatch:
    """Return values of a command's own line as a batch: the place of each is its number, from 1."""
    if fields:
        return _json_batch(1, values, _document(fields), 0)
    return _line_batch(1, values, 0)


# Lines.


def _arrivals(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what has arrived, without waiting for more than there is: records of a slow source are stored promptly."""
    descriptor = stream.fileno()
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # more to store with each sync
    while data := os.read(descriptor, BATCH_BYTES):
        parts, size = [data], len(data)
        while size < BATCH_BYTES and select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, BATCH_BYTES - size)
            if not data:
                break
            parts.append(data)
            size += len(data)
        yield b"".join(parts)


def _lines(stream: BinaryIO) -> Iterator[tuple[list[bytes | None], int]]:
    """Yield lines as they arrive, with the bytes read; ``None`` is a line too long for a value, which is not kept."""
    rest, too_long = b"", False
    for data in _arrivals(stream):
        found: list[bytes | None] = [*(rest + data).split(b"\n")]
        rest = found.pop() or b""
        if too_long and found:
            found[0], too_long = None, False
        if too_long or len(rest) > VALUE_BYTES_MAX:
            rest, too_long = b"", True
        yield found, len(data)
    if rest or too_long:
        yield [None if too_long else rest], 0


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, list[bytes | None], int]]:
    """Yield lines in groups no larger than a batch: the number of the first, the lines, the bytes read."""
    number = 1
    for found, size in _lines(stream):
        for start in range(0, len(found), BATCH_RECORDS):
            yield number, found[start : start + BATCH_RECORDS], 0
            number += len(found[start : start + BATCH_RECORDS])
        yield number, [], size


def _too_long(number: int) -> Refusal:
    return Refusal(number, f"longer than a value may be ({VALUE_BYTES_MAX:,} bytes)")


def _line_batches(stream: BinaryIO) -> Iterator[SourceBatch]:
    return (_line_batch(number, found, size) for number, found, size in _numbered(stream))


def _line_batch(number: int, found: Sequence[bytes | None], size: int) -> SourceBatch:
    refusals = [_too_long(place) for place, line in enumerate(found, number) if line is None]
    places: Sequence[int] = range(number, number + len(found))
    if refusals:
        places = [place for place, line in enumerate(found, number) if line is not None]
    values = pa.array([line for line in found if line is not None], pa.binary())
    return SourceBatch(pa.record_batch({"value": values}), places, refusals, size)


# JSON lines.


class _Bytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not text, as ``cat`` writes them."""

    base64: bytes


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as one JSON object: what ``cat --format jsonl`` writes can be appended again."""

    value: str | None = None
    value_base64: bytes | None = None
    id: str | None = None
    stream: str | None = None
    type: str | None = None
    headers: dict[str, str | _Bytes] | None = None
    producer: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    tenant: str | None = None
    position: int | None = None
    segment: int | None = None
    entry: int | None = None
    timestamp: str | None = None


_DOCUMENTS = "--id-field takes any document and keeps it whole, --format lines takes lines as they are"
_LINE = msgspec.json.Decoder(_Line)
_DOCUMENT = msgspec.json.Decoder()
_JSON_COLUMNS = ("value", "id", "stream", "type", "headers", "producer", "sequence", "tenant")
_TYPES: dict[str, pa.DataType] = {field.name: field.type for field in FIELDS.values()} | {"headers": HEADERS_TYPE}


def _record(line: bytes) -> dict[str, Any]:
    """Return the fields of a record that is spelled out."""
    try:
        found = _LINE.decode(line)
    except msgspec.ValidationError as error:
        message = f"is not a record as cat writes it: {error}; {_DOCUMENTS}"
        raise InvalidArgument(message) from None
    if (found.value is None) == (found.value_base64 is None):
        message = f"needs a value, or a value_base64; {_DOCUMENTS}"
        raise InvalidArgument(message)
    headers = found.headers and [
        (name, part.encode() if isinstance(part, str) else part.base64) for name, part in found.headers.items()
    ]
    value = found.value.encode() if found.value is not None else found.value_base64
    return {name: getattr(found, name) for name in _JSON_COLUMNS} | {"value": value, "headers": headers}


def _document(fields: Fields) -> Any:
    """Return what makes a record of a document: the whole line is its value, unless a field is named for that."""

    def record(line: bytes) -> dict[str, Any]:
        document = _DOCUMENT.decode(line)
        value = line if fields.value is None else _as_bytes(_pick(document, fields.value))
        id = None if fields.id is None else _as_id(_pick(document, fields.id), fields.id)
        return {"value": value, "id": id}

    return record


def _pick(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    if document is None:
        message = f"has no {path!r}"
        raise InvalidArgument(message)
    return document


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _as_id(value: Any, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        message = f"{path!r} is {msgspec.json.encode(value).decode()}: an id is a string or a whole number"
        raise InvalidArgument(message)
    return str(value)


def _json_batches(stream: BinaryIO, record: Any) -> Iterator[SourceBatch]:
    return (_json_batch(number, found, record, size) for number, found, size in _numbered(stream))


def _json_batch(number: int, found: Sequence[bytes | None], record: Any, size: int) -> SourceBatch:
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    refusals: list[Refusal] = []
    for place, line in enumerate(found, number):
        if line is None:
            refusals.append(_too_long(place))
        elif line.strip():
            try:
                rows.append(record(line))
                places.append(place)
            except (InvalidArgument, UnicodeError, *UNREADABLE) as error:
                refusals.append(Refusal(place, str(error)))
    return SourceBatch(_columns(rows), places, refusals, size)


def _columns(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = rows[0] if rows else ("value",)
    return pa.record_batch({name: pa.array([row[name] for row in rows], _TYPES[name]) for name in names})


# Arrow and Parquet.


def _column_batches(path: Path, stream: BinaryIO, format: InputFormat, fields: Fields) -> Iterator[SourceBatch]:
    row = 0
    try:
        for part, size_bytes in _parquet(stream) if format == "parquet" else _arrow(stream):
            yield _renamed(part, range(row, row + part.num_rows), fields, size_bytes)
            row += part.num_rows
    except (pa.ArrowException, OSError, Malformed, UnicodeError) as error:
        message = f"{path}: cannot be read as {format}, from row {row} on: {error}"
        raise InvalidArgument(message) from error


def _parquet(stream: BinaryIO) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield the rows of a Parquet file, so many at a time that they fit into memory as the file declares their size."""
    if not stream.seekable():
        message = "a Parquet file is read from its end: name the file instead of piping it in"
        raise InvalidArgument(message)
    metadata = pq.read_metadata(stream)
    stream.seek(0)
    file = pq.ParquetFile(stream, read_dictionary=_dictionaries(metadata))
    row_bytes = os.fstat(stream.fileno()).st_size / (metadata.num_rows or 1)
    for part in file.iter_batches(_rows_at_once(metadata)):
        for piece in _spelled_out(part):
            yield piece, row_bytes * piece.num_rows


def _dictionaries(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns that have a dictionary. Spelled out at once, one long value could fill the memory."""
    found = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        found |= {
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page and "." not in column.path_in_schema
        }
    return sorted(found)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Return how many rows are read at once: no more bytes than a batch may have, by the largest row group."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
    return max(1, min(BATCH_RECORDS, int(BATCH_BYTES / max(row_bytes, 1))))


def _spelled_out(part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in pieces in which the values of dictionaries are spelled out, each of a size that fits."""
    coded = [number for number, column in enumerate(part.columns) if pa.types.is_dictionary(column.type)]
    sizes_bytes = np.zeros(part.num_rows)
    for number in coded:
        lengths = pc.binary_length(part.column(number).dictionary).take(part.column(number).indices)
        sizes_bytes += lengths.fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes_bytes)
    start = 0
    while start < part.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_BYTES, side="right")))
        piece = part.slice(start, stop - start)
        for number in coded:
            column = piece.column(number)
            piece = piece.set_column(number, piece.schema.names[number], column.cast(column.type.value_type))
        yield piece
        start = stop


def _arrow(stream: BinaryIO) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield the batches of an Arrow file or an Arrow stream, checked in full before anything looks into them.

    What a file has behind its magic is a stream.
    """
    if stream.seekable() and stream.read(len(_ARROW_FILE_MAGIC)) != _ARROW_FILE_MAGIC:
        stream.seek(0)
    elif stream.seekable():
        stream.seek(_ARROW_FILE_HEAD_BYTES)
    messages = _Messages(stream)
    for part in pa.ipc.open_stream(pa.PythonFile(messages, mode="r")):
        part.validate(full=True)
        size_bytes = messages.taken_bytes()
        for start in range(0, part.num_rows, BATCH_RECORDS):
            yield (
                part.slice(start, BATCH_RECORDS),
                size_bytes * min(BATCH_RECORDS, part.num_rows - start) / part.num_rows,
            )


class _Arrivals:
    """A stream that is read in steps: a length that a file claims is not allocated before the bytes are there."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        parts = []
        while size > 0 and (part := self._stream.read(min(size, BATCH_BYTES))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Leave the stream to who opened it."""


class _Messages:
    """A stream of Arrow messages, each looked at before it is handed on: a small one may ask for gigabytes."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._messages = pa.ipc.MessageReader.open_stream(pa.PythonFile(_Arrivals(stream), mode="r"))
        self._waiting = pa.py_buffer(b"")
        self._at = 0
        self._taken_bytes = 0

    def read(self, size: int | None = None) -> bytes | pa.Buffer:
        """Return so many bytes, or fewer at the end of a message, none at the end of the stream."""
        if self._at == self._waiting.size and not self._next():
            return b""
        part = self._waiting.slice(self._at, self._waiting.size if size is None else size)
        self._at += part.size
        return part.to_pybytes()

    def _next(self) -> bool:
        try:
            message = self._messages.read_next_message()
        except StopIteration:
            return False
        body = message.body if message.body is not None else pa.py_buffer(b"")
        inflated = inflated_bytes(memoryview(message.metadata), memoryview(body))
        if inflated > max(INPUT_BATCH_BYTES_MAX, body.size):
            reason = (
                f"a batch of {body.size:,} bytes becomes {inflated:,}: more than the {INPUT_BATCH_BYTES_MAX:,} "
                "that a compressed batch may; write the file in smaller batches, or uncompressed"
            )
            raise InvalidArgument(reason)
        self._waiting, self._at = message.serialize(), 0
        self._taken_bytes += self._waiting.size
        return True

    def taken_bytes(self) -> int:
        """Return how much was read since the last call."""
        taken, self._taken_bytes = self._taken_bytes, 0
        return taken

    def close(self) -> None:
        """Nothing is held open."""


def _renamed(part: pa.RecordBatch, places: Sequence[int], fields: Fields, size_bytes: float) -> SourceBatch:
    """Return the columns that a log takes: those named, or all but what the log assigns itself."""
    present = dict(zip(part.schema.names, part.columns, strict=True))
    for name in (fields.value or "value", fields.id or "id") if fields else present:
        if (count := part.schema.names.count(name)) > 1:
            message = f"{name}: there are {count} columns of this name, must be one: rename the others"
            raise InvalidArgument(message)
    chosen = {name: column for name, column in present.items() if name not in _ASSIGNED}
    if fields:
        wanted = {"value": fields.value or "value", "id": fields.id or "id"}
        chosen = {name: present[column] for name, column in wanted.items() if column in present}
        for column in (fields.value, fields.id):
            if column is not None and column not in present:
                message = f"there is no column {column!r}, but {', '.join(present)}"
                raise InvalidArgument(message)
    for name, column in chosen.items():
        if (spelled := spelled_bytes(column)) > max(INPUT_BATCH_BYTES_MAX, part.nbytes):
            message = f"{name}: a batch has {spelled:,} bytes spelled out, must have at most {INPUT_BATCH_BYTES_MAX:,}"
            raise InvalidArgument(message)
    if "value" in chosen and pa.types.is_string(chosen["value"].type):
        chosen["value"] = chosen["value"].cast(pa.binary())
    if "id" in chosen and pa.types.is_integer(chosen["id"].type):
        chosen["id"] = chosen["id"].cast(pa.string())
    return SourceBatch(pa.RecordBatch.from_arrays([*chosen.values()], names=[*chosen]), places, (), size_bytes)


assert set(_ASSIGNED) | set(_JSON_COLUMNS) == set(READ_SCHEMA.names)
