"""A lock that is held again in the end, whatever interrupts: else a thread would give back a lock that is another's.

Python heeds a signal when a function begins, when a call of one in C is over, and while a lock is waited for. So
``Condition.wait`` over a plain lock loses the lock if Ctrl-C comes while the lock is taken again. (A condition over an
``RLock``, as ``threading.Condition()`` makes it, takes its lock again in C, where no signal is heeded.)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_ONCE = (True,)
_T = TypeVar("_T")


class SteadyCondition(threading.Condition):
    """A condition over a plain lock, which who waited holds again, after up to three times Ctrl-C in a row."""

    _waiters: Any  # as the class above has it: the locks of those who wait

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._plain = lock

    def unlocked(self, work: Callable[..., _T], *given: Any) -> _T:
        """Let go of the lock while something is done. It is held again at the end, whatever interrupts.

        Between the attempts there is no loop and no call, because Python would heed a signal there. What one call in C
        has noted tells whether the lock was taken before the signal came.
        """
        held: list[bool] = []
        try:
            self._plain.release()  # in here: interrupted behind it, the lock would stay free
            return work(*given)
        finally:
            try:
                held.extend(map(self._plain.acquire, _ONCE))
            finally:
                if not held:
                    try:
                        held.extend(map(self._plain.acquire, _ONCE))
                    finally:
                        if not held:
                            try:
                                held.extend(map(self._plain.acquire, _ONCE))
                            finally:
                                if not held:
                                    held.extend(map(self._plain.acquire, _ONCE))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, or until the time is over, which is ``False``."""
        if timeout is not None and timeout <= 0:
            return False
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        woken = False
        try:
            woken = self.unlocked(waiter.acquire, True, -1 if timeout is None else timeout)
        finally:
            if not woken:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return woken
