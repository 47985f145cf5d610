"""What ``cat`` and ``tail`` write: text, JSON lines, bare values, Arrow and Parquet."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET

from oncelog.cli.terminal.options import OutputFormat
from oncelog.cli.terminal.quantities import show_time
from oncelog.clock import SYSTEM
from oncelog.format.payload.schema import READ_SCHEMA
from oncelog.redaction import harmless, harmless_json, harmless_line
from oncelog.types import Entry, moment

ALL_COLUMNS: tuple[str, ...] = tuple(READ_SCHEMA.names)
TERMINAL_COLUMNS = ("position", "timestamp", "id", "value")
_ALWAYS = {"position", "segment", "entry", "timestamp", "id", "value"}
_COLUMN_WIDTH_MAX = 40
_ROW_GROUP_RECORDS = 1 << 17
_ROW_GROUP_BYTES = 64 << 20
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


class RowSpelling(Protocol):
    """Spells records out. ``names`` are the columns it wants; times come as text."""

    names: tuple[str, ...]

    def spell(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the records as they are to be written."""
        ...


class Text:
    """One record a line, its columns separated by tabs, the value as it is; for a terminal see ``People``."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.names = tuple(columns or ("value",))

    def spell(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the records as lines."""
        texts = [map(_plain, column) for column in columns]
        return b"".join(b"\t".join(row) + b"\n" for row in zip(*texts, strict=True))


class People:
    """One record a line for eyes: in columns that stand below each other, and harmless to a terminal."""

    def __init__(self, columns: Sequence[str] | None, *, colours: bool) -> None:
        self.names = tuple(columns or TERMINAL_COLUMNS)
        self._styles = [({"value": "", "id": _CYAN}.get(name, _DIM) if colours else "") for name in self.names]
        self._widths = [0] * len(self.names)

    def spell(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the records as lines."""
        padded = [self._padded(number, column) for number, column in enumerate(columns)]
        return "".join("  ".join(row) + "\n" for row in zip(*padded, strict=True)).encode(errors="backslashreplace")

    def _padded(self, number: int, column: Sequence[Any]) -> list[str]:
        texts = [harmless_line(_plain(field)) or "-" for field in column]
        if number < len(self.names) - 1:
            width = min(max(self._widths[number], *map(len, texts)), _COLUMN_WIDTH_MAX)
            self._widths[number] = width
            right = self.names[number] in {"position", "segment", "entry", "sequence"}
            texts = [text.rjust(width) if right else text.ljust(width) for text in texts]
        style = self._styles[number]
        return [f"{style}{text}{_PLAIN}" for text in texts] if style else texts


def _plain(field: Any) -> bytes:
    if isinstance(field, bytes):
        return field
    if field is None:
        return b""
    if isinstance(field, Mapping | list):
        return msgspec.json.encode(headers_of(field))
    return str(field).encode()


class JsonLines:
    """One JSON object a line. A value that is not text stands in ``value_base64`` instead of ``value``.

    Columns that were asked for are always there; otherwise those that every record has, and the others if they are set.
    """

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.names = tuple(columns or ALL_COLUMNS)
        self._always = set(self.names) if columns else _ALWAYS
        keys = [key for name in self.names for key in (("value", "value_base64") if name == "value" else (name,))]
        self._line = msgspec.defstruct("Line", [(key, Any) for key in keys])
        self._encoder = msgspec.json.Encoder()

    def spell(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the records as JSON lines."""
        fields: list[Sequence[Any]] = []
        for name, column in zip(self.names, columns, strict=True):
            if name == "value":
                texts = [_text(value) for value in column]
                fields.append([text if text is not None else UNSET for text in texts])
                fields.append([v if text is None else UNSET for v, text in zip(column, texts, strict=True)])
                continue
            given = [None if field is None else headers_of(field) for field in column] if name == "headers" else column
            fields.append(given if name in self._always else [UNSET if field is None else field for field in given])
        lines = self._encoder.encode_lines(list(map(self._line, *fields)))
        if lines.isascii() and b"\x7f" not in lines:  # what is below a space, JSON has escaped
            return lines
        return harmless_json(lines.decode()).encode()


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def headers_of(headers: Any) -> dict[str, Any]:
    """Return headers as JSON has them: text where they are text, else in base64."""
    found: dict[str, Any] = {}
    for name, data in dict(headers).items():
        text = _text(data)
        found[name] = text if text is not None else {"base64": data}
    return found


class RawValues:
    """The values and nothing else, not even between them; for a terminal, what it would obey is spelled out."""

    names: tuple[str, ...] = ("value",)

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal

    def spell(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the values, one after the other."""
        values = b"".join(columns[0])
        return harmless(values).encode() if self._terminal else values


def columns_of_entries(entries: Sequence[Entry], names: Sequence[str]) -> list[list[Any]]:
    """Return entries in columns, times as text."""
    return [
        [show_time(entry.timestamp) if name == "timestamp" else getattr(entry, name) for entry in entries]
        for name in names
    ]


def _columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return a batch in columns, times as text. Records that were committed together share their time."""
    found: list[list[Any]] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count == len(column):
            found.append([None] * len(column))
        elif name == "timestamp":
            micros = column.cast(pa.int64()).to_pylist()
            texts = {moment_us: show_time(moment(moment_us)) for moment_us in set(micros)}
            found.append([texts[moment_us] for moment_us in micros])
        else:
            found.append(column.to_pylist())
    return found


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

    def __init__(self, out: BinaryIO, rows: RowSpelling) -> None:
        self.names = rows.names
        self._out = out
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch's rows."""
        self._out.write(self._rows.spell(_columns_of(batch)))

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
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory: name a file in it", str(path))
    partial = path.with_name(f".{path.name}.{SYSTEM.token(8).hex()}.partial")
    made = _made(partial, path)
    try:
        with made as out:
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
