"""Futures for acks: many of them are answered at once, so they share one condition."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures._base import FINISHED, LOGGER, RUNNING
from typing import Any, TypeVar

from oncelog.concurrency.pending import Pending
from oncelog.errors import AppendErrors, OncelogError, Unavailable
from oncelog.types import Ack

T = TypeVar("T")


class _Heeders:
    """Who heeds one future beside those who wait for its result: few futures have any."""

    __slots__ = ("callbacks", "told", "waiters")

    def __init__(self) -> None:
        self.waiters: list[Any] = []
        self.callbacks: list[Any] = []
        self.told = False


class AckFuture(Pending[T]):
    """The answer to a ``submit``, or to all records of a ``submit_many``. It cannot be cancelled: what was submitted is
    on its way.

    A condition for each future would cost more than all else that a submit does; that is why this sets up the
    state of a standard future by itself, and waits in a loop: it is woken for its neighbours too. The answer is never
    ``None``, and all of that state follows from it: an attribute more costs as much as the ack, in time and memory.
    What few futures need (somebody who waits for several, callbacks) is made when it is asked for.
    """

    _heeders: _Heeders | None = None

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._answer: T | OncelogError | None = None

    @property
    def _state(self) -> str:  # type: ignore[override]
        return RUNNING if self._answer is None else FINISHED

    @property
    def _result(self) -> T | None:  # type: ignore[override]
        return None if isinstance(self._answer, OncelogError) else self._answer

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self._answer if isinstance(self._answer, OncelogError) else None

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        """Those who wait for several futures at once. The condition is held."""
        return self._heeded().waiters

    @property
    def _done_callbacks(self) -> list[Any]:
        """What is to be called once the answer is known. The condition is held until then."""
        return self._heeded().callbacks

    def _heeded(self) -> _Heeders:
        if self._heeders is None:
            self._heeders = _Heeders()
        return self._heeders

    def done(self) -> bool:
        """Tell whether the answer is known. That is read without the condition, which many futures share."""
        return self._answer is not None

    def result(self, timeout: float | None = None) -> T:
        """Return the ack, or raise what refused the record; ``TimeoutError`` if it is not known in time."""
        answer = self._answer
        if answer is None or isinstance(answer, OncelogError):
            self._await(timeout)
            return super().result(0)
        return answer

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what refused the record, or ``None``; ``TimeoutError`` if it is not known in time."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout_s: float | None) -> None:
        if self._answer is None:
            with self._condition:
                self._condition.wait_for(self.done, timeout_s)

    def tell_waiters(self) -> None:
        """Tell those who wait for several futures at once, once. The answer is known, and the condition is held."""
        heeders = self._heeded()
        if not heeders.told:
            for waiter in heeders.waiters:
                if self._exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            heeders.told = True

    def call_back(self) -> None:
        """Run the callbacks, each once, also if Ctrl-C comes inside one. The answer is known, and the condition is not
        held.
        """
        callbacks = self._done_callbacks
        while callbacks:
            callback = callbacks.pop(0)
            try:
                callback(self)
            except Exception:  # noqa: BLE001 (other people's code; as a standard future does)
                LOGGER.exception("exception calling callback for %r", self)


Answered = tuple[Sequence[AckFuture[Any]], Iterable[Any]]
"""Futures, and the answer to each."""


def settle(condition: threading.Condition, answered: Sequence[Answered]) -> None:
    """Answer futures, all at once, but for those that have an answer; then run their callbacks, which are other
    people's code.
    """
    heeded: list[AckFuture[Any]] = []
    with condition:
        for futures, answers in answered:
            for future, answer in zip(futures, answers, strict=True):  # no call in here: it would be one a record
                if future._answer is None:  # noqa: SLF001
                    future._answer = answer  # noqa: SLF001
                if future._heeders is not None:  # noqa: SLF001
                    heeded.append(future)
        for future in heeded:
            future.tell_waiters()
        condition.notify_all()
    for future in heeded:
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
