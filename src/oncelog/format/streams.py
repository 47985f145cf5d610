"""The stored index of streams: the stream and the version of each record, and a directory of streams.

A *page* tells it for 65,536 consecutive positions, and never changes. A *directory* has the streams at one position,
with the page that was not full then. Both only cache what the log can tell, so a damaged one is refused.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format import frame
from oncelog.shapes import prepare

PAGE_KIND, DIRECTORY_KIND, VERSION = b"OLsp", b"OLsd", 1
PAGE_ROWS = 1 << 16


class StreamPage(msgspec.Struct, frozen=True):
    """The stream (its number, -1 for none) and the version in it of each record, from a position on."""

    log_id: str
    first_position: int
    numbers: NDArray[np.int32]
    versions: NDArray[np.int32]


class StoredDirectory(msgspec.Struct, frozen=True):
    """The streams there are at a position, in the order of their first events: their numbers count from 0.

    ``names`` are the bytes of all names together, ``ends`` where each ends; ``counts`` are their events, ``firsts`` and
    ``lasts`` the positions of the first that is known and of the last (-1: truncated away). ``slots`` is the hash
    table.
    """

    log_id: str
    position: int
    names: bytes
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]
    slots: NDArray[np.int32]
    page: StreamPage


class _StoredPage(msgspec.Struct, frozen=True, array_like=True):
    log_id: str
    first_position: int
    rows: int
    packed: bytes


class _StoredDirectory(msgspec.Struct, frozen=True, array_like=True):
    log_id: str
    position: int
    names: bytes
    ends: bytes
    counts: bytes
    firsts: bytes
    lasts: bytes
    slots: bytes
    page: _StoredPage


_T = TypeVar("_T")


def encode_page(page: StreamPage) -> bytes:
    """Return a page as the bytes of its object."""
    return frame.wrap(PAGE_KIND, VERSION, msgspec.msgpack.encode(_stored(page)))


def _stored(page: StreamPage) -> _StoredPage:
    content = page.numbers.astype("<i4").tobytes() + page.versions.astype("<i4").tobytes()
    packed = pa.compress(content, codec="zstd", asbytes=True) if content else b""
    return _StoredPage(page.log_id, page.first_position, len(page.numbers), packed)


def decode_page(data: pa.Buffer | bytes, what: str) -> StreamPage:
    """Return a page; ``CorruptionError`` or ``Unsupported`` for anything else."""
    return _page(_decode(PAGE_KIND, data, _StoredPage, what), what)


def _page(stored: _StoredPage, what: str) -> StreamPage:
    size_bytes = 4 * stored.rows
    if not 0 <= stored.rows <= PAGE_ROWS:
        message = f"{what}: a page of {stored.rows} rows"
        raise CorruptionError(message)
    try:
        content = pa.decompress(stored.packed, 2 * size_bytes, "zstd", asbytes=True) if stored.rows else b""
    except (pa.ArrowException, OSError) as error:
        message = f"{what}: its checksum holds and it cannot be read: {error}"
        raise CorruptionError(message) from error
    numbers, versions = np.frombuffer(content[:size_bytes], "<i4"), np.frombuffer(content[size_bytes:], "<i4")
    return StreamPage(stored.log_id, stored.first_position, numbers, versions)


def encode_directory(directory: StoredDirectory) -> bytes:
    """Return a directory as the bytes of its object."""
    stored = _StoredDirectory(
        log_id=directory.log_id,
        position=directory.position,
        names=directory.names,
        ends=_packed(directory.ends),
        counts=_packed(directory.counts),
        firsts=_packed(directory.firsts),
        lasts=_packed(directory.lasts),
        slots=directory.slots.astype("<i4").tobytes(),
        page=_stored(directory.page),
    )
    return frame.wrap(DIRECTORY_KIND, VERSION, msgspec.msgpack.encode(stored))


def decode_directory(data: pa.Buffer | bytes, what: str) -> StoredDirectory:
    """Return a directory; ``CorruptionError`` or ``Unsupported`` for anything else."""
    stored = _decode(DIRECTORY_KIND, data, _StoredDirectory, what)
    return StoredDirectory(
        log_id=stored.log_id,
        position=stored.position,
        names=stored.names,
        ends=np.frombuffer(stored.ends, "<i8"),
        counts=np.frombuffer(stored.counts, "<i8"),
        firsts=np.frombuffer(stored.firsts, "<i8"),
        lasts=np.frombuffer(stored.lasts, "<i8"),
        slots=np.frombuffer(stored.slots, "<i4"),
        page=_page(stored.page, what),
    )


def _packed(numbers: NDArray[np.int64]) -> bytes:
    return numbers.astype("<i8").tobytes()


def _decode(kind: bytes, data: pa.Buffer | bytes, shape: type[_T], what: str) -> _T:
    return frame.unpack(frame.unwrap(kind, VERSION, data, what), shape, what)


prepare(_StoredPage, _StoredDirectory)
