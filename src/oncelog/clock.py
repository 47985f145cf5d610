"""Time and randomness: the one place that asks the machine for either."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from typing import Protocol

BEAT_S = 1.0
"""A living process notes so often that it lives."""

CREDIT_US = 3_000_000
"""So much time is taken for lived after a beat, at most: what is longer was a pause (SIGSTOP, a frozen machine)."""


class Beating(Protocol):
    """What lives while its process does."""

    def beat(self) -> None:
        """Do what is to be done every second. It must not raise."""
        ...


class Clock(Protocol):
    """What the rest of Oncelog knows of time and chance. Safe to share between threads."""

    def now_us(self) -> int:
        """Return wall time: microseconds since 1970, UTC. It may jump either way."""
        ...

    def elapsed_us(self) -> int:
        """Return time since some fixed moment, in microseconds. It never goes back."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait on a held condition until it is notified or the time is over; it may also wake early."""
        ...

    def token(self, size_bytes: int) -> bytes:
        """Return bytes that nobody can guess."""
        ...

    def chance(self) -> float:
        """Return a number in [0, 1), for jitter."""
        ...

    @property
    def pulse(self) -> tuple[int, int]:
        """The last beat of this process, as elapsed time, and how much of the time up to it were pauses."""
        ...

    def keep_pulse(self, owner: Beating) -> None:
        """Note every second that the process lives, as long as the owner does, and have the owner ``beat``, where time
        is real. Without a thread for it time seems to stand still: nobody forgets too early.
        """
        ...


class SystemClock:
    """The machine's own time and randomness. One thread a process keeps the pulse, while somebody needs it."""

    def __init__(self) -> None:
        """Begin without a pulse."""
        self.pulse = (self.elapsed_us(), 0)  # replaced as one: read without a lock
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads and locks do not survive a fork

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._owners: weakref.WeakSet[Beating] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def now_us(self) -> int:
        """Return wall time in microseconds since 1970."""
        return time.time_ns() // 1000

    def elapsed_us(self) -> int:
        """Return monotonic time in microseconds."""
        return time.monotonic_ns() // 1000

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait on the condition, at most ``timeout_s``."""
        condition.wait(timeout_s)

    def token(self, size_bytes: int) -> bytes:
        """Return random bytes from the operating system."""
        return os.urandom(size_bytes)

    def chance(self) -> float:
        """Return a pseudo-random number in [0, 1)."""
        return random.random()

    def keep_pulse(self, owner: Beating) -> None:
        """Beat every second, in a thread that ends when no owner is left."""
        with self._lock:
            self._owners.add(owner)
            if self._thread is None:
                self._beat()
                thread = threading.Thread(target=self._keep, name="oncelog-pulse", daemon=True)
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def _keep(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock:
                self._beat()
                if not self._owners:
                    self._thread = None
                    return
                owners = list(self._owners)
            while owners:
                owners.pop().beat()

    def _beat(self) -> None:
        beat_us, paused_us = self.pulse
        now_us = self.elapsed_us()
        self.pulse = now_us, paused_us + max(0, now_us - beat_us - CREDIT_US)


SYSTEM = SystemClock()
