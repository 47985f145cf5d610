"""Where the bytes of a file are put together."""

from __future__ import annotations

import contextlib
import mmap
import sys

import pyarrow as pa

_FIRST_BYTES = 1 << 21


def output() -> Output | pa.BufferOutputStream:
    """Return what a Parquet writer can write into, and ``getvalue`` then tells."""
    return Output() if sys.platform == "linux" else pa.BufferOutputStream()


class Output:
    """Memory that begins with a page, so that a disk can take it as it is, and grows without being copied."""

    closed = False

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FIRST_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._size = 0
        self._in_large_pages()

    def write(self, data: bytes) -> int:
        """Take what comes next."""
        end = self._size + len(data)
        if end > len(self._memory):
            self._memory.resize(max(2 * len(self._memory), end))
            self._in_large_pages()
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
        """Return all that was taken. Nothing can be written from then on."""
        return pa.py_buffer(self._memory).slice(0, self._size)

    def _in_large_pages(self) -> None:
        """Ask for few large pages instead of thousands of small ones, each of which costs a stop."""
        with contextlib.suppress(OSError):  # a system that has none
            self._memory.madvise(mmap.MADV_HUGEPAGE)
