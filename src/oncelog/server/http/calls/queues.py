"""Work queues over HTTP. A lease is three numbers, not a connection: any process may settle it."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from oncelog.errors import AppendErrors, InvalidArgument, LeaseLost, NotFound, OncelogError
from oncelog.queue import inner
from oncelog.queue.deliver.consumer import Consumer, Delivery
from oncelog.queue.deliver.dead_letters import DeadLetter
from oncelog.queue.deliver.settling import LeaseName, SettlementRequest
from oncelog.queue.queue import Queue
from oncelog.queue.rules import message as message_rules
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.sender import Sent
from oncelog.server.http import fields, forms, paths, problem, spelling
from oncelog.server.http.bodies import Gone
from oncelog.server.http.calls.logs import check_tag, merged, page_of, settings_tag
from oncelog.server.http.calls.records import PAGE_BYTES_MAX
from oncelog.server.http.request import NDJSON, Call, answer
from oncelog.server.security import authorize, scopes

LETTERS_MAX = 1_000


def opened(call: Call) -> Queue:
    """Return the queue that a call is about, or the one answer for a queue that is not there. For a thread."""
    kind, name = call.route.kind, call.names["queue"]
    try:
        return call.server.database.queue(name, state=call.server.settings.queue_state)
    except NotFound as error:
        raise scopes.missing(kind, name) from error


async def list_queues(call: Call) -> Response:
    """List the queues that the caller may look at."""
    state = call.server.settings.queue_state
    there = await call.read(lambda: call.server.database.queues(state=state))
    return answer(page_of(call, authorize.visible(call.principal, "queue", there)))


async def create(call: Call) -> Response:
    """Make a queue, or find it there with the same settings."""
    form = await call.json(forms.CreateQueueForm)
    settings = merged(QueueSettings(), form.settings) if form.settings else None
    database, state = call.server.database, call.server.settings.queue_state

    def make() -> tuple[bool, QueueSettings]:
        there = form.name in database.queues(state=state)
        made = database.queue(form.name, settings, partitions=form.partitions, create=True, state=state)
        return there, made.settings

    there, stored = await call.server.write(make)
    headers = {"location": paths.spelled("v1", "queues", form.name), "etag": settings_tag(stored)}
    return answer(stored, 200 if there else 201, headers)


async def settings(call: Call) -> Response:
    """Return the settings of a queue."""
    found = await call.read(lambda: opened(call).settings)
    return answer(found, headers={"etag": settings_tag(found), "cache-control": "no-store"})


async def configure(call: Call) -> Response:
    """Change settings: those that are given, if the settings are still those of ``If-Match``."""
    given = await call.json(dict[str, object])

    def change() -> QueueSettings:
        queue = opened(call)
        check_tag(call, settings_tag(queue.settings))
        queue.configure(merged(queue.settings, given))
        return queue.settings

    stored = await call.server.workers.run(change)
    return answer(stored, headers={"etag": settings_tag(stored)})


async def delete(call: Call) -> Response:
    """Delete a queue, its messages and its dead letters."""
    force = fields.flag("force", call.query.get("force"))
    await call.read(lambda: opened(call))
    await call.server.delete_queue(call.names["queue"], force=force)
    return Response(None, 204)


# Sending.


async def send(call: Call) -> Response:
    """Send messages."""
    if call.media_type == NDJSON:
        if fields.record_id(call.headers) is not None:
            message = "Idempotency-Key is the id of one message: in NDJSON each brings its own"
            raise InvalidArgument(message)
        data = await call.body.whole()
        messages = await call.apart(
            len(data), lambda: [spelling.message(form) for form in spelling.lines(data, forms.MessageForm)]
        )
    else:
        messages = [_message(call, await call.body.whole())]
    if not messages:
        message = "the body has no message"
        raise InvalidArgument(message)
    timeout_s = call.timeout_s()
    try:
        sent = await call.server.write(
            lambda: opened(call).send_many(messages, timeout_s=timeout_s), call.names["queue"]
        )
    except AppendErrors as errors:
        return answer(forms.SentResultsForm([_result(one) for one in errors.results]), 207)
    except OncelogError as error:
        return problem.response(error, retry="same id" if all(one.id for one in messages) else "unsafe")
    finally:
        call.server.wake_queue(call.names["queue"])
    if call.media_type == NDJSON:
        new = any(not one.duplicate for one in sent)
        return answer(forms.SentResultsForm([_result(one) for one in sent]), 201 if new else 200)
    headers = {"idempotent-replayed": "true"} if sent[0].duplicate else {}
    return answer(spelling.sent(sent[0]), 200 if sent[0].duplicate else 201, headers)


def _message(call: Call, value: bytes) -> message_rules.Message:
    """Return the message of a raw body."""
    given = fields.record(value, call.headers)
    if given.stream is not None or given.type is not None or given.producer is not None or given.sequence is not None:
        message = "a message has Oncelog-Key and Oncelog-Tenant, and no stream, type, producer or sequence"
        raise InvalidArgument(message)
    key = fields.text(call.headers.get("oncelog-key", ""))
    delay_s = fields.seconds("Oncelog-Delay", call.headers.get("oncelog-delay", "0"), 366 * 86_400.0)
    return message_rules.Message(value, given.id or "", key, given.tenant or "", given.headers, delay_s)


def _result(one: Sent | OncelogError) -> forms.SentResultForm:
    if isinstance(one, OncelogError):
        return forms.SentResultForm(error=problem.of(one), again=spelling.may_come_again(one))
    return forms.SentResultForm(sent=spelling.sent(one))


# Receiving and settling.


async def receive(call: Call) -> Response:
    """Claim messages."""
    form = await call.json(forms.ReceiveForm)

    name = call.names["queue"]

    def consuming() -> tuple[Consumer, float]:
        queue = opened(call)
        lease_s = form.ack_timeout_s if form.ack_timeout_s is not None else queue.settings.ack_timeout_s
        made = queue.consume(
            form.group, prefetch=form.limit, ack_timeout_s=lease_s, ordered=form.ordered, start=form.start
        )
        return made, lease_s

    consumer, lease_s = await call.server.write(consuming, name)
    try:
        found = await _claimed(call, consumer, form)
    finally:
        call.server.writers.post(consumer.close)
    size_bytes = sum(len(one.value) for one in found)
    try:
        await call.room.take(size_bytes, f"queue/{name}")
        return await call.apart(
            size_bytes, lambda: answer(forms.DeliveriesForm([_delivery(one, lease_s) for one in found]))
        )
    except BaseException:
        call.server.consumers.give_back(name, consumer.group, found)
        raise


async def _claimed(call: Call, consumer: Consumer, form: forms.ReceiveForm) -> list[Delivery]:
    """Claim messages while the client waits for them: what is claimed for one that has left goes back at once."""
    consumers, name = call.server.consumers, call.names["queue"]
    claiming = asyncio.ensure_future(consumers.receive(consumer, name, form.limit, form.timeout_s))
    left = asyncio.ensure_future(call.body.left())
    try:
        await asyncio.wait({claiming, left}, return_when=asyncio.FIRST_COMPLETED)
        if not left.done():
            return claiming.result()
        if claiming.done():
            consumers.give_back(name, consumer.group, claiming.result())
        raise Gone
    finally:
        left.cancel()
        claiming.cancel()


def _delivery(one: Delivery, lease_s: float) -> forms.DeliveryForm:
    copied = {
        name: getattr(one, name)
        for name in forms.DeliveryForm.__struct_fields__
        if name not in ("lease_s", "value", "value_base64", "headers")
    }
    return forms.DeliveryForm(
        **copied, **spelling.spelled_value(one.value), headers=spelling.spelled_headers(one.headers), lease_s=lease_s
    )


async def ack(call: Call) -> Response:
    """Say that deliveries are done."""
    form = await call.json(forms.AckMessagesForm)
    return await _settle(call, form.group, form.leases, SettlementRequest("acked"))


async def nack(call: Call) -> Response:
    """Say why deliveries could not be done."""
    form = await call.json(forms.NackMessagesForm)
    return await _settle(call, form.group, form.leases, SettlementRequest.refusal(form.reason, retry=form.retry))


async def extend(call: Call) -> Response:
    """Have more time."""
    form = await call.json(forms.ExtendMessagesForm)
    extend_us = message_rules.span_us("seconds", form.seconds)
    return await _settle(call, form.group, form.leases, SettlementRequest("extended", extend_us=extend_us))


async def _settle(call: Call, group: str, leases: list[forms.LeaseForm], settlement: SettlementRequest) -> Response:
    """Settle deliveries in one commit; ``LeaseLost`` when one of them is another's now, and the others are settled."""
    await call.read(lambda: opened(call))
    named = [LeaseName(one.token, one.partition, one.position) for one in leases]
    lost = await call.server.consumers.settle(call.names["queue"], group, named, settlement)
    if lost:
        first = f"message {lost[0].position} of partition {lost[0].partition}"
        message = f"{len(lost)} of {len(leases)} leases are over, the first: {first}; others are settled"
        raise LeaseLost(message)
    return answer(forms.SettledForm(len(leases)))


# Looking and operating.


async def stats(call: Call) -> Response:
    """Return how a queue stands."""
    return answer(await call.read(lambda: opened(call).stats()), headers={"cache-control": "no-store"})


async def pause(call: Call) -> Response:
    """Deliver nothing until resumed."""
    form = await call.json(forms.GroupForm)
    await call.server.write(lambda: opened(call).pause(form.group), call.names["queue"])
    call.server.wake_queue(call.names["queue"])
    return Response(None, 204)


async def resume(call: Call) -> Response:
    """Deliver again."""
    form = await call.json(forms.GroupForm)
    await call.server.write(lambda: opened(call).resume(form.group), call.names["queue"])
    call.server.wake_queue(call.names["queue"])
    return Response(None, 204)


async def dead_letters(call: Call) -> Response:
    """List what could not be delivered."""
    limit = call.limit(100, LETTERS_MAX)
    start = fields.whole("start", call.query.get("start", "0"), least=0)

    def page() -> Response:
        found = inner.dead_letters(opened(call), limit, start)
        return answer([_letter(one) for one in found], headers={"cache-control": "no-store"})

    await call.room.take(PAGE_BYTES_MAX, f"queue/{call.names['queue']}")
    return await call.read(page)


def _letter(one: DeadLetter) -> forms.DeadLetterForm:
    copied = {
        name: getattr(one, name)
        for name in forms.DeadLetterForm.__struct_fields__
        if name not in ("value", "value_base64", "headers")
    }
    return forms.DeadLetterForm(
        **copied, **spelling.spelled_value(one.value), headers=spelling.spelled_headers(one.headers)
    )


async def redrive(call: Call) -> Response:
    """Send dead letters back."""
    form = await call.json(forms.RedriveForm)
    count = await call.server.write(lambda: opened(call).dead_letters.redrive(form.positions))
    call.server.wake_queue(call.names["queue"])
    return answer(forms.CountForm(count))


async def discard(call: Call) -> Response:
    """Give dead letters up."""
    form = await call.json(forms.DiscardForm)
    count = await call.server.write(lambda: opened(call).dead_letters.discard(form.positions))
    return answer(forms.CountForm(count))
