"""Who goes through a log's records for a job: threads of this process, or another process that can reach the log.

A job is the same for all of them. Its work is a function of one part of the log and of nothing else, so that it can be
sent to where it is done; what it returns is put together here, in the order of the log.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.errors import InvalidArgument
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.stored import secrets
from oncelog.log.stored.files import SealedFiles, rows_of
from oncelog.log.stored.rows import Rows
from oncelog.storage.base import LogHome

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

Unit = Sequence[Segment]
"""Segments that share a sealed file, or one that has none: what one piece of work reads."""


class JobContext:
    """What a worker needs: where the log's bytes are, how records are distinguished, and where the log begins."""

    def __init__(self, home: LogHome, hasher: Hasher, clock: Clock, first_position: int) -> None:
        self.home = home
        self.hasher = hasher
        self.clock = clock
        self.first_position = first_position

    @classmethod
    def of(cls, home: LogHome, manifest: Manifest, clock: Clock) -> JobContext:
        """Return the desk for a log as a manifest has it."""
        return cls(home, secrets.hasher_of(home, manifest), clock, manifest.first_position)

    def rows(self, unit: Unit, names: Sequence[str] | None = None) -> Iterator[Rows]:
        """Yield the records of a unit from the log's first on; ``names`` are the columns that are needed."""
        files = SealedFiles(self.home)
        for segment in unit:
            if segment.file is not None:
                yield from files.rows(segment, max(0, self.first_position - segment.first_position), names)
            else:
                yield from rows_of(self.home, files, segment, self.first_position)


Work = Callable[[JobContext, _Part], _Result]


class Hands(Protocol):
    """Does work on parts of a log."""

    def each(self, desk: JobContext, work: Work[_Part, _Result], parts: Sequence[_Part]) -> Iterator[_Result]:
        """Yield what ``work`` returns for each part, in their order; what it raises is raised here.

        Work and parts are of a kind that can be pickled, and work may be done more than once.
        """
        ...


class Threads:
    """The threads of this process. What waits to be taken is never more than a few parts' results."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or min(8, os.cpu_count() or 1)

    def each(self, desk: JobContext, work: Work[_Part, _Result], parts: Sequence[_Part]) -> Iterator[_Result]:
        """Yield what ``work`` returns for each part, in their order."""
        waiting: deque[Future[_Result]] = deque()
        with ThreadPoolExecutor(self._count) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, desk, part))
                    if len(waiting) > 2 * self._count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def checked_hands(hands: Hands | None) -> Hands:
    """Return those who do the work: the ones given, or threads of this process."""
    if hands is None:
        return Threads()
    if not callable(getattr(hands, "each", None)):
        message = f"hands is {arguments.shown(hands)}, must have a method each(desk, work, parts)"
        raise InvalidArgument(message)
    return hands
