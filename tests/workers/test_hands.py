"""A handler has a time limit: what takes longer is given back, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from oncelog import Delivery, Effect, Inbox, Queue
from oncelog.testing.clock import SimulatedClock
from oncelog.workers import worker as worker_module
from oncelog.workers.hands import HandlerThreads, OutOfTime
from tests.workers.until import Until, work

LONG_S = 60.0
LIMIT_S = 10.0


class Stuck:
    """A handler that stands still at the first attempt of each message that says so, until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.handled: list[tuple[bytes, int]] = []

    def __call__(self, delivery: Delivery) -> None:
        """Handle a message."""
        if delivery.value.startswith(b"stuck") and delivery.attempts == 1:
            self.begun.release()
            assert self.release.wait(LONG_S)
        self.handled.append((delivery.value, delivery.attempts))


def test_a_handler_out_of_time_is_not_waited_for(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Its message comes again, those behind it go on in the one place there is, and the log says where it stands."""
    clock, handler, until = SimulatedClock(), Stuck(), Until()
    queue.send(b"stuck", id="1")
    queue.send(b"next", id="2")
    with (
        caplog.at_level(logging.WARNING, "oncelog.worker"),
        work(queue, handler, until, time_limit_s=LIMIT_S, clock=clock) as worker,
    ):
        assert handler.begun.acquire(timeout=LONG_S)
        clock.advance(LIMIT_S)
        until.wait("done", 2)
        assert sorted(handler.handled) == [(b"next", 1), (b"stuck", 2)]
        handler.release.set()
        until.wait("late")
    assert worker.counts() == {"failed": 1, "done": 2, "late": 1}
    failed = next(event for event in until.events if event.word == "failed")
    assert isinstance(failed.error, OutOfTime)
    assert failed.delivery is not None
    assert failed.delivery.id == "1"
    assert "self.release.wait" in caplog.text, "the stack of the thread that stands still"


def test_what_is_in_time_is_left_alone(queue: Queue) -> None:
    """Time that passes between two messages, or before the limit, gives nothing up."""
    clock, handler, until = SimulatedClock(), Stuck(), Until()
    queue.send(b"stuck", id="1")
    with work(queue, handler, until, time_limit_s=LIMIT_S, clock=clock) as worker:
        assert handler.begun.acquire(timeout=LONG_S)
        clock.advance(LIMIT_S - 1)
        handler.release.set()
        until.wait("done")
        clock.advance(LIMIT_S)
        queue.send(b"next", id="2")
        until.wait("done", 2)
    assert worker.counts() == {"done": 2}


def test_the_effect_of_a_handler_out_of_time_does_not_stand(queue: Queue, tmp_path: Path) -> None:
    """The message failed, so what the handler did in the inbox's transaction is rolled back; the next one does it."""
    clock, stuck, until = SimulatedClock(), Stuck(), Until()

    def handler(delivery: Delivery, effect: Effect) -> int:
        stuck(delivery)
        return delivery.attempts

    queue.send(b"stuck", id="1")
    with Inbox(f"sqlite:///{tmp_path}/inbox.sqlite") as inbox:
        with work(queue, handler, until, inbox=inbox, time_limit_s=LIMIT_S, clock=clock):
            assert stuck.begun.acquire(timeout=LONG_S)
            clock.advance(LIMIT_S)
            until.wait("failed")
            stuck.release.set()
            until.wait("done")
            until.wait("late")
        (known,) = inbox.show("0:0:1")
    assert known.result == 2, "the attempt whose effect stands is the second"


def test_handlers_that_never_end_do_not_fill_the_process(queue: Queue) -> None:
    """As many threads as there are places may be left behind; more messages are not taken until one of them ends."""
    clock, handler, until = SimulatedClock(), Stuck(), Until()
    for number in range(3):
        queue.send(b"stuck", id=str(number))
    with work(queue, handler, until, time_limit_s=LIMIT_S, clock=clock) as worker:
        for count in (1, 2):
            assert handler.begun.acquire(timeout=LONG_S)
            clock.advance(LIMIT_S)
            until.wait("failed", count)
        assert not worker._may_take(), "two threads are left behind, and there is one place"
        handler.release.set()
        until.wait("done", 3)
        until.wait("late", 2)
    assert worker.counts() == {"failed": 2, "late": 2, "done": 3}


def test_a_coroutine_out_of_time_is_cancelled(queue: Queue) -> None:
    """It gets ``CancelledError`` where it waits; its message comes again, and its place is free."""
    cancelled = threading.Event()
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempts)
        if delivery.attempts == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    queue.send(b"x", id="1")
    until = Until()
    with work(queue, handler, until, time_limit_s=0.05, clock=SimulatedClock()) as worker:
        until.wait("done")
    assert cancelled.is_set()
    assert worker.counts() == {"failed": 1, "done": 1}
    assert attempts == [1, 2]
    assert isinstance(until.events[0].error, OutOfTime)


def test_a_coroutine_that_does_not_end_when_cancelled_is_left_behind(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that swallows its cancellation keeps neither its message nor its place."""
    clock, until = SimulatedClock(), Until()
    swallowed = threading.Event()
    monkeypatch.setattr(worker_module, "_GRACE_US", 1_000_000)
    going_on: list[asyncio.Event] = []

    async def handler(delivery: Delivery) -> None:
        if delivery.attempts == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                going_on.append(asyncio.Event())
                swallowed.set()
                await going_on[0].wait()

    queue.send(b"x", id="1")
    with work(queue, handler, until, time_limit_s=0.05, clock=clock) as worker:
        assert swallowed.wait(LONG_S)
        clock.advance(2)
        until.wait("done")
        assert worker._calls._loop is not None
        worker._calls._loop.call_soon_threadsafe(going_on[0].set)
        until.wait("late")
    assert worker.counts() == {"failed": 1, "done": 1, "late": 1}


def test_a_timeout_of_the_handlers_own_is_its_own_error(queue: Queue) -> None:
    """``TimeoutError`` that a handler raises is told as such: the limit of the worker had nothing to do with it."""

    async def handler(delivery: Delivery) -> None:
        if delivery.attempts == 1:
            message = "the mail server does not answer"
            raise TimeoutError(message)

    queue.send(b"x", id="1")
    until = Until()
    with work(queue, handler, until, time_limit_s=LONG_S):
        until.wait("done")
    assert type(until.events[0].error) is TimeoutError


def test_a_pool_begins_no_more_threads_than_it_has_places() -> None:
    """Threads are used again; one that is left behind is replaced, and never counted again."""
    hands = HandlerThreads(2)
    seen: set[int] = set()
    gate, done = threading.Semaphore(0), threading.Semaphore(0)

    def job(stays: bool = True) -> bool:  # noqa: FBT001, FBT002
        seen.add(threading.get_ident())
        assert gate.acquire(timeout=LONG_S)
        done.release()
        return stays

    for _ in range(6):
        hands.put(job)
        gate.release()
    for _ in range(6):
        assert done.acquire(timeout=LONG_S)
    assert len(seen) <= 2
    hands.put(lambda: job(stays=False))
    hands.leave_behind()
    hands.put(job)
    hands.put(job)
    for _ in range(3):
        gate.release()
    for _ in range(3):
        assert done.acquire(timeout=LONG_S)
    hands.end()
