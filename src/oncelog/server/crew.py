"""Threads for calls that block: started when there is work, ended when there is none for a while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import Unavailable

_T = TypeVar("_T")

IDLE_S = 5.0
"""A thread without work ends after so long."""


class _CrewTask(NamedTuple):
    work: Callable[[], Any]
    answer: asyncio.Future[Any] | None
    ended: Callable[[], None] | None = None


class Crew:
    """At most ``threads_max`` threads that run functions for one event loop.

    At most ``waiting_max`` functions wait for a thread; the next one is refused with ``Unavailable``. A caller that is
    cancelled takes its function back if no thread has begun it; a function that has begun runs to its end.
    """

    def __init__(self, name: str, threads_max: int, *, waiting_max: int = 10_000, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._threads_max = threads_max
        self._waiting_max = waiting_max
        self._clock = clock
        self._changed = threading.Condition()
        self._tasks: deque[_CrewTask] = deque()
        self._idle = 0
        self._busy = 0
        self._threads = 0

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        return self._threads

    async def run(self, work: Callable[[], _T], ended: Callable[[], None] | None = None) -> _T:
        """Run a function in a thread; return its result.

        ``ended`` is called once, by the event loop, when no thread works on the function any more, or will: a caller
        that is cancelled learns by it how long the thread is still taken.
        """
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        try:
            self._put(_CrewTask(work, answer, ended))
        except Unavailable:
            if ended is not None:
                ended()
            raise
        return await answer

    def post(self, work: Callable[[], object]) -> None:
        """Run a function in a thread, for its effect alone: what it raises is dropped."""
        self._put(_CrewTask(work, None), always=True)

    def _put(self, task: _CrewTask, *, always: bool = False) -> None:
        with self._changed:
            waiting = len(self._tasks) - (self._threads_max - self._busy)
            if waiting >= self._waiting_max and not always:
                message = f"{waiting} calls wait for the {self._name} threads of this server: try again later"
                raise Unavailable(message)
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._threads < self._threads_max:
                threading.Thread(target=self._work, name=f"oncelog-{self._name}", daemon=True).start()
                self._threads += 1

    def _work(self) -> None:
        task = self._next(0)
        while task is not None:
            if task.answer is None:
                with contextlib.suppress(Exception):
                    task.work()
            else:
                if not task.answer.cancelled():
                    _answer(task.answer, *_outcome(task.work))
                if task.ended is not None:
                    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                        task.answer.get_loop().call_soon_threadsafe(task.ended)
            task = self._next(1)

    def _next(self, done: int) -> _CrewTask | None:
        """Return the next task, or ``None`` when there was none for a while. ``done`` tasks have ended."""
        with self._changed:
            self._busy -= done
            if not self._tasks:
                self._idle += 1
                self._clock.wait(self._changed, IDLE_S)
                self._idle -= 1
            if not self._tasks:
                self._threads -= 1
                return None
            self._busy += 1
            return self._tasks.popleft()


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 (the caller gets every error)
        if isinstance(error, StopIteration):  # a future cannot hold one
            return None, RuntimeError("a generator ended")
        return None, error


def _answer(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    def settle() -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
        answer.get_loop().call_soon_threadsafe(settle)
