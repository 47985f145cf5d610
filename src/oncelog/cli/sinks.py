"""What ``cat`` and ``tail`` write: text, JSON lines, bare values, Arrow and Parquet."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from oncelog.cli.options import OutputFormat
from oncelog.cli.quantities import show_time
from oncelog.format.schema import READ_SCHEMA

ALL_COLUMNS: tuple[str, ...] = tuple(READ_SCHEMA.names)
TERMINAL_COLUMNS = ("position", "timestamp", "id", "value")
_ALWAYS = {"position", "segment", "entry", "timestamp", "id", "value"}
_ROW_GROUP_RECORDS = 1 << 17
_ROW_GROUP_BYTES = 64 << 20
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _CYAN, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"


def format_of(path: Path | None) -> OutputFormat:
    """Return the format for which a file's name stands."""
    suffixes: dict[str, OutputFormat] = {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".arrow": "arrow",
        ".parquet": "parquet",
    }
    return suffixes.get(path.suffix, "text") if path is not None else "text"


# Rows as bytes.


class Rows(Protocol):
    """Spells rows out. ``names`` are the columns it wants of each."""

    names: tuple[str, ...]

    def spell(self, rows: Iterable[Sequence[Any]]) -> bytes:
        """Return the rows as they are to be written."""
        ...


class Text:
    """One record a line, its columns separated by tabs; the value as it is, and on a terminal with colours."""

    def __init__(self, columns: Sequence[str] | None, *, terminal: bool, colours: bool) -> None:
        self.names = tuple(columns or (TERMINAL_COLUMNS if terminal else ("value",)))
        self._terminal = terminal
        self._colours = colours

    def spell(self, rows: Iterable[Sequence[Any]]) -> bytes:
        """Return the rows as lines."""
        if self._terminal:
            return "".join(self._for_people(row) for row in rows).encode()
        if self.names == ("value",):
            return b"".join(row[0] + b"\n" for row in rows)
        return b"".join(b"\t".join(map(_plain, row)) + b"\n" for row in rows)

    def _for_people(self, row: Sequence[Any]) -> str:
        """Return a line that cannot do anything to a terminal."""
        parts = []
        for name, field in zip(self.names, row, strict=True):
            text = _plain(field).decode(errors="backslashreplace")
            text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
            if name in {"position", "segment", "entry"}:
                text = text.rjust(8 if name == "position" else 3)
            style = {"value": "", "id": _CYAN}.get(name, _DIM) if self._colours else ""
            parts.append(f"{style}{text or '-'}{_PLAIN if style else ''}")
        return "  ".join(parts) + "\n"


def _plain(field: Any) -> bytes:
    if isinstance(field, bytes):
        return field
    if field is None:
        return b""
    if isinstance(field, datetime):
        return show_time(field).encode()
    if isinstance(field, Mapping | list):
        return msgspec.json.encode(_headers(field))
    return str(field).encode()


class JsonLines:
    """One JSON object a line. A value that is not text stands in ``value_base64`` instead of ``value``."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.names = tuple(columns or ALL_COLUMNS)
        self._always = set(self.names) if columns else _ALWAYS

    def spell(self, rows: Iterable[Sequence[Any]]) -> bytes:
        """Return the rows as JSON lines."""
        encode = msgspec.json.encode
        return b"".join(encode(self._object(row)) + b"\n" for row in rows)

    def _object(self, row: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, field in zip(self.names, row, strict=True):
            if name == "value":
                text = _text(field)
                found.update({"value": text} if text is not None else {"value_base64": _base64(field)})
            elif field is None:
                found.update({name: None} if name in self._always else {})
            elif name == "timestamp":
                found[name] = show_time(field)
            else:
                found[name] = _headers(field) if name == "headers" else field
        return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _headers(headers: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, data in dict(headers).items():
        text = _text(data)
        found[name] = text if text is not None else {"base64": _base64(data)}
    return found


class Raw:
    """The values and nothing else, not even between them."""

    names: tuple[str, ...] = ("value",)

    def spell(self, rows: Iterable[Sequence[Any]]) -> bytes:
        """Return the values, one after the other."""
        return b"".join(row[0] for row in rows)


# Batches into files.


class Sink(Protocol):
    """Takes batches, and is finished once."""

    names: tuple[str, ...]

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of the columns in ``names``."""
        ...

    def finish(self) -> None:
        """Write what is left, and the end."""
        ...


class RowSink:
    """Writes batches row by row."""

    def __init__(self, out: BinaryIO, rows: Rows) -> None:
        self.names = rows.names
        self._out = out
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch's rows."""
        columns = [column.to_pylist() for column in batch.columns]
        self._out.write(self._rows.spell(zip(*columns, strict=True)))

    def finish(self) -> None:
        """Write what is buffered."""
        self._out.flush()


class ArrowSink:
    """Writes Arrow: a stream into a pipe, a file (which can be mapped) into a file."""

    def __init__(self, out: BinaryIO, columns: Sequence[str] | None, *, stream: bool) -> None:
        self.names = tuple(columns or ALL_COLUMNS)
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        self._writer = make(out, _schema(self.names))
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch."""
        self._writer.write_batch(batch)

    def finish(self) -> None:
        """Write the end."""
        self._writer.close()
        self._out.flush()


class ParquetSink:
    """Writes Parquet, zstd, small batches together in row groups."""

    def __init__(self, out: BinaryIO, columns: Sequence[str] | None) -> None:
        self.names = tuple(columns or ALL_COLUMNS)
        self._schema = _schema(self.names)
        self._writer = pq.ParquetWriter(out, self._schema, compression="zstd")
        self._out = out
        self._waiting: list[pa.RecordBatch] = []
        self._records = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch, once there is enough for a row group."""
        self._waiting.append(batch)
        self._records += batch.num_rows
        self._bytes += batch.nbytes
        if self._records >= _ROW_GROUP_RECORDS or self._bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), self._records)
        self._waiting, self._records, self._bytes = [], 0, 0

    def finish(self) -> None:
        """Write the last row group, and the end."""
        self._write_group()
        self._writer.close()
        self._out.flush()


def _schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([READ_SCHEMA.field(name) for name in names])


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the name only once it is whole and durable; nothing is left of it otherwise."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _made(partial, path) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _made(partial: Path, path: Path) -> BinaryIO:
    try:
        return partial.open("xb")
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
