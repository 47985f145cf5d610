"""Whether the compiled loops of ``oncelog[fast]`` are there, and loading them once there is enough for them to do.

Loading numba takes about half a second, and compiling for the first time on a machine some seconds. No append waits for
that: a thread loads while numpy goes on doing the work. The thread also calls every loop once (``rehearsal``), because
numba compiles a function, or reads it from its cache, at the first call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from oncelog.dedup.compiled import Kernels, compile_all

COUNT_MIN = 512
"""Smaller batches do not count when it is asked whether loading would pay."""

PART_MIN = 4
"""Fewer rows are not worth a call, once the loops are loaded."""

LOAD_ROWS = 12_000_000
"""After so many rows were hashed, looked up or inserted by numpy, the compiled loops are loaded. An append does about
six of these with each row. Loading costs as much as the loops save with some million rows.
"""

_REHEARSED: ContextVar[Kernels | None] = ContextVar("rehearsed", default=None)
"""The loops that this thread tries out before others see them."""

Start = Callable[[Callable[[], None]], None]
"""Has something done in another thread; ``RuntimeError`` when there is none to be had."""


class _Choice:
    """What was found out: nothing yet, or the functions, or that there are none."""

    allowed = True
    at_once = False
    left = LOAD_ROWS
    start: Start | None = None
    loading = False
    looked = False
    kernels: Kernels | None = None


def choose(wish: str | None, start: Start | None = None) -> None:
    """Say whether compiled loops are to be used: ``"0"`` never, ``"1"`` from the first batch on, ``None`` in time.

    In time they are loaded by what ``start`` starts.
    """
    _Choice.allowed = wish != "0"
    _Choice.at_once = wish == "1"
    _Choice.left = LOAD_ROWS
    _Choice.start = start


def kernels(count: int) -> Kernels | None:
    """Return the compiled loops for a batch of so many rows, ``None`` when numpy is to do it."""
    if _Choice.looked:
        return _Choice.kernels if _Choice.allowed and count >= PART_MIN else None
    return _not_yet(count) if _Choice.allowed and count >= COUNT_MIN else None


def kernels_at_hand(count: int) -> Kernels | None:
    """Return the compiled loops for so many rows if they are loaded already; these rows do not have them loaded."""
    if _Choice.loading:
        return _REHEARSED.get()
    return _Choice.kernels if _Choice.allowed and count >= PART_MIN else None


def _not_yet(count: int) -> Kernels | None:
    """Load the loops if it is time; return them if this thread may use them now."""
    if _Choice.loading:
        return _REHEARSED.get()
    if _Choice.at_once or (_Choice.left <= 0 and _Choice.start is None):
        _Choice.kernels = _load()
        _Choice.looked = True
        return _Choice.kernels
    _Choice.left -= count
    if _Choice.left <= 0 and _Choice.start is not None:
        _load_aside(_Choice.start)
    return None


def _load_aside(start: Start) -> None:
    """Have the loops loaded and tried out by another thread."""
    _Choice.loading = True
    try:
        start(_rehearse)
    except RuntimeError:  # no thread: try again later
        _Choice.loading = False
        _Choice.left = LOAD_ROWS


def _rehearse() -> None:
    """Load the loops, try them out, and show them to all threads. Should two threads do it, the first shows its own."""
    loaded = _load()
    if loaded is not None:
        _REHEARSED.set(loaded)
        try:
            import_module("oncelog.dedup.rehearsal").rehearse()
        except Exception:  # noqa: BLE001  what cannot be compiled here is left to numpy
            loaded = None
    if not _Choice.looked:
        _Choice.kernels = loaded
        _Choice.looked = True  # before ``loading`` ends: no thread loads a second time
    _Choice.loading = False


def stop_loading() -> None:
    """Leave all to numpy in a child that was forked while the parent loaded: the compiler's locks may be held."""
    if _Choice.loading:
        _Choice.kernels = None
        _Choice.looked = True
        _Choice.loading = False


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
