"""The clock of a simulated process."""

from __future__ import annotations

import random
from typing import Any

from oncelog.clock import Beating
from oncelog.testing.simulation.scheduler import Process, Scheduler

EPOCH_US = 1_700_000_000_000_000


class VirtualClock:
    """Virtual time, with a wall clock that each process has for itself, and chance from the seed."""

    def __init__(self, scheduler: Scheduler, process: Process, seed: str) -> None:
        self._scheduler = scheduler
        self._process = process
        self._random = random.Random(f"{seed} {process.name}")

    def now_us(self) -> int:
        """Return wall time. It may jump."""
        return EPOCH_US + self._scheduler.now_us + self._process.wall_offset_us

    def elapsed_us(self) -> int:
        """Return virtual time."""
        return self._scheduler.now_us

    def wait(self, condition: Any, timeout_s: float | None) -> None:
        """Wait on a held condition."""
        condition.wait(timeout_s)

    def token(self, size_bytes: int) -> bytes:
        """Return the next bytes of the seeded sequence."""
        return self._random.randbytes(size_bytes)

    def chance(self) -> float:
        """Return the next number of the seeded sequence."""
        return self._random.random()

    @property
    def pulse(self) -> tuple[int, int]:
        """Now, and for how long the process was paused."""
        return self._scheduler.now_us, self._process.paused_us

    def keep_pulse(self, owner: Beating) -> None:
        """Do nothing: the pulse is always known."""
