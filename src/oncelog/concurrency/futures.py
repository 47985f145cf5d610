"""Futures for acks: many of them are answered at once, so they share one condition."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, TypeVar

from oncelog.concurrency.pending import Pending
from oncelog.errors import AppendErrors, OncelogError, Unavailable
from oncelog.types import Ack

T = TypeVar("T")


class AckFuture(Pending[T]):
    """The answer to a ``submit``, or to all records of a ``submit_many``. It cannot be cancelled: what was submitted is
    on its way.

    A condition for each future would cost more than all else that a submit does; that is why this sets up the
    state of a standard future by itself, and waits in a loop: it is woken for its neighbours too. What few futures
    need (somebody who waits, callbacks) is made when it is asked for.
    """

    _state = RUNNING
    _result: T | None = None
    _exception: BaseException | None = None
    _watched: list[Any] | None = None
    _followed: list[Any] | None = None

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        """Those who wait for several futures at once. The condition is held."""
        if self._watched is None:
            self._watched = []
        return self._watched

    @property
    def _done_callbacks(self) -> list[Any]:
        """What is to be called once the answer is known."""
        if self._followed is None:
            self._followed = []
        return self._followed

    def done(self) -> bool:
        """Tell whether the answer is known. That is read without the condition, which many futures share."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> T:
        """Return the ack, or raise what refused the record; ``TimeoutError`` if it is not known in time."""
        self._await(timeout)
        return super().result(0) if self._result is None else self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what refused the record, or ``None``; ``TimeoutError`` if it is not known in time."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout_s: float | None) -> None:
        if self._state != FINISHED:
            with self._condition:
                self._condition.wait_for(self.done, timeout_s)

    def finish(self, answer: T | OncelogError) -> None:
        """Take the answer. The shared condition is held."""
        if isinstance(answer, OncelogError):
            self._exception = answer
        else:
            self._result = answer
        self._state = FINISHED
        for waiter in self._watched or ():
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)

    def call_back(self) -> None:
        """Run the callbacks. The answer is known, and the condition is not held."""
        if self._followed:
            self._invoke_callbacks()  # type: ignore[attr-defined]
            self._followed = None  # callbacks run once


Answered = tuple[Sequence[AckFuture[Any]], Iterable[Any]]
"""Futures, and the answer to each."""


def settle(condition: threading.Condition, answered: Sequence[Answered]) -> None:
    """Answer futures, all at once, but for those that have an answer; then run their callbacks, which are other
    people's code.
    """
    with condition:
        for futures, answers in answered:
            for future, answer in zip(futures, answers, strict=True):
                if future._state != FINISHED:  # noqa: SLF001
                    future.finish(answer)
        condition.notify_all()
    for futures, _ in answered:
        for future in futures:
            if future._followed:  # noqa: SLF001
                future.call_back()


def unsettled(error: BaseException) -> OncelogError:
    """Return what futures are told whose records were pending when closing came to an end in this way."""
    if isinstance(error, OncelogError):
        return error
    message = f"closing was interrupted ({error!r}): what was pending may be stored or not, and the next writer decides"
    return Unavailable(message, outcome="unknown")


def all_acks(results: Sequence[Ack | OncelogError | None]) -> list[Ack]:
    """Return the acks, or raise ``AppendErrors`` if one of them is an error."""
    errors = [result for result in results if isinstance(result, OncelogError)]
    if errors:
        message = f"{len(errors)} of {len(results)} records were refused, the first: {errors[0]}"
        raise AppendErrors(message, results=results)
    return [result for result in results if isinstance(result, Ack)]
