"""Workers: take messages off a queue, have their effects once, and say so to the queue."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from oncelog.arguments import told
from oncelog.clock import Clock
from oncelog.errors import (
    BadValue,
    Closed,
    EffectFailed,
    IdConflict,
    LeaseLost,
    OncelogError,
    Unavailable,
)
from oncelog.inbox import inner
from oncelog.inbox.decisions import Undecided
from oncelog.inbox.inbox import Inbox
from oncelog.queue.deliver.consumer import Consumer, Delivery
from oncelog.queue.queue import Queue
from oncelog.workers import retention
from oncelog.workers.calls import Calls, HandlerExit
from oncelog.workers.handlers import described
from oncelog.workers.hands import HandlerThreads, OutOfTime, Trying
from oncelog.workers.signals import stopped_by_signals

logger = logging.getLogger("oncelog.worker")
logger.addHandler(logging.NullHandler())  # a program that sets up no logging sees none

_RECEIVE_S = 1.0
_REST_S = 0.05
_REST_S_MAX = 5.0
_PRUNE_S = 3600.0
_GRACE_US = 1_000_000
"""How long a coroutine has to end when it was cancelled, before it is left behind."""
_BROKEN_MAX = 2
"""How often a transaction may be lost, or not be begun, while the database answers, before that counts as a failure of
its message.
"""


class WorkerEvent(msgspec.Struct, frozen=True):
    """What a worker reports: what happened (a word that ``Worker.counts`` counts, too), in a sentence, to which
    delivery, and the exception that was the reason.
    """

    word: str
    about: str
    delivery: Delivery | None = None
    error: BaseException | None = None


Report = Callable[[WorkerEvent], None]
"""Is called with each event, in the thread in which it happened. What it raises is logged, and changes nothing."""


class Worker:
    """Runs a handler for the messages of a group. Made by ``oncelog.worker``.

    ``run`` works until ``stop``, or a SIGTERM or SIGINT of the process: then it takes nothing new, finishes what it has
    in hand, and returns. In a ``with`` it works in the background.
    """

    def __init__(
        self,
        queue: Queue,
        group: str,
        calls: Calls,
        *,
        inbox: Inbox | None,
        concurrency: int,
        ack_timeout_s: float | None,
        time_limit_s: float | None,
        report: Report | None,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._group = group
        self._calls = calls
        self._inbox = inbox
        self._concurrency = concurrency
        self._timeout_s = ack_timeout_s if ack_timeout_s is not None else queue.settings.ack_timeout_s
        self._limit_s = time_limit_s
        self._report = report
        self._clock = clock
        self._changed = threading.Condition()
        self._in_hand: dict[int, Trying] = {}
        self._left_behind = 0
        self._hands = HandlerThreads(concurrency)
        self._stopping = False
        self._away = False
        self._counts: Counter[str] = Counter()
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._pruned_us = clock.elapsed_us()

    # From outside.

    def run(self) -> None:
        """Work until it is stopped; on return nothing is in hand any more."""
        with stopped_by_signals(self.stop):
            self._work()

    def stop(self) -> None:
        """Take nothing new; ``run`` returns when all in hand is done."""
        with self._changed:
            self._stopping = True
            consumer = self._consumer
            self._changed.notify_all()
        if consumer is not None:
            threading.Thread(target=consumer.close, daemon=True).start()  # it may wait for a message now

    def counts(self) -> dict[str, int]:
        """Return what became of messages: done, duplicate (their effect was stored before), failed, dead, late, and how
        often the inbox was away. A handler that ran out of time counts as failed, and as late when it ends after all.
        """
        with self._changed:
            return dict(self._counts)

    @property
    def state(self) -> str:
        """What it does now: working, waiting (for the inbox's database to come back), stopping."""
        with self._changed:
            return "stopping" if self._stopping else "waiting" if self._away else "working"

    def in_hand(self) -> list[Delivery]:
        """Return the deliveries whose handlers run now."""
        with self._changed:
            return [trying.delivery for trying in self._in_hand.values()]

    def __enter__(self) -> Self:
        """Begin to work in the background."""
        self._thread = threading.Thread(target=self._work, name=f"oncelog-worker-{self._group}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait until all in hand is done."""
        self.stop()
        assert self._thread is not None
        self._thread.join()

    # Taking.

    def _work(self) -> None:
        keeping = [threading.Thread(target=self._renew_all, daemon=True)]
        if self._limit_s is not None:
            keeping.append(threading.Thread(target=self._watch, daemon=True))
        self._calls.start()
        for thread in keeping:
            thread.start()
        try:
            self._take_all()
        finally:
            self.stop()
            if held := self.in_hand():
                self._hear(WorkerEvent("draining", ", ".join(map(described, held))))
            self._wait_until(lambda: not self._in_hand)
            self._hands.end()
            self._calls.end()
        for thread in keeping:
            thread.join()

    def _take_all(self) -> None:
        rest_s = _REST_S
        while self._wait_until(self._may_take) and not self._stopping:
            try:
                self._prune()
                for delivery in self._receive():
                    self._begin(delivery)
                rest_s = _REST_S
            except Closed:
                if not self._stopping:
                    raise
            except Unavailable as error:  # the queue's own state is away
                self._tell("away", str(error), error=error)
                rest_s = self._rest(rest_s)

    def _begin(self, delivery: Delivery) -> None:
        trying = Trying(delivery, self._changed, self._clock, self._limit_s)
        with self._changed:
            self._in_hand[id(trying)] = trying
        self._hands.put(lambda: self._handle(trying))

    def _may_take(self) -> bool:
        return self._stopping or (self._free() > 0 and not self._away)

    def _free(self) -> int:
        """Return how many messages may be taken. As many threads as handlers may be left behind; each one more takes
        the place of a handler, so that handlers that never end do not fill the process.
        """
        return self._concurrency - len(self._in_hand) - max(0, self._left_behind - self._concurrency)

    def _receive(self) -> list[Delivery]:
        """Take as many as there are hands free: what would wait here for one could be another worker's by then."""
        if self._consumer is None or self._consumer.closed:
            consumer = self._queue.consume(self._group, ack_timeout_s=self._timeout_s)
            with self._changed:
                self._consumer = consumer
        free = self._free()
        return self._consumer.receive(free, timeout_s=_RECEIVE_S) if not self._stopping else []

    def _wait_until(self, ready: Callable[[], bool]) -> bool:
        with self._changed:
            while not ready():
                self._clock.wait(self._changed, None)
        return True

    def _rest(self, rest_s: float) -> float:
        """Wait for a while, or until the worker stops; return how long to wait the next time."""
        with self._changed:
            if not self._stopping:
                self._clock.wait(self._changed, rest_s)
        return min(2 * rest_s, _REST_S_MAX)

    # Handling.

    def _handle(self, trying: Trying) -> bool:
        """Run an effect and settle the message; return false if the thread was left behind."""
        try:
            self._settle(trying)
        except Exception as error:
            with contextlib.suppress(Exception):  # a handler of logs may fail at what it is to show
                logger.exception("%s could not be settled", described(trying.delivery))
            self._tell("failed", f"{described(trying.delivery)}: {error!r}", trying.delivery, error)
        with self._changed:
            self._in_hand.pop(id(trying), None)
            self._left_behind -= trying.given_up
            self._changed.notify_all()
            return not trying.given_up

    def _settle(self, trying: Trying) -> None:
        """Have the effect, and tell the queue; as often as it takes while the databases are away."""
        delivery = trying.delivery
        while True:
            try:
                word = self._calls.have(trying)
            except Exception as error:  # noqa: BLE001  the handler's own, or the inbox's
                if trying.given_up:
                    self._tell("late", f"{described(delivery)}: ended when it had been given up", delivery, error)
                elif isinstance(error, Undecided):
                    self._nack(delivery, error, again=True)
                elif isinstance(error, Unavailable) or self._is_of_inbox(trying, error):
                    if self._tries_again(trying, error):
                        continue
                elif isinstance(error, LeaseLost) and error is not trying.own:
                    self._tell("late", f"{described(delivery)}: {error}", delivery, error)
                else:
                    self._nack(delivery, error, again=not self._is_final(error))
            else:
                self._ack(delivery, word)
            return

    def _is_of_inbox(self, trying: Trying, error: Exception) -> bool:
        """Tell whether the inbox failed, and not what it says of the message: its folder is missing, it is damaged, it
        was closed. Every other message would fail, too.
        """
        if trying.entering:
            return not isinstance(error, IdConflict | EffectFailed | HandlerExit)
        return isinstance(error, Closed) and self._inbox is not None and self._inbox.closed

    def _tries_again(self, trying: Trying, error: Exception) -> bool:
        """Wait until the inbox is there again; ``False`` if it is not for that, and the message was dealt with."""
        if error is trying.own:  # what a handler could not reach is not the inbox
            self._nack(trying.delivery, error, again=not self._is_final(error))
            return False
        if self._stopping:
            self._tell("left", f"{described(trying.delivery)}: {error}", trying.delivery, error)
            return False
        trying.broken += self._note_away(str(error)) and (trying.begun or not isinstance(error, Unavailable))
        if trying.broken >= _BROKEN_MAX:
            self._nack(trying.delivery, error, again=True)
            return False
        longest_s = error.retry_after_s if isinstance(error, Unavailable) else _REST_S_MAX
        trying.rest_s = self._rest(min(trying.rest_s or _REST_S, max(longest_s, _REST_S)))
        return True

    def _is_final(self, error: Exception) -> bool:
        final = inner.final(self._inbox) if self._inbox is not None else ()
        raised = error.__cause__ if isinstance(error, HandlerExit) else error
        return isinstance(raised, (BadValue, EffectFailed, IdConflict, *final))

    def _ack(self, delivery: Delivery, word: str) -> None:
        rest_s = _REST_S
        while True:
            try:
                delivery.ack()
            except LeaseLost:
                word = "late"  # the effect is stored; the next worker that gets the message finds it
            except Unavailable:
                if not self._stopping:
                    rest_s = self._rest(rest_s)
                    continue
                word = "left"
            self._tell(word, described(delivery), delivery)
            return

    def _nack(self, delivery: Delivery, error: Exception, *, again: bool) -> None:
        with contextlib.suppress(Exception):  # a handler of logs may fail at the text of the error
            logger.warning("%s failed", described(delivery), exc_info=error)
        reason = error.error if isinstance(error, EffectFailed) else told(error)
        if isinstance(error, HandlerExit):
            reason = str(error)
        try:
            delivery.nack(reason, retry=again)
        except (LeaseLost, Unavailable):
            self._tell("late", f"{described(delivery)}: {reason}", delivery, error)
        else:
            self._tell("failed" if again else "dead", f"{described(delivery)}: {reason}", delivery, error)

    # While the inbox's database is away, nothing is taken; what is in hand is kept, and tried again.

    def _note_away(self, reason: str) -> bool:
        """Wait until the inbox answers; return whether it did so at once."""
        rest_s = _REST_S
        while not self._stopping and not self._answers(reason):
            rest_s = self._rest(rest_s)
        return rest_s == _REST_S

    def _answers(self, reason: str) -> bool:
        try:
            if self._inbox is not None and self._calls.is_async:
                self._calls.awaited(inner.aprobe(self._inbox))
            elif self._inbox is not None:
                inner.probe(self._inbox)
        except Exception:  # noqa: BLE001  whatever a driver, or what the user connects with, raises
            self._set_away(reason, away=True)
            return False
        self._set_away("", away=False)
        return True

    def _set_away(self, reason: str, *, away: bool) -> None:
        with self._changed:
            changed, self._away = self._away != away, away
            self._changed.notify_all()
        if changed:
            self._tell("away" if away else "back", reason)

    # Keeping.

    def _renew_all(self) -> None:
        """Have the messages in hand for longer, while their handlers run."""
        pause_us = round(self._timeout_s / 3 * 1e6)
        due_us = self._clock.elapsed_us() + pause_us
        while True:
            with self._changed:
                if self._stopping and not self._in_hand:
                    return
                left_us = due_us - self._clock.elapsed_us()
                if left_us > 0:
                    self._clock.wait(self._changed, left_us / 1e6)
                    continue
                held = [trying.delivery for trying in self._in_hand.values()]
            for delivery in held:
                self._renew(delivery)
            due_us = self._clock.elapsed_us() + pause_us

    def _renew(self, delivery: Delivery) -> None:
        try:
            delivery.extend(self._timeout_s)
        except LeaseLost:
            pass  # its late ack will be refused, too
        except OncelogError as error:
            self._tell("away", str(error), delivery, error)

    def _watch(self) -> None:
        """Give up handlers whose time is over. The loop cancels a coroutine first; it is given up here if it does not
        end.
        """
        grace_us = _GRACE_US if self._calls.is_async else 0
        while True:
            with self._changed:
                if self._stopping and not self._in_hand:
                    return
                due = [trying for trying in self._in_hand.values() if trying.due_us is not None]
                now_us = self._clock.elapsed_us()
                over = [trying for trying in due if trying.due_us is not None and trying.due_us + grace_us <= now_us]
                if not over:
                    left_us = min((trying.due_us or 0) + grace_us - now_us for trying in due) if due else None
                    self._clock.wait(self._changed, None if left_us is None else left_us / 1e6)
                    continue
                for trying in over:  # from now on its thread settles nothing
                    trying.given_up = True
                    self._left_behind += 1
                    self._hands.leave_behind()
            for trying in over:
                self._give_up(trying)

    def _give_up(self, trying: Trying) -> None:
        """Give a message back whose handler is out of time, and wait for that handler no more."""
        assert trying.limit_s is not None
        logger.warning("%s is out of time in:\n%s", described(trying.delivery), trying.stack())
        try:
            self._nack(trying.delivery, OutOfTime(trying.limit_s), again=True)
        finally:
            with self._changed:
                self._in_hand.pop(id(trying), None)
                self._changed.notify_all()

    def _prune(self) -> None:
        """From time to time, forget keys of messages that can no longer be delivered."""
        due = self._clock.elapsed_us() - self._pruned_us >= _PRUNE_S * 1e6
        if due and self._inbox is not None and self._inbox.retention_s is not None:
            self._pruned_us = self._clock.elapsed_us()
            if self._calls.is_async:
                self._calls.awaited(retention.aprune(self._inbox, self._queue, self._group))
            else:
                retention.prune(self._inbox, self._queue, self._group)

    def _tell(
        self, word: str, about: str, delivery: Delivery | None = None, error: BaseException | None = None
    ) -> None:
        with self._changed:
            self._counts[word] += 1
        raised = error.__cause__ if isinstance(error, HandlerExit) else error
        self._hear(WorkerEvent(word, about, delivery, raised))

    def _hear(self, event: WorkerEvent) -> None:
        if self._report is not None:
            try:
                self._report(event)
            except BaseException:  # SystemExit, too: it would end the thread that reports, and the worker would wait
                logger.exception("the report of %r failed", event.word)
