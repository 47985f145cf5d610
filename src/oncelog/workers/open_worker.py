"""Making workers, and running several in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from oncelog import arguments
from oncelog.clock import SYSTEM, Clock
from oncelog.errors import InvalidArgument
from oncelog.inbox import inner
from oncelog.inbox.inbox import Inbox
from oncelog.queue.queue import Queue
from oncelog.workers import retention
from oncelog.workers.calls import Calls
from oncelog.workers.handlers import is_async, takes_effect
from oncelog.workers.signals import stopped_by_signals
from oncelog.workers.worker import Report, Worker, logger

CONCURRENCY_MAX = 1_000


@arguments.checked
def worker(
    queue: Queue,
    group: str,
    handler: Callable[..., Any],
    *,
    inbox: Inbox | None = None,
    concurrency: int = 1,
    ack_timeout_s: float | None = None,
    time_limit_s: float | None = None,
    report: Report | None = None,
    clock: Clock = SYSTEM,
) -> Worker:
    """Return a worker: ``run()`` it, or use it in a ``with``.

    ``handler`` is called with each delivery, and with the effect if it has a parameter of that name; it may be async.
    With an ``inbox`` its effect happens once, and what it returns is stored. A message whose effect is there already is
    acknowledged without it. An error makes it come again, or go to the dead letters if it is a final one. Deliveries
    are renewed while their handlers run. While the inbox's database is away, nothing is taken and nothing spends
    attempts.

    A handler that takes longer than ``time_limit_s`` has failed: its message comes again. One that is async is
    cancelled. A plain one cannot be stopped: it runs on in a thread of its own, and with an inbox its effect is rolled
    back when it ends. ``report`` is called with what happens to each delivery, and with the exception if there was one.
    """
    if not 1 <= arguments.count("concurrency", concurrency) <= CONCURRENCY_MAX:
        message = f"concurrency is {concurrency}, must be from 1 to {CONCURRENCY_MAX}"
        raise InvalidArgument(message)
    if time_limit_s is not None and not 0 < time_limit_s <= arguments.SECONDS_MAX:
        message = f"time_limit_s is {time_limit_s}, must be more than 0, or None for no limit"
        raise InvalidArgument(message)
    if inbox is not None and inner.is_single(inbox) and concurrency > 1:
        message = "handlers that run at once need a connection each: give the inbox a function that connects, or a URL"
        raise InvalidArgument(message)
    if inbox is not None and inner.in_transaction(inbox):
        message = (
            "the inbox's connection is in a transaction: effects would join it, and messages be acknowledged before it "
            "is committed; commit it first"
        )
        raise InvalidArgument(message)
    takes = takes_effect(handler, with_inbox=inbox is not None)
    if inbox is not None:
        retention.check(inbox, queue)
        if not is_async(handler):  # whose inbox may have connections that only an event loop can use
            inner.check_usable(inbox, lambda: logger.warning("the inbox's database does not answer: waiting for it"))
    return Worker(
        queue,
        group,
        Calls(handler, group, inbox, takes_effect=takes, time_limit_s=time_limit_s),
        inbox=inbox,
        concurrency=concurrency,
        ack_timeout_s=ack_timeout_s,
        time_limit_s=time_limit_s,
        report=report,
        clock=clock,
    )


def run_workers(workers: Sequence[Worker]) -> None:
    """Run several workers in one process until all are stopped, or SIGTERM or SIGINT stops them; then what they have in
    hand is done. If one fails, the others are stopped, and its error is raised.
    """
    errors: list[BaseException] = []

    def stop() -> None:
        for one in workers:
            one.stop()

    def work(one: Worker) -> None:
        try:
            one.run()
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)
            stop()

    with stopped_by_signals(stop):
        threads = [threading.Thread(target=work, args=(one,), name="oncelog-worker") for one in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
