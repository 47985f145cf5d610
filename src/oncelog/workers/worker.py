"""Workers: take messages off a queue, have their effects once, and say so to the queue."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, TracebackType
from typing import Any, Self

from oncelog import arguments
from oncelog.clock import SYSTEM, Clock
from oncelog.errors import (
    BadValue,
    Closed,
    EffectFailed,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    OncelogError,
    Unavailable,
)
from oncelog.inbox.decisions import Undecided
from oncelog.inbox.effect import Effect
from oncelog.inbox.inbox import Inbox
from oncelog.queue.deliver.consumer import Consumer, Delivery
from oncelog.queue.queue import Queue
from oncelog.workers import retention
from oncelog.workers.handlers import described, is_async, takes_effect

_logger = logging.getLogger("oncelog.worker")
_logger.addHandler(logging.NullHandler())  # a program that sets up no logging sees none

CONCURRENCY_MAX = 1_000
_RECEIVE_S = 1.0
_REST_S = 0.05
_REST_S_MAX = 5.0
_PRUNE_S = 3600.0
_BROKEN_MAX = 2
"""How often a transaction may be lost while the database answers, before that counts as a failure of its message."""

Report = Callable[[str, str], None]
"""Is told what happened (a word that ``Worker.counts`` counts, too), and to what."""


class Worker:
    """Runs a handler for the messages of a group. Made by ``oncelog.worker``.

    ``run`` works until ``stop``, or a SIGTERM or SIGINT of the process: then it takes nothing new, finishes what it has
    in hand, and returns. In a ``with`` it works in the background.
    """

    def __init__(
        self,
        queue: Queue,
        group: str,
        handler: Callable[..., Any],
        *,
        takes_effect: bool,
        inbox: Inbox | None,
        concurrency: int,
        ack_timeout_s: float | None,
        report: Report | None,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._group = group
        self._handler: Callable[..., Any] = handler
        self._takes_effect = takes_effect
        self._inbox = inbox
        self._concurrency = concurrency
        self._timeout_s = ack_timeout_s if ack_timeout_s is not None else queue.settings.ack_timeout_s
        self._report = report
        self._clock = clock
        self._changed = threading.Condition()
        self._in_hand: dict[int, Delivery] = {}
        self._stopping = False
        self._away = False
        self._counts: Counter[str] = Counter()
        self._consumer: Consumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pruned_us = clock.elapsed_us()

    # From outside.

    def run(self) -> None:
        """Work until it is stopped; on return nothing is in hand any more."""
        with _stopped_by_signals(self.stop):
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
        """Return what became of messages: done, skipped (their effect was there), failed, dead, late, and how often the
        inbox was away.
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
            return list(self._in_hand.values())

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
        renewing = threading.Thread(target=self._renew_all, daemon=True)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="oncelog-handler") as pool:
            looping = self._start_loop()
            renewing.start()
            try:
                self._take_all(pool)
            finally:
                self.stop()
                if (held := self.in_hand()) and self._report is not None:
                    self._report("draining", ", ".join(map(described, held)))
                self._wait_until(lambda: not self._in_hand)
                if looping is not None and self._loop is not None:
                    self._loop.call_soon_threadsafe(self._loop.stop)
                    looping.join()
        renewing.join()

    def _start_loop(self) -> threading.Thread | None:
        """Have an event loop for handlers that are coroutines."""
        if not is_async(self._handler):
            return None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._run_loop, args=(self._loop,), daemon=True)
        thread.start()
        return thread

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()

    def _take_all(self, pool: ThreadPoolExecutor) -> None:
        rest_s = _REST_S
        while self._wait_until(self._may_take) and not self._stopping:
            try:
                self._prune()
                for delivery in self._receive():
                    with self._changed:
                        self._in_hand[id(delivery)] = delivery
                    pool.submit(self._handle, delivery)
                rest_s = _REST_S
            except Closed:
                if not self._stopping:
                    raise
            except Unavailable as error:  # the queue's own state is away
                self._tell("away", str(error))
                rest_s = self._rest(rest_s)

    def _may_take(self) -> bool:
        return self._stopping or (len(self._in_hand) < self._concurrency and not self._away)

    def _receive(self) -> list[Delivery]:
        """Take as many as there are hands free: what would wait here for one could be another worker's by then."""
        if self._consumer is None or self._consumer.closed:
            consumer = self._queue.consume(self._group, ack_timeout_s=self._timeout_s)
            with self._changed:
                self._consumer = consumer
        free = self._concurrency - len(self._in_hand)
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

    def _handle(self, delivery: Delivery) -> None:
        try:
            self._settle(delivery)
        except Exception as error:
            _logger.exception("%s could not be settled", described(delivery))
            self._tell("failed", f"{described(delivery)}: {error!r}")
        finally:
            with self._changed:
                self._in_hand.pop(id(delivery), None)
                self._changed.notify_all()

    def _settle(self, delivery: Delivery) -> None:
        """Have the effect, and tell the queue; as often as it takes while the databases are away."""
        trying = _Trying(delivery)
        while True:
            try:
                word = self._have(trying)
            except Undecided as error:
                self._nack(delivery, error, again=True)
            except Unavailable as error:
                if self._tries_again(trying, error):
                    continue
            except LeaseLost as error:
                self._tell("late", f"{described(delivery)}: {error}")
            except Exception as error:  # noqa: BLE001  the handler's own
                self._nack(delivery, error, again=not self._is_final(error))
            else:
                self._ack(delivery, word)
            return

    def _tries_again(self, trying: _Trying, error: Unavailable) -> bool:
        """Wait until the inbox is there again; ``False`` if it is not for that, and the message was dealt with."""
        if error is trying.own:  # what a handler could not reach is not the inbox
            self._nack(trying.delivery, error, again=not self._is_final(error))
            return False
        if self._stopping:
            self._tell("left", f"{described(trying.delivery)}: {error}")
            return False
        trying.broken += self._note_away(str(error)) and trying.begun
        if trying.broken >= _BROKEN_MAX:
            self._nack(trying.delivery, error, again=True)
            return False
        trying.rest_s = self._rest(min(trying.rest_s, max(error.retry_after_s, _REST_S)))
        return True

    def _have(self, trying: _Trying) -> str:
        """Have the effect. A handler that ends in SystemExit and the like has failed, as with any other error."""
        try:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(self._have_async(trying), self._loop).result()
            return self._had(trying)
        except Exception:
            raise
        except BaseException as error:
            raise _Ended(error) from error

    def _had(self, trying: _Trying) -> str:
        if self._inbox is None:
            with trying:
                self._handler(trying.delivery)
            return "done"
        trying.begun = False
        with self._inbox.once(trying.delivery, group=self._group) as effect:
            if not effect.done:
                with trying:
                    effect.result = self._handler(trying.delivery, **self._named(effect))
        return "skipped" if effect.done else "done"

    async def _have_async(self, trying: _Trying) -> str:
        try:
            return await self._awaited(trying)
        except Exception:
            raise
        except BaseException as error:  # which would end the loop and all that runs in it, or just this task
            raise _Ended(error) from error

    async def _awaited(self, trying: _Trying) -> str:
        if self._inbox is None:
            with trying:
                await self._handler(trying.delivery)
            return "done"
        trying.begun = False
        async with self._inbox.once(trying.delivery, group=self._group) as effect:
            if not effect.done:
                with trying:
                    effect.result = await self._handler(trying.delivery, **self._named(effect))
        return "skipped" if effect.done else "done"

    def _named(self, effect: Effect) -> dict[str, Any]:
        return {"effect": effect} if self._takes_effect else {}

    def _is_final(self, error: Exception) -> bool:
        final = self._inbox.final if self._inbox is not None else ()
        raised = error.__cause__ if isinstance(error, _Ended) else error
        return isinstance(raised, (BadValue, EffectFailed, IdConflict, *final))

    def _ack(self, delivery: Delivery, word: str) -> None:
        rest_s = _REST_S
        while True:
            try:
                delivery.ack()
            except LeaseLost:
                word = "late"  # the effect is there; whoever gets the message next will find it
            except Unavailable:
                if not self._stopping:
                    rest_s = self._rest(rest_s)
                    continue
                word = "left"
            self._tell(word, described(delivery))
            return

    def _nack(self, delivery: Delivery, error: Exception, *, again: bool) -> None:
        _logger.warning("%s failed", described(delivery), exc_info=error)
        reason = error.error if isinstance(error, EffectFailed) else f"{type(error).__name__}: {error}"
        if isinstance(error, _Ended):
            reason = str(error)
        try:
            delivery.nack(reason, retry=again)
        except (LeaseLost, Unavailable):
            self._tell("late", f"{described(delivery)}: {reason}")
        else:
            self._tell("failed" if again else "dead", f"{described(delivery)}: {reason}")

    # While the inbox's database is away, nothing is taken; what is in hand is kept, and tried again.

    def _note_away(self, reason: str) -> bool:
        """Wait until the inbox answers; return whether it did so at once."""
        rest_s = _REST_S
        while not self._stopping and not self._answers(reason):
            rest_s = self._rest(rest_s)
        return rest_s == _REST_S

    def _answers(self, reason: str) -> bool:
        try:
            if self._inbox is not None:
                self._inbox.ping()
        except Unavailable:
            self._set_away(reason, away=True)
            return False
        except InvalidArgument:
            pass  # its connections are asynchronous: trying the effect again tells
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
                held = list(self._in_hand.values())
            for delivery in held:
                self._renew(delivery)
            due_us = self._clock.elapsed_us() + pause_us

    def _renew(self, delivery: Delivery) -> None:
        try:
            delivery.extend(self._timeout_s)
        except LeaseLost:
            pass  # its late ack will be refused, too
        except OncelogError as error:
            self._tell("away", str(error))

    def _prune(self) -> None:
        """At times, forget keys that nobody can come with any more."""
        due = self._clock.elapsed_us() - self._pruned_us >= _PRUNE_S * 1e6
        if due and self._inbox is not None and self._inbox.retention_s is not None:
            self._pruned_us = self._clock.elapsed_us()
            if self._loop is None:
                retention.prune(self._inbox, self._queue, self._group)
                return
            pruning = retention.aprune(self._inbox, self._queue, self._group)
            asyncio.run_coroutine_threadsafe(pruning, self._loop).result()

    def _tell(self, word: str, about: str) -> None:
        with self._changed:
            self._counts[word] += 1
        if self._report is not None:
            self._report(word, about)


class _Ended(Exception):
    """A handler ended in what is no ``Exception``: SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler ended in {error!r}")


class _Trying:
    """A message whose effect is being had; a handler runs in a ``with`` of it."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.begun = False
        """Whether its handler was called, the last time."""
        self.own: BaseException | None = None
        """What its handler raised itself."""
        self.broken = 0
        """How often its transaction was lost although the database was there."""
        self.rest_s = _REST_S

    def __enter__(self) -> None:
        self.begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.own = error


class _stopped_by_signals:  # noqa: N801  (used as a verb)
    """Within it, SIGTERM and SIGINT stop; a second one does what it did before. Only in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._restore()
        # Not here: the main thread may hold the lock that stopping needs.
        threading.Thread(target=self._stop, daemon=True).start()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()


@arguments.checked
def worker(
    queue: Queue,
    group: str,
    handler: Callable[..., Any],
    *,
    inbox: Inbox | None = None,
    concurrency: int = 1,
    ack_timeout_s: float | None = None,
    report: Report | None = None,
    clock: Clock = SYSTEM,
) -> Worker:
    """Return a worker: ``run()`` it, or use it in a ``with``.

    ``handler`` is called with each delivery, and with the effect if it has a parameter of that name; it may be async.
    With an ``inbox`` its effect happens once, and what it returns is stored. A message whose effect is there already is
    acknowledged without it. An error makes it come again, or go to the dead letters if it is a final one. Deliveries
    are renewed while their handlers run. While the inbox's database is away, nothing is taken and nothing spends
    attempts.
    """
    if not 1 <= arguments.count("concurrency", concurrency) <= CONCURRENCY_MAX:
        message = f"concurrency is {concurrency}, must be from 1 to {CONCURRENCY_MAX}"
        raise InvalidArgument(message)
    if inbox is not None and inbox.single and concurrency > 1:
        message = "handlers that run at once need a connection each: give the inbox a function that connects, or a URL"
        raise InvalidArgument(message)
    if inbox is not None and inbox.in_transaction:
        message = (
            "the inbox's connection is in a transaction: effects would join it, and messages be acknowledged before it "
            "is committed; commit it first"
        )
        raise InvalidArgument(message)
    if inbox is not None:
        retention.check(inbox, queue)
    return Worker(
        queue,
        group,
        handler,
        takes_effect=takes_effect(handler, with_inbox=inbox is not None),
        inbox=inbox,
        concurrency=concurrency,
        ack_timeout_s=ack_timeout_s,
        report=report,
        clock=clock,
    )
