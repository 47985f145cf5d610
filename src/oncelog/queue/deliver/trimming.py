"""Removing what every group has settled, now and then, beside the consumers of a queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.errors import OncelogError


class Trimming:
    """Trims a queue once in a while. Safe to share between threads: one of them trims, the others go on."""

    def __init__(self, trim: Callable[[], object], clock: Clock) -> None:
        self._trim = trim
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us = clock.elapsed_us()

    def look(self, every_s: float | None) -> None:
        """Trim if the last time is so long ago. What cannot be trimmed now is tried the next time."""
        if every_s is None or self._clock.elapsed_us() - self._since_us < every_s * 1e6:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._since_us = self._clock.elapsed_us()
                with contextlib.suppress(OncelogError):
                    self._trim()
            finally:
                self._lock.release()
