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
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncelog.concurrency.pending import Pending, begun
from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.handle import Handle

if TYPE_CHECKING:  # a program without an event loop does not import asyncio
    import asyncio

T_co = TypeVar("T_co", covariant=True)

AT_ONCE = 256
"""So many items an iterator takes at once, at most."""

_WAIT_S = 1.0


class Fed(Handle, Generic[T_co]):
    """A handle that can be iterated by a task. Subclasses say how to look for more, and how to wait for it."""

    _fed: weakref.ref[_Iterator[T_co]] | None = None
    _unread: deque[T_co] | None = None
    """Entries that a cancelled task, or an abandoned loop, did not get. The next loop gets these entries first."""
    _iterated = False

    def __aiter__(self) -> AsyncIterator[T_co]:
        """Return an iterator of its own. ``InvalidArgument`` while somebody else iterates this handle."""
        self._check_usable()
        if self._iterated or self._is_fed():
            message = f"this {self._what} is being iterated: one iteration at a time, by a thread or by a task"
            raise InvalidArgument(message)
        if self._unread is None:
            self._unread = deque()
        iterator = _Iterator(self, self._unread)
        self._fed = weakref.ref(iterator)
        return iterator

    def _check_unfed(self) -> None:
        """Raise ``InvalidArgument`` if a task iterates this handle: a thread would take what it waits for."""
        if self._is_fed():
            message = f"this {self._what} is being iterated by a task (async for): one iteration at a time"
            raise InvalidArgument(message)

    def _is_fed(self) -> bool:
        """Tell whether a task iterates this handle: it has an iterator, and was not cancelled in it."""
        iterator = None if self._fed is None else self._fed()
        return iterator is not None and not iterator.is_left

    def _left_unread(self, limit: int = 1) -> list[T_co]:
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

    def _was_left(self) -> None:
        """Let go of what was begun for a task that was cancelled. Does not wait."""

    @abstractmethod
    def _source(self) -> object:
        """Return what all handles with the same feeder share. It can be referred to weakly."""


class _Iterator(AsyncIterator[T_co]):
    """The items of a handle, for one task."""

    def __init__(self, handle: Fed[T_co], ready: deque[T_co]) -> None:
        self.handle = handle
        self.ready = ready
        """Found, and not handed out."""
        self._left = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_left(self) -> bool:
        """Whether its task was cancelled while it waited, or the loop of its task was closed: another iteration may
        begin.
        """
        return self._left or (self._loop is not None and self._loop.is_closed())

    async def __anext__(self) -> T_co:
        """Return the next item; ends when the handle is closed, or has no more."""
        from asyncio import get_running_loop  # noqa: PLC0415

        self.handle._check_process()  # noqa: SLF001
        if self.is_left:
            self._return()
        self._loop = get_running_loop()
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
                self._left = True
                self.handle._was_left()  # noqa: SLF001
                raise
            if not more:
                raise StopAsyncIteration
        return self.ready.popleft()

    def _return(self) -> None:
        """Go on after a task was cancelled; ``InvalidArgument`` if another iteration has begun since."""
        fed = self.handle._fed  # noqa: SLF001
        if self.handle._iterated or (fed is not None and fed() is not self):  # noqa: SLF001
            message = "another iteration of this handle has begun since a task was cancelled in this one"
            raise InvalidArgument(message)
        self._left = False


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
        """Look once for all who wait; return whether one of them need not wait any more."""
        with self._changed:
            waiting = [weakref.ref(iterator) for iterator in self._waiting]
        return sum(map(self._feed, waiting)) > 0

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

    def _feed(self, waiting: weakref.ref[_Iterator[Any]]) -> bool:
        """Look once for an iterator; return whether it need not wait any more.

        When its task goes on, nothing here refers to the iterator: one that the task leaves is gone at once, and the
        next one may begin.
        """
        iterator = waiting()
        if iterator is None:
            return True
        if iterator.is_left:  # its loop was closed: what is found would be nobody's
            self.leave(iterator)
            return True
        found: list[Any] = []
        error: BaseException | None = None
        try:
            found = iterator.handle._look()  # noqa: SLF001
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 (the task has it)
            error = raised
        else:
            if not found:
                return False
            iterator.ready.extend(found)
        with self._changed:
            pending = self._waiting.pop(iterator, None)
        del iterator
        if pending is None:
            return True  # its task was cancelled
        if error is None:
            pending.set_result(bool(found))
        else:
            pending.set_exception(error)
        return True


_feeders: weakref.WeakKeyDictionary[Any, Feeder] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def feeder_of(handle: Fed[Any]) -> Feeder:
    """Return the feeder of all handles that share a source."""
    with _lock:
        return _feeders.setdefault(handle._source(), Feeder())  # noqa: SLF001
