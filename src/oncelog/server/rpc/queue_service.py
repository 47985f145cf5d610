"""The service ``Queue``: messages in, deliveries out, and what an operator does with a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from oncelog.errors import AppendErrors, InvalidArgument, OncelogError
from oncelog.queue import inner
from oncelog.queue.deliver.consumer import Consumer, Delivery, lease_left_s
from oncelog.queue.deliver.settling import LeaseName, SettlementRequest
from oncelog.queue.queue import Queue
from oncelog.queue.rules import message
from oncelog.queue.rules.settings import QueueSettings
from oncelog.server.call import Caller
from oncelog.server.rpc.calls import Requests
from oncelog.server.rpc.log_service import document, optional
from oncelog.server.server import Server
from oncelog.settings import TIMEOUT_S
from oncelog.types import micros
from oncelog.wire import failures, messages, values

PULLS_MAX = 64
"""Pulls and settlements that one consumer may have without an answer."""


class QueueService:
    """The methods of ``Queue``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._consumers = server.consumers

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods by their names on the wire."""
        return {
            "Send": self.send,
            "Status": self._asking(lambda queue, asked: queue.status(asked.id, key=asked.key, tenant=asked.tenant)),
            "Consume": self.consume,
            "Receive": self.receive,
            "Settle": self.settle,
            "Info": self._asking(lambda queue, _: _info(queue)),
            "Stats": self._asking(lambda queue, _: queue.stats()),
            "Groups": self.groups,
            "Peek": self._asking(lambda queue, asked: queue.peek(asked.group or "default", limit=asked.limit)),
            "Pause": self._doing(lambda queue, asked: _paused(queue.pause, asked)),
            "Resume": self._doing(lambda queue, asked: _paused(queue.resume, asked)),
            "RemoveGroup": self._doing(_removed),
            "Configure": self.configure,
            "Trim": self._doing(lambda queue, _: document(queue.trim())),
            "DeadLetters": self._asking(_letters),
            "Redrive": self._doing(_redrive),
            "Discard": self._doing(
                lambda queue, asked: messages.Count(value=queue.dead_letters.discard(list(asked.positions)))
            ),
        }

    def _asking(self, ask: Callable[[Queue, Any], object]) -> Callable[[Any, Caller], Any]:
        """Return a method that asks a queue something, and returns the answer as a document."""

        async def method(request: Any, _: Caller) -> Any:
            return await self._server.read(
                lambda: document(ask(self._consumers.queue(request.queue), request)), request.queue
            )

        return method

    def _doing(self, act: Callable[[Queue, Any], Any]) -> Callable[[Any, Caller], Any]:
        """Return a method that changes a queue."""

        async def method(request: Any, _: Caller) -> Any:
            try:
                return await self._server.write(
                    lambda: act(self._consumers.queue(request.queue), request), request.queue
                )
            finally:
                self._server.wake_queue(request.queue)

        return method

    async def send(self, request: Any, _: Caller) -> Any:
        """Send messages, each decided on its own."""
        found = [values.queue_message(one) for one in request.messages]
        on_pending: Any = request.on_pending or "join"
        timeout_s = optional(request, "timeout_s", TIMEOUT_S)

        def work() -> Any:
            queue = self._consumers.queue(request.queue)
            try:
                sent: Any = queue.send_many(found, on_pending=on_pending, timeout_s=timeout_s)
            except AppendErrors as errors:
                sent = errors.results
            return messages.SendResponse(results=[_result(one) for one in sent])

        size_bytes = request.ByteSize()
        await self._server.budget.take(size_bytes)
        try:
            return await self._server.write(work, request.queue)
        finally:
            self._server.budget.give(size_bytes)
            self._server.wake_queue(request.queue)

    async def groups(self, request: Any, _: Caller) -> Any:
        """Return the groups of a queue."""
        found = await self._server.read(lambda: self._consumers.queue(request.queue).groups(), request.queue)
        return messages.Names(names=found)

    async def configure(self, request: Any, _: Caller) -> Any:
        """Change the settings of a queue; return those that are stored."""
        settings = values.from_document(request.settings, QueueSettings)

        def work() -> Any:
            queue = self._consumers.queue(request.name)
            queue.configure(settings)
            return document(queue.settings)

        return await self._server.write(work, request.name)

    # Consuming.

    async def receive(self, request: Any, _: Caller) -> Any:
        """Claim messages once."""
        consumer = await self._server.write(lambda: self._consumer(request), request.queue)
        found = await self._consumers.receive(consumer, request.queue, max(1, request.limit), request.timeout_s)
        return messages.Deliveries(deliveries=[_delivery(one) for one in found])

    async def settle(self, request: Any, _: Caller) -> Any:
        """Settle deliveries once."""
        lost = await self._consumers.settle(request.queue, request.group or "default", *_settlement(request.settlement))
        return messages.SettleResponse(lost=[messages.Lease(**one._asdict()) for one in lost])

    def _consumer(self, request: Any) -> Consumer:
        start: Any = request.start or "earliest"
        return self._consumers.queue(request.queue).consume(
            request.group or "default",
            prefetch=1,
            ack_timeout_s=optional(request, "ack_timeout_s"),
            ordered=optional(request, "ordered"),
            start=start,
        )

    async def consume(self, requests: Requests, _: Caller) -> AsyncIterator[Any]:
        """Serve one consumer."""
        request = await requests.next()
        if request is None or request.WhichOneof("request") != "open":
            message = "a consumer begins with OpenConsumer"
            raise InvalidArgument(message)
        opening = request.open
        requests.admit(opening.queue)
        stream = _ConsumerStream(self._server, opening, requests)
        consumer = await self._server.write(lambda: self._consumer(opening), opening.queue)
        async for message in stream.answers(consumer):
            yield message


class _ConsumerStream:
    """One stream of a consumer: pulls and settlements in, deliveries and answers out."""

    def __init__(self, server: Server, opening: Any, requests: Requests) -> None:
        self._server = server
        self._name = opening.queue
        self._group = opening.group or "default"
        self._key = opening.session
        self._requests = requests
        self._out: asyncio.Queue[tuple[Any, list[Delivery]] | BaseException | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(PULLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling = asyncio.Lock()

    async def answers(self, consumer: Consumer) -> AsyncIterator[Any]:
        """Yield what the server has to say, until the client ends the stream or the server drains."""
        with self._server.consumers.session(self._key, self._name, self._group) as session:
            reading = asyncio.create_task(self._read(consumer, session))
            draining = asyncio.create_task(self._drained())
            try:
                settings = await self._server.read(lambda: consumer.terms, self._name)
                yield messages.ConsumeResponse(
                    opened=messages.ConsumerOpened(ack_timeout_s=settings[0], ordered=settings[1])
                )
                while (one := await self._out.get()) is not None:
                    if isinstance(one, BaseException):
                        raise one
                    async for message in self._sent(*one):
                        yield message
            finally:
                for task in (reading, draining, *self._tasks):
                    task.cancel()
                self._give_back_unsent()
                self._server.writers.post(consumer.close)

    async def _sent(self, message: Any, deliveries: list[Delivery]) -> AsyncIterator[Any]:
        """Yield a message; what it delivers is given back unless the message was taken."""
        taken = False
        try:
            yield message
            taken = True
        finally:
            if not taken:
                self._server.consumers.give_back(self._name, self._group, deliveries)

    def _give_back_unsent(self) -> None:
        while not self._out.empty():
            one = self._out.get_nowait()
            if isinstance(one, tuple):
                self._server.consumers.give_back(self._name, self._group, one[1])

    async def _drained(self) -> None:
        await self._server.draining.wait()
        notice = messages.Draining(retry_after_s=self._server.retry_after_s())
        self._out.put_nowait((messages.ConsumeResponse(draining=notice), []))
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self._out.put_nowait(None)

    async def _read(self, consumer: Consumer, session: Any) -> None:
        try:
            while (request := await self._next()) is not None:
                await self._room.acquire()
                which = request.WhichOneof("request")
                if which == "pull":
                    work = self._pull(consumer, request.pull)
                elif which == "settle":
                    work = self._settle(session, request.settle)
                else:
                    message = "a consumer is opened once; then it pulls and settles"
                    raise InvalidArgument(message)
                task = asyncio.create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks:
                await asyncio.wait(set(self._tasks))
            self._out.put_nowait(None)
        except OncelogError as error:
            self._out.put_nowait(error)

    async def _next(self) -> Any | None:
        return None if self._server.draining.is_set() else await self._requests.next()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._out.put_nowait(error)

    async def _pull(self, consumer: Consumer, pull: Any) -> None:
        made = messages.Pulled(tag=pull.tag)
        found: list[Delivery] = []
        try:
            async with self._pulling:
                found = await self._server.consumers.receive(consumer, self._name, max(1, pull.limit), pull.timeout_s)
            made.deliveries.extend(_delivery(one) for one in found)
        except OncelogError as error:
            made.error.CopyFrom(failures.to_message(error))
        self._out.put_nowait((messages.ConsumeResponse(pulled=made), found))

    async def _settle(self, session: Any, settlement: Any) -> None:
        made = messages.Settled(tag=settlement.tag)
        try:
            lost = await self._server.consumers.settle_once(session, settlement.tag, *_settlement(settlement))
            made.lost.extend(messages.Lease(**one._asdict()) for one in lost)
        except OncelogError as error:
            made.error.CopyFrom(failures.to_message(error))
        self._out.put_nowait((messages.ConsumeResponse(settled=made), []))


def _settlement(found: Any) -> tuple[list[LeaseName], SettlementRequest]:
    leases = [LeaseName(one.token, one.partition, one.position) for one in found.leases]
    match found.kind:
        case "refused":
            return leases, SettlementRequest.refusal(found.reason, retry=found.retry)
        case "extended":
            return leases, SettlementRequest("extended", extend_us=message.span_us("extend_s", found.extend_s))
        case "acked" | "returned":
            return leases, SettlementRequest(found.kind)
    error = f"settlement {found.kind!r}: must be 'acked', 'refused', 'extended' or 'returned'"
    raise InvalidArgument(error)


def _delivery(one: Delivery) -> Any:
    made = messages.Delivery(
        partition=one.partition,
        position=one.position,
        token=one.token,
        attempts=one.attempts,
        value=one.value,
        id=one.id,
        key=one.key,
        tenant=one.tenant,
        topic=one.topic,
        group=one.group,
        headers=values.headers_message(one.headers),
        sent_at_us=micros(one.sent_at),
        inbox_key=one.inbox_key,
        redriven=one.redriven,
        lease_s=lease_left_s(one),
    )
    if one.last_error is not None:
        made.last_error = one.last_error
    return made


def _result(one: Any) -> Any:
    if isinstance(one, OncelogError):
        return failures.result(one)
    return messages.Result(sent=values.sent_message(one))


def _info(queue: Queue) -> dict[str, object]:
    return {"name": queue.name, "partitions": queue.partitions, "settings": queue.settings}


def _paused(act: Callable[[str | None], None], asked: Any) -> Any:
    act(optional(asked, "group"))
    return messages.Empty()


def _removed(queue: Queue, asked: Any) -> Any:
    queue.remove_group(asked.group, force=asked.force)
    return messages.Empty()


def _letters(queue: Queue, asked: Any) -> object:
    if asked.HasField("position"):
        return [queue.dead_letters.show(asked.position)]
    if asked.HasField("start"):
        return inner.dead_letters(queue, optional(asked, "limit"), asked.start)
    return queue.dead_letters.list(limit=optional(asked, "limit"))


def _redrive(queue: Queue, asked: Any) -> Any:
    if not asked.all and not asked.positions:
        message = "redrive: say which positions, or all"
        raise InvalidArgument(message)
    return messages.Count(value=queue.dead_letters.redrive(None if asked.all else list(asked.positions)))
