"""Consumers of one connection that tasks iterate: none holds up another, and what is claimed for a task is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import oncelog
from oncelog.client.channel import Channel
from oncelog.client.consumer import Leases, RemoteConsumer
from oncelog.connect import Database
from oncelog.queue.deliver.consumer import Delivery
from oncelog.queue.deliver.settling import SettlementRequest

LONG_S = 120.0


async def _next(consumer: oncelog.Consumer) -> oncelog.Delivery:
    async for delivery in consumer:
        return delivery
    raise AssertionError


def _is_claiming(consumer: oncelog.Consumer) -> bool:
    assert isinstance(consumer, RemoteConsumer)
    return consumer._call is not None


async def _leave(consumer: oncelog.Consumer) -> None:
    """Iterate a consumer, and cancel the task while its claim is at the server."""
    waiting = asyncio.create_task(_next(consumer))
    while not _is_claiming(consumer):  # noqa: ASYNC110 (a thread claims)
        await asyncio.sleep(0.001)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


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


def test_a_claim_for_a_task_is_short(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may leave at any time, and nobody cancels its claim: the claim takes messages for a second at most, and
    ``receive`` behind it waits no longer than that.
    """
    asked: list[float] = []
    real = Channel.future

    def watched(channel: Channel, method: str, request: Any, *given: Any) -> Any:
        if method == "Queue.Receive":
            asked.append(request.timeout_s)
        return real(channel, method, request, *given)

    monkeypatch.setattr(Channel, "future", watched)

    async def work(consumer: oncelog.Consumer) -> None:
        waiting = asyncio.create_task(_next(consumer))
        while not any(asked):  # noqa: ASYNC110 (the first claim only looks: a thread makes the next one)
            await asyncio.sleep(0.001)
        waiting.cancel()

    with remote.queue("emails", create=True).consume("mailer") as consumer:
        asyncio.run(work(consumer))
    assert max(asked) <= 1.0


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
