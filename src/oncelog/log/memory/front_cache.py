"""A bounded folder on this machine for the fronts of parts that are stored elsewhere; they are checked all the same."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from oncelog import limits
from oncelog.errors import CorruptionError, Unsupported
from oncelog.format.runs.parts import decode_front
from oncelog.format.runs.run import RunPart

_SUFFIX = ".front"


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
    """Keeps fronts as files, mapped; those that were not used for longest go when there are too many bytes.

    A file is named by the object's name and the checksum of its head, never by log and range: a copy of a log has both,
    and goes its own way. Safe to share between threads and processes. A cache that cannot be written is no error.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def get(self, key: str, told: RunPart, fetch: Callable[[], pa.Buffer]) -> pa.Buffer:
        """Return the front of a part, from its file or by ``fetch``, whose errors pass through."""
        path = self._folder / f"{key.rpartition('/')[2]}-{told.checksum:016x}{_SUFFIX}"
        kept = self._mapped(path, key, told)
        if kept is not None:
            return kept
        data = fetch()
        self._keep(path, data)
        return data

    def _mapped(self, path: Path, key: str, told: RunPart) -> pa.Buffer | None:
        """Return a file's bytes if they can be the front; its chunks are checked when they are used, as elsewhere."""
        try:
            with pa.memory_map(str(path)) as file:
                data = file.read_buffer()
            front = decode_front(data, told, key)
            os.utime(path)
        except (OSError, CorruptionError, Unsupported, pa.ArrowInvalid):
            return None
        return data if data.size == told.front_bytes and front.index_is_whole() else None

    def _keep(self, path: Path, data: pa.Buffer) -> None:
        """Write a file under a name of its own, then give it its name: nobody maps a part of it."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(path)
            self._trim()
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _trim(self) -> None:
        with self._lock:
            found = []
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
            left = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if left <= self._bytes_max:
                    return
                with contextlib.suppress(OSError):
                    path.unlink()
                left -= size
