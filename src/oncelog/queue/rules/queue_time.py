"""The time that leases, delays and backoffs are counted in: it never goes back, and no jump of a wall clock moves it.

A running process uses its steady clock alone. A process that starts continues from the stored time: by the wall clock's
difference, or, where the steady clock is the same for all (one machine since its start), by the smaller of the two.
The wall clock is the one that all brokers have in common: where several machines share the state, its server's. Late is
safe, early is not: a lease that ends early is a message delivered twice.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.clock import Clock


class Noted(NamedTuple):
    """A moment that was stored: in queue time, by the common wall clock, and by the steady clock of who stored it."""

    queue_us: int
    wall_us: int
    steady_us: int


def resumed_us(noted: Noted | None, wall_us: int, steady_us: int, *, one_machine: bool) -> int:
    """Return the queue time at which a process begins.

    >>> resumed_us(Noted(100, 1_000, 50), wall_us=1_500, steady_us=60, one_machine=True)  # the wall clock jumped
    110
    >>> resumed_us(Noted(100, 1_000, 50), wall_us=900, steady_us=0, one_machine=True)  # restarted, and set back
    100
    """
    if noted is None:
        return wall_us
    passed_us = max(0, wall_us - noted.wall_us)
    if one_machine and steady_us >= noted.steady_us:
        passed_us = min(passed_us, steady_us - noted.steady_us)
    return noted.queue_us + passed_us


class QueueTime:
    """The queue time of one process."""

    def __init__(self, clock: Clock, noted: Noted | None, wall_us: int, *, one_machine: bool) -> None:
        """Go on from what was noted. ``wall_us`` was read just before: what passed since only makes it late."""
        self._clock = clock
        steady_us = clock.elapsed_us()
        self._ahead_us = resumed_us(noted, wall_us, steady_us, one_machine=one_machine) - steady_us

    def now_us(self) -> int:
        """Return the time now."""
        return self._clock.elapsed_us() + self._ahead_us

    def meet(self, stored_us: int) -> int:
        """Return the time now, no earlier than what another process has stored."""
        now_us = self.now_us()
        if stored_us > now_us:
            self._ahead_us += stored_us - now_us
            return stored_us
        return now_us

    def note(self, now_us: int, wall_us: int) -> Noted:
        """Return a moment to store. ``wall_us`` was read after ``now_us``: using it is late, not early."""
        return Noted(now_us, wall_us, self._clock.elapsed_us())
