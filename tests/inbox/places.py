"""Where inboxes live in the tests: every driver, on real servers. A place knows how to have an effect there, and how to
look at what is left of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis
import sqlalchemy
from sqlalchemy.orm import Session

from oncelog import Inbox

TABLE = "CREATE TABLE IF NOT EXISTS effects (name TEXT NOT NULL)"
INSERT = "INSERT INTO effects VALUES ('{}')"
DRIVERS = (
    "sqlite3",
    "sqlite3 that begins by itself",
    "SQLAlchemy, SQLite",
    "psycopg, autocommit",
    "psycopg",
    "SQLAlchemy, PostgreSQL",
    "a session of SQLAlchemy, PostgreSQL",
)


class Place:
    """A database of the user's, reached through one driver."""

    transactional = True

    def __init__(self, driver: str, url: str) -> None:
        """Take a PostgreSQL URL, or the path of a SQLite file."""
        self.driver = driver
        self._url = url
        self._engine: sqlalchemy.Engine | None = None
        self._own: list[Any] = []
        with self.direct() as connection:
            connection.execute(TABLE)
        if driver.startswith(("SQLAlchemy", "a session")):
            made = url.replace("postgresql://", "postgresql+psycopg://") if self.on_server else f"sqlite:///{url}"
            self._engine = sqlalchemy.create_engine(made, poolclass=sqlalchemy.NullPool)

    @property
    def on_server(self) -> bool:
        """Whether it is PostgreSQL."""
        return self._url.startswith("postgresql")

    def connect(self) -> Any:
        """Return a connection, as a user would make it."""
        made: Any
        if self._engine is not None:
            made = Session(self._engine) if "session" in self.driver else self._engine.connect()
        elif self.on_server:
            made = psycopg.connect(self._url, autocommit="autocommit" in self.driver)
        else:
            level = {} if "by itself" in self.driver else {"isolation_level": None}
            made = sqlite3.connect(self._url, timeout=1, check_same_thread=False, **level)  # type: ignore[call-overload]
        self._own.append(made)
        return made

    def inbox(self, **options: Any) -> Inbox:
        """Return an inbox that makes its connections itself."""
        return Inbox(self.connect, **options)

    def act(self, connection: Any, name: str = "effect") -> None:
        """Have an effect, in the transaction of the connection."""
        self.run(connection, INSERT.format(name))

    def run(self, connection: Any, statement: str) -> None:
        """Run a statement in the driver's way."""
        connection.execute(sqlalchemy.text(statement) if self._engine is not None else statement)

    @contextmanager
    def direct(self) -> Iterator[Any]:
        """Yield a connection past any driver that is tested."""
        if self.on_server:
            with psycopg.connect(self._url, autocommit=True) as connection:
                yield connection
        else:
            opened = sqlite3.connect(self._url, isolation_level=None)
            yield opened
            opened.close()

    def effects(self) -> list[str]:
        """Return the effects that are there."""
        with self.direct() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM effects").fetchall()]

    def expire(self) -> None:
        """Let every lease run out."""
        self._set("until_us = 0", "status = 'PENDING'")

    def age(self) -> None:
        """Let every retention be over."""
        self._set("keep_us = 0", "keep_us IS NOT NULL")

    def _set(self, change: str, where: str) -> None:
        with self.direct() as connection:
            connection.execute(f"UPDATE oncelog_inbox SET {change} WHERE {where}")

    def keys(self) -> int:
        """Return how many keys are stored."""
        with self.direct() as connection:
            return int(connection.execute("SELECT count(*) FROM oncelog_inbox").fetchone()[0])

    def dump(self) -> str:
        """Return all that is stored of keys, as text."""
        with self.direct() as connection:
            return str(connection.execute("SELECT * FROM oncelog_inbox").fetchall())

    def close(self) -> None:
        """Close what was made."""
        for made in self._own:
            made.close()
        if self._engine is not None:
            self._engine.dispose()


class RedisPlace:
    """A server of Redis; effects are elements of a list, and cannot be taken back."""

    transactional = False
    driver = "redis"

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.client = redis.Redis(unix_socket_path=str(socket))
        self.client.flushall()

    def connect(self) -> Any:
        """Return the client, which is safe to share."""
        return self.client

    def inbox(self, **options: Any) -> Inbox:
        """Return an inbox on the client."""
        return Inbox(self.client, **options)

    def act(self, connection: Any, name: str = "effect") -> None:
        """Have an effect, at once."""
        connection.rpush("effects", name)

    def effects(self) -> list[str]:
        """Return the effects that are there."""
        found: Any = self.client.lrange("effects", 0, -1)
        return [name.decode() for name in found]

    def _keys(self) -> list[Any]:
        return list(self.client.scan_iter(match="oncelog:inbox:*"))

    def expire(self) -> None:
        """Let every lease run out."""
        for name in self._keys():
            self.client.hset(name, "until_us", "1")

    def age(self) -> None:
        """Let every retention be over."""
        for name in self._keys():
            if self.client.hget(name, "keep_us"):
                self.client.hset(name, "keep_us", "1")

    def keys(self) -> int:
        """Return how many keys are stored."""
        return len(self._keys())

    def dump(self) -> str:
        """Return all that is stored of keys, as text."""
        return str([self.client.hgetall(name) for name in self._keys()])

    def close(self) -> None:
        """Close the client."""
        self.client.close()


AnyPlace = Place | RedisPlace


@contextmanager
def redis_server() -> Iterator[Path]:
    """Start a Redis; yield the path of its socket."""
    folder = Path(tempfile.mkdtemp(prefix="oncelog-redis-"))
    socket = folder / "socket"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder), "--daemonize", "no"]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        _wait(socket, server)
        yield socket
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


class Restarted:
    """A PostgreSQL that a test ends and starts again, by its process id and its own command."""

    def __init__(self, url: str) -> None:
        """Take one that runs, and that nobody else uses."""
        self.url = url
        self._folder = Path(str(psycopg.conninfo.conninfo_to_dict(url)["host"]))
        self._pid = int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        self._command = Path(f"/proc/{self._pid}/cmdline").read_text().split("\0")[:-1]
        self._server: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        os.kill(self._pid, signal.SIGINT)
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        owner = (self._folder / "data").stat()
        identity: dict[str, Any] = {}
        if os.getuid() == 0:
            identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        self._server = subprocess.Popen(
            self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **identity
        )
        self._pid = self._server.pid
        pause = threading.Event()
        for _ in range(6_000):
            assert self._server.poll() is None, "PostgreSQL ended at once"
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url).close()
                return
            pause.wait(0.01)
        message = "PostgreSQL does not answer"
        raise AssertionError(message)

    def close(self) -> None:
        """End it for good."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait()


def _wait(socket: Path, server: subprocess.Popen[bytes]) -> None:
    """Ask until it answers: a server says nothing when it is ready."""
    pause = threading.Event()
    for _ in range(6_000):
        assert server.poll() is None, "Redis ended at once"
        try:
            with redis.Redis(unix_socket_path=str(socket)) as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            pause.wait(0.01)
        else:
            return
    message = "Redis does not answer"
    raise AssertionError(message)
