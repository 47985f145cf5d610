"""The threads that handlers run in, and the time that a handler may take."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType

from oncelog.clock import Clock
from oncelog.queue.deliver.consumer import Delivery

Job = Callable[[], bool]
"""Runs in a thread of the pool; returns whether the thread is still one of the pool's."""


class OutOfTime(Exception):
    """A handler took longer than its time limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the handler took longer than {limit_s:g} s")
        self.limit_s = limit_s


class HandlerThreads:
    """A pool of threads whose members can be left behind.

    A thread cannot be stopped. One whose handler is given up is not waited for, at the end of the process neither
    (the threads are daemons), and another takes its place.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._begun = 0
        self._idle = 0
        self._ended = False

    def put(self, job: Job) -> None:
        """Have a job run by a thread that is free, or by a new one."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            if len(self._jobs) <= self._idle or self._begun >= self._count:
                return
            self._begun += 1
        threading.Thread(target=self._work, name="oncelog-handler", daemon=True).start()

    def leave_behind(self) -> None:
        """Count a thread no longer, so that another may begin in its place."""
        with self._changed:
            self._begun -= 1

    def end(self) -> None:
        """End the threads that have no job; those that have one end after it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None and job():
            pass

    def _next(self) -> Job | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._ended)
            self._idle -= 1
            return self._jobs.popleft() if self._jobs else None


class Trying:
    """A message whose effect is being had; a handler runs in a ``with`` of it."""

    def __init__(self, delivery: Delivery, changed: threading.Condition, clock: Clock, limit_s: float | None) -> None:
        self.delivery = delivery
        self.limit_s = limit_s
        self._changed = changed
        self._clock = clock
        self.entering = False
        """Whether the inbox was asked for the effect, the last time, and has not given it yet."""
        self.begun = False
        """Whether its handler was called, the last time."""
        self.own: BaseException | None = None
        """What its handler raised itself."""
        self.broken = 0
        """How often its transaction was lost although the database was there."""
        self.rest_s = 0.0
        self.due_us: int | None = None
        """When its handler is out of time, while it runs."""
        self.given_up = False
        self._thread = 0

    def __enter__(self) -> None:
        self.begun = True
        if self.limit_s is not None:
            with self._changed:
                self._thread = threading.get_ident()
                self.due_us = self._clock.elapsed_us() + round(self.limit_s * 1e6)
                self._changed.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Note what the handler raised. The effect of one that was given up does not stand: its message comes again."""
        self.own = error
        if self.limit_s is not None:
            with self._changed:
                self.due_us = None
                given_up = self.given_up
            if given_up and error is None:
                raise OutOfTime(self.limit_s)

    def stack(self) -> str:
        """Return where the handler is now."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 (documented, and there is no other way)
        return "" if frame is None else "".join(traceback.format_stack(frame))
