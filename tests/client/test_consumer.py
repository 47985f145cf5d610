"""Consumers of one connection that tasks iterate: none holds up another, and what is claimed for a task is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.client import consumer as consumer_module
from oncelog.client.channel import Channel
from oncelog.client.consumer import POLL_S, Leases, RemoteConsumer
from oncelog.connect import Database
from oncelog.queue.deliver.consumer import Delivery
from oncelog.queue.deliver.settling import SettlementRequest
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 120.0


async def _next(consumer: oncelog.Consumer) -> oncelog.Delivery:
    async for delivery in consumer:
        return delivery
    raise AssertionError


def _is_claiming(consumer: oncelog.Consumer) -> bool:
    assert isinstance(consumer, RemoteConsumer)
    return consumer._task_call is not None


async def _leave(consumer: oncelog.Consumer) -> None:
    """Iterate a consumer, and cancel the task while its claim is at the server."""
    waiting = asyncio.create_task(_next(consumer))
    while not _is_claiming(consumer):  # noqa: ASYNC110 (a thread claims)
        await asyncio.sleep(0.001)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


def test_what_came_for_a_task_just_before_it_left_goes_back(remote: Database) -> None:
    """It came, and nobody had looked yet when the task was cancelled: it waited for the next who asked here."""
    queue = remote.queue("emails", create=True)

    async def leave(consumer: RemoteConsumer) -> None:
        waiting = asyncio.create_task(_next(consumer))
        while not _is_claiming(consumer):  # noqa: ASYNC110 (a thread claims)
            await asyncio.sleep(0.001)
        with consumer._receiving:  # nobody looks
            queue.send(b"one")
            while not consumer._task_call.done():  # noqa: ASYNC110 (a thread sets it)
                await asyncio.sleep(0.001)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    with queue.consume("mailer", ack_timeout_s=600.0) as consumer, queue.consume("mailer") as other:
        assert isinstance(consumer, RemoteConsumer)
        asyncio.run(leave(consumer))
        [delivery] = other.receive(timeout_s=LONG_S)
        assert (delivery.value, delivery.attempts) == (b"one", 1)


def test_what_was_claimed_for_a_task_that_left_is_handed_out_next(remote: Database) -> None:
    """A task is cancelled while its claim is at the server. What comes for the claim goes to the next who asks, here or
    elsewhere: it does not wait until its lease is over.
    """
    queue = remote.queue("emails", create=True)
    with queue.consume("mailer", ack_timeout_s=600.0) as consumer:
        asyncio.run(_leave(consumer))
        queue.send(b"one")
        [delivery] = consumer.receive(timeout_s=LONG_S)
        assert delivery.value == b"one"
        delivery.ack()
        asyncio.run(_leave(consumer))
        queue.send(b"two")
        while _is_claiming(consumer):  # what comes is handed out to nobody
            threading.Event().wait(0.001)
    with queue.consume("mailer") as other:
        [delivery] = other.receive(timeout_s=LONG_S)
        assert (delivery.value, delivery.attempts) == (b"two", 1)
        delivery.ack()


def test_what_comes_for_a_task_that_left_goes_to_others(remote: Database) -> None:
    """A task is cancelled while its claim is at the server, and its consumer stays open. A message that comes then goes
    back at once: another consumer gets it, and no attempt was spent.
    """
    queue = remote.queue("emails", create=True)
    with queue.consume("mailer", ack_timeout_s=600.0) as left, queue.consume("mailer") as other:
        asyncio.run(_leave(left))
        queue.send(b"one")
        [delivery] = other.receive(timeout_s=LONG_S)
        assert (delivery.value, delivery.attempts) == (b"one", 1)
        delivery.ack()


def test_a_task_that_runs_out_of_time_again_and_again_gets_its_message(remote: Database) -> None:
    """Waits that are given up share one claim: it is neither lost nor made again."""
    queue = remote.queue("emails", create=True)

    async def work(consumer: oncelog.Consumer) -> oncelog.Delivery:
        deliveries = aiter(consumer)
        for round_ in range(20):
            if round_ == 10:
                await oncelog.later(queue.send, b"one")
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(anext(deliveries), 0.001)
        return await anext(deliveries)

    with queue.consume("mailer", ack_timeout_s=600.0) as consumer:
        delivery = asyncio.run(work(consumer))
        assert (delivery.value, delivery.attempts) == (b"one", 1)
        delivery.ack()


def test_tasks_that_wait_cost_one_claim_each_and_no_thread(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tasks wait, each on a consumer of its own: one thread looks for all, and each consumer has one long call."""
    asked: list[float] = []
    real = Channel.held

    def watched(channel: Channel, method: str, request: Any, timeout_s: float) -> Any:
        asked.append(request.timeout_s)
        return real(channel, method, request, timeout_s)

    monkeypatch.setattr(Channel, "held", watched)
    queue = remote.queue("emails", create=True)
    count = 120  # more than one connection takes

    async def work(consumers: list[oncelog.Consumer]) -> None:
        before = threading.active_count()
        waiting = [asyncio.create_task(_next(one)) for one in consumers]
        while not all(map(_is_claiming, consumers)):  # noqa: ASYNC110 (a thread claims)
            await asyncio.sleep(0.001)
        assert asked == [POLL_S] * count
        assert threading.active_count() - before <= 5  # the feeder, and a few of gRPC for each connection
        await oncelog.later(queue.send, b"one")  # finds room on its connection
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().value for task in done] == [b"one"]
        for task in left:
            task.cancel()
        await asyncio.wait(left)

    asyncio.run(work([queue.consume("mailer") for _ in range(count)]))


def test_close_loses_no_answer_that_is_on_its_way(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer is closed when the server has claimed a message for it, and the answer is on its way. The message
    goes back: the next consumer gets it, and no attempt was spent. So it is for a thread and for a task.
    """
    monkeypatch.setattr(consumer_module, "ANSWER_S", LONG_S)
    server = serve()
    proxy = Proxy(server.grpc, seed=0, bytes_max=1 << 30)
    with contextlib.closing(proxy), oncelog.connect(f"oncelog://{server.grpc}") as here:
        queue = here.queue("emails", create=True)
        for waits in (_receives, _iterates):
            with oncelog.connect(f"oncelog://{proxy.address}") as there:
                consumer = there.queue("emails").consume("mailer", ack_timeout_s=600.0)
                waiting = threading.Thread(target=waits, args=(consumer,))
                proxy.hold_answers()
                waiting.start()
                queue.send(b"one")
                while not queue.stats().groups["mailer"].leased:
                    threading.Event().wait(0.001)
                closing = threading.Thread(target=consumer.close)
                closing.start()
                while not consumer.closed:
                    threading.Event().wait(0.001)
                proxy.answer()
                closing.join()
                waiting.join()
                with queue.consume("mailer") as other:
                    [delivery] = other.receive(timeout_s=LONG_S)
                    assert (delivery.value, delivery.attempts) == (b"one", 1)
                    delivery.ack()


def _receives(consumer: oncelog.Consumer) -> None:
    with contextlib.suppress(oncelog.Closed):
        assert not consumer.receive(timeout_s=LONG_S)


def _iterates(consumer: oncelog.Consumer) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(_next(consumer))


def test_a_consumer_that_renews_its_leases_holds_up_no_other(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is slow to renew what one consumer holds: a task that iterates another consumer gets its message."""
    slow, quick = remote.queue("slow", create=True), remote.queue("quick", create=True)
    renewing, goes_on = threading.Event(), threading.Event()
    real = Leases.lost_of

    def lost_of(leases: Leases, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> list[Delivery]:
        if settlement.kind == "extended":
            renewing.set()
            assert goes_on.wait(LONG_S)
        return real(leases, deliveries, settlement)

    monkeypatch.setattr(Leases, "lost_of", lost_of)
    slow.send_many([oncelog.Message(b"one"), oncelog.Message(b"two")])

    async def work(holding: oncelog.Consumer, other: oncelog.Consumer) -> None:
        (await _next(holding)).ack()
        assert isinstance(holding, RemoteConsumer)
        [held] = holding._held
        held.until_us = 0  # as if it had waited here for long
        waiting = asyncio.create_task(_next(holding))
        try:
            assert await asyncio.to_thread(renewing.wait, LONG_S)
            await oncelog.later(quick.send, b"three")
            assert (await asyncio.wait_for(_next(other), LONG_S)).value == b"three"
        finally:
            goes_on.set()
        assert (await waiting).value == b"two"

    with slow.consume("mailer", prefetch=2) as holding, quick.consume("mailer") as other:
        asyncio.run(work(holding, other))


@pytest.mark.parametrize("where", ["server", "disk"])
def test_consumers_and_deliveries_do_not_survive_a_fork(where: str, remote: Database, tmp_path: Path) -> None:
    """In a child they are closed, also while a thread of the parent receives; in the parent they go on."""
    with contextlib.ExitStack() as closing:
        database = remote if where == "server" else closing.enter_context(oncelog.connect(tmp_path.as_uri()))
        queue = database.queue("emails", create=True)
        queue.send(b"one")
        consumer = closing.enter_context(queue.consume("mailer", ack_timeout_s=600.0))
        [one] = consumer.receive(timeout_s=LONG_S)
        found: list[oncelog.Delivery] = []
        receiving = threading.Thread(target=lambda: found.extend(consumer.receive(timeout_s=LONG_S)))
        receiving.start()
        while not consumer._receiving.locked():
            threading.Event().wait(0.001)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs is killed
            closed = 0
            for use in (
                lambda: consumer.receive(timeout_s=0.1),
                one.ack,
                lambda: one.extend(1.0),
                lambda: one.nack("no"),
                lambda: one.submit_ack().result(),
                lambda: consumer.ack([one]),
            ):
                try:
                    use()
                except oncelog.Closed:
                    closed += 1
                except BaseException:  # noqa: BLE001
                    os._exit(99)
            os._exit(closed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
        one.ack()
        queue.send(b"two")
        receiving.join()
        assert [two.value for two in found] == [b"two"]
        consumer.ack(found)


def test_what_comes_for_an_interrupted_receive_goes_back(remote: Database) -> None:
    """Ctrl-C ends a ``receive`` whose claim is at the server. The message that comes then goes to another consumer, and
    no attempt was spent.
    """
    queue = remote.queue("emails", create=True)
    with queue.consume("mailer", ack_timeout_s=600.0) as interrupted, queue.consume("mailer") as other:
        assert isinstance(interrupted, RemoteConsumer)

        def interrupt() -> None:
            while interrupted._call is None:
                threading.Event().wait(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            interrupted.receive(timeout_s=LONG_S)
        queue.send(b"one")
        [delivery] = other.receive(timeout_s=LONG_S)
        assert (delivery.value, delivery.attempts) == (b"one", 1)
        delivery.ack()


def test_what_comes_for_a_loop_that_was_closed_goes_to_others(remote: Database) -> None:
    """A loop is closed while a task waits in it for a message: what comes is not claimed for that task for ever."""
    queue = remote.queue("emails", create=True)
    with queue.consume("mailer", ack_timeout_s=600.0) as left, queue.consume("mailer") as other:
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(_next(left))
        while not _is_claiming(left):
            loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be left so
        queue.send(b"one")
        [delivery] = other.receive(timeout_s=LONG_S)
        assert (delivery.value, delivery.attempts) == (b"one", 1)
        delivery.ack()
