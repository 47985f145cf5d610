"""``oncelog serve`` in a process of its own, with the Python client, bare gRPC calls, or HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

import oncelog
from benchmarks.contender import Contender
from benchmarks.embedded import settings
from benchmarks.records import Batch
from benchmarks.servers import Server
from oncelog.wire import messages
from oncelog.wire.methods import METHODS

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Remote(Contender):
    """A server on loopback, on the disk; one client process."""

    name = "Oncelog server, Python client"

    def __init__(self, folder: Path) -> None:
        """Give each way of calling a folder of its own."""
        self.folder = folder / f"oncelog-server-{type(self).__name__.lower()}"
        self.folder.mkdir()

    def open(self) -> None:
        """Start the server, create the log, open a writer."""
        output = self.folder / "server.log"
        command = [sys.executable, "-m", "oncelog.cli", "serve", "--json", "--url", (self.folder / "db").as_uri()]
        command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self._server = Server(command, output, lambda: json.loads(output.read_text().splitlines()[0]))
        self.addresses: dict[str, str] = json.loads(output.read_text().splitlines()[0])
        self._db = oncelog.connect(f"oncelog://{self.addresses['grpc']}")
        self.log = self._db.log("bench", settings(), create=True)
        self.writer = self.log.writer()

    def close(self) -> None:
        """End the client and the server."""
        self._db.close()
        self._server.end()

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the server has used."""
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def prepare(self, batches: Sequence[Batch]) -> list[Any]:
        """Return tables."""
        return [batch.table() for batch in batches]

    def append(self, prepared: list[Any]) -> None:
        """Append each table, and wait for it."""
        for table in prepared:
            self.writer.append_arrow(table)

    def append_one(self, id: str, value: bytes) -> None:
        """Append one record."""
        self.writer.append(value, id=id)

    def count(self) -> int:
        """Return how many records there are."""
        return self.log.end_position()


class RemoteTasks(Remote):
    """The same from tasks of one event loop."""

    name = "Oncelog server, Python client, asyncio"
    _loop: asyncio.AbstractEventLoop | None = None

    def append_among(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        """Have each task await its own records."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.run_until_complete(self._connect(callers))
        self._loop.run_until_complete(self._append_all(rows, callers))

    async def _connect(self, callers: int) -> None:
        pass

    async def _append_all(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        await asyncio.gather(*(self._call(at, rows[at::callers]) for at in range(callers)))

    async def _call(self, caller: int, rows: Sequence[tuple[str, bytes]]) -> None:  # noqa: ARG002
        for id, value in rows:
            await self.writer.submit(value, id=id)

    def close(self) -> None:
        """End the client and the server."""
        if self._loop is not None:
            self._loop.run_until_complete(self._disconnect())
            self._loop.close()
        super().close()

    async def _disconnect(self) -> None:
        pass


class Unary(RemoteTasks):
    """Bare calls of ``Log.Append``, as programs in other languages make them."""

    name = "Oncelog server, gRPC unary"

    async def _connect(self, callers: int) -> None:  # noqa: ARG002
        method = METHODS["Log.Append"]
        self._channel = grpc.aio.insecure_channel(self.addresses["grpc"])
        self._append: Any = self._channel.unary_unary(
            method.path, request_serializer=method.encode_request, response_deserializer=method.decode_response
        )

    async def _call(self, caller: int, rows: Sequence[tuple[str, bytes]]) -> None:  # noqa: ARG002
        for id, value in rows:
            await self._append(messages.AppendRequest(log="bench", records=[messages.Record(id=id, value=value)]))

    async def _disconnect(self) -> None:
        await self._channel.close()


class Http(RemoteTasks):
    """``POST …/records`` with ``Idempotency-Key`` by the barest of clients, a connection a caller."""

    name = "Oncelog server, HTTP"

    async def _connect(self, callers: int) -> None:
        host, _, port = self.addresses["http"].rpartition(":")
        self._connections = [await asyncio.open_connection(host, int(port)) for _ in range(callers)]

    async def _call(self, caller: int, rows: Sequence[tuple[str, bytes]]) -> None:
        reader, writer = self._connections[caller]
        for id, value in rows:
            head = f"POST /v1/logs/bench/records HTTP/1.1\r\nHost: {self.addresses['http']}\r\n"
            head += f'Idempotency-Key: "{id}"\r\nContent-Length: {len(value)}\r\n\r\n'
            writer.write(head.encode() + value)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 201"), answer
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            assert length is not None, answer
            await reader.readexactly(int(length[1]))

    async def _disconnect(self) -> None:
        for _, writer in self._connections:
            writer.close()
