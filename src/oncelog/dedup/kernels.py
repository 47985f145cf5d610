"""Whether the compiled loops of ``oncelog[fast]`` are there, and loading them once there is enough for them to do.

Loading numba takes about half a second, and compiling for the first time on a machine some seconds. Who appends, or
recovers, no more than numpy does meanwhile never waits for it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from oncelog.dedup.compiled import Kernels, compile_all

COUNT_MIN = 512
"""Smaller batches are not worth a call."""

PART_MIN = 16
"""A part of a batch that is smaller than this is not worth a call."""

LOAD_ROWS = 2_000_000
"""After so many rows were hashed, looked up or inserted by numpy, the compiled loops are loaded."""


class _Choice:
    """What was found out: nothing yet, or the functions, or that there are none."""

    allowed = True
    left = LOAD_ROWS
    looked = False
    kernels: Kernels | None = None


def choose(wish: str | None) -> None:
    """Say whether compiled loops are to be used: ``"0"`` never, ``"1"`` from the first batch on, ``None`` in time."""
    _Choice.allowed = wish != "0"
    _Choice.left = 0 if wish == "1" else LOAD_ROWS


def kernels(count: int) -> Kernels | None:
    """Return the compiled loops for a batch of so many rows, ``None`` when numpy is to do it."""
    if count < COUNT_MIN or not _Choice.allowed:
        return None
    if not _Choice.looked:
        if _Choice.left > 0:
            _Choice.left -= count
            return None
        _Choice.kernels = _load()
        _Choice.looked = True
    return _Choice.kernels


def kernels_at_hand(count: int) -> Kernels | None:
    """Return the compiled loops for a part of a batch that has so many rows, if they are loaded already."""
    return _Choice.kernels if _Choice.allowed and count >= PART_MIN else None


def _load() -> Kernels | None:
    if sys.byteorder != "little":
        return None
    try:
        return compile_all(import_module("numba"))
    except (ImportError, RuntimeError):  # it is not installed, or has no place to keep what it compiled
        return None


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to: arrays of one kind need one function compiled, not two."""
    view = array.view()
    view.flags.writeable = False
    return view
