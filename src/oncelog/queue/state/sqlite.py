"""A broker's state in SQLite: a file that every process of one machine may use at once, or memory for one process."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, OncelogError, Unavailable
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
from oncelog.storage.local import links

STATE_FILE = "state.sqlite"
"""What became of messages, in the folder of a state database."""

_WAL_PAGES = 256
"""After so many pages the journal is written from its start again. A commit that makes the file longer takes more time,
and with SQLite's own 1,000 pages more commits do.
"""
_STATE_PAGE_BYTES = 2_048
"""A commit of a claim or an ack writes four or five pages, of which little has changed: small ones take less time. With
1,024 bytes, claims of many single messages take a third more.
"""
_GATE_PAGE_BYTES = 4_096
_AGAIN_S = 0.01
_TRIES = 3_000
_DAMAGED = ("malformed", "not a database", "corrupt")


class _StateFile:
    """One database file, or one in memory, used by one thread at a time."""

    def __init__(
        self, path: Path | None, synchronous: str, page_bytes: int, tables: Sequence[str], clock: Clock
    ) -> None:
        self.name = str(path) if path is not None else "memory"
        self._lock = threading.RLock()
        self._clock = clock
        self._path = None if path is None else str(path)
        self._identity: tuple[int, int] | None = None
        self._wait_s = WAIT_S
        with _explained(self.name):
            if path is not None:
                _make(path)
            self._connection = sqlite3.connect(
                path or ":memory:", timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        try:
            with _explained(self.name):
                self._connection.execute(f"PRAGMA page_size={page_bytes}")  # of a file that is empty
                self._prepare(synchronous, tables)
                self._identity = self._found()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, synchronous: str, tables: Sequence[str]) -> None:
        self._switch_to_wal()
        self._connection.execute(f"PRAGMA synchronous={synchronous}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")
        with self.writing() as transaction:
            for table in tables:
                statement = table.replace("/* identity */", "INTEGER PRIMARY KEY AUTOINCREMENT")
                transaction.all(statement.replace("/* clustered */", "WITHOUT ROWID"))

    def _switch_to_wal(self) -> None:
        """Have readers not wait for the writer. While two processes do this at once, SQLite tells one of them to try
        again, without waiting itself.
        """
        condition = threading.Condition()
        for left in range(_TRIES, -1, -1):
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if left == 0 or "locked" not in str(error):
                    raise
                with condition:
                    self._clock.wait(condition, _AGAIN_S)
            else:
                return

    @contextlib.contextmanager
    def writing(self, wait_s: float = WAIT_S) -> Iterator[_StateFile]:
        with locked(self._lock, wait_s), _explained(self.name):
            is_inner = self._connection.in_transaction  # begun below this call, by a signal handler's victim
            try:
                self._begin(wait_s)  # in here: Ctrl-C behind it would leave a transaction that all others wait for
                yield self
                self._check_there()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction and not is_inner:
                    self._connection.execute("ROLLBACK")
                raise

    def _begin(self, wait_s: float) -> None:
        if wait_s != self._wait_s:
            self._connection.execute(f"PRAGMA busy_timeout = {max(1, round(wait_s * 1000))}")
            self._wait_s = wait_s
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            message = f"{self.name}: another process is in a transaction, and does not end it: try again"
            raise StateBusy(message) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[_StateFile]:
        with locked(self._lock, WAIT_S), _explained(self.name):
            self._check_there()
            yield self

    def _check_there(self) -> None:
        """Raise ``CorruptionError`` if another file, or none, stands where this one was opened. In WAL mode SQLite goes
        on with a file that has no name any more: acknowledgements would go with it, and others would not see leases.
        """
        if self._identity is not None and self._found() != self._identity:
            message = (
                f"{self.name}: was removed or replaced while it was open: what was acknowledged before went with the "
                "file; put it back if it was moved, and open the database again"
            )
            raise CorruptionError(message)

    def _found(self) -> tuple[int, int] | None:
        """Return what tells the file at the path from any other."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)  # noqa: PTH116  each transaction asks: a Path takes twice the time
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def all(self, statement: str, *values: object) -> list[Row]:
        return self._connection.execute(statement.replace(LOCK, ""), values).fetchall()

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._connection.executemany(statement, rows)

    def now_us(self) -> int:
        return self._clock.now_us()

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _make(path: Path) -> None:
    """Create the file of a database so that only its owner can read it: SQLite would create it readable for everybody.

    Files that SQLite creates beside it get the same mode. A symbolic link in its place is an error.
    """
    links.check_owner(path.parent.parent)
    path.parent.parent.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
    links.make_folder(path.parent)
    os.close(links.create_file(path, os.O_RDWR))


class SqliteDatabase(StatePair):
    """A state database in a folder: one file that is synced with every commit, one that need not be."""

    one_machine = True

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        """Open both, and make what is missing; ``None`` is memory."""
        super().__init__()
        self._state = _StateFile(folder and folder / STATE_FILE, "FULL", _STATE_PAGE_BYTES, STATE_TABLES, clock)
        try:
            with self._state.writing() as transaction:
                transaction.all(NEW_GENERATION, clock.token(GENERATION_BYTES).hex())
            self._gate = _StateFile(folder and folder / "gate.sqlite", "NORMAL", _GATE_PAGE_BYTES, GATE_TABLES, clock)
        except BaseException:
            self._state.close()
            raise


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say what SQLite's errors mean to a user of the queue."""
    try:
        yield
    except OncelogError:
        raise
    except (sqlite3.OperationalError, OSError) as error:
        message = f"{name}: the queue's state cannot be used now ({error}): try again"
        raise Unavailable(message, outcome="unknown") from error
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in _DAMAGED):
            message = f"{name}: the queue's state is damaged ({error}): restore it; the messages are in the logs"
            raise CorruptionError(message) from error
        raise
