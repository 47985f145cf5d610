"""A home in memory that a test watches: what is offered to it, when it answers, and whether it does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from oncelog.clock import SYSTEM, Clock
from oncelog.connect import Database
from oncelog.errors import Unavailable
from oncelog.log.log import Log
from oncelog.settings import LogSettings
from oncelog.storage.base import Chunk
from oncelog.storage.memory import MemoryHome, MemoryStorage

LONG_S = 60.0
"""Longer than anything here takes: what waits so long has failed."""

_LOOK_S = 0.001


class Offer(NamedTuple):
    """A block as it was offered: the same write must look the same every time."""

    segment: int
    number: int
    block: bytes


Answer = Literal["stored", "lost", "refused"]
"""What becomes of an offer: all is well; it is stored but the answer is lost; or nothing happens."""


class WatchedStorage(MemoryStorage):
    """A home in memory. ``hold`` keeps appends waiting at its door; they get ``answers``, then ``otherwise``."""

    def __init__(self, *, clock: Clock = SYSTEM, in_flight_max: int = 1) -> None:
        super().__init__(clock=clock, in_flight_max=in_flight_max)
        self.offers: list[Offer] = []
        self.answers: deque[Answer] = deque()
        self.otherwise: Answer = "stored"
        self.changed = threading.Condition()
        self._parts = clock, in_flight_max
        self._held: Callable[[Offer], bool] = lambda _: False
        self.creates: list[str] = []
        self._create_held: Callable[[str], bool] = lambda _: False

    def home(self, key: str) -> MemoryHome:
        """Return a home that this storage watches."""
        with self._lock:
            if key not in self._homes:
                self._homes[key] = _WatchedHome(key, *self._parts, self)
            return self._homes[key]

    def hold(self, which: Callable[[Offer], bool] = lambda _: True) -> None:
        """Keep appends waiting from now on, all or those chosen."""
        with self.changed:
            self._held = which

    def hold_creates(self, which: Callable[[str], bool]) -> None:
        """Keep the creation of chosen objects waiting from now on."""
        with self.changed:
            self._create_held = which
            self.creates.clear()

    def let_go(self) -> None:
        """Let what waits go on."""
        with self.changed:
            self._held = lambda _: False
            self._create_held = lambda _: False
            self.changed.notify_all()

    def wait_for_offers(self, count: int) -> None:
        """Return when so many offers were made in all."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.offers) >= count, LONG_S)

    def wait_for_create(self, which: Callable[[str], bool]) -> None:
        """Return when somebody wants to create such an object."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(which, self.creates)), LONG_S)

    def creating(self, key: str) -> None:
        """Note a create, and keep it waiting if it is held."""
        with self.changed:
            self.creates.append(key)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self._create_held(key), LONG_S)

    def arrived(self, offer: Offer) -> Answer:
        """Note an offer, keep it waiting if it is held, and return what becomes of it."""
        with self.changed:
            self.offers.append(offer)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self._held(offer), LONG_S)
            return self.answers.popleft() if self.answers else self.otherwise


class _WatchedHome(MemoryHome):
    def __init__(self, key: str, clock: Clock, in_flight_max: int, storage: WatchedStorage) -> None:
        super().__init__(key, clock, in_flight_max)
        self._storage = storage

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Store an object, as soon as the storage lets it."""
        self._storage.creating(key)
        return super().create(key, data)

    def append(self, state: Any, epoch: int, number: int, block: Sequence[Chunk]) -> int:
        """Store a block, as far as the storage lets it."""
        whole = b"".join(bytes(memoryview(chunk)) for chunk in block)
        answer = self._storage.arrived(Offer(state.number, number, whole))
        if answer == "refused":
            message = "the storage is away"
            raise Unavailable(message)
        end = super().append(state, epoch, number, block)
        if answer == "lost":
            message = "the answer was lost"
            raise Unavailable(message, outcome="unknown")
        return end


def until(condition: Callable[[], object]) -> None:
    """Look again and again until something holds."""
    never = threading.Event()
    for _ in range(int(LONG_S / _LOOK_S)):
        if condition():
            return
        never.wait(_LOOK_S)
    message = "it never happened"
    raise AssertionError(message)


def orders(database: Database, **settings: Any) -> Log:
    """Return the log most tests use, made if it is not there."""
    return database.log("orders", LogSettings(**settings) if settings else None, create=True)
