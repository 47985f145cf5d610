"""A clock that only a test moves, and randomness that repeats itself."""

from __future__ import annotations

import contextlib
import os
import random
import threading

from oncelog.clock import Beating

_YIELD_S = 0.001
_LOOKS_MAX = 500
_BUSY_NS = 200_000
_TASKS = "/proc/self/task"
_TOLD_BYTES = 1024
_waiting_threads: set[int] = set()
"""The threads of this process that wait for simulated time: none of them has work that time should wait for."""


class SimulatedClock:
    """Time that a test moves: wall time and elapsed time apart from each other, randomness from a seed.

    With ``auto_advance`` a ``wait`` gives other threads the time to notify it, and then moves time to its own
    end: loops that back off or poll run through at once. On Linux it looks whether another thread of the process
    works, and waits for that thread: on a busy machine a deadline does not pass because a thread got no processor.

    >>> clock = SimulatedClock(now_us=5_000_000)
    >>> clock.advance(1.5)
    >>> clock.now_us(), clock.elapsed_us()
    (6500000, 1500000)
    """

    def __init__(
        self, *, now_us: int = 1_700_000_000_000_000, seed: int | str | bytes = 0, auto_advance: bool = False
    ) -> None:
        """Start at a wall time, with elapsed time 0."""
        self.auto_advance = auto_advance
        self._lock = threading.Lock()
        self._wall_offset_us = now_us
        self._elapsed_us = 0
        self._paused_us = 0
        self._random = random.Random(seed)
        self._waiters: list[tuple[threading.Condition, int]] = []

    def now_us(self) -> int:
        """Return the simulated wall time."""
        with self._lock:
            return self._wall_offset_us + self._elapsed_us

    def elapsed_us(self) -> int:
        """Return the simulated time since the clock was made."""
        with self._lock:
            return self._elapsed_us

    def jump(self, seconds: float) -> None:
        """Move wall time alone, forth or back, as an administrator or a time server would."""
        with self._lock:
            self._wall_offset_us += round(seconds * 1_000_000)

    def set_now_us(self, now_us: int) -> None:
        """Set wall time; elapsed time does not notice."""
        with self._lock:
            self._wall_offset_us = now_us - self._elapsed_us

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake every ``wait`` whose time is over. Hold no condition others wait on."""
        with self._lock:
            target_us = self._elapsed_us + round(seconds * 1_000_000)
        self._advance_to(target_us)

    def pause(self, seconds: float) -> None:
        """Let time pass for everybody but this process, as SIGSTOP or a frozen machine does."""
        with self._lock:
            self._paused_us += round(seconds * 1_000_000)
            self._elapsed_us += round(seconds * 1_000_000)
        self.advance(0)

    @property
    def pulse(self) -> tuple[int, int]:
        """The moment that is now: a simulated process lives whenever it is not paused."""
        with self._lock:
            return self._elapsed_us, self._paused_us

    def keep_pulse(self, owner: Beating) -> None:
        """Do nothing: the pulse is always known."""

    def waiting(self) -> int:
        """Return how many threads wait for time to pass: a test can wait until its threads have got there."""
        with self._lock:
            return len(self._waiters)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait on a held condition until it is notified or simulated time has passed; it may also wake early."""
        if timeout_s is None:
            condition.wait()
            return
        with self._lock:
            deadline_us = self._elapsed_us + round(timeout_s * 1_000_000)
        if timeout_s <= 0:
            return
        if not self.auto_advance:
            self._wait_until(condition, deadline_us)
        elif not _is_notified(condition):
            self._advance_to(deadline_us)

    def token(self, size_bytes: int) -> bytes:
        """Return the next bytes of the seeded sequence."""
        with self._lock:
            return self._random.randbytes(size_bytes)

    def chance(self) -> float:
        """Return the next number of the seeded sequence, in [0, 1)."""
        with self._lock:
            return self._random.random()

    def _wait_until(self, condition: threading.Condition, deadline_us: int) -> None:
        waiter = (condition, deadline_us)
        with self._lock:
            if self._elapsed_us >= deadline_us:
                return
            # The condition is held from here until it waits, so an advance that sees this waiter cannot
            # notify before the waiter listens.
            self._waiters.append(waiter)
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    def _advance_to(self, target_us: int) -> None:
        with self._lock:
            self._elapsed_us = max(self._elapsed_us, target_us)
            due = [condition for condition, deadline_us in self._waiters if deadline_us <= self._elapsed_us]
        for condition in due:
            with condition:
                condition.notify_all()


def _is_notified(condition: threading.Condition) -> bool:
    """Wait on a held condition until it is notified, or until no other thread of the process works any more."""
    me = threading.get_native_id()
    _waiting_threads.add(me)
    try:
        if condition.wait(_YIELD_S):
            return True
        before = _run_times_ns()
        for _ in range(_LOOKS_MAX):
            if condition.wait(_YIELD_S):
                return True
            after = _run_times_ns()
            if not (_is_worked(before, after) or _is_one_at_work()):
                break
            before = after
        return False
    finally:
        _waiting_threads.discard(me)


def _run_times_ns() -> dict[int, int]:
    """Return how long each thread ran, or waited for a processor, until it last slept."""
    times = {}
    for thread in _others():
        with contextlib.suppress(OSError, ValueError):  # the thread has ended, or the kernel keeps no such figures
            ran_ns, waited_ns = _told(thread, "schedstat").split()[:2]
            times[thread] = int(ran_ns) + int(waited_ns)
    return times


def _is_worked(before: dict[int, int], after: dict[int, int]) -> bool:
    """Tell whether a thread worked for a good part of the time between two looks."""
    return any(ran_ns - before.get(thread, 0) > _BUSY_NS for thread, ran_ns in after.items())


def _is_one_at_work() -> bool:
    """Tell whether a thread runs now, waits for a processor, or waits for a disk."""
    for thread in _others():
        with contextlib.suppress(OSError):
            if _told(thread, "stat").rpartition(b") ")[2][:1] in b"RD":
                return True
    return False


def _others() -> list[int]:
    """Return the threads of the process but those that wait for simulated time; none where the system does not say."""
    try:
        with os.scandir(_TASKS) as tasks:
            return [thread for thread in (int(task.name) for task in tasks) if thread not in _waiting_threads]
    except OSError:  # not Linux
        return []


def _told(thread: int, what: str) -> bytes:
    """Return what Linux tells of a thread. There may be hundreds of threads, so this is what costs least."""
    descriptor = os.open(f"{_TASKS}/{thread}/{what}", os.O_RDONLY)
    try:
        return os.read(descriptor, _TOLD_BYTES)
    finally:
        os.close(descriptor)
