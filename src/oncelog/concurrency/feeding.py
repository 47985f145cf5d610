"""Handles that are iterated by tasks: one thread a log looks for all tasks that wait, and wakes them.

``async for`` over a handle gives it an iterator of its own. The iterator asks its *feeder* for more; the feeder is one
thread for all handles that share a source (a log, a queue's group), not one for each.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from oncelog.concurrency.pending import Pending, begun
from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.handle import Handle

T_co = TypeVar("T_co", covariant=True)

AT_ONCE = 256
"""So many items an iterator takes at once, at most."""

_WAIT_S = 1.0


class Fed(Handle, Generic[T_co]):
    """A handle that can be iterated by a task. Subclasses say how to look for more, and how to wait for it."""

    _fed: weakref.ref[_Iterator[T_co]] | None = None
    _unread: deque[Any] | None = None
    """Found for a task that was cancelled, or left its loop, and not handed out: whoever iterates next has it first."""
    _iterated = False

    def __aiter__(self) -> AsyncIterator[T_co]:
        """Return an iterator of its own. ``InvalidArgument`` while somebody else iterates this handle."""
        self._check_usable()
        if self._iterated or (self._fed is not None and self._fed() is not None):
            message = f"this {self._what} is being iterated: one iteration at a time, by a thread or by a task"
            raise InvalidArgument(message)
        if self._unread is None:
            self._unread = deque()
        iterator = _Iterator(self, self._unread)
        self._fed = weakref.ref(iterator)
        return iterator

    def _check_unfed(self) -> None:
        """Raise ``InvalidArgument`` if a task iterates this handle: a thread would take what it waits for."""
        if self._fed is not None and self._fed() is not None:
            message = f"this {self._what} is being iterated by a task (async for): one iteration at a time"
            raise InvalidArgument(message)

    def _left_unread(self, limit: int = 1) -> list[Any]:
        """Return what a task before left, for a thread that iterates now."""
        unread = self._unread
        return [unread.popleft() for _ in range(min(limit, len(unread)))] if unread else []

    @abstractmethod
    def _look(self) -> list[Any]:
        """Return what there is now, without waiting; raise ``StopIteration`` when nothing more will come."""

    @abstractmethod
    def _await_more(self, timeout_s: float) -> None:
        """Return when there may be more, or ``_end_wait`` was called, or the time is over. Called by the feeder."""

    @abstractmethod
    def _end_wait(self) -> None:
        """End ``_await_more``."""

    @abstractmethod
    def _source(self) -> object:
        """Return what all handles with the same feeder share. It can be referred to weakly."""


class _Iterator(AsyncIterator[T_co]):
    """The items of a handle, for one task."""

    def __init__(self, handle: Fed[T_co], ready: deque[T_co]) -> None:
        self.handle = handle
        self.ready = ready
        """Found, and not handed out."""

    async def __anext__(self) -> T_co:
        """Return the next item; ends when the handle is closed, or has no more."""
        self.handle._check_process()  # noqa: SLF001
        while not self.ready:
            feeder = feeder_of(self.handle)
            try:
                more = await feeder.more(self)
            except OncelogError:
                if self.handle.closed:
                    raise StopAsyncIteration from None
                raise
            except BaseException:  # the task was cancelled
                feeder.leave(self)
                raise
            if not more:
                raise StopAsyncIteration
        return self.ready.popleft()


class Feeder:
    """Looks for more on behalf of all iterators that wait, in one thread. The thread ends when none has waited for a
    while.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[_Iterator[Any], Pending[bool]] = {}
        self._came = 0
        """How many have begun to wait, ever."""
        self._running = False
        self._looking: Fed[Any] | None = None

    def more(self, iterator: _Iterator[Any]) -> Pending[bool]:
        """Return whether there is more for an iterator, once that is known."""
        with self._changed:
            pending = self._waiting.get(iterator)
            if pending is None:
                pending = self._waiting[iterator] = begun()
                self._came += 1
            if not self._running:
                self._start()
            looking = self._looking
            self._changed.notify_all()
        if looking is not None:
            looking._end_wait()  # noqa: SLF001 (the feeder's side of it)
        return pending

    def leave(self, iterator: _Iterator[Any]) -> None:
        """Look no more for an iterator that does not wait any more."""
        with self._changed:
            self._waiting.pop(iterator, None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="oncelog-feeder", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._waiting.clear()
            message = f"no thread to look with ({error}): end some, and try again"
            raise Unavailable(message) from error
        self._running = True

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._changed.wait_for(lambda: bool(self._waiting), _WAIT_S)
                if not self._waiting:
                    self._running = False
                    return
                came = self._came
            if not self._feed_all():
                self._wait(came)

    def _feed_all(self) -> bool:
        """Look once for all who wait; return whether one of them need not wait any more. No iterator is referred to
        behind this: one that its task has left is gone at once, and the next may begin.
        """
        with self._changed:
            waiting = list(self._waiting)
        return sum(self._feed(iterator) for iterator in waiting) > 0

    def _wait(self, came: int) -> None:
        """Wait for more on behalf of all: they share their source."""
        with self._changed:
            if came != self._came or not self._waiting:
                return  # another one has come, who may find something at once
            self._looking = next(iter(self._waiting)).handle
        try:
            self._looking._await_more(_WAIT_S)  # noqa: SLF001
        except OncelogError:
            pass  # the next look says what is wrong
        finally:
            with self._changed:
                self._looking = None

    def _feed(self, iterator: _Iterator[Any]) -> bool:
        """Look once for an iterator; return whether it need not wait any more."""
        try:
            found = iterator.handle._look()  # noqa: SLF001
        except StopIteration:
            self._answer(iterator, result=False)
            return True
        except BaseException as error:  # noqa: BLE001 (the task has it)
            self._answer(iterator, error=error)
            return True
        if found:
            iterator.ready.extend(found)
            self._answer(iterator, result=True)
        return bool(found)

    def _answer(self, iterator: _Iterator[Any], *, result: bool = False, error: BaseException | None = None) -> None:
        with self._changed:
            pending = self._waiting.pop(iterator, None)
        if pending is None:
            return  # its task was cancelled
        if error is None:
            pending.set_result(result)
        else:
            pending.set_exception(error)


_feeders: weakref.WeakKeyDictionary[Any, Feeder] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def feeder_of(handle: Fed[Any]) -> Feeder:
    """Return the feeder of all handles that share a source."""
    with _lock:
        return _feeders.setdefault(handle._source(), Feeder())  # noqa: SLF001
