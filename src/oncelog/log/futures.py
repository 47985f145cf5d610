"""Futures for acks: many of them are answered at once, so they share one condition."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any

from oncelog.errors import OncelogError
from oncelog.types import Ack


class AckFuture(Future[Ack]):
    """The answer to a ``submit``. It cannot be cancelled: what was submitted is on its way.

    A condition for each future would cost more than all else that a submit does; that is why this sets up the
    state of a standard future by itself, and waits in a loop: it is woken for its neighbours too.
    """

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._state = RUNNING
        self._result: Ack | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> Ack:
        """Return the ack, or raise what refused the record; ``TimeoutError`` if it is not known in time."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what refused the record, or ``None``; ``TimeoutError`` if it is not known in time."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout_s: float | None) -> None:
        if self._state != FINISHED:
            with self._condition:
                self._condition.wait_for(self.done, timeout_s)

    def finish(self, answer: Ack | OncelogError) -> None:
        """Take the answer. The shared condition is held."""
        if isinstance(answer, OncelogError):
            self._exception = answer
        else:
            self._result = answer
        self._state = FINISHED
        for waiter in self._waiters:
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)

    def call_back(self) -> None:
        """Run the callbacks. The answer is known, and the condition is not held."""
        if self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]


def settle(condition: threading.Condition, answers: Iterable[tuple[AckFuture, Ack | OncelogError]]) -> None:
    """Answer futures, all at once; then run their callbacks, which are other people's code."""
    settled = []
    with condition:
        for future, answer in answers:
            future.finish(answer)
            settled.append(future)
        condition.notify_all()
    for future in settled:
        future.call_back()
