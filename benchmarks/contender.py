"""What takes part: something that stores records once, durably, batch by batch or one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from benchmarks.records import Batch

BATCH_RECORDS = 10_000


class NotInstalledError(Exception):
    """A contender cannot take part; the message says what to install."""


class Contender(ABC):
    """Stores records in a folder of its own. ``append``, ``append_one``, ``read`` and ``reopen`` are on the clock."""

    name: str
    note: str = ""
    durable: bool = True
    batch_records: int = BATCH_RECORDS
    batches_max: int = 100
    _callers: ThreadPoolExecutor | None = None

    def __init__(self, folder: Path) -> None:
        """Remember where to work; ``open`` begins."""
        self.folder = folder / type(self).__name__.lower()
        self.folder.mkdir()

    def __enter__(self) -> Self:
        """Open it."""
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @abstractmethod
    def open(self) -> None:
        """Start what has to run; ``NotInstalledError`` when it cannot."""

    @abstractmethod
    def close(self) -> None:
        """End what was started."""

    @abstractmethod
    def prepare(self, batches: Sequence[Batch]) -> Any:
        """Return batches in the form in which this contender takes them best."""

    @abstractmethod
    def append(self, prepared: Any) -> None:
        """Store prepared batches, one commit after the other; all are durable on return."""

    def append_one(self, id: str, value: bytes) -> None:
        """Store one record, durably."""
        raise NotImplementedError

    def append_among(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        """Store records one at a time from so many callers at once, each durable before its caller's next."""
        if self._callers is None:
            self._callers = ThreadPoolExecutor(callers)
        list(self._callers.map(self._append_each, [rows[at::callers] for at in range(callers)]))

    def _append_each(self, rows: Sequence[tuple[str, bytes]]) -> None:
        for id, value in rows:
            self.append_one(id, value)

    @abstractmethod
    def count(self) -> int:
        """Return how many records are stored."""

    def read(self) -> int:
        """Read all records with their ids; return how many."""
        raise NotImplementedError

    def crash(self) -> None:
        """End as if the power had gone."""
        raise NotImplementedError

    def reopen(self) -> None:
        """Open after a crash; on return the next append may come."""
        raise NotImplementedError


def in_parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the items in parts of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
