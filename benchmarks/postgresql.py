"""PostgreSQL: COPY into a temporary table, then INSERT … ON CONFLICT DO NOTHING, in one transaction a batch."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from benchmarks.contender import Contender
from benchmarks.records import Batch
from benchmarks.servers import Server, binary, free_port, user_group

_SETTINGS = {
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "30min",
    "wal_buffers": "64MB",
    "temp_buffers": "64MB",
    "work_mem": "64MB",
    "synchronous_commit": "on",
    "fsync": "on",
    "autovacuum": "off",
}
_COPY = "COPY incoming (id, value) FROM STDIN (FORMAT BINARY)"
_INSERT = "INSERT INTO log (id, value) SELECT id, value FROM incoming ON CONFLICT DO NOTHING"
_CALLERS_MAX = 64
_INSERT_ONE = "INSERT INTO log (id, value) VALUES (%s, %s) ON CONFLICT DO NOTHING"


class PostgreSQL(Contender):
    """A server of its own, reached through a socket in its folder, with psycopg 3. Every id is kept for good."""

    connections = 1
    name = "PostgreSQL"
    note = "binary COPY + INSERT … ON CONFLICT DO NOTHING, synchronous_commit=on; rows encoded before the clock"

    def open(self) -> None:
        """Make a cluster, as another user where this one is root, and the table."""
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        initdb = binary("initdb", "apt-get install postgresql", folders)
        self._server_binary = binary("postgres", "apt-get install postgresql", folders)
        self._user = "nobody" if os.getuid() == 0 else None
        self._port = free_port()
        if self._user is not None:
            shutil.chown(self.folder, self._user, user_group(self._user))
        subprocess.run(
            [initdb, "-D", "data", "-A", "trust", "-U", "bench", "-E", "UTF8", "--no-locale"],
            cwd=self.folder,
            check=True,
            capture_output=True,
            user=self._user,
            group=user_group(self._user) if self._user is not None else None,
        )
        self._start()
        self._connections[0].execute(
            "CREATE TABLE log "
            "(id text PRIMARY KEY, position bigint GENERATED ALWAYS AS IDENTITY (CACHE 100), value bytea NOT NULL)"
        )
        self._connections[0].execute("CREATE INDEX ON log USING brin (position)")

    def _start(self) -> None:
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        place = ["-D", "data", "-p", str(self._port), "-c", "listen_addresses=", "-k", str(self.folder)]
        self._server = Server(
            [self._server_binary, *place, *options], self.folder / "server.log", self._connect, self._user
        )
        self._pool = ThreadPoolExecutor(self.connections)
        while len(self._connections) < self.connections:
            self._connections.append(self._connection())

    def _connect(self) -> None:
        self._connections = [self._connection()]

    def _connection(self) -> psycopg.Connection:
        connection = psycopg.connect(
            host=str(self.folder), port=self._port, user="bench", dbname="postgres", autocommit=True
        )
        connection.execute("CREATE TEMPORARY TABLE incoming (id text, value bytea) ON COMMIT DELETE ROWS")
        return connection

    def close(self) -> None:
        """End the server."""
        self._leave()
        self._server.end(signal.SIGINT)

    def _leave(self) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def prepare(self, batches: Sequence[Batch]) -> list[bytes]:
        """Return each batch in the binary form of COPY."""
        return [_binary_copy(batch) for batch in batches]

    def append(self, prepared: list[bytes]) -> None:
        """Store each batch in a transaction, dealt out among the connections."""
        if self.connections == 1:
            _store(self._connections[0], prepared)
            return
        parts = [prepared[at :: self.connections] for at in range(self.connections)]
        list(self._pool.map(_store, self._connections, parts))

    def load(self, prepared: list[bytes]) -> None:
        """Copy batches of ids that are new into the table itself."""
        for data in prepared:
            with self._connections[0].cursor() as cursor, cursor.copy(_COPY.replace("incoming", "log")) as copy:
                copy.write(data)

    def append_one(self, id: str, value: bytes) -> None:
        """Insert one row."""
        self._connections[0].execute(_INSERT_ONE, (id, value), prepare=True, binary=True)

    def append_among(self, rows: Sequence[tuple[str, bytes]], callers: int) -> None:
        """Insert from so many callers, each with a connection of its own, as far as the server has connections."""
        callers = min(callers, _CALLERS_MAX)
        while len(self._connections) < callers:
            self._connections.append(self._connection())
        if self._callers is None:
            self._callers = ThreadPoolExecutor(callers)
        list(self._callers.map(_insert, self._connections, [rows[at::callers] for at in range(callers)]))

    def count(self) -> int:
        """Count the rows."""
        row = self._connections[0].execute("SELECT count(*) FROM log").fetchone()
        assert row is not None
        return int(row[0])

    def read(self) -> int:
        """Copy all rows out."""
        cursor = self._connections[0].cursor()
        with cursor.copy("COPY (SELECT id, value FROM log ORDER BY position) TO STDOUT (FORMAT BINARY)") as copy:
            copy.set_types(["text", "bytea"])
            return sum(1 for _ in copy.rows())

    def crash(self) -> None:
        """Have the server stop where it is: its next start is a recovery."""
        self._server.end(signal.SIGQUIT)
        self._leave()

    def reopen(self) -> None:
        """Start the server again."""
        self._start()


def _insert(connection: psycopg.Connection, rows: Sequence[tuple[str, bytes]]) -> None:
    for id, value in rows:
        connection.execute(_INSERT_ONE, (id, value), prepare=True, binary=True)


class PostgreSQLTwice(PostgreSQL):
    """The same through two connections at once."""

    connections = 2
    name = "PostgreSQL, 2 connections"


def _store(connection: psycopg.Connection, prepared: Sequence[bytes]) -> None:
    for data in prepared:
        while not _stored(connection, data):
            pass


def _stored(connection: psycopg.Connection, data: bytes) -> bool:
    """Store a batch; false where two connections hold an id that the other waits for, and this one had to give way."""
    try:
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy(_COPY) as copy:
                copy.write(data)
            cursor.execute(_INSERT)
    except psycopg.errors.DeadlockDetected:
        return False
    return True


def _binary_copy(batch: Batch) -> bytes:
    pack = struct.Struct(">hi").pack
    length = struct.Struct(">i").pack
    pieces = [b"PGCOPY\n\xff\r\n\0", bytes(8)]
    for id, value in batch.rows():
        name = id.encode()
        pieces += (pack(2, len(name)), name, length(len(value)), value)
    pieces.append(struct.pack(">h", -1))
    return b"".join(pieces)
