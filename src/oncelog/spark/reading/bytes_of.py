"""A file's bytes, decompressed by what the file begins with, whatever it is called."""

from __future__ import annotations

import bz2
import codecs
import functools
import gzip
import hashlib
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from oncelog.errors import Unavailable

DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""What the decompressors raise for data that is cut short, or damaged."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
CHANGED = "was changed while it was read"
"""What an error says of a file in which old and new content may be mixed."""

SEEN = "oncelog.files.seen"
"""A property of Spark's jobs. Where it is set, files must be as an earlier job has seen them: see ``seen``."""

UNDIVIDED = "oncelog.files.undivided"
"""A property of Spark's jobs. Where it is set, part 0 is the whole file, as it is now, and other parts are empty."""

_COMPRESSED = _GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_PEEKED_BYTES = 6
_DIGEST_BYTES = 8
_PADDING = b"\0\0\0\0"
_JUNK = "what is behind a compressed stream is no other one"
_LOOKED_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 29
"""A file whose line is longer is not read beyond that line: a line is held in memory."""


def local(path: str) -> Path:
    """Return a file of this machine by its path in a row of Spark's: ``file:``, and the name with nothing escaped.

    >>> local("file:/in/100%41?#.json")
    PosixPath('/in/100%41?#.json')
    """
    return Path(re.sub(r"^file:(//(?=/))?", "", path))


@contextmanager
def unchanged(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that must stay as it is while it is read; ``Unavailable`` if it does not.

    A row could be half of the old and half of the new content. A file that another one is renamed over does not
    change: the old one is read to its end.
    """
    with path.open("rb") as file, os.fdopen(os.dup(file.fileno()), "rb") as kept:  # a decompressor may close a file
        began = _version(kept)
        try:
            yield file
        except Exception as error:
            if _version(kept) != began:
                raise _changed(path) from error
            raise
        if _version(kept) != began:
            raise _changed(path)


def check_listed(path: Path, file: IO[bytes], size: int, changed_ms: int) -> None:
    """Check that a file is still the one that was listed: other tasks read its other parts. Else ``Unavailable``."""
    found = os.fstat(file.fileno())
    if (found.st_size, found.st_mtime_ns // 1_000_000) != (size, changed_ms):
        raise _changed(path)


def check_reached(path: str, root: str, error: Exception) -> None:
    """Check that an error is one of a file's content, or that the file was removed. Else ``Unavailable``.

    What a disk, a limit or a right keeps from being read is not known, and may be read later: it is not rejected. So is
    a file of a source whose root is not there: a task of a cluster may not see the folder that this machine listed. A
    folder inside of the root (``day=1``) may be removed like a file. A file that was removed is not rejected, either:
    see ``FileRows.vanished``.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return
    if not isinstance(error, FileNotFoundError):
        message = f"{path} cannot be read: {error}. It was not rejected: run the pipeline again"
        raise Unavailable(message) from error
    file = local(path)
    folder = file.parent if root in {"", str(file)} else Path(root)  # a source may be one file
    if not folder.is_dir():
        message = (
            f"{path} cannot be read: a task does not find the folder {folder}. It was not rejected. On a cluster, the "
            "source must be in a folder that all machines share, or in a bucket"
        )
        raise Unavailable(message) from error


def version_of(file: Any) -> str:
    """Return what tells a file from another of its name: size and time; of bytes in memory, a checksum.

    Two machines may ask. Some network file systems give a file another inode on each of them.
    """
    if isinstance(file, io.BytesIO | pa.BufferReader):
        data = file.getbuffer() if isinstance(file, io.BytesIO) else file.read_buffer()
        file.seek(0)
        return f"{len(data)}/{zlib.crc32(data)}"
    return "/".join(map(str, _version(file)[1:]))


def seen(versions: Iterable[tuple[str, str]]) -> str:
    """Return which versions of files were seen, as a short text to be handed to every task: eight bytes for a file."""
    return b"".join(sorted({_digest(path, version) for path, version in versions})).hex()


def check_seen(path: str, version: str, before: str | None) -> None:
    """Check that a file is the one that an earlier job has seen, if there was one. Else ``Unavailable``.

    Rows that are no records are read once more, to be put aside. Of a file that was replaced in between, they would be
    rows of the new file, counted with those of the old one.
    """
    if before is not None and _digest(path, version) not in _split_digests(before):
        raise _changed(path)


@functools.lru_cache(maxsize=1)
def _split_digests(before: str) -> frozenset[bytes]:
    data = bytes.fromhex(before)
    return frozenset(data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES))


def _digest(path: str, version: str) -> bytes:
    return hashlib.blake2b(f"{version}\n{path}".encode(), digest_size=_DIGEST_BYTES).digest()


def _version(file: IO[bytes]) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


def _changed(path: Path | str) -> Unavailable:
    message = (
        f"{path} {CHANGED}: a row could be half old and half new. Write files under a name that begins with a dot, and "
        "rename them when they are whole; then run the pipeline again"
    )
    return Unavailable(message)


def opened(file: IO[bytes]) -> Any:
    """Return a stream of a file's content: of gzip, bzip2, xz and zstd what was compressed, else the file itself.

    A compressed file is decompressed once before that: its checksum is at its end, and a row that was damaged may look
    like any other. ``DAMAGED`` if it does not fit. Of a file that is cut short, what comes before the cut can be read.
    """
    buffered = io.BufferedReader(file, 1 << 20) if isinstance(file, io.RawIOBase) else file
    start = buffered.read(_PEEKED_BYTES)
    buffered.seek(0)
    if not start.startswith(_COMPRESSED):
        return buffered
    try:
        _check_sums(buffered, start)
    except DAMAGED as error:
        if not _is_readable_before(error):
            raise
    buffered.seek(0)
    return _Readable(_decompressed(buffered, start))


def _decompressed(file: IO[bytes], start: bytes) -> Any:
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if start.startswith(_BZIP2):
        return _Streams(file, _BZIP2, bz2.BZ2Decompressor)
    if start.startswith(_XZ):
        return _Streams(file, _XZ, lzma.LZMADecompressor)
    return pa.CompressedInputStream(pa.PythonFile(_Kept(file), "r"), "zstd")


class _Kept(io.RawIOBase):
    """A file that stays open when Arrow, which closes what it was given, is done with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        """Tell Arrow that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return bytes, at most so many."""
        return self._file.read(size)


class _Streams:
    """What the streams of a bzip2 or xz file hold. Python's own files end, without a word, at what they cannot read
    behind the first stream.

    Between and behind the streams of xz may be zero bytes, a multiple of four: The .xz File Format, 2.2.
    """

    def __init__(self, file: IO[bytes], magic: bytes, make: Callable[[], Any]) -> None:
        self._file = file
        self._magic = magic
        self._make = make
        self._stream = make()
        self._begun = b""

    def read(self) -> bytes:
        """Return all that is left."""
        return b"".join(iter(lambda: self.read1(CHUNK_BYTES), b""))

    def read1(self, size: int) -> bytes:
        """Return bytes, at most so many; none at the end. ``DAMAGED`` for what is damaged, cut short, or no stream."""
        found = b""
        while not found and not (self._stream.eof and not self._is_begun()):
            data = b""
            if self._stream.needs_input:
                data, self._begun = self._begun or self._file.read(CHUNK_BYTES), b""
                if not data:
                    message = "the file ends in the middle of a compressed stream"
                    raise EOFError(message)
            found = self._stream.decompress(data, size)
        return found

    def _is_begun(self) -> bool:
        """Begin the next stream. Tell whether there is one; ``OSError`` if something else is there."""
        rest = self._filled(self._stream.unused_data)
        while self._magic == _XZ and rest.startswith(_PADDING):
            zeros = len(rest) - len(rest.lstrip(b"\0"))
            rest = self._filled(rest[zeros - zeros % len(_PADDING) :])
        if not self._magic.startswith(rest[: len(self._magic)]):
            raise OSError(_JUNK)
        if rest:
            self._stream, self._begun = self._make(), rest
        return bool(rest)

    def _filled(self, data: bytes) -> bytes:
        """Return data with more of the file, enough to tell what it is."""
        while len(data) < _PEEKED_BYTES and (more := self._file.read(CHUNK_BYTES)):
            data += more
        return data


def _check_sums(file: IO[bytes], start: bytes) -> None:
    """Read compressed data to its end; ``DAMAGED`` if it is damaged, or cut short."""
    stream = _decompressed(file, start)
    while stream.read1(CHUNK_BYTES):
        pass


def _is_readable_before(error: Exception) -> bool:
    """Tell whether what was read before an error is whole: the file is cut, or has junk behind whole members."""
    return isinstance(error, EOFError) or any(part in str(error) for part in ("Not a gzipped file", "Truncated", _JUNK))


class _Readable(io.RawIOBase):
    """A stream of which all that comes before damage is read, and then the error is raised."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Return bytes, at most so many; none at the end. All of them: what is whole alone."""
        if self._error is not None:
            raise self._error
        if size < 0:
            return bytes(self._stream.read())
        parts: list[bytes] = []
        while size > 0 and (piece := self._piece(min(size, _LOOKED_BYTES))):
            parts.append(piece)
            size -= len(piece)
        if not parts and self._error is not None:
            raise self._error
        return b"".join(parts)

    def _piece(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read1(size))
        except DAMAGED as error:
            self._error = error
            return b""


def encoding_of(start: bytes, given: str | None) -> tuple[str, int]:
    """Return how text is encoded, by the mark that it begins with or as it was given, and how long the mark is."""
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name, len(mark)
    return given or "utf-8", 0


class LinesPart(io.RawIOBase):
    """The lines of a file that begin in one of several parts of equal size, as a stream of their own."""

    def __init__(self, file: IO[bytes], size: int, part: int, parts: int) -> None:
        self._file = file
        self._left = _line_start(file, size * (part + 1) // parts, size)
        self.start = _line_start(file, size * part // parts, size)
        self._left -= self.start
        file.seek(self.start)

    def read(self, size: int = -1) -> bytes:
        """Return bytes, at most so many; none at the end."""
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found

    def lines_before(self) -> int:
        """Return how many lines of the file are before the first of these."""
        self._file.seek(0)
        left, found = self.start, 0
        while left and (chunk := self._file.read(min(left, 4 * CHUNK_BYTES))):
            found += chunk.count(b"\n")
            left -= len(chunk)
        self._file.seek(self.start)
        return found


def _line_start(file: IO[bytes], at: int, size: int) -> int:
    """Return the start of the first line that starts at or after an offset."""
    if at in {0, size}:
        return at
    file.seek(at - 1)
    at -= 1
    while chunk := file.read(_LOOKED_BYTES):
        found = chunk.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(chunk)
    return at


def is_divisible(head: bytes, given: str | None) -> bool:
    """Tell by its first bytes whether a file is UTF-8 text, in which a line feed ends a line."""
    encoding, _ = encoding_of(head[:4], given)
    return codecs.lookup(encoding).name == "utf-8" and not head.startswith(_COMPRESSED) and b"\n" in head


def lines(stream: Any, given: str | None = None, *, begins: bool = True) -> Iterator[list[bytes]]:
    """Yield lists of lines in UTF-8, each with its line feed, about a megabyte of them at a time.

    Text in another encoding is converted as a whole: ``UnicodeError`` when its bytes are none in that encoding.
    ``OSError`` for a line that is too long. ``begins`` is whether this is the beginning of a file, where a mark may be.
    """
    first = stream.read(CHUNK_BYTES)
    encoding, skipped = encoding_of(first[:4], given) if begins else ("utf-8", 0)
    if codecs.lookup(encoding).name != "utf-8":
        whole = (first[skipped:] + stream.read()).decode(encoding)
        yield _split(whole.encode())
        return
    begun: list[bytes] = []  # of a line whose end has not come: joined once, for a line may be as long as a file
    chunk = first[skipped:]
    while chunk:
        *whole_lines, rest = chunk.split(b"\n")
        if whole_lines:
            whole_lines[0] = b"".join([*begun, whole_lines[0]])
            begun = []
            yield [line + b"\n" for line in whole_lines]
        begun.append(rest)
        if len(begun) * CHUNK_BYTES > LINE_BYTES_MAX:
            message = f"a line has more than {LINE_BYTES_MAX:,} bytes"
            raise OSError(message)
        chunk = stream.read(CHUNK_BYTES)
    if any(begun):
        yield [b"".join(begun)]


def _split(data: bytes) -> list[bytes]:
    """Return lines, each with its line feed: a carriage return alone ends none."""
    *whole_lines, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole_lines), *([rest] if rest else [])]
