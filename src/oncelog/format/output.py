"""Memory in which the bytes of a file are put together. It is aligned to pages, as O_DIRECT needs. It grows without a
copy, or is a list of pieces. It is reused, because the system clears every page that it gives out.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_IS_LINUX: bool = sys.platform == "linux"
FIRST_BYTES = 1 << 21
SPARE_BYTES_MAX = 128 << 20
_spare: deque[mmap.mmap] = deque(maxlen=2)
"""Memory that is free for the next file: as much as is in use at a time, one file being made and one being stored."""

PIECE_BYTES = 1 << 22
COLUMN_MIN = 1 << 16
"""A column of fewer numbers is not worth a piece."""

_spare_pieces: deque[mmap.mmap] = deque(maxlen=SPARE_BYTES_MAX // PIECE_BYTES)


def output() -> Output | pa.BufferOutputStream:
    """Return what a Parquet writer can write into, and ``getvalue`` then tells."""
    return Output() if _IS_LINUX else pa.BufferOutputStream()


def bounded_output(bytes_max: int) -> tuple[Any, Callable[[], pa.Buffer]]:
    """Return what a Parquet writer can write into, so many bytes at most, and what then tells what was written.

    The writer needs the interpreter for none of its writes, so it does not wait for other threads. More bytes than
    that are an ``OSError`` of the writer.
    """
    if _IS_LINUX:
        memory = _take(1 << (bytes_max - 1).bit_length())  # files that differ a little can use the same memory
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(memory)[:bytes_max]))
        return sink, lambda: _lend(memory, sink.tell())
    growing = output()
    return growing, growing.getvalue


class Output:
    """Takes the bytes of one file."""

    closed = False

    def __init__(self) -> None:
        self._memory = _take()
        self._size = 0

    def write(self, data: bytes) -> int:
        """Take what comes next."""
        end = self._size + len(data)
        if end > len(self._memory):
            self._memory.resize(max(2 * len(self._memory), end))
            _advise(self._memory, "MADV_HUGEPAGE")  # a few large pages cost less than thousands of small ones
        self._memory[self._size : end] = data
        self._size = end
        return len(data)

    def tell(self) -> int:
        """Return how much was taken."""
        return self._size

    def flush(self) -> None:
        """Do nothing: it is there."""

    def close(self) -> None:
        """Do nothing: it is wanted yet."""

    def getvalue(self) -> pa.Buffer:
        """Return all that was taken, and take no more: the memory is the caller's."""
        memory = self._memory
        del self._memory
        return _lend(memory, self._size)


def _lend(memory: mmap.mmap, size_bytes: int) -> pa.Buffer:
    """Return the first bytes of memory that nobody else writes to any more."""
    address, lent = pa.py_buffer(memory).address, _Lent(memory)
    return pa.foreign_buffer(address, size_bytes, base=lent)


class _Lent:
    """Memory that buffers refer to; when no buffer does any more, it is kept for the next file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __del__(self) -> None:
        if len(self._memory) <= SPARE_BYTES_MAX:
            _advise(self._memory, "MADV_FREE")  # who is short of memory may have it
            _spare.append(self._memory)


def _take(size_bytes: int = FIRST_BYTES) -> mmap.mmap:
    """Return memory that has so many bytes at least. The system gives what is used of it."""
    with contextlib.suppress(IndexError):
        memory = _spare.pop()
        if len(memory) >= size_bytes:
            return memory
    return _new(size_bytes)


def _new(size_bytes: int) -> mmap.mmap:
    """Return memory of this process alone. Python's own choice is shared with the children of a fork: parent and child
    would put their files together in the same bytes, and no advice to free them would be heeded.
    """
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE)


def _advise(memory: mmap.mmap, advice: str) -> None:
    with contextlib.suppress(AttributeError, OSError):  # a Python, or a system, that does not know it
        memory.madvise(getattr(mmap, advice))


def piece() -> NDArray[np.uint8]:
    """Return ``PIECE_BYTES`` of memory. Whatever was in it before may be there yet."""
    return np.asarray(_LentPiece())


def column(count: int) -> NDArray[np.uint64]:
    """Return memory for so many numbers, with anything in it: a piece of it, where a piece is worth it and enough."""
    if COLUMN_MIN <= count <= PIECE_BYTES // 8:
        return piece()[: 8 * count].view(np.uint64)
    return np.empty(count, np.uint64)


class _LentPiece:
    """Memory that arrays refer to; when no array does any more, it is kept for the next one who asks."""

    def __init__(self) -> None:
        try:
            self._memory = _spare_pieces.pop()
        except IndexError:
            self._memory = _new(PIECE_BYTES)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (PIECE_BYTES,),
            "data": (pa.py_buffer(self._memory).address, False),
        }

    def __del__(self) -> None:
        _advise(self._memory, "MADV_FREE")
        _spare_pieces.append(self._memory)
