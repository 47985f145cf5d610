"""Work queues side by side: durable send, delivery and acknowledgement of small messages, and how soon one arrives."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.contender import NotInstalledError, in_parts
from benchmarks.jetstream import JetStream
from benchmarks.measure import Measurement, Plan, timed
from benchmarks.postgresql import PostgreSQL
from benchmarks.records import Source
from benchmarks.redis_stream import Redis
from oncelog import Message
from oncelog.connect import Database
from oncelog.storage.local.home import LocalStorage

WORKLOAD = "queue: send, deliver and acknowledge, 100-byte values"
LATENCY = "queue: from send to an idle consumer"
BATCH = 500
"""Messages that are sent, delivered and acknowledged together."""
_WAIT_S = 60.0


class WorkQueue(Protocol):
    """A queue with one consumer group. Every call is durable on return, unless it says that it is not."""

    name: str
    note: str
    messages: int
    """How many a round has."""
    durable: bool

    def open(self) -> None:
        """Start what has to run."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def send(self, values: Sequence[bytes]) -> None:
        """Send values as messages, in one batch."""
        ...

    def take(self) -> int:
        """Have messages delivered, use their values, acknowledge them; return how many."""
        ...


class OncelogQueue:
    """A queue in a folder, its state in SQLite."""

    name = "Oncelog, state in SQLite"
    note = "send_many, receive, ack of a batch; every attempt counted on disk before its delivery"
    durable = True
    messages = 20_000

    def __init__(self, folder: Path) -> None:
        """Remember where to work."""
        self._folder = folder / type(self).__name__

    def open(self) -> None:
        """Make the queue."""
        self._db = Database(LocalStorage(self._folder))
        self._queue = self._db.queue("bench", create=True)
        self._consumer = self._queue.consume("workers", prefetch=BATCH)

    def close(self) -> None:
        """Leave it."""
        self._db.close()

    def send(self, values: Sequence[bytes]) -> None:
        """Send a batch."""
        self._queue.send_many([Message(value) for value in values])

    def take(self) -> int:
        """Receive a batch, and acknowledge it."""
        found = self._consumer.receive(timeout_s=_WAIT_S)
        _use([delivery.value for delivery in found])
        self._consumer.ack(found)
        return len(found)


class OncelogQueueWithIds(OncelogQueue):
    """The same, with an id for each message: sent again, it would be there once."""

    name = "Oncelog, state in SQLite, with ids"
    note = "as above, each message with an id that the log's window and the gate know"

    def open(self) -> None:
        """Make the queue."""
        super().open()
        self._sent = 0

    def send(self, values: Sequence[bytes]) -> None:
        """Send a batch under ids that were never used."""
        first, self._sent = self._sent, self._sent + len(values)
        self._queue.send_many([Message(value, f"order-{first + row}") for row, value in enumerate(values)])


class RedisQueue(Redis):
    """A stream with a consumer group."""

    name = "Redis Streams"
    note = "XADD pipelined, XREADGROUP, XACK of a batch; AOF appendfsync=always"
    messages = 20_000

    def open(self) -> None:
        """Start the server and make the group."""
        super().open()
        self._client.xgroup_create("work", "workers", id="0", mkstream=True)

    def send(self, values: Sequence[bytes]) -> None:
        """Add a batch."""
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd("work", {"v": value})
        pipeline.execute()

    def take(self) -> int:
        """Read a batch, and acknowledge it."""
        found: Any = self._client.xreadgroup("workers", "one", {"work": ">"}, count=BATCH, block=60_000)
        entries = found[b"work"][0] if isinstance(found, dict) else found[0][1]
        _use([fields[b"v"] for _, fields in entries])
        self._client.xack("work", "workers", *[id for id, _ in entries])
        return len(entries)


class PostgresQueue(PostgreSQL):
    """A table whose rows workers take with SKIP LOCKED and delete in the same transaction."""

    name = "PostgreSQL, SKIP LOCKED"
    note = "COPY in; DELETE of 500 rows chosen FOR UPDATE SKIP LOCKED, committed when done: attempts are not counted"
    messages = 10_000

    def open(self) -> None:
        """Start the server and make the table."""
        super().open()
        self._connections[0].execute(
            "CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 100) PRIMARY KEY, value bytea NOT NULL)"
        )

    def send(self, values: Sequence[bytes]) -> None:
        """Copy a batch in."""
        connection = self._connections[0]
        with (
            connection.transaction(),
            connection.cursor() as cursor,
            cursor.copy("COPY work (value) FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(["bytea"])
            for value in values:
                copy.write_row((value,))

    def take(self) -> int:
        """Take a batch, and delete it."""
        connection = self._connections[0]
        with connection.transaction():
            rows = connection.execute(
                "DELETE FROM work WHERE id IN (SELECT id FROM work ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) "
                "RETURNING value",
                (BATCH,),
                prepare=True,
                binary=True,
            ).fetchall()
            _use([value for (value,) in rows])
        return len(rows)


class JetStreamQueue(JetStream):
    """A stream with work-queue retention and a pull consumer."""

    messages = 2_000

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        """Have every write synced, or as it is by default."""
        super().__init__(folder, sync=sync, atomic=True)
        self.name = f"NATS JetStream, work queue{'' if sync else ', default'}"
        self.note = (
            "sync_interval: always; atomic batches, synced once; pull of a batch, all acks in flight, each synced"
        )
        if not sync:
            self.note = "the same, synced every two minutes: an answer is NOT durable"

    async def _make_stream(self) -> None:
        config = {
            "name": "WORK",
            "subjects": ["work"],
            "storage": "file",
            "retention": "workqueue",
            "allow_atomic": True,
        }
        answer = await self._client.request("$JS.API.STREAM.CREATE.WORK", json.dumps(config).encode(), timeout=10)
        assert b'"error"' not in answer.data, answer.data
        self._pull = await self._client.jetstream().pull_subscribe(
            "work",
            durable="workers",
            config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10 * BATCH),
        )

    def send(self, values: Sequence[bytes]) -> None:
        """Publish a batch, and wait for all answers."""
        self._run(self._publish_batch(values))

    async def _publish_batch(self, values: Sequence[bytes]) -> None:
        self._answered.clear()
        self._awaited = 1
        self._batches += 1
        for number, value in enumerate(values, 1):
            headers = {"Nats-Batch-Id": str(self._batches), "Nats-Batch-Sequence": str(number)}
            if number == len(values):
                headers["Nats-Batch-Commit"] = "1"
            await self._client.publish("work", value, self._inbox if number == len(values) else "", headers)
        await asyncio.wait_for(self._answered.wait(), _WAIT_S)

    def take(self) -> int:
        """Pull a batch, and acknowledge it."""
        return int(self._run(self._pull_some()))

    async def _pull_some(self) -> int:
        found = await self._pull.fetch(BATCH, timeout=_WAIT_S)
        _use([message.data for message in found])
        self._answered.clear()
        self._awaited = len(found)
        for message in found:
            await self._client.publish(message.reply, b"+ACK", self._inbox)
        await asyncio.wait_for(self._answered.wait(), _WAIT_S)
        return len(found)


class JetStreamQueueByDefault(JetStreamQueue):
    """The same, without waiting for the disk."""

    messages = 10_000

    def __init__(self, folder: Path) -> None:
        """Leave the syncing to the server."""
        super().__init__(folder, sync=False)


def _use(values: Sequence[bytes]) -> int:
    return sum(map(len, values))


MAKERS: Sequence[Callable[[Path], WorkQueue]] = (
    OncelogQueue,
    OncelogQueueWithIds,
    RedisQueue,
    PostgresQueue,
    JetStreamQueue,
    JetStreamQueueByDefault,
)


def queues(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure the throughput of every queue, round by round in turn; then how soon a message arrives."""
    folder.mkdir(parents=True)
    found: list[Measurement] = []
    source = Source(100)
    with ExitStack() as stack:
        opened: list[tuple[WorkQueue, Measurement]] = []
        for make in MAKERS:
            queue = make(folder)
            row = Measurement(
                workload=WORKLOAD,
                contender=queue.name,
                unit="messages/s",
                rounds=[],
                durable=queue.durable,
                note=queue.note,
            )
            found.append(row)
            try:
                queue.open()
            except NotInstalledError as error:
                row.missing = str(error)
                continue
            stack.callback(queue.close)
            opened.append((queue, row))
        for number in range(plan.rounds + 1):
            for queue, row in opened:
                rate = _round(queue, source, max(BATCH, queue.messages // 10) if plan.quick else queue.messages)
                if number:
                    row.rounds.append(rate)
        found.append(_latency(folder, plan))
    return found


def _round(queue: WorkQueue, source: Source, messages: int) -> float:
    values = [value for _, value in source.batch(messages).rows()]

    def work() -> None:
        for part in in_parts(values, BATCH):
            queue.send(part)
        left = messages
        while left > 0:
            left -= queue.take()
        assert left == 0

    return messages / timed(work)


def _latency(folder: Path, plan: Plan) -> Measurement:
    """Measure from the call of ``send`` to the moment at which a consumer of the same process has the message."""
    count = 20 if plan.quick else 300
    arrived: list[float] = []
    got = threading.Semaphore(0)
    with Database(LocalStorage(folder / "latency")) as db:
        queue = db.queue("bench", create=True)
        consumer = queue.consume("workers")

        def work() -> None:
            for delivery in consumer:
                arrived.append(time.perf_counter())
                delivery.ack()
                got.release()
                if len(arrived) == count:
                    return

        worker = threading.Thread(target=work)
        worker.start()
        sent = []
        for _ in range(count):
            time.sleep(0.002)  # the consumer is idle again
            sent.append(time.perf_counter())
            queue.send(b"x" * 100)
            got.acquire()
        worker.join()
    waits = sorted(after - before for before, after in zip(sent, arrived, strict=True))
    more = {"p50_us": 1e6 * statistics.median(waits), "p99_us": 1e6 * waits[len(waits) * 99 // 100]}
    return Measurement(
        workload=LATENCY,
        contender="Oncelog, state in SQLite",
        unit="s",
        rounds=[statistics.median(waits)],
        larger_is_better=False,
        more=more,
        note="durable send, lease stored before the delivery",
    )
