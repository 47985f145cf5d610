"""Sends that do not wait: those that come together are sent together, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from oncelog.clock import Clock
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.pending import Pending, begun
from oncelog.errors import AppendErrors
from oncelog.queue.send.sender import OnPending, Outgoing, Sender, Sent

_CLOSE_S = 30.0


class _Submission(NamedTuple):
    outgoing: Outgoing
    on_pending: OnPending
    deadline_us: int
    pending: Pending[Sent]


class Submissions:
    """What was submitted to a queue and not sent yet."""

    def __init__(self, sending: Sender, clock: Clock, sent: Callable[[], None]) -> None:
        self._sending = sending
        self._clock = clock
        self._on_sent = sent
        self._batcher: Batcher[_Submission] = Batcher("oncelog-sender", self._send_all)

    def submit(self, outgoing: Outgoing, on_pending: OnPending, timeout_s: float) -> Pending[Sent]:
        """Leave a message to be sent; return what has the answer."""
        pending = begun()
        deadline_us = self._clock.elapsed_us() + round(timeout_s * 1e6)
        size_bytes = len(outgoing.record.value)
        item = _Submission(outgoing, on_pending, deadline_us, pending)
        self._batcher.put(item, size_bytes=size_bytes, timeout_s=timeout_s)
        return pending

    def _send_all(self, submitted: Sequence[_Submission]) -> None:
        for on_pending, alike in groupby(submitted, key=lambda one: one.on_pending):
            self._send(list(alike), on_pending)

    def _send(self, submitted: Sequence[_Submission], on_pending: OnPending) -> None:
        """Send messages, and wait as long as the most patient of them."""
        left_s = max(one.deadline_us - self._clock.elapsed_us() for one in submitted) / 1e6
        answers: Sequence[Sent | BaseException]
        try:
            answers = self._sending.send([one.outgoing for one in submitted], max(0.0, left_s), on_pending)
        except AppendErrors as errors:
            answers = errors.results
        except BaseException as error:  # noqa: BLE001 (the future has it)
            answers = [error] * len(submitted)
        self._on_sent()
        for one, answer in zip(submitted, answers, strict=True):
            if isinstance(answer, BaseException):
                one.pending.set_exception(answer)
            else:
                one.pending.set_result(answer)

    def close(self) -> None:
        """Return when all that was submitted is sent, or was refused."""
        self._batcher.wait_idle(_CLOSE_S)
