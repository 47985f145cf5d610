"""Answers that are on their way: a future that a thread can wait for and a task can await.

A standard ``Future`` needs ``asyncio.wrap_future`` to be awaited, which wakes
the event loop once for each answer. Here all answers that come together wake a loop once: each loop has one *bridge*.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from oncelog.errors import Unavailable

if TYPE_CHECKING:  # a program without an event loop does not import asyncio
    import asyncio

LATER_THREADS = 8
"""Threads that run what ``later`` is given."""

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class Pending(Future[T]):
    """The answer to a call that did not wait: ``result()`` waits for it in a thread, ``await`` in a task.

    It may be awaited on any event loop, in any thread, any number of times. What was called is under way and cannot be
    cancelled: cancelling a task that awaits the answer leaves the call alone. Callbacks run in the thread that has the
    answer, and must not block it.
    """

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the answer without blocking the event loop."""
        if not self.done():
            from asyncio import get_running_loop  # noqa: PLC0415

            loop = get_running_loop()
            waiter = loop.create_future()
            bridge = _bridge_to(loop)
            self.add_done_callback(lambda _: bridge.wake(waiter))
            yield from waiter
        return self.result()


class _Bridge:
    """Wakes the tasks of one event loop: one wake-up for all answers that came since the last."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the bridge is found by its loop, and must not keep the loop alive
        self._ready: deque[asyncio.Future[None]] = deque()
        self._called = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Have a task go on. Called from any thread."""
        self._ready.append(waiter)
        if self._called:
            return  # `_wake_all` clears the flag before it takes the waiters: it finds this one
        self._called = True
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self._ready.clear()

    def _wake_all(self) -> None:
        self._called = False
        ready = self._ready
        while ready:
            waiter = ready.popleft()
            if not waiter.done():  # else its task was cancelled
                waiter.set_result(None)


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()
_bridges_lock = threading.Lock()


def _bridge_to(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        with _bridges_lock:
            bridge = _bridges.setdefault(loop, _Bridge(loop))
    return bridge


def on_loop() -> bool:
    """Tell whether this thread runs an event loop now, which must not be blocked."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001 (in the documentation)


# Making answers.


def begun() -> Pending[Any]:
    """Return the answer to a call that is under way."""
    pending: Pending[Any] = Pending()
    pending.set_running_or_notify_cancel()
    return pending


def failed(error: BaseException) -> Pending[Any]:
    """Return an answer that is an error."""
    pending = begun()
    pending.set_exception(error)
    return pending


def settle(pending: Future[T], function: Callable[[], T]) -> None:
    """Give an answer what a function returns, or raises."""
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 (the future has it)
        pending.set_exception(error)
    else:
        pending.set_result(result)


def mapped(source: Future[S], function: Callable[[S], T]) -> Pending[T]:
    """Return the answer that a function makes of another. The function runs where that answer comes in."""
    pending = begun()
    source.add_done_callback(lambda done: settle(pending, lambda: function(done.result())))
    return pending


# Running what has no `submit`.


class _Pool:
    """The threads of ``later``: made when they are needed, and made again in a forked process."""

    executor: ThreadPoolExecutor | None = None
    lock = threading.Lock()

    @classmethod
    def get(cls) -> ThreadPoolExecutor:
        with cls.lock:
            if cls.executor is None:
                cls.executor = ThreadPoolExecutor(LATER_THREADS, thread_name_prefix="oncelog-later")
            return cls.executor

    @classmethod
    def forked(cls) -> None:
        cls.executor = None
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_Pool.forked)


def later(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
    """Call a function in a pool of eight threads; return its answer, to be awaited.

    It is for calls that wait and have no ``submit``: opening, truncating, verifying.

    >>> import asyncio, oncelog
    >>> async def main():
    ...     async with await oncelog.later(oncelog.connect, "memory://") as db:
    ...         orders = await oncelog.later(db.log, "orders", create=True)
    ...         async with await oncelog.later(orders.writer) as writer:
    ...             return await writer.submit(b"paid", id="order-42")
    >>> asyncio.run(main()).position
    0
    """
    pending = begun()
    context = contextvars.copy_context()
    try:
        _Pool.get().submit(settle, pending, lambda: context.run(function, *args, **kwargs))
    except RuntimeError as error:  # the interpreter ends; or no thread can begin, and another may still make the call
        return failed(Unavailable(f"no thread to call it with ({error})", outcome="unknown"))
    return pending


async def uncancelled(pending: Pending[T]) -> T:
    """Wait for an answer to its end, also when the task is cancelled meanwhile; then the cancellation goes on."""
    from asyncio import CancelledError  # noqa: PLC0415

    cancelled: CancelledError | None = None
    while not pending.done():
        try:
            await pending
        except CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 (raised below)
            break
    if cancelled is not None:
        raise cancelled
    return pending.result()
