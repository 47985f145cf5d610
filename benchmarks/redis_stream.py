"""Redis: SET NX and XADD in a Lua script, AOF with ``appendfsync always``, pipelined."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from benchmarks.contender import Contender, in_parts
from benchmarks.records import Batch
from benchmarks.servers import Server, binary

_SCRIPT = """
local stored = 0
for at = 1, #ARGV, 2 do
  if redis.call('SET', 'id:' .. ARGV[at], 1, 'NX', 'EX', 600) then
    redis.call('XADD', KEYS[1], '*', 'i', ARGV[at], 'v', ARGV[at + 1])
    stored = stored + 1
  end
end
return stored
"""
_CALL_RECORDS = 1000


class Redis(Contender):
    """A server of its own, reached through a socket in its folder. Ids expire after ten minutes."""

    name = "Redis"
    note = (
        "Lua SET NX + XADD, 1,000 records a call, 10 calls pipelined, AOF appendfsync=always; packed before the clock"
    )

    _loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Start the server."""
        self._binary = binary("redis-server", "apt-get install redis-server")
        self._socket = self.folder / "redis.sock"
        self._start()

    def _start(self) -> None:
        command = [self._binary, "--port", "0", "--unixsocket", str(self._socket), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        command += ["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]
        self._client = redis.Redis(unix_socket_path=str(self._socket), protocol=3)
        self._server = Server(command, self.folder / "server.log", self._client.ping)
        self._script = str(self._client.script_load(_SCRIPT))
        self._connection: Any = self._client.connection_pool.get_connection()

    def close(self) -> None:
        """End the server."""
        if self._loop is not None:
            for client in self._clients:
                self._loop.run_until_complete(client.aclose())
            self._loop.close()
        self._client.close()
        self._server.end()

    def prepare(self, batches: Sequence[Batch]) -> list[tuple[Any, int]]:
        """Return each batch as the bytes of its calls, and their number."""
        return [self._packed(batch.rows()) for batch in batches]

    def _packed(self, rows: list[tuple[str, bytes]]) -> tuple[Any, int]:
        calls = [
            ("EVALSHA", self._script, 1, "log", *(part for row in some for part in row))
            for some in in_parts(rows, _CALL_RECORDS)
        ]
        return self._connection.pack_commands(calls), len(calls)

    def append(self, prepared: list[tuple[Any, int]]) -> None:
        """Send each batch's calls at once, then wait for all answers."""
        for packed, calls in prepared:
            self._connection.send_packed_command(packed)
            for _ in range(calls):
                self._connection.read_response()

    def append_one(self, id: str, value: bytes) -> None:
        """Call the script for one record."""
        self._client.evalsha(self._script, 1, "log", id, value)

    def append_among(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        """Call the script from so many tasks, each with a connection of its own."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._clients = [
                redis.asyncio.Redis(unix_socket_path=str(self._socket), protocol=3) for _ in range(callers)
            ]

        async def call(client: redis.asyncio.Redis, some: Sequence[tuple[str, bytes]]) -> None:
            for id, value in some:
                await client.evalsha(self._script, 1, "log", id, value)

        async def main() -> None:
            await asyncio.gather(*(call(client, rows[at::callers]) for at, client in enumerate(self._clients)))

        self._loop.run_until_complete(main())

    def count(self) -> int:
        """Ask for the stream's length."""
        return int(self._client.xlen("log"))

    def read(self) -> int:
        """Read the stream in ranges."""
        start, count = b"-", 0
        while entries := self._client.xrange("log", min=start, count=10_000):
            count += len(entries)
            last: Any = entries[-1][0]
            start = b"(" + last
        return count

    def crash(self) -> None:
        """Kill the server."""
        self._server.end(signal.SIGKILL)
        self._client.close()

    def reopen(self) -> None:
        """Start the server: it replays its file before it answers."""
        self._start()
