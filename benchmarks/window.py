"""The dedup window alone: look-ups and memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Measurement, Plan
from oncelog.dedup.window import DedupWindow

WORKLOAD = "window of 100,000 keys"
_KEYS = 100_000
_BATCH = 10_000

Keys = NDArray[np.uint64]


def window(_: Path, plan: Plan) -> list[Measurement]:
    """Measure look-ups that miss, look-ups that hit, adding with eviction, and bytes; a dict beside it."""
    random = np.random.default_rng(1)
    kept = _keys(random, _KEYS)
    tracemalloc.start()
    filled = _filled(kept)
    window_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    known = dict.fromkeys(map(tuple, kept.tolist()), (0, 0, 0, 0))
    absent = [_keys(random, _BATCH) for _ in range(20)]
    present = [kept[start : start + _BATCH] for start in random.integers(0, _KEYS - _BATCH, 20)]
    rows = [
        _row("Oncelog, batch look-up, absent", "keys/s", _rounds(filled.find, absent, plan)),
        _row("Oncelog, batch look-up, present", "keys/s", _rounds(filled.find, present, plan)),
        _row("Oncelog, add + evict", "keys/s", _rounds(_adder(filled), absent, plan)),
        _row("Python dict, look-up, absent", "keys/s", _rounds(_looker(known), [key.tolist() for key in absent], plan)),
        _row("Oncelog, memory", "bytes", [float(window_bytes)]),
    ]
    rows[-1].larger_is_better = False
    rows[-1].more = {"nbytes": float(filled.nbytes)}
    return rows


def _row(contender: str, unit: str, rounds: list[float]) -> Measurement:
    return Measurement(workload=WORKLOAD, contender=contender, unit=unit, rounds=rounds)


def _keys(random: np.random.Generator, count: int) -> Keys:
    return random.integers(0, 2**64, (count, 2), np.uint64)


def _filled(keys: Keys) -> DedupWindow:
    made = DedupWindow(10**18, _KEYS)
    for start in range(0, len(keys), _BATCH):
        _add(made, keys[start : start + _BATCH], start)
    return made


def _add(to: DedupWindow, keys: Keys, position: int) -> None:
    positions = np.arange(position, position + len(keys))
    to.add(keys, positions, keys[:, 0].copy(), np.ones(len(keys), np.bool_))
    to.commit(position + len(keys), position, position)
    to.evict(position)


def _adder(to: DedupWindow) -> Callable[[Keys], None]:
    position = _KEYS

    def add(keys: Keys) -> None:
        nonlocal position
        keys[:, 1] += np.uint64(1)  # a key is never added while it is live
        _add(to, keys, position)
        position += len(keys)

    return add


def _looker(known: dict[tuple[int, int], tuple[int, int, int, int]]) -> Callable[[list[list[int]]], object]:
    return lambda keys: [known.get((high, low)) for high, low in keys]


def _rounds(work: Callable[..., object], batches: list[Keys] | list[list[list[int]]], plan: Plan) -> list[float]:
    rounds = []
    for number in range(2 * plan.rounds + 1):
        started = time.perf_counter()
        for batch in batches:
            work(batch)
        if number:
            rounds.append(len(batches) * _BATCH / (time.perf_counter() - started))
    return rounds
