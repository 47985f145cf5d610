"""Rounds, the best of them and their spread."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec


class Measurement(msgspec.Struct, kw_only=True):
    """What one contender reached in one workload. ``rounds`` are in ``unit``; ``more`` is what else was seen."""

    workload: str
    contender: str
    unit: str
    rounds: list[float]
    durable: bool = True
    larger_is_better: bool = True
    note: str = ""
    missing: str = ""
    more: dict[str, float] = {}

    @property
    def best(self) -> float:
        """The best round."""
        return max(self.rounds) if self.larger_is_better else min(self.rounds)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of the middle one."""
        return (max(self.rounds) - min(self.rounds)) / self.median if self.median else 0.0


class Plan(msgspec.Struct, frozen=True):
    """How long to measure: rounds, and seconds of work in each. ``ids``: how many the memory of ids is filled with."""

    rounds: int
    round_s: float
    quick: bool
    ids: int = 2_000_000

    def finer(self) -> Plan:
        """Return as long a plan in more and shorter rounds: beside noisy neighbours some of them are left alone."""
        return self if self.quick else Plan(rounds=_FINER * self.rounds, round_s=self.round_s / _FINER, quick=False)


_FINER = 4
FULL = Plan(rounds=5, round_s=0.6, quick=False)
QUICK = Plan(rounds=1, round_s=0.02, quick=True)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that something takes, begun with a clean heap and a disk that has nothing left to write."""
    gc.collect()
    os.sync()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def calibrated(rate: float, unit: int, plan: Plan, most: int) -> int:
    """Return how many times ``unit`` records fill a round at this rate, at least one and at most ``most``."""
    return max(1, min(most, round(rate * plan.round_s / unit)))
