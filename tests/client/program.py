"""One typed program, for embedded and remote databases alike: mypy checks it, and a test runs it against both."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from oncelog import Ack, ColumnAcks, Database, Entry, EventAck, Pending, Record, StreamEvent, later


async def program(db: Database) -> list[object]:
    """Use every face of a database from tasks; return what was seen."""
    seen: list[object] = []
    orders = await later(db.log, "orders", create=True)
    async with await later(orders.writer) as writer:
        ack: Ack = await writer.submit(b"paid", id="order-42")
        acks: list[Ack] = await asyncio.gather(*(writer.submit(b"x", id=str(n)) for n in range(32)))
        many: list[Ack] = await writer.submit_many([Record(b"many", id="m")])
        batch: Pending[list[Ack]] = writer.submit_batch([Record(b"a", id="a"), Record(b"b", id="b")])
        table: ColumnAcks = await writer.submit_arrow(pa.table({"value": [b"row"], "id": ["row"]}))
        seen += [ack.position, sorted(one.position or 0 for one in acks), many[0].position]
        seen += [[one.position for one in await batch], sorted(table.positions.tolist())]
    async with await later(orders.tail, 0) as tail:
        entries: list[Entry] = []
        async for entry in tail:
            entries.append(entry)
            if len(entries) == 37:
                break
        seen.append(sorted(entry.value for entry in entries))
    async with await later(orders.read) as reader:
        seen.append(len([entry async for entry in reader]))
    streams = await later(db.streams, "events", create=True)
    events: list[EventAck] = await streams.submit("s", [Record(b"0"), Record(b"1")], expected="no stream")
    seen.append([one.version for one in events])
    async with await later(streams.subscribe_all) as subscription:
        async for item in subscription:
            seen.append(item.value if isinstance(item, StreamEvent) else "caught up")
            if not isinstance(item, StreamEvent):
                break
    queue = await later(db.queue, "emails", create=True)
    sent = await queue.submit(b"welcome", id="user-7")
    seen.append(sent.position)
    async with await later(queue.consume, "mailer") as deliveries:
        async for delivery in deliveries:
            seen.append((delivery.value, delivery.attempts, delivery.id))
            await delivery.submit_ack()
            break
    return seen
