"""Ctrl-C, once or several times in a row, while a lock is taken again: who waited holds the lock, and nobody else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from oncelog.concurrency.steady import SteadyCondition

PAUSE_S = 0.001

Wait = Callable[[SteadyCondition], object]


@pytest.fixture
def pressed() -> Iterator[list[int]]:
    """Yield a list that grows whenever Ctrl-C is heeded, which raises ``KeyboardInterrupt`` as ever."""
    heeded: list[int] = []

    def heed(number: int, _: object) -> None:
        heeded.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, heed)
    yield heeded
    signal.signal(signal.SIGINT, before)


def press() -> None:
    """Press Ctrl-C: the main thread gets the signal, also while it waits for a lock."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not is_so():
        threading.Event().wait(PAUSE_S)


def wait(condition: SteadyCondition) -> object:
    """Wait for a notification."""
    return condition.wait()


def work(condition: SteadyCondition) -> object:
    """Let another thread have the lock for a while."""
    return condition.unlocked(lambda: until(condition._plain.locked))


@pytest.mark.parametrize("wait", [wait, work])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_lock_is_held_again_whatever_interrupts(pressed: list[int], wait: Wait, times: int) -> None:
    """Each Ctrl-C comes while another thread holds the lock: it is raised when that thread has given the lock back."""
    lock = threading.Lock()
    condition = SteadyCondition(lock)
    given_back: list[bool] = []

    def hold() -> None:
        with lock:
            condition.notify_all()
            for number in range(times):
                press()
                until(lambda: len(pressed) > number)  # noqa: B023
            given_back.append(True)

    holding = threading.Thread(target=hold)
    with lock:
        holding.start()
        with pytest.raises(KeyboardInterrupt):
            wait(condition)
        assert given_back
        assert lock.locked()
    holding.join()
    assert not lock.locked()
    assert len(pressed) == times


def test_a_condition_of_its_own_lock_is_never_interrupted_there(pressed: list[int]) -> None:
    """The other rooms wait on ``threading.Condition()``: it takes its lock again in C, and heeds Ctrl-C afterwards."""
    condition = threading.Condition()
    given_back: list[bool] = []

    def hold() -> None:
        with condition:
            condition.notify_all()
            for _ in range(3):
                press()
            given_back.append(True)

    holding = threading.Thread(target=hold)
    with condition:
        holding.start()
        with pytest.raises(KeyboardInterrupt):
            condition.wait()
        assert given_back
        assert condition._is_owned()  # type: ignore[attr-defined]
    holding.join()
    assert pressed


def test_it_is_a_condition() -> None:
    """Who is notified wakes up, who is not gets ``False`` in the end, and nobody stays in the list."""
    condition = SteadyCondition(threading.Lock())
    woken: list[bool] = []

    def sleep() -> None:
        with condition:
            woken.append(condition.wait(60))

    sleeping = [threading.Thread(target=sleep) for _ in range(3)]
    for thread in sleeping:
        thread.start()
    until(lambda: len(condition._waiters) == 3)
    with condition:
        assert not condition.wait(0)
        assert not condition.wait(PAUSE_S)
        condition.notify_all()
    for thread in sleeping:
        thread.join()
    assert woken == [True] * 3
    assert not condition._waiters
