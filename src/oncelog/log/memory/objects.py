"""The objects of runs, opened: their fronts at hand, their pages read and checked when somebody needs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.runs import filters
from oncelog.errors import Closed, CorruptionError, NotFound
from oncelog.format.runs import pages as page_format
from oncelog.format.runs.pages import PAGE, PAGE_BYTES, Pages
from oncelog.format.runs.parts import BLOCK_WORDS, CHUNK_BYTES, Front, decode_front
from oncelog.format.runs.run import Run, RunPart
from oncelog.log.memory.front_cache import FrontCache, chosen_cache
from oncelog.storage.base import LogHome

READS_MAX = 32
"""So many reads of a home that is elsewhere are on their way at once."""

READER = "oncelog-memory"
_CHUNK_BLOCKS = CHUNK_BYTES // (8 * BLOCK_WORDS)

Column = NDArray[np.uint64]

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class RunObjects:
    """Opens and reads the objects of a log's runs. Safe to share between threads.

    On this machine (``home.exclusive``: memory, a local disk) an object is mapped whole, and read by touching it. From
    elsewhere (a bucket) fronts are fetched, and kept in ``cache``, or in the one of this process; pages are fetched in
    ranges.
    """

    def __init__(self, home: LogHome, cache: FrontCache | None = None) -> None:
        self.home = home
        self.is_here = home.exclusive
        self._cache = chosen_cache() if cache is None else cache
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def close(self) -> None:
        """End the threads that fetch. May be repeated."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._closed = True
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def each(self, work: Callable[[_In], _Out], items: Sequence[_In]) -> Iterator[_Out]:
        """Yield the results of work on each item, in order; up to ``READS_MAX`` at once where the home is elsewhere."""
        if self.is_here or len(items) <= 1:
            yield from map(work, items)
            return
        for start in range(0, len(items), READS_MAX):
            try:
                done = self._started().map(work, items[start : start + READS_MAX])
                yield from done
            except (RuntimeError, CancelledError) as error:  # the pool was shut down
                message = "the log was closed while its memory of ids was being read"
                raise Closed(message) from error

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                message = "the log was closed"
                raise Closed(message)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(READS_MAX, thread_name_prefix=READER)
            return self._pool

    def open(self, run: Run) -> list[OpenPart]:
        """Return the parts of a run with their heads checked; ``NotFound``, ``CorruptionError`` or ``Unavailable``."""
        return list(self.each(lambda number: self._open_part(run, number), range(len(run.parts))))

    def _open_part(self, run: Run, number: int) -> OpenPart:
        key, told = run.part_key(number), run.parts[number]
        if self.is_here:
            data = self.home.read(key, mapped=True)
            if data.size != told.size_bytes:
                message = f"{key}: {data.size} bytes, expected {told.size_bytes}; `oncelog rebuild` makes the run again"
                raise CorruptionError(message)
        else:
            data = self._front(key, told)
        front = decode_front(data, told, key)
        if (front.head.part, front.head.bits) != (number, run.bits):
            message = f"{key}: part {front.head.part}, expected {number}; `oncelog rebuild` makes the run again"
            raise CorruptionError(message)
        return OpenPart(self.home, key, told, front, data if self.is_here else None)

    def _front(self, key: str, told: RunPart) -> pa.Buffer:
        if self._cache is None:
            return self.home.read(key, 0, told.front_bytes)
        return self._cache.get(key, told, lambda: self.home.read(key, 0, told.front_bytes))


def may_have(parts: Sequence[OpenPart], ends: Sequence[int], high: Column, low: Column) -> NDArray[np.bool_]:
    """Tell of each key whether it may be in a part: keys before ``ends[0]`` in the first, and so on.

    A damaged chunk of a filter says "perhaps" of every key that belongs to it.
    """
    spans = list(itertools.pairwise((0, *ends)))
    for part, (start, end) in zip(parts, spans, strict=True):
        part.check_chunks(high[start:end])
    passed = filters.may_have([part.filter for part in parts], ends, high, low, parts[0].bits)
    for part, (start, end) in zip(parts, spans, strict=True):
        doubtful = part.in_bad_chunks(high[start:end])
        if doubtful is not None:
            passed[start:end] |= doubtful
    return passed


class OpenPart:
    """One part of a run: its filter and index at hand. Nothing of it is believed before its checksum was seen to hold.

    Safe to share between threads: what was checked is noted in single bytes that only ever change from 0 to 1.
    """

    def __init__(self, home: LogHome, key: str, told: RunPart, front: Front, data: pa.Buffer | None) -> None:
        self.key = key
        self.told = told
        self.head = front.head
        self.bits = front.head.bits
        self.filter = front.filter
        self.index = front.index
        self._home = home
        self._front = front
        self._seed = front.head.seed
        self._words = front.filter.data
        self.index_view = front.index.data
        self._chunks = bytearray(-(-front.head.blocks // _CHUNK_BLOCKS))
        self._chunks_left = True
        self._bad_chunks = False
        self.is_damaged = False
        self._index_checked = False
        self._mapped: Pages | None = None
        if data is not None:
            self._mapped = np.frombuffer(data, PAGE, self.head.pages, told.front_bytes)
            self._bytes = memoryview(data).cast("B")[told.front_bytes :]
            self._checked = np.zeros(self.head.pages, np.bool_)

    @property
    def is_mapped(self) -> bool:
        """Whether pages are read by touching them."""
        return self._mapped is not None

    def check_chunks(self, high: NDArray[np.uint64]) -> None:
        """Check the chunks of the filter that these keys belong to, unless they were checked before."""
        if not self._chunks_left or not len(high):
            return
        states = np.frombuffer(self._chunks, np.uint8)
        chunks = self._chunks_of(high)
        for chunk in np.unique(chunks[states[chunks] == _UNSEEN]).tolist():
            self._check_chunk(chunk)
        self._chunks_left = bool((states == _UNSEEN).any())

    def in_bad_chunks(self, high: NDArray[np.uint64]) -> NDArray[np.bool_] | None:
        """Tell which keys belong to damaged chunks of the filter; ``None``: none does."""
        if not self._bad_chunks:
            return None
        bad: NDArray[np.bool_] = np.frombuffer(self._chunks, np.uint8) == _BAD
        return bad[self._chunks_of(high)]

    def _chunks_of(self, high: NDArray[np.uint64]) -> NDArray[np.int64]:
        return filters.blocks_of(self.filter, high, self.bits) // _CHUNK_BLOCKS

    def _check_chunk(self, chunk: int) -> None:
        whole = self._front.chunk_is_whole(chunk)
        if not whole:
            self._bad_chunks = self.is_damaged = True
        self._chunks[chunk] = _GOOD if whole else _BAD

    def may_have_one(self, high: int, low: int) -> bool:
        """Tell of one key whether it may be in this part, as ``may_have`` does."""
        if self._chunks_left or self._bad_chunks:
            blocks = self.head.blocks
            chunk = (((high << self.bits) & _MASK) >> 32) * blocks // _CHUNK_BLOCKS >> 32
            if self._chunks[chunk] == _UNSEEN:
                self._check_chunk(chunk)
            if self._chunks[chunk] == _BAD:
                return True
        return filters.may_have_one(self._words, high, low, self.bits)

    def check_filter(self) -> None:
        """Raise ``CorruptionError`` unless the whole filter is what was written."""
        for chunk in range(len(self._chunks)):
            self._check_chunk(chunk)
        if self._bad_chunks:
            message = f"{self.key}: its filter is not what was written; `oncelog rebuild` makes the run again"
            raise CorruptionError(message)

    def check_index(self) -> None:
        """Raise ``CorruptionError`` unless the index is what was written."""
        if not self._index_checked:
            if not self._front.index_is_whole():
                self.is_damaged = True
                message = f"{self.key}: its index is not what was written; `oncelog rebuild` makes the run again"
                raise CorruptionError(message)
            self._index_checked = True

    def read(self, first: int, count: int) -> Pages:
        """Return consecutive pages, not checked."""
        if self._mapped is not None:
            return self._mapped[first : first + count]
        try:
            data = self._home.read(self.key, self.told.front_bytes + first * PAGE_BYTES, count * PAGE_BYTES)
        except NotFound:
            self.is_damaged = True  # unless it was merged away: then no manifest names it
            raise
        if data.size != count * PAGE_BYTES:
            self.is_damaged = True
            message = f"{self.key}: ends before page {first + count}; `oncelog rebuild` makes the run again"
            raise CorruptionError(message)
        return np.frombuffer(data, PAGE)

    def page(self, number: int) -> memoryview:
        """Return the bytes of one page, checked; ``CorruptionError`` if they are not what was written."""
        if self._mapped is None:
            pages = self.read(number, 1)
            if self.bad_pages(pages, number, [number]):
                raise page_format.damaged(self.key, number)
            return pages.view(np.uint8).data
        page = self._bytes[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        if not self._checked[number]:
            if not page_format.is_whole(page, number, self.head.entries_in(number), self._seed):
                self.is_damaged = True
                raise page_format.damaged(self.key, number)
            self._checked[number] = True
        return page

    def unchecked(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return which of these pages have to be checked, each once: what is mapped is checked when first touched."""
        left = numbers if self._mapped is None else numbers[~self._checked[numbers]]
        return np.unique(left).tolist() if len(left) else []

    def bad_pages(self, pages: Pages, first: int, numbers: Sequence[int]) -> list[int]:
        """Return which of the numbered pages are damaged. ``pages`` begin with page ``first``."""
        if not numbers:
            return []
        bad = page_format.bad_ones(pages, first, numbers, self.head.count, self._seed)
        self.is_damaged |= bool(bad)
        if self._mapped is not None:
            self._checked[numbers] = True
            self._checked[bad] = False
        return bad


_UNSEEN, _GOOD, _BAD = 0, 1, 2
_MASK = (1 << 64) - 1
