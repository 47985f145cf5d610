"""Futures that share one condition: each is answered once, and all who heed it are told once."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from oncelog.concurrency.futures import AckFuture, settle
from oncelog.errors import Unavailable
from oncelog.types import Ack

COUNT = 100
LONG_S = 60.0


def ack(number: int) -> Ack:
    """Return an ack that differs from those with other numbers."""
    return Ack(number, 0, number, None)


ACKS = [ack(number) for number in range(COUNT)]


def pending(condition: threading.Condition, count: int = COUNT) -> list[AckFuture[Ack]]:
    """Return futures that have no answer yet."""
    return [AckFuture(condition) for _ in range(count)]


def test_answers_make_a_future_no_larger() -> None:
    """A future that gets an attribute late has a dictionary of its own from then on, which costs more than the ack."""
    condition = threading.Condition()
    futures = pending(condition)
    before = [set(vars(future)) for future in pending(condition)]
    settle(condition, [(futures, ACKS)])
    assert [set(vars(future)) for future in futures] == before


def test_answering_calls_nothing_per_future() -> None:
    """A call for each would be most of what an answer costs."""
    condition = threading.Condition()

    def calls(count: int) -> int:
        futures, answers = pending(condition, count), [ack(number) for number in range(count)]
        found = 0

        def note(frame: FrameType, event: str, argument: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            settle(condition, [(futures, answers)])
        finally:
            sys.setprofile(None)
        return found

    assert calls(1000) == calls(10)


def test_the_first_answer_stands() -> None:
    """What is settled once more, because a callback was interrupted, is what it was."""
    condition = threading.Condition()
    (future,) = pending(condition, 1)
    settle(condition, [([future], [ACKS[0]])])
    settle(condition, [([future], [Unavailable("too late")])])
    assert future.result() is ACKS[0]
    assert future.exception() is None


def test_an_error_is_raised_and_returned() -> None:
    """The error is what refused the record, whichever way it is asked for."""
    condition = threading.Condition()
    (future,) = pending(condition, 1)
    error = Unavailable("no room")
    assert future.running()
    assert not future.done()
    with pytest.raises(TimeoutError):
        future.result(0)
    settle(condition, [([future], [error])])
    assert future.done()
    assert not future.cancel()
    assert future.exception() is error
    with pytest.raises(Unavailable):
        future.result()
    assert "Unavailable" in repr(future)


class Watched(AckFuture[Ack]):
    """A future that tells when somebody looks at who waits for several, to join them or to leave."""

    looks = threading.Semaphore(0)

    @property
    def _waiters(self) -> list[object]:  # type: ignore[override]
        self.looks.release()
        return super()._waiters

    @classmethod
    def until_looked_at(cls, count: int) -> None:
        """Return when there were so many looks."""
        for _ in range(count):
            assert cls.looks.acquire(timeout=LONG_S)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Condition, list[Watched]]:
    """Return futures, and their condition."""
    monkeypatch.setattr(Watched, "looks", threading.Semaphore(0))
    condition = threading.Condition()
    return condition, [Watched(condition) for _ in range(COUNT)]


@pytest.mark.parametrize("answered", [0, 30])
def test_who_waits_for_several_gets_each_once(
    watched: tuple[threading.Condition, list[Watched]], answered: int
) -> None:
    """Futures that are answered before, and while, two wait for all of them."""
    condition, futures = watched
    several: list[Future[Ack]] = [*futures]
    settle(condition, [(futures[:answered], ACKS[:answered])])
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(wait, futures, LONG_S, ALL_COMPLETED)
        completed = pool.submit(lambda: list(as_completed(several, LONG_S)))
        Watched.until_looked_at(2 * COUNT + answered)  # the second one leaves those that are answered
        settle(condition, [(futures[answered:70], ACKS[answered:70]), (futures[70:], ACKS[70:])])
        assert waited.result(LONG_S).done == set(futures)
        assert sorted(map(id, completed.result(LONG_S))) == sorted(map(id, futures))


def test_who_waits_for_the_first_is_told_of_an_error(watched: tuple[threading.Condition, list[Watched]]) -> None:
    """An error is an answer too."""
    condition, futures = watched
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(wait, futures, LONG_S, FIRST_COMPLETED)
        Watched.until_looked_at(COUNT)
        settle(condition, [(futures[7:8], [Unavailable("no room")])])
        assert waited.result(LONG_S).done == {futures[7]}


def test_a_loop_is_told() -> None:
    """``await`` and ``wrap_future`` end with the answer."""
    condition = threading.Condition()
    futures = pending(condition)

    async def main() -> list[Ack]:
        waiting = [asyncio.wrap_future(future) for future in futures[::2]]
        tasks = [asyncio.ensure_future(_awaited(future)) for future in futures[1::2]]
        await asyncio.sleep(0)
        settle(condition, [(futures, ACKS)])
        return await asyncio.gather(*waiting, *tasks)

    assert asyncio.run(main()) == ACKS[::2] + ACKS[1::2]


async def _awaited(future: AckFuture[Ack]) -> Ack:
    return await future


class Waiter:
    """Who waits for several futures, as ``concurrent.futures`` tells it."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def add_result(self, future: object) -> None:
        """Note that there is an answer."""
        self.told.append(future)

    add_exception = add_result


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """Have Ctrl-C come before a line of ``settle``, counted as they are run; yield a list that has the line if so."""
    left = line
    heeded: list[int] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code is not settle.__code__:
            return None
        left -= event == "line"
        if left < 0 and not heeded:
            heeded.append(line)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            yield heeded
    finally:
        sys.settrace(None)


def test_an_interrupted_answer_is_told_once() -> None:
    """Ctrl-C at any line of the answering, and then all once more: nobody is left waiting, nobody is told twice."""
    for line in itertools.count():
        condition = threading.Condition()
        futures = pending(condition, 3)
        waiter = Waiter()
        called: list[object] = []
        for future in futures:
            future._waiters.append(waiter)
            future.add_done_callback(called.append)
        with interrupted_at(line) as heeded:
            settle(condition, [(futures, ACKS[:3])])
        settle(condition, [(futures, ACKS[:3])])
        assert [future.result(0) for future in futures] == ACKS[:3]
        assert waiter.told == futures
        assert called == futures
        if not heeded:
            break
    assert line > 20


def test_no_callback_is_run_twice_when_ctrl_c_comes_inside_one() -> None:
    """What is settled once more after Ctrl-C goes on with the callbacks that are left."""
    condition = threading.Condition()
    future: AckFuture[str] = AckFuture(condition)
    called: list[str] = []

    def interrupted(_: object) -> None:
        called.append("interrupted")
        raise KeyboardInterrupt

    future.add_done_callback(lambda _: called.append("first"))
    future.add_done_callback(interrupted)
    future.add_done_callback(lambda _: called.append("last"))
    with pytest.raises(KeyboardInterrupt):
        settle(condition, [([future], ["ack"])])
    settle(condition, [([future], ["ack"])])
    assert called == ["first", "interrupted", "last"]
