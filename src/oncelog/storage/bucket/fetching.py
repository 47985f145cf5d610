"""Fetching several blocks at once, and some before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pyarrow as pa

from oncelog.errors import Closed

KEPT_MAX = 64
"""So many blocks at most wait to be asked for, of one log: a few readers that go on, side by side."""

Place = tuple[int, int]
"""A segment, and the number of a block in it."""

Fetch = Future[pa.Buffer | None]


class Fetching:
    """The blocks of one log on their way. Safe to share between threads.

    Only blocks that are known to be there are kept for later: of a segment that is closed. That there was nothing, or
    nobody answered, is never remembered: by the time somebody asks it may be otherwise.
    """

    def __init__(self, pool: ThreadPoolExecutor, get: Callable[[int, int], pa.Buffer | None]) -> None:
        """Fetch by the threads of a pool, each block by a call of ``get``."""
        self._pool = pool
        self._get = get
        self._lock = threading.Lock()
        self._kept: dict[Place, Fetch] = {}

    def has(self, place: Place) -> bool:
        """Tell whether a block was fetched, or is on its way, before it was asked for."""
        return place in self._kept

    def begin(self, places: Sequence[Place]) -> list[Fetch]:
        """Return fetches that were kept, or begin them. ``Closed`` when there is nobody left to do it."""
        with self._lock:
            kept = [self._kept.pop(place, None) for place in places]
        try:
            return [
                self._pool.submit(self._get, *place) if fetch is None or _in_vain(fetch) else fetch
                for place, fetch in zip(places, kept, strict=True)
            ]
        except RuntimeError as error:  # the pool was shut down
            raise _closed() from error

    def ahead(self, places: Sequence[Place]) -> None:
        """Have blocks that are there fetched before they are asked for."""
        self.keep(places, self.begin(places))

    def keep(self, places: Sequence[Place], fetches: Sequence[Fetch]) -> None:
        """Keep fetches of blocks that are there until they are asked for; the oldest go when there are too many."""
        with self._lock:
            self._kept.update(zip(places, fetches, strict=True))
            for place in list(self._kept)[: max(0, len(self._kept) - KEPT_MAX)]:
                del self._kept[place]


def result(fetch: Fetch) -> pa.Buffer | None:
    """Return what was fetched; raises what came in the way."""
    try:
        return fetch.result()
    except CancelledError as error:
        raise _closed() from error


def _in_vain(fetch: Fetch) -> bool:
    return fetch.done() and (fetch.cancelled() or fetch.exception() is not None or fetch.result() is None)


def _closed() -> Closed:
    return Closed("the database was closed while this was being read")
