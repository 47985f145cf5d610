"""A bounded folder on this machine for the fronts of parts that are stored elsewhere; they are checked all the same."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from oncelog import limits
from oncelog.errors import CorruptionError, Unsupported
from oncelog.format.runs.parts import decode_front
from oncelog.format.runs.run import RunPart

_SUFFIX, _NEW = ".front", ".new"
_OURS = re.compile(r".+-[0-9a-f]{16}\.front(\.[^.]+\.new)?")
"""The names of files that a cache makes."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _CacheChoice:
    """Which cache this process uses where nobody names another."""

    cache: FrontCache | None = None


def choose(wish: str | None, environment: Mapping[str, str]) -> None:
    """Say where fronts are kept: in a folder by its path, ``"0"`` nowhere, ``None`` in the user's folder for caches."""
    folder: Path | None = None
    if wish is None:
        base = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else "")
        folder = Path(base) / "oncelog" if base else None
    elif wish not in {"", "0"}:
        folder = Path(wish)
    _CacheChoice.cache = None if folder is None else FrontCache(folder, limits.MEMORY_CACHE_BYTES)


def chosen_cache() -> FrontCache | None:
    """Return the cache of this process; ``None``: there is none."""
    return _CacheChoice.cache


class FrontCache:
    """Keeps fronts as files; those that were not used for longest go when there are too many bytes.

    A file is named by the object's name and the checksum of its head, never by log and range: a copy of a log has both,
    and goes its own way. Safe to share between threads and processes. A cache that cannot be written is no error.

    A file is loaded, not mapped: somebody could make it shorter, which would end the process, or clear a bit of the
    filter after its checksum was checked, which would store an id twice. A folder that another user can write is not
    used at all: a checksum is no protection against an attacker.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def get(self, key: str, told: RunPart, fetch: Callable[[], pa.Buffer]) -> pa.Buffer:
        """Return the front of a part, from its file or by ``fetch``, whose errors pass through."""
        if not self._is_ours():
            return fetch()
        path = self._folder / f"{key.rpartition('/')[2]}-{told.checksum:016x}{_SUFFIX}"
        kept = self._kept(path, key, told)
        if kept is not None:
            return kept
        data = fetch()
        self._keep(path, data)
        return data

    def _is_ours(self) -> bool:
        """Tell whether only this user, and root, can write the folder; one that is not there will be made so."""
        try:
            found = self._folder.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return found.st_uid in {os.geteuid(), 0} and not found.st_mode & _OTHERS_WRITE

    def _kept(self, path: Path, key: str, told: RunPart) -> pa.Buffer | None:
        """Return a file's bytes if they can be the front; its chunks are checked when they are used, as elsewhere."""
        try:
            data = _load(path, told.front_bytes)
            front = None if data is None else decode_front(data, told, key)
            os.utime(path)
        except (OSError, CorruptionError, Unsupported):
            return None
        return data if front is not None and front.index_is_whole() else None

    def _keep(self, path: Path, data: pa.Buffer) -> None:
        """Write a file under a random name, then rename it: no reader sees a part of the file."""
        temporary = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(_NEW, f"{path.name}.", self._folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
            self._trim()
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()

    def _trim(self) -> None:
        """Remove the oldest files. Files that the cache did not make stay, whatever folder it was given."""
        with self._lock:
            found = []
            for path in self._folder.iterdir():
                if not _OURS.fullmatch(path.name):
                    continue
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    found.append((status.st_mtime_ns, status.st_size, path))
            left = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if left <= self._bytes_max:
                    return
                with contextlib.suppress(OSError):
                    path.unlink()
                left -= size


def _load(path: Path, size_bytes: int) -> pa.Buffer | None:
    """Return the bytes of a file that has exactly so many; ``None``: it has not. No link is followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if os.fstat(descriptor).st_size != size_bytes:
            return None
        data = pa.allocate_buffer(size_bytes)
        view, have = memoryview(data), 0
        while have < size_bytes and (got := file.readinto(view[have:])):
            have += got
        return data if have == size_bytes else None
