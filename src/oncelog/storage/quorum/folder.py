"""A folder as a bucket: the same requests, each on stable storage when it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from oncelog.storage.base import Chunk
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.local.home import LocalStorage

_HOME = "~objects"


class FolderBucket(Bucket):
    """What is below one folder of a local or mounted disk. Objects are files that were synced."""

    def __init__(self, folder: Path) -> None:
        """Keep a folder; nothing is made yet."""
        self.url = folder.absolute().as_uri()
        self.requests: Counter[str] = Counter()
        self._home = LocalStorage(folder).home(_HOME)

    def create(self, path: str, data: Sequence[Chunk]) -> bool:
        """Store an object if nothing is there."""
        return self._home.create(path, data)

    def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return an object's bytes from ``start``, at most ``length`` of them; ``NotFound`` if it is not there."""
        return self._home.read(path, start, length)

    def size(self, path: str) -> int | None:
        """Return how many bytes an object has; ``None`` if it is not there."""
        try:
            return Path(self._home.location(path)).stat().st_size if self._home.exists(path) else None
        except FileNotFoundError:  # deleted in between
            return None

    def below(self, prefix: str, after: str | None = None) -> list[tuple[str, int]]:
        """Return paths that begin with ``prefix``, behind ``after``, with their sizes, sorted."""
        folder = prefix.rpartition("/")[0]
        listed = self._home.list(f"{folder}/" if folder else "")
        keys = [key for key in listed if key.startswith(prefix)]
        found = [(key, self.size(key)) for key in keys if after is None or key > after]
        return [(key, size_bytes) for key, size_bytes in found if size_bytes is not None]

    def folders(self, prefix: str) -> list[str]:
        """Return what is between ``prefix`` and the next slash, each once, sorted."""
        keys = [key.removeprefix(prefix) for key in self._home.list(prefix)]
        return sorted({key.partition("/")[0] for key in keys if "/" in key})

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        self._home.delete(path)
