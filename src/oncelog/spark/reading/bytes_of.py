"""A file's bytes, decompressed by what the file begins with, whatever it is called."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
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

_PEEKED_BYTES = 6
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


def _version(file: IO[bytes]) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _changed(path: Path) -> Unavailable:
    message = (
        f"{path} {CHANGED}: nothing of it was stored. Write files under a name that begins with a dot, and rename them "
        "when they are whole; then run the pipeline again"
    )
    return Unavailable(message)


def opened(file: IO[bytes]) -> Any:
    """Return a stream of a file's content: of gzip, bzip2, xz and zstd what was compressed, else the file itself."""
    buffered = io.BufferedReader(file, 1 << 20) if isinstance(file, io.RawIOBase) else file
    start = buffered.read(_PEEKED_BYTES)
    buffered.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=buffered)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(buffered)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(buffered)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return pa.CompressedInputStream(pa.PythonFile(buffered, "r"), "zstd")
    return buffered


def encoding_of(start: bytes, given: str | None) -> tuple[str, int]:
    """Return how text is encoded, by the mark that it begins with or as it was given, and how long the mark is."""
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name, len(mark)
    return given or "utf-8", 0


def lines(stream: Any, given: str | None = None) -> Iterator[list[bytes]]:
    """Yield lists of lines in UTF-8, each with its line feed, about a megabyte of them at a time.

    Text in another encoding is converted as a whole: ``UnicodeError`` when its bytes are none in that encoding.
    ``OSError`` for a line that is too long.
    """
    first = stream.read(CHUNK_BYTES)
    encoding, skipped = encoding_of(first[:4], given)
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
