"""A disk in memory that can be cut off at any moment: what was not synced may be gone, in whole or in part."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa

from oncelog.limits import MIB
from oncelog.storage.base import Chunk
from oncelog.storage.local.disk import Identity
from oncelog.storage.local.links import NotNamed
from oncelog.testing.faults import Faults, When
from oncelog.testing.file_system import Node, SimulatedFile, SimulatedFolder

Keep = Literal["none", "all", "some"]
"""What of the unsynced a power cut leaves: nothing, everything, or a random part, down to single sectors."""

_FIRST_DESCRIPTOR = 1_000_000


class SimulatedDisk:
    """A file system in memory, with a page cache that a power cut empties.

    A failed sync marks the pages it was to write as clean without storing them. The error is reported once to every
    descriptor that was open then, as Linux does. Every call is counted, and can be made to fail or to kill (see
    ``Faults``). ``size_bytes_max`` is when the disk is full; ``read_only`` refuses every change. ``nameless`` says
    whether it has files without a name, as some real disks have.
    """

    def __init__(
        self, *, size_bytes_max: int | None = None, file_bytes_max: int = 64 * MIB, nameless: bool = False
    ) -> None:
        self.faults = Faults()
        self.size_bytes_max = size_bytes_max
        self.read_only = False
        self._file_bytes_max = file_bytes_max
        self._nameless = nameless
        self._unnamed: dict[int, SimulatedFile] = {}
        self._lock = threading.RLock()
        self._root = SimulatedFolder()
        self._descriptors: dict[int, _Open] = {}
        self._next_descriptor = _FIRST_DESCRIPTOR
        self._next_inode = 1
        self._starts = 0
        self._processes = 1

    @property
    def boot_id(self) -> str:
        """Which start of the simulated machine this is."""
        return f"simulated start {self._starts}"

    # What a test does to it.

    def crash(self) -> None:
        """End the process: its descriptors and locks go, what it has written stays in the page cache."""
        with self._lock:
            for descriptor in list(self._descriptors):
                self.drop(descriptor)
            self._processes += 1
            self.faults.heal()

    def power_cut(self, keep: Keep = "none", seed: int = 0) -> None:
        """End the machine: of what was not synced, ``keep`` says what is there when it starts again."""
        with self._lock:
            self.crash()
            self._starts += 1
            chance = random.Random(seed)
            survives: Callable[[], bool] = {
                "none": lambda: False,
                "all": lambda: True,
                "some": lambda: chance.random() < 0.5,  # noqa: PLR2004
            }[keep]
            unit_bytes = chance.choice((512, 4096))
            self._root.lose_unsynced(survives, unit_bytes)

    def free(self, size_bytes: int) -> None:
        """Make room on a disk that is full."""
        with self._lock:
            assert self.size_bytes_max is not None, "this disk has no limit"
            self.size_bytes_max += size_bytes

    def used_bytes(self) -> int:
        """Return the size of all files together, with a name or without."""
        with self._lock:
            return self._root.used_bytes() + sum(file.size for file in self._unnamed.values())

    def content(self, path: Path) -> bytearray:
        """Return a copy of what a file holds, for a test to look at, or to damage and ``put`` back."""
        with self._lock:
            return bytearray(self._file(path).content(0, self._file(path).size))

    def put(self, path: Path, content: bytes | bytearray) -> None:
        """Give a file another content, durably, as damage does: nothing is counted and nobody is asked."""
        with self._lock:
            file = self._file(path)
            file.write(bytes(file.size), 0)
            file.write(content, 0)
            file.sync()

    # What a disk does: see ``oncelog.storage.local.disk.Disk``.

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        """Open a file for reading and writing."""
        with self._call("open", path, change=True):
            folder, name = self._parent(path)
            node = folder.entries.get(name)
            if node is not None and exclusive:
                raise _error(errno.EEXIST, path)
            if node is None and create:
                node = folder.entries[name] = SimulatedFile(self._inode(), self._file_bytes_max)
            return self._opened(node, path)

    def open_nameless(self, folder: Path) -> int | None:
        """Make a file that is gone with its descriptor, unless it is named."""
        if not self._nameless:
            return None
        with self._call("open_nameless", folder, change=True):
            self._folder(folder)
            file = SimulatedFile(self._inode(), self._file_bytes_max)
            descriptor = self._opened(file, folder / "without a name")
            self._unnamed[descriptor] = file
            return descriptor

    def name(self, descriptor: int, path: Path) -> bool:
        """Name a file, then store the names in its folder: two calls, each of which can be the last."""
        self._path(descriptor)
        try:
            with self._call("name", path, change=True):
                folder, name = self._parent(path)
                is_named = name not in folder.entries
                if is_named:
                    self._open_file(descriptor)
                    folder.entries[name] = self._unnamed.pop(descriptor)
        except OSError as error:
            raise NotNamed(error.errno, error.strerror, str(path)) from error
        self.sync_directory(path.parent)
        return is_named

    def open_to_read(self, path: Path) -> int:
        """Open a file for reading only."""
        with self._call("open_to_read", path):
            return self._opened(self._node(path), path)

    def close(self, descriptor: int) -> None:
        """Close a descriptor, and end its lock; one that fails has closed all the same, as on Linux."""
        try:
            with self._call("close", self._path(descriptor)):
                self._open_file(descriptor)
                self.drop(descriptor)
        except OSError:
            if descriptor in self._descriptors:
                self.drop(descriptor)
            raise

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Write into the page cache; a call that fails "during" writes the first half."""
        data = b"".join(bytes(memoryview(chunk)) for chunk in chunks)
        path = self._path(descriptor)
        file = self._open_file(descriptor).file
        with self._call("write", path, change=True, half=lambda: file.write(data[: len(data) // 2], offset)):
            grown = max(0, offset + len(data) - file.size)
            if self.size_bytes_max is not None and self.used_bytes() + grown > self.size_bytes_max:
                raise _error(errno.ENOSPC, path)
            if offset + len(data) > self._file_bytes_max:
                raise _error(errno.EFBIG, path)
            file.write(data, offset)

    def write_whole(self, descriptor: int, chunks: Sequence[Chunk]) -> None:
        """Write all that a new file is to have, as ``write`` does."""
        self.write(descriptor, chunks, 0)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read from the page cache."""
        with self._call("read", self._path(descriptor)):
            return self._open_file(descriptor).file.content(offset, length)

    def load(self, descriptor: int, length: int, offset: int) -> pa.Buffer:
        """Read from the page cache."""
        return pa.py_buffer(self.read(descriptor, length, offset))

    def size(self, descriptor: int) -> int:
        """Return a file's size in bytes."""
        with self._call("size", self._path(descriptor)):
            return self._open_file(descriptor).file.size

    def begin_sync(self, descriptor: int, offset: int, length: int) -> None:
        """Promise nothing: what is not synced may be stored, or lost, in any case."""

    def sync(self, descriptor: int) -> None:
        """Store a file's pages, or lose them."""
        path = self._path(descriptor)
        opened = self._open_file(descriptor)
        try:
            with self._call("sync", path, half=opened.file.sync_half):
                opened.file.sync()
        except OSError:
            opened.file.lose_dirty()
            opened.errors_seen = opened.file.errors
            raise
        if opened.errors_seen != opened.file.errors:
            opened.errors_seen = opened.file.errors
            raise _error(errno.EIO, path)

    def sync_directory(self, path: Path) -> None:
        """Store the names in a folder."""
        with self._call("sync_directory", path):
            folder = self._folder(path)
            folder.durable = dict(folder.entries)

    def identity(self, path: Path) -> Identity | None:
        """Return which file a name stands for."""
        with self._call("identity", path):
            try:
                node = self._node(path)
            except FileNotFoundError:
                return None
            return (self._starts, node.inode) if isinstance(node, SimulatedFile) else None

    def identity_of(self, descriptor: int) -> Identity:
        """Return which file a descriptor stands for."""
        with self._call("identity_of", self._path(descriptor)):
            return self._starts, self._open_file(descriptor).file.inode

    def is_directory(self, path: Path) -> bool:
        """Tell whether a folder is there."""
        with self._call("is_directory", path):
            try:
                return isinstance(self._node(path), SimulatedFolder)
            except FileNotFoundError:
                return False

    def make_directory(self, path: Path) -> bool:
        """Make a folder."""
        with self._call("make_directory", path, change=True):
            folder, name = self._parent(path)
            if isinstance(folder.entries.get(name), SimulatedFile):
                raise _error(errno.ENOTDIR, path)
            made = name not in folder.entries
            folder.entries.setdefault(name, SimulatedFolder())
            return made

    def check_owner(self, path: Path) -> None:
        """Do nothing: here is one user only."""

    def list_directory(self, path: Path) -> list[tuple[str, bool]]:
        """Return names, and which are folders."""
        with self._call("list_directory", path):
            return [(name, isinstance(node, SimulatedFolder)) for name, node in self._folder(path).entries.items()]

    def remove_directory(self, path: Path) -> None:
        """Remove an empty folder."""
        with self._call("remove_directory", path, change=True):
            if self._folder(path).entries:
                raise _error(errno.ENOTEMPTY, path)
            folder, name = self._parent(path)
            del folder.entries[name]

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name, unless that is taken."""
        with self._call("link", target, change=True):
            file = self._file(source)
            folder, name = self._parent(target)
            if name in folder.entries:
                return False
            folder.entries[name] = file
            return True

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name."""
        with self._call("rename", source, change=True):
            node = self._node(source)
            to_folder, to_name = self._parent(target)
            from_folder, from_name = self._parent(source)
            del from_folder.entries[from_name]
            to_folder.entries[to_name] = node

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        with self._call("unlink", path, change=True):
            self._file(path)
            folder, name = self._parent(path)
            del folder.entries[name]

    def map(self, descriptor: int, length: int) -> pa.Buffer:
        """Return the page cache itself."""
        with self._call("map", self._path(descriptor)):
            return self._open_file(descriptor).file.view(length)

    def lock(self, descriptor: int) -> bool:
        """Lock a file for a descriptor."""
        with self._call("lock", self._path(descriptor)):
            file = self._open_file(descriptor).file
            if file.locked_by not in {None, descriptor}:
                return False
            file.locked_by = descriptor
            return True

    def process(self) -> int:
        """Return which process this is: another one after every crash."""
        return self._processes

    def is_alive(self, process: int) -> bool:
        """Tell whether a process has not crashed."""
        return process == self._processes

    @contextmanager
    def _call(
        self, operation: str, path: Path, *, change: bool = False, half: Callable[[], None] | None = None
    ) -> Iterator[None]:
        with self._lock:
            error, when = self.faults.next_call(operation, str(path))
            if error is not None and when != "after":
                if when == "during" and half is not None:
                    half()
                raise error
            if change and self.read_only:
                raise _error(errno.EROFS, path)
            yield
            if error is not None:
                raise error

    def _inode(self) -> int:
        self._next_inode += 1
        return self._next_inode

    def _opened(self, node: Node | None, path: Path) -> int:
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimulatedFolder):
            raise _error(errno.EISDIR, path)
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = _Open(node, path)
        return self._next_descriptor

    def drop(self, descriptor: int) -> None:
        """Close a descriptor and end its lock, as the end of its process does: nothing is counted."""
        opened = self._descriptors.pop(descriptor)
        self._unnamed.pop(descriptor, None)
        if opened.file.locked_by == descriptor:
            opened.file.locked_by = None

    def _path(self, descriptor: int) -> Path:
        if self.faults.is_killed:
            self.faults.next_call("any", "")
        return self._open_file(descriptor).path

    def _open_file(self, descriptor: int) -> _Open:
        """Return what a descriptor stands for. Any thread may find that a crash, in another one, has closed it."""
        opened = self._descriptors.get(descriptor)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def _node(self, path: Path) -> Node:
        node: Node = self._root
        for part in path.parts[1:]:
            if not isinstance(node, SimulatedFolder):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(part)
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node

    def _folder(self, path: Path) -> SimulatedFolder:
        node = self._node(path)
        if not isinstance(node, SimulatedFolder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> SimulatedFile:
        node = self._node(path)
        if not isinstance(node, SimulatedFile):
            raise _error(errno.EISDIR, path)
        return node

    def _parent(self, path: Path) -> tuple[SimulatedFolder, str]:
        return self._folder(path.parent), path.name


class _Open:
    """What a descriptor stands for. A sync error is reported to it once."""

    def __init__(self, file: SimulatedFile, path: Path) -> None:
        self.file = file
        self.path = path
        self.errors_seen = file.errors


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


__all__ = ["Keep", "SimulatedDisk", "When"]
