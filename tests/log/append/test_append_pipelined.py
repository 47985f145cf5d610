"""Homes that take several blocks at once: they land in any order, and are answered for in theirs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncelog import Unavailable
from oncelog.concurrency.futures import settle
from oncelog.connect import Database
from oncelog.log.append import committer as committer_module
from oncelog.settings import LogSettings
from oncelog.storage.base import Chunk
from oncelog.storage.memory import MemoryHome, MemoryStorage
from tests.log.watched import WatchedStorage, orders, until

LONG_S = 60.0


class _HeldHome(MemoryHome):
    """A home whose first block stays on its way until it is let go; what comes after it lands at once."""

    def __init__(self, key: str, clock: Any, in_flight_max: int) -> None:
        super().__init__(key, clock, in_flight_max)
        self.let_go = threading.Event()
        self.landed = threading.Event()

    def append(self, state: Any, epoch: int, number: int, block: Sequence[Chunk]) -> int:
        """Store a block, the first one only once it is let go."""
        if number == 0:
            assert self.let_go.wait(LONG_S)
        end = super().append(state, epoch, number, block)
        if number == 1:
            self.landed.set()
        return end


def held_database(monkeypatch: pytest.MonkeyPatch) -> tuple[Database, list[_HeldHome]]:
    """Return a database on such homes, and the list they appear in."""
    homes: list[_HeldHome] = []

    def made(key: str, clock: Any, in_flight_max: int) -> _HeldHome:
        homes.append(_HeldHome(key, clock, in_flight_max))
        return homes[-1]

    monkeypatch.setattr("oncelog.storage.memory.MemoryHome", made)
    return Database(MemoryStorage(in_flight_max=4)), homes


def test_a_block_that_landed_before_the_one_before_it_is_not_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover fences the first hole: what lies behind it would be lost, so nobody may have been told it is
    stored.
    """
    database, homes = held_database(monkeypatch)
    log = database.log("orders", LogSettings(block_records=1), create=True)
    writer = log.writer()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(writer.append, b"first", id="first")
        home = homes[0]
        while not home.landed.is_set():
            # The first block may not have been offered yet: then this one would be first. Offer until one has landed.
            second = writer.submit(b"second", id="second")
            home.landed.wait(0.01)
        assert not second.done()
        with pytest.raises(Unavailable) as refused:
            writer.append(b"second", id="second", timeout_s=0)
        assert refused.value.outcome == "unknown"
        assert [entry.value for entry in log.read()] == []
        home.let_go.set()
        acks = [first.result(LONG_S), second.result(LONG_S)]
    assert sorted(ack.position for ack in acks if ack.position is not None) == [0, 1]
    assert len(list(log.read())) == 2
    writer.close()


class _End(int):
    """A cursor that calls back when it is compared."""

    compared: Callable[[], object]

    def __gt__(self, other: int) -> bool:
        self.compared()
        return int(self) > other


def test_where_a_segment_ends_is_noted_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks that land at once must not leave the lower end: the segment would be closed before its last record."""
    unguarded: list[bool] = []

    class _EndHome(MemoryHome):
        def append(self, state: Any, epoch: int, number: int, block: Sequence[Chunk]) -> int:
            cursor = super().append(state, epoch, number, block)
            if number == 1:
                return cursor  # a plain one, for the manifest
            end = _End(cursor)
            end.compared = look
            return end

    monkeypatch.setattr("oncelog.storage.memory.MemoryHome", _EndHome)
    writer = Database(MemoryStorage(in_flight_max=4)).log("orders", create=True).writer()
    lock = writer._committer.lock

    def look() -> None:
        unguarded.append(lock.acquire(blocking=False))
        if unguarded[-1]:
            lock.release()

    for number in range(2):
        writer.append(b"%d" % number)
    writer.close()
    assert unguarded
    assert not any(unguarded)


def test_threads_that_wait_do_not_wake_each_other() -> None:
    """Each told the committer's threads whenever it woke, which woke the others: they burned CPU while they waited."""
    storage = WatchedStorage(in_flight_max=3)
    with Database(storage) as db, orders(db, block_records=1).writer() as writer:
        writer.append(b"first")
        committer = writer._committer
        sleep, sleeps = committer._sleep, [0]

        def counted(timeout_s: float | None) -> None:
            sleeps[0] += 1
            sleep(timeout_s)

        committer._sleep = counted  # type: ignore[method-assign]
        storage.hold()
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(writer.append, b"x", id=str(number), timeout_s=None) for number in range(8)]
            until(lambda: committer.sleeping == 8)  # three of the committer's own threads are in storage
            storage.wait_for_offers(4)
            before = sleeps[0]
            threading.Event().wait(0.2)  # in which each of them woke hundreds of times
            assert sleeps[0] - before < 20
            storage.let_go()
            assert sorted(future.result(LONG_S).position or 0 for future in futures) == list(range(1, 9))


def is_in(thread: threading.Thread, function: str) -> bool:
    """Tell whether a thread is in a call of a function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_who_closes_finds_every_future_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread answers them: a close that did not wait for it returned before they had their acks."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*given: Any) -> None:
        begun.set()
        assert go_on.wait(LONG_S)
        settle(*given)

    with Database(WatchedStorage(in_flight_max=2)) as db:
        writer = orders(db).writer()
        writer.append(b"first")
        monkeypatch.setattr(committer_module, "settle", slowly)
        future = writer.submit(b"x")
        assert begun.wait(LONG_S)
        closing = threading.Thread(target=writer.close)
        closing.start()
        until(lambda: not closing.is_alive() or is_in(closing, "_wait_until_told"))
        assert closing.is_alive()
        go_on.set()
        closing.join(LONG_S)
        assert future.done()
