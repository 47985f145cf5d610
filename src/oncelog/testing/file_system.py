"""Files and folders of a simulated disk: what is cached, and what of it is durable."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

_SECTOR_BYTES = 512


class SimulatedFile:
    """A file's content twice: in the page cache, which may be mapped, and on the platter."""

    def __init__(self, inode: int, size_bytes_max: int) -> None:
        self.inode = inode
        self.size = 0
        self.errors = 0
        self.locked_by: int | None = None
        self._size_bytes_max = size_bytes_max
        self._cached = self._new_cache()
        self._durable = bytearray()
        self._dirty: set[int] = set()

    def write(self, data: bytes | bytearray, offset: int) -> None:
        """Write into the cache."""
        if not data:
            return
        end = offset + len(data)
        # A gap that the file grows over counts as written too.
        first = min(offset, self.size) // _SECTOR_BYTES
        self._cached[offset:end] = data
        self.size = max(self.size, end)
        self._dirty.update(range(first, -(-end // _SECTOR_BYTES)))

    def content(self, offset: int, length: int) -> bytes:
        """Return bytes of the cache, up to the file's end."""
        return self._cached[offset : max(offset, min(offset + length, self.size))]

    def view(self, length: int) -> pa.Buffer:
        """Return the cache itself, which shows later writes."""
        return pa.py_buffer(memoryview(self._cached)[:length].toreadonly())

    def sync(self) -> None:
        """Make the cache durable."""
        self._store(self._dirty, self.size)
        self._dirty.clear()

    def sync_half(self) -> None:
        """Make the first half of what is dirty durable: the power, or the process, fails in the midst of it."""
        dirty = sorted(self._dirty)
        stored = set(dirty[: len(dirty) // 2])
        self._store(stored, max(len(self._durable), *(min(self.size, (s + 1) * _SECTOR_BYTES) for s in stored), 0))
        self._dirty -= stored

    def lose_dirty(self) -> None:
        """Mark what is dirty as clean without storing it, as a failed sync does: the cache still shows it."""
        self._dirty.clear()
        self.errors += 1

    def lose_unsynced(self, survives: Callable[[], bool], unit_bytes: int) -> None:
        """Fall back to what is durable, and to those units of the rest that survive."""
        self.locked_by = None
        self.errors = 0
        size = self.size if self.size <= len(self._durable) or survives() else len(self._durable)
        units = sorted({sector * _SECTOR_BYTES // unit_bytes for sector in self._dirty})
        kept = {unit for unit in units if survives()}
        self._store({s for s in self._dirty if s * _SECTOR_BYTES // unit_bytes in kept}, size)
        self._dirty.clear()
        self._cached = self._new_cache()
        self._cached[: len(self._durable)] = bytes(self._durable)
        self.size = len(self._durable)

    def _store(self, sectors: set[int], size: int) -> None:
        if len(self._durable) < size:
            self._durable.extend(bytes(size - len(self._durable)))
        for sector in sectors:
            begin = sector * _SECTOR_BYTES
            end = min(begin + _SECTOR_BYTES, size)
            if begin < end:
                self._durable[begin:end] = self._cached[begin:end]

    def _new_cache(self) -> mmap.mmap:
        return mmap.mmap(-1, self._size_bytes_max, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SimulatedFolder:
    """Names, as everybody sees them, and as they would be after a power cut."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def used_bytes(self) -> int:
        """Return the size of all files below, each counted once."""
        return sum(file.size for file in self._files().values())

    def lose_unsynced(self, survives: Callable[[], bool], unit_bytes: int) -> None:
        """Fall back to the names that are durable, and to those changes of names that survive."""
        for file in (self._files() | self._durable_files()).values():
            file.lose_unsynced(survives, unit_bytes)
        self._lose_names(survives)

    def _lose_names(self, survives: Callable[[], bool]) -> None:
        for name in sorted(self.entries.keys() | self.durable.keys()):
            node = self.entries.get(name)
            if node is not self.durable.get(name) and not survives():
                node = self.durable.get(name)
            if node is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = node
        self.durable = dict(self.entries)
        for node in self.entries.values():
            if isinstance(node, SimulatedFolder):
                node._lose_names(survives)  # noqa: SLF001  another of this class

    def _files(self) -> dict[int, SimulatedFile]:
        return _files_in(self.entries, lambda folder: folder._files())  # noqa: SLF001

    def _durable_files(self) -> dict[int, SimulatedFile]:
        return _files_in(self.durable, lambda folder: folder._durable_files())  # noqa: SLF001


Node: TypeAlias = SimulatedFile | SimulatedFolder


def _files_in(
    nodes: dict[str, Node], below: Callable[[SimulatedFolder], dict[int, SimulatedFile]]
) -> dict[int, SimulatedFile]:
    found: dict[int, SimulatedFile] = {}
    for node in nodes.values():
        found.update({node.inode: node} if isinstance(node, SimulatedFile) else below(node))
    return found
