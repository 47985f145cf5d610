"""The swap: while a simulation runs, modules of Oncelog find simulated threads in the place of real ones.

What is made outside a simulated thread is the real thing, so other threads of the test process do not notice.
"""

from __future__ import annotations

import contextlib
import queue as real_queue
import sys
import threading as real_threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, _base
from types import ModuleType, SimpleNamespace
from typing import Any

from oncelog.testing.simulation.scheduler import Scheduler, current_task
from oncelog.testing.simulation.threads import (
    Local,
    Lock,
    Pool,
    RLock,
    SimpleQueue,
    SimulatedCondition,
    SimulatedEvent,
    Thread,
)

_REAL_LOCKS = (type(real_threading.Lock()), type(real_threading.RLock()))
_SWAPPED = ("oncelog.", "concurrent.futures._base")


def _either(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the simulated thing in a simulated thread, and the real thing elsewhere."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return (real if current_task() is None else simulated)(*args, **kwargs)

    return make


def _current_thread() -> Any:
    task = current_task()
    if task is None:
        return real_threading.current_thread()
    found = task.locals.setdefault(0, {})
    if "thread" not in found:
        found["thread"] = Thread(name=task.name)
    return found["thread"]


def _get_ident() -> int:
    task = current_task()
    return real_threading.get_ident() if task is None else task.number


class _Module(SimpleNamespace):
    """A module of which some names are simulated, and the rest is real."""

    def __init__(self, real: ModuleType, **names: object) -> None:
        super().__init__(**names)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_THREADING = _Module(
    real_threading,
    Lock=_either(Lock, real_threading.Lock),
    RLock=_either(RLock, real_threading.RLock),
    Condition=_either(SimulatedCondition, real_threading.Condition),
    Event=_either(SimulatedEvent, real_threading.Event),
    Thread=_either(Thread, real_threading.Thread),
    local=_either(Local, real_threading.local),
    current_thread=_current_thread,
    get_ident=_get_ident,
)
_QUEUE = _Module(real_queue, SimpleQueue=_either(SimpleQueue, real_queue.SimpleQueue))
_POOL = _either(Pool, ThreadPoolExecutor)


class _SharedLock:
    """A lock that a module made when it was imported: simulated threads and real ones do not meet in it."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._simulated = RLock() if isinstance(real, _REAL_LOCKS[1]) else Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real if current_task() is None else self._simulated, name)

    def __enter__(self) -> Any:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _replacement(value: object) -> object | None:
    """Return what stands in the place of something in a module; ``None`` if it stays."""
    if value is real_threading:
        return _THREADING
    if value is real_queue:
        return _QUEUE
    if value is ThreadPoolExecutor:
        return _POOL
    return _SharedLock(value) if isinstance(value, _REAL_LOCKS) else None


def _owners() -> Iterator[Any]:
    """Yield the modules in which names are swapped, and the classes in them."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_SWAPPED) and not name.startswith(__package__):
            yield module
            yield from (one for one in list(vars(module).values()) if isinstance(one, type) and one.__module__ == name)


@contextlib.contextmanager
def swapped() -> Iterator[None]:
    """Put simulated threads in place of real ones, in all modules of Oncelog that are loaded."""
    assert Scheduler.active is None
    assert _base.__name__ in sys.modules
    before: list[tuple[Any, str, object]] = []
    for owner in _owners():
        for name, value in list(vars(owner).items()):
            new = _replacement(value)
            if new is not None:
                before.append((owner, name, value))
                setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
