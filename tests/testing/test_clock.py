"""A clock that tests can rely on."""

from __future__ import annotations

import threading

from oncelog.testing.clock import SimulatedClock


def test_wall_time_and_elapsed_time_are_apart() -> None:
    """A jump of the wall clock leaves elapsed time alone; time that passes moves both."""
    clock = SimulatedClock(now_us=10_000_000)
    clock.advance(2)
    clock.jump(-3600)
    assert clock.now_us() == 12_000_000 - 3_600_000_000
    assert clock.elapsed_us() == 2_000_000
    clock.set_now_us(5)
    clock.advance(0.000001)
    assert (clock.now_us(), clock.elapsed_us()) == (6, 2_000_001)


def test_advance_wakes_those_whose_time_is_over() -> None:
    """A waiter returns when its time has passed, and not before."""
    clock = SimulatedClock()
    condition = threading.Condition()
    woken = []

    def sleep(seconds: float) -> None:
        with condition:
            clock.wait(condition, seconds)
            woken.append(clock.elapsed_us())

    threads = [threading.Thread(target=sleep, args=(seconds,)) for seconds in (10, 10)]
    for thread in threads:
        thread.start()
    while clock.waiting() < 2:
        threading.Event().wait(0.001)
    clock.advance(9)
    assert woken == []
    clock.advance(1)
    for thread in threads:
        thread.join()
    assert woken == [10_000_000, 10_000_000]
    assert clock.waiting() == 0


def test_a_notification_ends_a_wait() -> None:
    """Time need not pass for a waiter that is notified."""
    clock = SimulatedClock()
    condition = threading.Condition()

    def sleep() -> None:
        with condition:
            clock.wait(condition, 10)

    thread = threading.Thread(target=sleep)
    thread.start()
    while clock.waiting() < 1:
        threading.Event().wait(0.001)
    with condition:
        condition.notify_all()
    thread.join()
    assert clock.elapsed_us() == 0


def test_auto_advance_runs_a_backoff_at_once() -> None:
    """A wait moves time to its own end by itself; one that has no time left moves nothing."""
    clock = SimulatedClock(auto_advance=True)
    condition = threading.Condition()
    with condition:
        for seconds in (1, 60, 3600, 0):
            clock.wait(condition, seconds)
    assert clock.elapsed_us() == 3_661_000_000


def test_auto_advance_waits_for_a_thread_that_works() -> None:
    """Time does not run out while the thread that would notify the wait still computes, however long it takes."""
    clock = SimulatedClock(auto_advance=True)
    condition = threading.Condition()
    done: list[int] = []

    def work(turn: int) -> None:
        sorted(range(300_000), key=lambda number: -number)
        with condition:
            done.append(turn)
            condition.notify_all()

    for turn in range(5):
        with condition:
            thread = threading.Thread(target=work, args=(turn,))
            thread.start()
            clock.wait(condition, 30)
            assert done == list(range(turn + 1))
        thread.join()


def test_chance_repeats_itself() -> None:
    """The same seed gives the same tokens and chances, another seed others."""
    first, second, third = SimulatedClock(seed=1), SimulatedClock(seed=1), SimulatedClock(seed=2)
    assert [first.token(16), first.chance()] == [second.token(16), second.chance()]
    assert first.token(16) != third.token(16)
