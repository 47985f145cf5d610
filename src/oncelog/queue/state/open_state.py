"""From a URL to the database in which brokers remember: beside the logs by default, or PostgreSQL when it is shared."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.queue.state import statements
from oncelog.queue.state.database import WAIT_S, StateDatabase, Transaction
from oncelog.queue.state.sqlite import STATE_FILE, SqliteDatabase
from oncelog.storage.base import Storage

FOLDER = "queues"
"""Beside the logs of a database on a local disk."""


def open_state(url: object, storage: Storage, clock: Clock) -> StateDatabase:
    """Open the state database at a URL, or the one that belongs to a storage.

    Raises ``InvalidArgument`` for a URL that is none, and where a storage has no place for one.
    """
    if url is not None:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("postgresql", "postgres"):
            message = f"state: is {url!r}, must be postgresql://… (or left out, for SQLite beside the logs)"
            raise InvalidArgument(message)
        from oncelog.queue.state.postgresql import PostgresqlDatabase  # noqa: PLC0415  psycopg is for those who use it

        return PostgresqlDatabase(url, clock)
    home = urlsplit(storage.url.removeprefix("quorum:"))
    if home.scheme == "file":
        return SqliteDatabase(_folder(home), clock)
    if home.scheme == "memory":
        return _in_memory(storage, clock)
    message = f"{storage.url}: a queue on this kind of home needs state='postgresql://…' (of a server: --queue-state)"
    raise InvalidArgument(message)


def is_made(url: str | None, storage: Storage) -> bool:
    """Tell whether the state database is there. Who only looks does not make it: a misspelt path stays absent."""
    home = urlsplit(storage.url.removeprefix("quorum:"))
    if url is not None or home.scheme != "file":
        return True
    try:
        os.lstat(_folder(home) / STATE_FILE)
    except FileNotFoundError:
        return False
    except OSError:  # opening it says what is wrong
        return True
    return True


def _folder(home: SplitResult) -> Path:
    return Path(os.path.realpath(unquote(home.path))) / FOLDER


def queue_names(database: StateDatabase) -> list[str]:
    """Return the names of the queues there are, sorted."""
    with database.reading() as transaction:
        return statements.queue_names(transaction)


class SharedState:
    """A state in memory that several handles share: it stays when one of them closes it."""

    one_machine = True

    def __init__(self, clock: Clock) -> None:
        self._database = SqliteDatabase(None, clock)

    def writing(
        self, *, durable: bool = True, wait_s: float = WAIT_S
    ) -> contextlib.AbstractContextManager[Transaction]:
        """Begin a transaction."""
        return self._database.writing(durable=durable, wait_s=wait_s)

    def reading(self, *, durable: bool = True) -> contextlib.AbstractContextManager[Transaction]:
        """Begin to read."""
        return self._database.reading(durable=durable)

    def close(self) -> None:
        """Keep everything: others use it."""


class _OfStorage(SharedState):
    """The state of a storage in memory: it lives as long as the storage does."""

    def __del__(self) -> None:
        self._database.close()


_shared: weakref.WeakKeyDictionary[Storage, _OfStorage] = weakref.WeakKeyDictionary()
_shared_lock = threading.Lock()


def _in_memory(storage: Storage, clock: Clock) -> StateDatabase:
    with _shared_lock:
        if storage not in _shared:
            _shared[storage] = _OfStorage(clock)
        return _shared[storage]
