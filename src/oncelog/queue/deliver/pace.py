"""How the partitions of one group share looks that are paid for: a request a second for all of them, in turn."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.clock import Clock

ACTIVE_S = 5.0
"""As long as messages came lately, each partition is looked at as often as a log of its own."""

REQUEST_US = 1_000_000
"""A group that has nothing to do makes one request in this time, however many partitions it has."""


class Pace:
    """Says which partition may be looked at now. Used by one thread at a time."""

    def __init__(self, clock: Clock, partitions: int) -> None:
        self._clock = clock
        self._partitions = partitions
        self._came_us = clock.elapsed_us()
        self._next = 0
        self._next_us = 0

    def came(self) -> None:
        """Note that there were messages."""
        self._came_us = self._clock.elapsed_us()

    def of(self, partition: int) -> Callable[[int], bool]:
        """Return what is asked, with a number of requests, whether a partition may be looked at for that now."""
        return lambda requests: self._may_pay(partition, requests)

    def _may_pay(self, partition: int, requests: int) -> bool:
        now_us = self._clock.elapsed_us()
        if now_us - self._came_us < ACTIVE_S * 1e6:
            return True
        if partition != self._next or now_us < self._next_us:
            return False
        self._next = (partition + 1) % self._partitions
        self._next_us = now_us + requests * REQUEST_US
        return True
