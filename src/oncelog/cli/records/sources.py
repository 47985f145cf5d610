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
import pyarrow as pa
import pyarrow.parquet as pq

from oncelog.cli.terminal.options import InputFormat
from oncelog.errors import InvalidArgument
from oncelog.format.schema import FIELDS, HEADERS_TYPE, READ_SCHEMA
from oncelog.limits import VALUE_BYTES_MAX

BATCH_BYTES = 8 << 20
BATCH_RECORDS = 1 << 16
STDIN = Path("-")

_ARROW_FILE_MAGIC = b"ARROW1"
_PIPE_BYTES = 1 << 20
_FORMATS: dict[str, InputFormat] = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_ASSIGNED = ("position", "segment", "entry", "timestamp")
"""What ``cat`` writes and a log assigns anew."""


class Refusal(NamedTuple):
    """A line, or row, that did not get in, and why."""

    place: int
    reason: str


class Batch(NamedTuple):
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


def batches(path: Path, format: InputFormat, fields: Fields) -> Iterator[Batch]:
    """Yield what is in a file, or on stdin, in the order it is there."""
    with contextlib.ExitStack() as stack:
        stream: BinaryIO = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
        if format == "lines":
            yield from _line_batches(stream)
        elif format == "jsonl":
            yield from _json_batches(stream, _record if not fields else _document(fields))
        else:
            yield from _column_batches(path, stream, format, fields)


# Lines.


def _arrivals(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what has arrived, without waiting for more than there is: who writes slowly is stored promptly."""
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


def _line_batches(stream: BinaryIO) -> Iterator[Batch]:
    for number, found, size in _numbered(stream):
        refusals = [_too_long(place) for place, line in enumerate(found, number) if line is None]
        places: Sequence[int] = range(number, number + len(found))
        if refusals:
            places = [place for place, line in enumerate(found, number) if line is not None]
        values = pa.array([line for line in found if line is not None], pa.binary())
        yield Batch(pa.record_batch({"value": values}), places, refusals, size)


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


def _json_batches(stream: BinaryIO, record: Any) -> Iterator[Batch]:
    for number, found, size in _numbered(stream):
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
                except (msgspec.MsgspecError, InvalidArgument, UnicodeError, RecursionError) as error:
                    refusals.append(Refusal(place, str(error)))
        yield Batch(_columns(rows), places, refusals, size)


def _columns(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = rows[0] if rows else ("value",)
    return pa.record_batch({name: pa.array([row[name] for row in rows], _TYPES[name]) for name in names})


# Arrow and Parquet.


def _column_batches(path: Path, stream: BinaryIO, format: InputFormat, fields: Fields) -> Iterator[Batch]:
    size_bytes = os.fstat(stream.fileno()).st_size
    row = 0
    try:
        parts, rows = _parquet(stream) if format == "parquet" else _arrow(stream)
        for part in parts:
            yield _renamed(part, range(row, row + part.num_rows), fields, size_bytes * part.num_rows / (rows or 1))
            row += part.num_rows
    except (pa.ArrowException, OSError) as error:
        message = f"{path}: cannot be read as {format}, from row {row} on: {error}"
        raise InvalidArgument(message) from error


def _parquet(stream: BinaryIO) -> tuple[Iterator[pa.RecordBatch], int]:
    if not stream.seekable():
        message = "a Parquet file is read from its end: name the file instead of piping it in"
        raise InvalidArgument(message)
    file = pq.ParquetFile(stream)
    return file.iter_batches(BATCH_RECORDS), file.metadata.num_rows


def _arrow(stream: BinaryIO) -> tuple[Iterator[pa.RecordBatch], int]:
    """Return the batches of an Arrow file, or of an Arrow stream, and the rows there are if that is known."""
    if stream.seekable():
        magic = stream.read(len(_ARROW_FILE_MAGIC))
        stream.seek(0)
        if magic == _ARROW_FILE_MAGIC:
            file = pa.ipc.open_file(stream)
            return _cut(file.get_batch(number) for number in range(file.num_record_batches)), file.count_rows()
    return _cut(pa.ipc.open_stream(stream)), 0


def _cut(parts: Any) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for start in range(0, part.num_rows, BATCH_RECORDS):
            yield part.slice(start, BATCH_RECORDS)


def _renamed(part: pa.RecordBatch, places: Sequence[int], fields: Fields, size_bytes: float) -> Batch:
    """Return the columns that a log takes: those named, or all but what the log assigns itself."""
    present = dict(zip(part.schema.names, part.columns, strict=True))
    chosen = {name: column for name, column in present.items() if name not in _ASSIGNED}
    if fields:
        wanted = {"value": fields.value or "value", "id": fields.id or "id"}
        chosen = {name: present[column] for name, column in wanted.items() if column in present}
        for column in (fields.value, fields.id):
            if column is not None and column not in present:
                message = f"there is no column {column!r}, but {', '.join(present)}"
                raise InvalidArgument(message)
    if "value" in chosen and pa.types.is_string(chosen["value"].type):
        chosen["value"] = chosen["value"].cast(pa.binary())
    if "id" in chosen and pa.types.is_integer(chosen["id"].type):
        chosen["id"] = chosen["id"].cast(pa.string())
    return Batch(pa.RecordBatch.from_arrays([*chosen.values()], names=[*chosen]), places, (), size_bytes)


assert set(_ASSIGNED) | set(_JSON_COLUMNS) == set(READ_SCHEMA.names)
