"""Files into rows, in Spark's tasks: what is no row is staged for the log of rejected rows, and all is counted.

Spark lists the files, and remembers which were read; it does not open them. A task opens a file, finds its rows, and
hands them on as Arrow batches. What the task found reaches the driver by an accumulator, file by file, so that a
task that runs twice counts once.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from oncelog.errors import InvalidArgument
from oncelog.log.stored.staged import Staged
from oncelog.redaction import without_password
from oncelog.spark.connector import connections
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.staging import Stager
from oncelog.spark.reading import bytes_of, csv_text, json_text, parquet_rows
from oncelog.spark.reading.csv_text import Dialect
from oncelog.spark.reading.rows import Clean, Piece, Rejected, TextRow
from oncelog.storage.bucket.paths import bucket_of, plain

Kind = Literal["json", "csv", "parquet"]
OnBadRow = Literal["quarantine", "fail", "drop"]
FILE, LINE, TEXT, EXTRA = "_oncelog_file", "_oncelog_line", "_oncelog_text", "_oncelog_extra"
CLEAN = "_oncelog_clean"
KINDS: dict[str, pa.DataType] = {
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(), "double": pa.float64(),
    "boolean": pa.bool_(), "string": pa.string(),
}  # fmt: skip
"""Types whose values are the same here as in Spark's own parser of JSON."""

_PLACE = [(FILE, pa.string()), (LINE, pa.int64()), (EXTRA, pa.string())]
_STAGED_ROWS = 5000
_BATCH_BYTES = _KEPT_BYTES = 8 << 20
_SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
    ".orc": "orc", ".avro": "avro", ".xml": "xml", ".xls": "xls", ".xlsx": "xlsx", ".zip": "zip", ".tar": "tar",
}  # fmt: skip
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class FileRows(msgspec.Struct, frozen=True):
    """What was found in one file: rows that go on, and pieces that were rejected, staged for their log.

    ``version`` tells the file from another of its name; empty for one that was not opened. ``vanished``: Spark listed
    the file, and it was gone. That is not rejected: nobody has seen its rows, and it may come back.
    """

    rows: int
    rejected: int
    rescued: int
    staged: tuple[Staged, ...] = ()
    version: str = ""
    vanished: bool = False


class FilePart(msgspec.Struct, frozen=True):
    """One part of a file, of how many, and the length and time that the file had when it was listed."""

    number: int
    count: int
    length: int
    changed_ms: int


Sums = dict[tuple[str, int, int], FileRows]
"""What was found, by the file, the task's partition, and the file's number in that partition."""


class FoundParam(AccumulatorParam[Sums]):
    """Sums up what was found by task and file: a task that runs again counts once.

    Spark lists a file twice in one batch of a stream when the name of another file is a pattern that matches it. Then
    its rows are read twice, and counted twice: the log finds that they are duplicates.
    """

    def zero(self, value: Sums) -> Sums:  # noqa: ARG002 (Spark's)
        """Return nothing."""
        return {}

    def addInPlace(self, value1: Sums, value2: Sums) -> Sums:  # noqa: N802
        """Return both."""
        value1.update(value2)
        return value1


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader looks for: the columns, and what becomes of what is no row.

    ``shape`` is that of objects (JSON) or of rows (CSV), ``schema`` that of a table (Parquet), as bytes. ``kinds`` are
    the types of the columns of JSON where all are in ``KINDS``: clean rows have their values, and are not parsed again.
    ``root`` is the folder of a source on this machine: see ``bytes_of.check_reached``.
    """

    kind: Kind
    columns: tuple[str, ...]
    shape: dict[str, Any] = {}
    kinds: tuple[str, ...] = ()
    schema: bytes = b""
    dialect: Dialect = Dialect()
    encoding: str | None = None
    on_bad_row: OnBadRow = "quarantine"
    url: str = ""
    log: str = ""
    root: str = ""


def output(wanted: Wanted) -> pa.Schema:
    """Return the columns that the reader makes."""
    if wanted.kind == "json":
        typed = [(f"c{at}", KINDS[kind]) for at, kind in enumerate(wanted.kinds)]
        return pa.schema([(TEXT, pa.string()), *typed, (CLEAN, pa.bool_()), *_PLACE])
    if wanted.kind == "csv":
        return pa.schema([*((f"c{at}", pa.string()) for at in range(len(wanted.columns))), *_PLACE])
    schema = pa.ipc.read_schema(pa.py_buffer(wanted.schema))
    return pa.schema([*schema, *(pa.field(*each) for each in _PLACE)])


class FilesReader:
    """Reads the files that Spark names."""

    def __init__(self, wanted: Wanted, found: Accumulator[Sums]) -> None:
        self._wanted = wanted
        self._found = found

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files in these batches."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        undivided = context is not None and context.getLocalProperty(bytes_of.UNDIVIDED) is not None
        seen = context.getLocalProperty(bytes_of.SEEN) if context is not None else None
        number = 0
        for batch in batches:
            contents = batch.column("content") if "content" in batch.schema.names else None
            parts = batch.column("part") if "part" in batch.schema.names else None
            for at, path in enumerate(map(plain, batch.column("path").to_pylist())):
                content = None if contents is None else contents[at].as_py()
                part = None if parts is None else FilePart(**parts[at].as_py())
                if undivided and part is not None and part.number:
                    continue
                file = _File(self._wanted, path, content, None if undivided else part)
                yield from file.read(seen)
                self._found.add({(path, partition, number): file.found()})
                number += 1


class _File:
    """One file: its rows go on, what is none of them is kept aside."""

    def __init__(self, wanted: Wanted, path: str, content: bytes | None, part: FilePart | None = None) -> None:
        self._wanted = wanted
        self._path = path
        self._shown = without_password(path)
        self._content = content
        self._part = part
        self._aside: list[Rejected] = []
        self._staged: list[Staged] = []
        self._line = 0
        self._rows = self._rejected = self._rescued = 0
        self._version = ""
        self._vanished = False
        self._seen: str | None = None

    def found(self) -> FileRows:
        """Return what was found, once all was read."""
        staged = tuple(self._staged)
        return FileRows(self._rows, self._rejected, self._rescued, staged, self._version, self._vanished)

    def read(self, seen: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows; put aside what is none. ``seen`` is which files an earlier job has seen."""
        self._seen = seen
        kind = kind_of(self._path)
        try:
            if kind is not None and kind != self._wanted.kind:
                if self._part is not None and self._part.number:
                    return
                self._reject([Rejected(0, b"", f"is {kind} by its name, and the source is {self._wanted.kind}")])
            elif self._wanted.kind == "parquet":
                yield from self._parquet()
            else:
                yield from self._text()
        except bytes_of.DAMAGED as error:
            bytes_of.check_reached(self._path, self._wanted.root, error)
            if isinstance(error, FileNotFoundError):
                self._vanish()
                return
            self._reject([Rejected(self._line, b"", f"the file cannot be read from here on: {error}")])
        except UnicodeError as error:
            self._reject([Rejected(self._line, b"", f"the file is not {error.args[0]}")])
        self._stage()

    def _vanish(self) -> None:
        """Report that the file is gone; to a job after one that has seen the file, that is a change."""
        self._vanished = True
        bytes_of.check_seen(self._path, "", self._seen)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the file, and take its version."""
        with self._source() as file:
            self._version = bytes_of.version_of(file)
            bytes_of.check_seen(self._path, self._version, self._seen)
            yield file

    def _source(self) -> Any:
        if self._content is not None:
            return io.BytesIO(self._content)
        place = bucket_of(self._path)
        if place is not None:
            return pa.BufferReader(place[0].get(place[1]))
        path = bytes_of.local(self._path)
        if path.exists() and not path.is_file():
            message = "is no regular file"
            raise OSError(message)  # to open a pipe would wait for somebody who writes into it
        return bytes_of.unchanged(path)

    def _text(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        with self._open() as file:
            if wanted.kind == "json":
                pieces = self._objects(file)
            else:
                lines = bytes_of.lines(bytes_of.opened(file), wanted.encoding)
                pieces = csv_text.CsvParser(wanted.columns, wanted.dialect, wanted.shape).pieces(lines)
            for some in pieces:
                if isinstance(some, Clean):
                    yield from self._clean(some)
                else:
                    for few in _parts(some):
                        yield from self._batch(few)

    def _objects(self, file: Any) -> Iterator[Clean | list[Piece]]:
        """Return what is in a file of JSON, or in a part of it. A file that cannot be divided is read as part 0."""
        parser, encoding, part = json_text.JsonParser(self._wanted.shape), self._wanted.encoding, self._part
        if part is None or part.count == 1:
            return parser.pieces(bytes_of.lines(bytes_of.opened(file), encoding))
        bytes_of.check_listed(bytes_of.local(self._path), file, part.length, part.changed_ms)
        head = file.read(bytes_of.CHUNK_BYTES)
        file.seek(0)
        marked = bytes_of.encoding_of(head[:4], encoding)[1]
        spans = json_text.spans_lines(head[marked:].splitlines(keepends=True))
        if spans or not bytes_of.is_divisible(head, encoding):
            return parser.pieces(bytes_of.lines(bytes_of.opened(file), encoding)) if part.number == 0 else iter(())
        share = bytes_of.LinesPart(file, part.length, part.number, part.count)
        number = 1 + share.lines_before()
        self._line = number
        return parser.lines(bytes_of.lines(share, encoding, begins=part.number == 0), number)

    def _parquet(self) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            schema = pa.ipc.read_schema(pa.py_buffer(self._wanted.schema))
            for first_row, table, extra in parquet_rows.tables(file, schema):
                self._rows += table.num_rows
                self._rescued += sum(1 for each in extra if each)
                self._line = first_row + table.num_rows
                place = [
                    pa.array([self._shown] * table.num_rows, pa.string()),
                    pa.array(range(first_row, self._line), pa.int64()),
                    pa.array([_object(each) for each in extra], pa.string()),
                ]
                yield pa.RecordBatch.from_arrays([*table.columns, *place], schema=output(self._wanted))

    def _clean(self, found: Clean) -> Iterator[pa.RecordBatch]:
        """Yield clean lines as Arrow has them: their texts as they lie in memory, and their values if wanted."""
        count = len(found.ends)
        self._rows += count
        self._line = found.line + count
        offsets = np.zeros(count + 1, np.int32)
        offsets[1:] = found.ends
        text = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(found.text))
        kinds = [KINDS[kind] for kind in self._wanted.kinds]
        columns = [pa.array(values, kind) for values, kind in zip(found.columns, kinds, strict=bool(kinds))]
        place = [
            pa.repeat(self._shown, count),
            pa.array(np.arange(found.line, self._line), pa.int64()),
            pa.nulls(count, pa.string()),
        ]
        arrays = [text, *columns, pa.repeat(pa.scalar(value=True), count), *place]
        yield pa.RecordBatch.from_arrays(arrays, schema=output(self._wanted))

    def _batch(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield the rows among pieces as Arrow has them; put the rest aside."""
        rows = [piece for piece in pieces if isinstance(piece, TextRow)]
        if len(rows) < len(pieces):
            self._reject([piece for piece in pieces if isinstance(piece, Rejected)])
        if pieces:
            self._line = pieces[-1].line + 1
        if not rows:
            return
        self._rows += len(rows)
        if self._wanted.kind == "json":
            columns = [pa.array([row.text for row in rows], pa.string())]
            columns += [pa.nulls(len(rows), KINDS[kind]) for kind in self._wanted.kinds]
            columns.append(pa.repeat(pa.scalar(value=False), len(rows)))
        else:
            columns = [pa.array(cells, pa.string()) for cells in zip(*(row.cells for row in rows), strict=True)]
        rescued = [row for row in rows if row.rescued]
        self._rescued += len(rescued)
        extra = [_object(row.rescued.items()) for row in rows] if rescued else None
        place = [
            pa.repeat(self._shown, len(rows)),
            pa.array([row.line for row in rows], pa.int64()),
            pa.nulls(len(rows), pa.string()) if extra is None else pa.array(extra, pa.string()),
        ]
        yield pa.RecordBatch.from_arrays([*columns, *place], schema=output(self._wanted))

    def _reject(self, pieces: list[Rejected]) -> None:
        """Count pieces, and put them aside unless they are to be dropped; ``InvalidArgument`` if they are an error."""
        if self._wanted.on_bad_row == "fail":
            first = pieces[0]
            message = f"{self._path}, line {first.line}: {first.reason}; the text: {first.raw[:200]!r}"
            raise InvalidArgument(message)
        self._rejected += len(pieces)
        pieces = [_cut(piece) for piece in pieces]
        if self._wanted.on_bad_row == "quarantine":
            self._aside += pieces
            if len(self._aside) >= _STAGED_ROWS:
                self._stage()

    def _stage(self) -> None:
        """Stage what is aside as records of the log of rejected rows."""
        if not self._aside:
            return
        wanted = self._wanted
        options = WriteOptions(url=wanted.url, log=wanted.log)
        stager = Stager(connections.log(wanted.url, wanted.log, create=True), options)
        taken = stager.stage(iter([rejected_batch(self._path, self._aside)]))
        if taken.bad is not None:
            message = f"{self._path}: a rejected row cannot be kept: {taken.bad.rule}"
            raise InvalidArgument(message)
        self._staged += taken.staged
        self._aside = []


def _parts(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces, as many at a time as make about a batch: a list on one line may be as long as a file."""
    begin = size = 0
    for at, piece in enumerate(pieces):
        size += len(piece.text) + sum(len(cell or "") for cell in piece.cells) if isinstance(piece, TextRow) else 0
        if size >= _BATCH_BYTES:
            yield pieces[begin : at + 1]
            begin, size = at + 1, 0
    yield pieces[begin:]


def _cut(piece: Rejected) -> Rejected:
    """Return a piece that a log takes: of a longer text, the beginning."""
    if len(piece.raw) <= _KEPT_BYTES:
        return piece
    reason = f"{piece.reason}; of its {len(piece.raw):,} bytes the first {_KEPT_BYTES:,} are kept"
    return Rejected(piece.line, piece.raw[:_KEPT_BYTES], reason)


def _object(fields: Iterable[tuple[str, str]] | None) -> str | None:
    """Return fields whose values are JSON as an object; ``None`` if there are none."""
    made = ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in fields or ())
    return f"{{{made}}}" if made else None


def rejected_batch(path: str, pieces: Sequence[Rejected]) -> pa.RecordBatch:
    """Return rejected pieces of a file as records: the text, with file, line and reason; their place is their id."""
    ids = [
        hashlib.blake2b(f"{path}\n{piece.line}\n{piece.reason}\n".encode() + piece.raw, digest_size=16).hexdigest()
        for piece in pieces
    ]
    shown = without_password(path).encode()
    headers = [
        [("file", shown), ("line", str(piece.line).encode()), ("reason", piece.reason.encode())] for piece in pieces
    ]
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([piece.raw for piece in pieces], pa.binary()),
            "id": pa.array(ids, pa.string()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
        }
    )


def kind_of(path: str) -> str | None:
    """Return the format that a file's name tells, whatever compressed it.

    >>> kind_of("file:/in/day.jsonl.gz"), kind_of("day.log")
    ('json', None)
    """
    name = path.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)
