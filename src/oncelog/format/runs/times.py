"""When each commit of a run's range was made: pairs of position and timestamp, in order, packed in pages.

::

    head     an envelope (``frame``): log id, counts, checksum of the index
    index    from the next multiple of 64 on, 8 bytes a page: the position of the page's first commit
    pages    from the next multiple of 4,096 on

    a page:
    0     8   checksum (xxh3, seeded) of the rest of the page
    8     4   number of the page
    12    2   commits in the page
    14    1   bytes of a difference: 4 or 8
    15    1   zero
    16    8   position of the first commit, relative to the first of the run's range
    24    8   timestamp of the first commit, microseconds since 1970
    32        differences of the positions of neighbours, then those of their timestamps; the first of each is zero

So a commit takes 8 bytes, or 16 where commits are an hour apart. A position belongs to the last commit that begins at
or before it. Files that were adopted are not in here: their segments say when.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format import frame
from oncelog.format.runs.pages import PAGE_BYTES
from oncelog.format.runs.run import TimesPart
from oncelog.shapes import UNREADABLE, prepare

KIND = b"OLrt"
VERSION = 1
_HEAD_BYTES = 32
_NARROW, _WIDE = 4, 8
_ALIGNMENT = 64
_ROOM_BYTES = PAGE_BYTES - _HEAD_BYTES

Numbers = NDArray[np.int64]


class Commits(msgspec.Struct, frozen=True):
    """Where commits begin, in order, relative to the first position of a range, and when each was made."""

    positions: Numbers
    timestamps_us: Numbers

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def none(cls) -> Commits:
        """Return no commits."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    def __getitem__(self, rows: slice) -> Commits:
        return Commits(self.positions[rows], self.timestamps_us[rows])


class TimesHead(msgspec.Struct, frozen=True, array_like=True):
    """What an object with timestamps says of itself."""

    log_id: str
    commits: int
    pages: int
    seed: int
    index_checksum: int


def encode(log_id: str, commits: Commits) -> tuple[TimesPart, list[bytes]]:
    """Return how the manifest knows an object with these commits, at least one, and its bytes in pieces."""
    seed = xxhash.xxh3_64_intdigest(np.ascontiguousarray(commits.timestamps_us).data)
    cuts = list(_cuts(commits))
    pages = [_page(number, commits[start:end], wide, seed) for number, (start, end, wide) in enumerate(cuts)]
    index = commits.positions[[start for start, _, _ in cuts]].astype("<i8").tobytes()
    head = TimesHead(log_id, len(commits), len(pages), seed, xxhash.xxh3_64_intdigest(index))
    framed = frame.wrap(KIND, VERSION, msgspec.msgpack.encode(head))
    front = framed + bytes(-len(framed) % _ALIGNMENT) + index
    front += bytes(-len(front) % PAGE_BYTES)
    told = TimesPart(
        commits=len(commits),
        first=int(commits.positions[0]),
        front_bytes=len(front),
        size_bytes=len(front) + len(pages) * PAGE_BYTES,
        checksum=xxhash.xxh3_64_intdigest(framed),
    )
    return told, [front, *pages]


def _cuts(commits: Commits) -> Iterator[tuple[int, int, int]]:
    """Yield where each page begins and ends, and how wide its differences are. Time that goes back begins a page."""
    steps = np.maximum(np.diff(commits.positions), np.diff(commits.timestamps_us))
    backward = [*(np.flatnonzero(np.diff(commits.timestamps_us) < 0) + 1).tolist(), len(commits)]
    start = turn = 0
    while start < len(commits):
        turn += backward[turn] == start
        wide, end = _NARROW, min(backward[turn], start + _ROOM_BYTES // (2 * _NARROW))
        if (steps[start : end - 1] >= 1 << 32).any():
            wide, end = _WIDE, min(end, start + _ROOM_BYTES // (2 * _WIDE))
        yield start, end, wide
        start = end


def _page(number: int, commits: Commits, width: int, seed: int) -> bytes:
    kind = f"<u{width}"
    first = int(commits.positions[0]).to_bytes(8, "little") + int(commits.timestamps_us[0]).to_bytes(8, "little")
    columns = (np.diff(column, prepend=column[:1]) for column in (commits.positions, commits.timestamps_us))
    packed = b"".join(column.astype(kind).tobytes() for column in columns)
    head = number.to_bytes(4, "little") + len(commits).to_bytes(2, "little") + bytes([width, 0])
    rest = (head + first + packed).ljust(PAGE_BYTES - 8, b"\0")
    return xxhash.xxh3_64_intdigest(rest, seed).to_bytes(8, "little") + rest


def decode_front(data: pa.Buffer, told: TimesPart, what: str) -> tuple[TimesHead, Numbers]:
    """Return head and index from the first ``told.front_bytes`` bytes (or all), checked; else ``CorruptionError``."""
    packed, framed_bytes = frame.unwrap_front(KIND, VERSION, data, what)
    if xxhash.xxh3_64_intdigest(memoryview(data)[:framed_bytes]) != told.checksum:
        _refuse(what, "its head is not the one that the manifest names")
    try:
        head = msgspec.msgpack.decode(packed, type=TimesHead)
    except UNREADABLE as error:
        message = f"{what}: its head does not make sense: {error}"
        raise CorruptionError(message) from error
    start = framed_bytes + -framed_bytes % _ALIGNMENT
    if head.commits != told.commits or start + 8 * head.pages > min(told.front_bytes, data.size):
        _refuse(what, "its head does not fit its bytes")
    if told.front_bytes + head.pages * PAGE_BYTES != told.size_bytes:
        _refuse(what, "its size does not fit its pages")
    index = np.frombuffer(data, "<i8", head.pages, start)
    if xxhash.xxh3_64_intdigest(index.data) != head.index_checksum:
        _refuse(what, "its index is not what was written")
    return head, index


def decode_page(page: memoryview, number: int, head: TimesHead, what: str) -> Commits:
    """Return the commits of a page, checked; ``CorruptionError`` otherwise."""
    whole = len(page) == PAGE_BYTES and int.from_bytes(page[:8], "little") == xxhash.xxh3_64_intdigest(
        page[8:], head.seed
    )
    count, width = int.from_bytes(page[12:14], "little"), page[14] if whole else 0
    if not whole or int.from_bytes(page[8:12], "little") != number:
        _refuse(what, f"page {number} is not what was written")
    if width not in {_NARROW, _WIDE} or not 1 <= count <= _ROOM_BYTES // (2 * width):
        _refuse(what, f"page {number} does not make sense")
    bases = int.from_bytes(page[16:24], "little"), int.from_bytes(page[24:32], "little")
    steps = np.frombuffer(page, f"<u{width}", 2 * count, _HEAD_BYTES).astype(np.int64)
    return Commits(bases[0] + np.cumsum(steps[:count]), bases[1] + np.cumsum(steps[count:]))


def _refuse(what: str, why: str) -> None:
    message = f"{what}: damaged: {why}; `oncelog rebuild` makes the run again"
    raise CorruptionError(message)


prepare(TimesHead)
