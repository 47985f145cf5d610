"""A broker's state in PostgreSQL: for brokers on several machines that share a queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unavailable, Unsupported
from oncelog.queue.state.database import (
    GATE_TABLES,
    GENERATION_BYTES,
    LOCK,
    NEW_GENERATION,
    STATE_TABLES,
    WAIT_S,
    Row,
    StateBusy,
    StatePair,
    locked,
)

try:
    import psycopg
    import psycopg.conninfo
except ImportError as error:  # pragma: no cover (the tests have it)
    _message = "a queue's state in PostgreSQL needs psycopg 3: pip install 'oncelog[postgres]'"
    raise Unsupported(_message) from error

_SCHEMA_LOCK = 0x6F6E63656C6F67
"""A connection that makes the tables holds this: CREATE … IF NOT EXISTS alone is not safe against itself."""

_SESSION = {
    "default_transaction_isolation": "'read committed'",
    "idle_in_transaction_session_timeout": "5000",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""A transaction locks its group first, and must see what the one before it has left: a stricter level would show it an
older state, and refuse it. A worker that is stopped, or whose machine is gone, in the midst of a transaction keeps its
rows no longer than this: then the server ends the transaction, and the others of its group go on.
"""

_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""A server that is gone without a word is noticed after so long, unless the URL says otherwise."""


class _Statements:
    """What is run in one transaction, or outside of any."""

    def __init__(self, connection: psycopg.Connection[Any], lock: str) -> None:
        self._connection = connection
        self._lock = lock

    def all(self, statement: str, *values: object) -> list[Row]:
        cursor = self._connection.execute(_translated(statement, self._lock), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(statement, self._lock), rows)

    def now_us(self) -> int:
        rows = self.all("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return int(rows[0][0])


def _translated(statement: str, lock: str) -> bytes:
    return statement.replace("?", "%s").replace(LOCK, lock).encode()


class _Server:
    """One connection, used by one thread at a time, and made again when it is lost."""

    def __init__(self, url: str, synchronous_commit: str) -> None:
        self._url = url
        self._synchronous_commit = synchronous_commit
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._lock_timeout_ms = 0

    @contextlib.contextmanager
    def writing(self, wait_s: float) -> Iterator[_Statements]:
        with locked(self._lock, wait_s), _explained():
            connection = self._connected()
            self._wait_for_locks(connection, wait_s)
            with connection.transaction():
                yield _Statements(connection, " FOR UPDATE")

    @contextlib.contextmanager
    def reading(self) -> Iterator[_Statements]:
        with locked(self._lock, WAIT_S), _explained():
            yield _Statements(self._connected(), "")

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            given = _parts(self._url)
            more: dict[str, Any] = {name: value for name, value in _CONNECTION.items() if name not in given}
            self._connection = psycopg.connect(self._url, autocommit=True, **more)
            settings = {**_SESSION, "synchronous_commit": self._synchronous_commit}
            self._connection.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()).encode())
            self._lock_timeout_ms = 0
        return self._connection

    def _wait_for_locks(self, connection: psycopg.Connection[Any], wait_s: float) -> None:
        """Set how long the statements to come wait for rows that another transaction keeps."""
        timeout_ms = max(1, round(wait_s * 1000))
        if not self._lock_timeout_ms // 2 < timeout_ms <= self._lock_timeout_ms:  # about the same is good enough
            connection.execute(f"SET lock_timeout = {timeout_ms}".encode())
            self._lock_timeout_ms = timeout_ms

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def _parts(url: str) -> dict[str, Any]:
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        message = f"{url!r} is not a URL of PostgreSQL: {error}"
        raise InvalidArgument(message) from None  # the cause would show the password


class PostgresqlDatabase(StatePair):
    """A state database in PostgreSQL, in the schema that is first in the search path."""

    one_machine = False

    def __init__(self, url: str, clock: Clock) -> None:
        """Connect, and make the tables that are missing. Raises ``Unavailable`` when the server does not answer."""
        super().__init__()
        self._state = _Server(url, "on")
        self._gate = _Server(url, "off")
        try:
            with self._state.writing(WAIT_S) as transaction:
                transaction.all("SELECT pg_advisory_xact_lock(?)", _SCHEMA_LOCK)
                for table in (*STATE_TABLES, *GATE_TABLES):
                    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
                    transaction.all(table.replace("/* identity */", identity))
                transaction.all(NEW_GENERATION, clock.token(GENERATION_BYTES).hex())
        except BaseException:
            self.close()
            raise


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what PostgreSQL's errors mean to a user of the queue."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        message = (
            "another process is in a transaction of the queue's state (PostgreSQL), and does not end it: try again"
        )
        raise StateBusy(message) from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:  # InternalError: the server ended the session
        message = f"the queue's state in PostgreSQL cannot be used now ({_first_line(error)}): try again"
        raise Unavailable(message, outcome="unknown") from error
    except psycopg.Error as error:
        message = f"PostgreSQL refuses what the queue asks of it ({_first_line(error)})"
        raise InvalidArgument(message) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
