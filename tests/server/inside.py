"""A server without ports, inside the test's own process: for faults that no real process can be made to have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncelog.connect import Database
from oncelog.server.server import Server
from oncelog.server.settings import ServeSettings
from oncelog.storage.memory import MemoryStorage

T = TypeVar("T")


def serving(work: Callable[[Server], Awaitable[T]], storage: Any = None, **settings: Any) -> T:
    """Run a test with a server on a storage, by default in memory; the server lets everything go at the end."""

    async def run() -> T:
        database = Database(storage or MemoryStorage())
        server = Server(database, ServeSettings(url="memory://", **settings))
        server.start()
        try:
            return await work(server)
        finally:
            server.begin_drain()
            await server.leave_logs()
            await asyncio.to_thread(database.close)

    return asyncio.run(run())


class HangingStorage:
    """A storage of which appends to one log do not return while ``hangs`` is set."""

    def __init__(self, key: str) -> None:
        """Hang nothing yet."""
        self._inner = MemoryStorage()
        self._key = key
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.hanging = threading.Event()

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._inner, name)

    def home(self, key: str) -> Any:
        """Return a home; that of the one log hangs."""
        home = self._inner.home(key)
        return _Home(home, self) if key == self._key else home


class _Home:
    def __init__(self, inner: Any, storage: HangingStorage) -> None:
        self._inner = inner
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start_segment(self, segment: int, epoch: int) -> Any:
        return _Segment(self._inner.start_segment(segment, epoch), self._storage)


class _Segment:
    def __init__(self, inner: Any, storage: HangingStorage) -> None:
        self._inner = inner
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, number: int, block: Any) -> Any:
        if not self._storage.goes_on.is_set():
            self._storage.hanging.set()
            self._storage.goes_on.wait()
        return self._inner.append(number, block)
