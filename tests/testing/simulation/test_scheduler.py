"""The scheduler: virtual time, crashes, pauses, and waits that never end."""

from __future__ import annotations

import pytest

from oncelog.testing.simulation import threads
from oncelog.testing.simulation.scheduler import Process, Scheduler, Stuck

LIMIT_US = 1 << 50


def test_time_moves_only_when_nobody_can_run() -> None:
    """A sleep of a day takes no time, and sleepers wake in the order of their moments."""
    scheduler, woken = Scheduler(0), list[tuple[int, int]]()
    process = Process("p")

    def sleeper(seconds: int) -> None:
        scheduler.sleep(seconds)
        woken.append((seconds, scheduler.now_us))

    tasks = [scheduler.spawn(process, str(seconds), lambda s=seconds: sleeper(s)) for seconds in (86_400, 5, 60)]  # type: ignore[misc]
    scheduler.run(lambda: all(task.finished for task in tasks), LIMIT_US)
    assert woken == [(5, 5_000_000), (60, 60_000_000), (86_400, 86_400_000_000)]


def test_a_crashed_process_does_nothing_more() -> None:
    """Not even its ``finally`` runs, as after a kill."""
    scheduler, done = Scheduler(0), list[str]()
    victim, other = Process("victim"), Process("other")

    def work() -> None:
        try:
            scheduler.sleep(2)
        finally:
            if not scheduler.over:
                done.append("cleaned up")

    def kill() -> None:
        scheduler.sleep(1)
        victim.alive = False
        scheduler.sleep(5)

    scheduler.spawn(victim, "work", work)
    killer = scheduler.spawn(other, "kill", kill)
    scheduler.run(lambda: killer.finished, LIMIT_US)
    assert done == []
    scheduler.end()
    assert done == []


def test_a_paused_process_goes_on_later() -> None:
    """What should have run while the process was paused runs when it goes on."""
    scheduler, process, woken = Scheduler(0), Process("p"), list[int]()

    def work() -> None:
        scheduler.sleep(1)
        woken.append(scheduler.now_us)

    process.paused_until_us = 7_000_000
    task = scheduler.spawn(process, "work", work)
    scheduler.run(lambda: task.finished, LIMIT_US)
    assert woken == [8_000_000]


def test_a_wait_that_never_ends_is_told() -> None:
    """A lost wake-up ends the run with the names of those who wait, and does not hang it."""
    scheduler = Scheduler(0)

    def work() -> None:
        condition = threads.SimulatedCondition()
        with condition:
            condition.wait()

    task = scheduler.spawn(Process("p"), "waits for ever", work)
    with pytest.raises(Stuck, match="waits for ever"):
        scheduler.run(lambda: task.finished, LIMIT_US)
    scheduler.end()


def test_a_bug_in_a_thread_ends_the_run() -> None:
    """An exception that nobody catches is not lost with its thread."""
    scheduler = Scheduler(0)

    def work() -> None:
        message = "a bug"
        raise ValueError(message)

    task = scheduler.spawn(Process("p"), "work", work)
    with pytest.raises(ValueError, match="a bug"):
        scheduler.run(lambda: False, LIMIT_US)
    assert task.finished


@pytest.mark.parametrize("seed", range(10))
def test_a_lock_excludes(seed: int) -> None:
    """One task at a time is inside, whatever the seed."""
    scheduler, process, inside, most = Scheduler(seed), Process("p"), list[int](), list[int]()
    lock = threads.Lock()

    def work() -> None:
        for _ in range(5):
            with lock:
                inside.append(1)
                most.append(len(inside))
                scheduler.sleep(0.1)
                inside.pop()

    tasks = [scheduler.spawn(process, str(number), work) for number in range(4)]
    scheduler.run(lambda: all(task.finished for task in tasks), LIMIT_US)
    assert most == [1] * 20


def test_the_lock_of_a_process_that_died_is_free() -> None:
    """A lock that processes share (of a disk) does not stay with one that crashed, also not for those who wait."""
    scheduler, dying = Scheduler(0), Process("dying")
    lock = threads.Lock()

    def die() -> None:
        lock.acquire()
        scheduler.sleep(1)
        dying.alive = False
        scheduler.sleep(1)

    def work() -> None:
        scheduler.sleep(0.5)
        with lock:
            pass

    scheduler.spawn(dying, "die", die)
    task = scheduler.spawn(Process("living"), "work", work)
    scheduler.run(lambda: task.finished, LIMIT_US)
    assert 1_000_000 <= scheduler.now_us < 2_000_000
    scheduler.end()


def test_who_cleans_up_when_the_simulation_ends_waits_for_nobody() -> None:
    """A lock is free for a task that cleans up; to wait by a lock of one's own, as conditions do, ends the task."""
    scheduler, process, reached = Scheduler(0), Process("p"), list[str]()
    other = threads.Lock()

    def hold() -> None:
        other.acquire()
        scheduler.sleep(100)

    def work() -> None:
        try:
            scheduler.sleep(100)
        finally:
            with other:
                reached.append("locked")
            waiter = threads.Lock()
            waiter.acquire()
            waiter.acquire()
            reached.append("waited")

    tasks = [scheduler.spawn(process, "hold", hold), scheduler.spawn(process, "work", work)]
    scheduler.run(lambda: scheduler.now_us == 0 and all(task.started for task in tasks), LIMIT_US)
    scheduler.end()
    assert reached == ["locked"]
    assert all(task.finished for task in tasks)
