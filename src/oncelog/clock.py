"""Time and randomness: the one place that asks the machine for either."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Protocol


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


class SystemClock:
    """The machine's own time and randomness."""

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


SYSTEM = SystemClock()
