"""Objects as files: whole or not there, under a name that only one can win."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.storage.base import Chunk
from oncelog.storage.keys import check_key, check_prefix
from oncelog.storage.local.disk import Disk, close_quietly, explain
from oncelog.storage.local.links import NotNamed

LOCK = "lock"
PUBLISHED = "published"
SEGMENTS = "segments"
TEMPORARY = "temporary"
TORN = "torn"
BLOCKS_SUFFIX = ".blocks"

_OWN_NAMES = frozenset({LOCK, PUBLISHED, TEMPORARY, TORN})
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP})
_NOT_NAMED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOENT}
)
"""What a system says that makes files without a name, and then refuses to name them. AppArmor says ``ENOENT``: to a
profile without ``mediate_deleted`` such a file is one that was deleted. If the folder is gone, the second way says so.
"""
_MAPPED_BYTES_MIN = 64 * 1024
_numbers = itertools.count()
_TEMPORARY_NAME = re.compile(r"(?P<process>[0-9]{1,10})-[0-9]+-[0-9a-f]{16}")
"""What this module calls a file that is being written: no other is ever removed."""


class Folders:
    """Makes folders so that they stay: each is there after a power cut before anything in it counts.

    A folder that is found may have been made by a process that died before it was durable, so the names of all
    folders on the way are synced once by every process that relies on them.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._settled: set[Path] = set()

    def settle(self, folder: Path) -> None:
        """Make a folder and those above it, durably; raises ``OSError``, ``InvalidArgument`` for a root of another."""
        if folder in self._settled or folder == folder.parent:
            return
        self.settle(folder.parent)
        if folder == self._root:
            self._disk.check_owner(folder)
        ours = self._root in folder.parents
        if ours or not self._disk.is_directory(folder):
            ours |= self._disk.make_directory(folder)
        try:
            self._disk.sync_directory(folder.parent)
        except OSError as error:
            # Folders above the root that were there may lie where nobody but their owner reads or syncs.
            if ours or error.errno not in _NOT_OURS:
                raise
        self._settled.add(folder)

    def forget(self) -> None:
        """Assume nothing: a folder was removed behind our back."""
        self._settled.clear()


class Objects:
    """The objects of one home, each a file at its key. Safe to share between threads and processes."""

    def __init__(self, disk: Disk, folders: Folders, home: Path, clock: Clock) -> None:
        self._disk = disk
        self._folders = folders
        self._home = home
        self._clock = clock
        self._nameless = True

    def path(self, key: str) -> Path:
        """Return where an object is, or ``InvalidArgument`` for a name that the home itself uses."""
        first, _, rest = check_key(key).partition("/")
        if first in _OWN_NAMES or (first == SEGMENTS and rest.endswith(BLOCKS_SUFFIX)):
            message = f"key {key!r} is kept for the home's own files"
            raise InvalidArgument(message)
        return self._home / key

    def create(self, path: Path, data: Sequence[Chunk]) -> bool:
        """Store a new file, whole and durable; ``False`` when the name is taken, durably too.

        ``Unavailable(outcome="not written")`` until the name is given, ``"unknown"`` from then on.
        """
        try:
            new = None if self._disk.identity(path) else self._prepare(path, data)
        except OSError as error:
            raise explain(error, path) from error
        try:
            created = self._found(path) if new is None else self._name(new, path, data)
        except OSError as error:
            # What is known of the folders may be wrong: the home can have been removed.
            self._folders.forget()
            raise explain(error, path, "unknown") from error
        finally:
            if new is not None:
                new.close()
        if new is not None and not created and self._disk.is_directory(path):
            raise explain(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)), path)
        return created

    def _name(self, new: _Nameless | _Temporary, path: Path, data: Sequence[Chunk]) -> bool:
        """Give a file its name. Where a file without one cannot be named, write another, and use none from now on."""
        try:
            return new.name(path)
        except NotNamed as error:  # an error of the sync that follows is none: the name may be there
            if error.errno not in _NOT_NAMED:
                raise
        temporary = self._write_temporary(data)
        try:
            created = temporary.name(path)
        finally:
            temporary.close()
        self._nameless = False  # with a name it could be done
        return created

    def _found(self, path: Path) -> bool:
        """Make a name durable that is there; return ``False``: nothing was created."""
        self._folders.settle(path.parent)
        self._disk.sync_directory(path.parent)
        return False

    def read(self, path: Path, start: int, length: int | None, *, mapped: bool = False) -> pa.Buffer:
        """Return a part of a file, loaded, or ``mapped`` when it is large: it outlives the file's name either way.

        The process that named it may have died before the name was durable. So the name is synced: what was seen stays.
        """
        try:
            descriptor = self._disk.open_to_read(path)
            try:
                self._keep_names(path.parent)
                size = self._disk.size(descriptor)
                start = min(start, size)
                length = size - start if length is None else min(length, size - start)
                if mapped and length >= _MAPPED_BYTES_MIN:
                    return self._disk.map(descriptor, size).slice(start, length)
                return self._disk.load(descriptor, length, start)
            finally:
                close_quietly(self._disk, descriptor)
        except IsADirectoryError as error:
            raise explain(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), path) from error
        except OSError as error:
            raise explain(error, path) from error

    def _keep_names(self, folder: Path) -> None:
        """Make the names in a folder durable, unless it is one that nobody can change."""
        try:
            self._disk.sync_directory(folder)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise

    def exists(self, path: Path) -> bool:
        """Tell whether a file is there."""
        try:
            return self._disk.identity(path) is not None
        except OSError as error:
            raise explain(error, path) from error

    def keys(self, prefix: str) -> list[str]:
        """Return the keys below a prefix, sorted, without the home's own files."""
        folder = self._home / check_prefix(prefix)
        own = _OWN_NAMES if not prefix else frozenset()
        if prefix.partition("/")[0] in _OWN_NAMES:
            return []
        try:
            return sorted(self._walk(folder, prefix, own))
        except OSError as error:
            raise explain(error, folder) from error

    def delete(self, path: Path) -> None:
        """Remove a file's name, if it is there, durably: what the manifest has forgotten must not come back."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
                self._disk.sync_directory(path.parent)
        except OSError as error:
            raise explain(error, path) from error

    def clean(self) -> None:
        """Remove what processes that died have left half-written. Nothing depends on it, so nothing is raised."""
        folder = self._home / TEMPORARY
        with contextlib.suppress(OSError):
            for name, is_folder in self._disk.list_directory(folder):
                made = _TEMPORARY_NAME.fullmatch(name)
                if made is not None and not is_folder and not self._disk.is_alive(int(made["process"])):
                    self._disk.unlink(folder / name)

    def _prepare(self, path: Path, data: Sequence[Chunk]) -> _Nameless | _Temporary:
        """Write the content under no name, or a name of its own, durably, with all folders there."""
        try:
            self._folders.settle(path.parent)
            return self._write_new(path.parent, data)
        except FileNotFoundError:
            # The home was removed and is being made again: what we knew of its folders is gone with it.
            self._folders.forget()
            self._folders.settle(path.parent)
            return self._write_new(path.parent, data)

    def _write_new(self, folder: Path, data: Sequence[Chunk]) -> _Nameless | _Temporary:
        descriptor = self._disk.open_nameless(folder) if self._nameless else None
        if descriptor is None:
            return self._write_temporary(data)
        new = _Nameless(self._disk, descriptor)
        try:
            self._disk.write_whole(descriptor, data)
            self._disk.sync(descriptor)
        except BaseException:
            new.close()
            raise
        return new

    def _write_temporary(self, data: Sequence[Chunk]) -> _Temporary:
        self._folders.settle(self._home / TEMPORARY)
        name = f"{self._disk.process()}-{next(_numbers)}-{self._clock.token(8).hex()}"
        new = _Temporary(self._disk, self._home / TEMPORARY / name)
        descriptor = self._disk.open(new.path, create=True, exclusive=True)
        try:
            self._disk.write_whole(descriptor, data)
            self._disk.sync(descriptor)
        except BaseException:
            new.close()
            raise
        finally:
            close_quietly(self._disk, descriptor)
        return new

    def _walk(self, folder: Path, prefix: str, own: frozenset[str]) -> list[str]:
        try:
            names = self._disk.list_directory(folder)
        except FileNotFoundError:
            return []
        found: list[str] = []
        for name, is_folder in names:
            if name in own or (prefix == f"{SEGMENTS}/" and name.endswith(BLOCKS_SUFFIX)):
                continue
            if is_folder:
                found.extend(self._walk(folder / name, f"{prefix}{name}/", frozenset()))
            else:
                found.append(f"{prefix}{name}")
        return found


class _Nameless:
    """A file that is whole and durable, and has no name yet."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor

    def name(self, path: Path) -> bool:
        """Give the file its name, durably; ``False`` when the name is taken."""
        return self._disk.name(self._descriptor, path)

    def close(self) -> None:
        """Let go of the file: without a name it is gone."""
        close_quietly(self._disk, self._descriptor)


class _Temporary:
    """A file that is whole and durable, under a name of its own: where a file must have one."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path

    def name(self, path: Path) -> bool:
        """Give the file its name, durably; ``False`` when the name is taken."""
        created = self._disk.link(self.path, path)
        self._disk.sync_directory(path.parent)
        return created

    def close(self) -> None:
        """Remove the name of its own."""
        with contextlib.suppress(OSError):
            self._disk.unlink(self.path)
