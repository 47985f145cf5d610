"""How readers sleep until there is something to read."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncelog.clock import Clock


class Bell:
    """What waiting readers of one log listen to, in one process.

    ``ring`` ends every ``wait``, also one that a thread was just about to begin: a thread that has not heard
    the last ring returns from its next ``wait`` at once. ``nudge`` only makes waiters look again.
    """

    def __init__(self) -> None:
        """Make a bell that nobody listens to yet."""
        self._condition = threading.Condition()
        self._rings = 0
        self._nudges = 0
        self._waiting = 0
        self._heard = threading.local()
        self.sounds: list[object] = []
        """Another object after each ring and nudge, heard or not: made without a call, because every commit nudges."""

    def ring(self) -> None:
        """Make every wait return now."""
        self.sounds = []
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def nudge(self) -> None:
        """Make every wait look whether it is over."""
        self.sounds = []
        # A waiter counts itself before it looks: either it is counted here, or it sees what was done before.
        if self._waiting:
            with self._condition:
                self._nudges += 1
                self._condition.notify_all()

    def wait(self, ready: Callable[[], bool], timeout_s: float, clock: Clock, poll_s: float | None = None) -> bool:
        """Wait until ``ready()``, a ring, or the end of the time, which is ``False``; look at least every ``poll_s``.

        Looking may take long (a bucket is asked), and nobody who rings or nudges waits for it.
        """
        deadline_us = clock.elapsed_us() + round(timeout_s * 1_000_000)
        with self._condition:
            self._waiting += 1
            try:
                while not self._is_rung and not self._look(ready):
                    left_s = (deadline_us - clock.elapsed_us()) / 1_000_000
                    if left_s <= 0:
                        return False
                    clock.wait(self._condition, left_s if poll_s is None else min(poll_s, left_s))
                return True
            finally:
                self._waiting -= 1
                self._heard.rings = self._rings

    @property
    def _is_rung(self) -> bool:
        return bool(self._rings != getattr(self._heard, "rings", 0))

    def _look(self, ready: Callable[[], bool]) -> bool:
        """Tell whether the wait is over, having seen all that was done before the last nudge."""
        while True:
            nudges = self._nudges
            self._condition.release()
            try:
                over = ready()
            finally:
                self._condition.acquire()
            if over or self._is_rung or nudges == self._nudges:
                return over or self._is_rung
