"""Where an inbox gets its connections: the user's own, or new ones of a database that the user named."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unavailable, Unsupported
from oncelog.inbox.contract import Connection
from oncelog.inbox.steps import Steps
from oncelog.inbox.stores.drivers import Psycopg, Sqlite
from oncelog.inbox.stores.redis import Redis
from oncelog.inbox.stores.sqlalchemy import Sqlalchemy

_BUSY_S = 30.0
_IDLE_MAX = 32
"""So many connections that single threads may use are kept, at most."""

_SERVER_OPTIONS = "-c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
"""A worker that was stopped in a transaction holds its key no longer than that."""

_numbers = itertools.count()


def adapt(raw: Any, clock: Clock) -> Connection | None:
    """Return a connection of a driver that the inbox knows in the form it uses; ``None`` for anything else."""
    if isinstance(raw, sqlite3.Connection):
        return Sqlite(raw, clock)
    modules = {kind.__module__.partition(".")[0] for kind in type(raw).__mro__}
    if "psycopg" in modules and hasattr(raw, "pipeline"):
        return Psycopg(raw, clock)
    if "sqlalchemy" in modules and hasattr(raw, "in_transaction"):
        return Sqlalchemy(raw, clock)
    if "redis" in modules and hasattr(raw, "evalsha"):
        return Redis(raw)
    return None


class Home:
    """The connections of one inbox. Safe to share between threads if it makes them itself."""

    def __init__(self, given: Any, clock: Clock) -> None:
        self.number = next(_numbers)
        """The number of this home in its process. Python gives the ``id()`` of a home that is gone to another one."""
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[tuple[int | None, Connection]] = []
        """Connections that nobody uses, each with the thread that alone may use it; ``None``: any."""
        self._closed = False
        self._checked = False
        self._users: list[tuple[int, int]] = []
        given = _opened(given)
        self._make, self._give_back = _source(given)
        self._is_function = self._make is given
        self._only = adapt(given, clock) if self._make is None else None
        if self._make is None and self._only is None:
            message = (
                "home: an inbox lives in a connection (sqlite3, psycopg, SQLAlchemy, redis), a function that makes "
                f"one, an engine, a pool or a URL, not in {type(given).__name__}"
            )
            raise InvalidArgument(message)
        self.several = self._make is not None or isinstance(self._only, Redis)
        """Whether there can be a second connection while one is in a transaction."""
        self.in_redis = isinstance(self._only, Redis)

    def take(self, raw: Any = None) -> Steps[Connection]:
        """Return a connection to work with: a given one, or one of the inbox's own."""
        if raw is not None:
            return self._adapted(raw)
        self._enter_only()
        connection = self._only or self._of_idle()
        if connection is None:
            assert self._make is not None
            connection = self._adapted((yield self._make()))
        if isinstance(connection, Redis) and not self._checked:
            yield from connection.check_kept()
            self._checked = True
        return connection

    def _enter_only(self) -> None:
        """Note who uses the only connection; raise ``InvalidArgument`` if that is another: the work of the two would
        be one transaction, and who ends it would end the other's.
        """
        if self.several:
            return
        me = _who()
        with self._lock:
            if self._users and self._users[-1] != me:
                message = (
                    "one connection cannot serve two effects at once: another thread or task is using it; give the "
                    "inbox a function that connects, an engine, a pool or a URL"
                )
                raise InvalidArgument(message)
            self._users.append(me)

    def _of_idle(self) -> Connection | None:
        """Return a connection that nobody uses and this thread may use, the last one that was given back."""
        me = threading.get_ident()
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] in {None, me}:
                    return self._idle.pop(at)[1]
            return None

    def _thread_of(self, connection: Connection) -> int | None:
        """Return the thread that alone may use a connection, this one: by default sqlite3 lets no other thread use what
        a user's function has made.
        """
        return threading.get_ident() if self._is_function and isinstance(connection.raw, sqlite3.Connection) else None

    def _adapted(self, raw: Any) -> Connection:
        adapted = adapt(raw, self._clock)
        if adapted is None:
            message = f"a connection of {type(raw).__module__} is none that an inbox can use"
            raise InvalidArgument(message)
        return adapted

    def in_transaction(self) -> bool:
        """Tell whether the only connection is in a transaction now."""
        return self._only is not None and self._only.busy()

    def give_back(self, connection: Connection, raw: Any = None) -> Steps[None]:
        """Take a connection back that was taken."""
        if raw is not None:
            return
        if connection is self._only:
            with self._lock:
                del self._users[-1:]
            return
        if self._give_back is not None:
            yield self._give_back(connection.raw)
            return
        if not connection.lost() and not connection.busy():
            with self._lock:
                if not self._closed:
                    thread = self._thread_of(connection)
                    # Connections of threads that ended are of no use: the oldest goes, and with it its file is closed.
                    del self._idle[: 0 if thread is None else max(0, len(self._idle) + 1 - _IDLE_MAX)]
                    self._idle.append((thread, connection))
                    return
        yield from connection.close()

    def close(self) -> Steps[None]:
        """Close the connections that the inbox has made. One of another thread is closed when Python forgets it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread, connection in idle:
            if thread in {None, threading.get_ident()}:
                yield from connection.close()


def _who() -> tuple[int, int]:
    """Return what tells this thread, and in it this task, from others."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        task = None
    return threading.get_ident(), id(task)


_Make = Callable[[], Any]
_GiveBack = Callable[[Any], Any]


def _source(given: Any) -> tuple[_Make | None, _GiveBack | None]:
    """Return what makes connections, and what takes them back if they are not the inbox's to keep."""
    if isinstance(given, str):
        return _from_url(given), None
    if hasattr(given, "getconn") and hasattr(given, "putconn"):  # a pool of psycopg
        return given.getconn, given.putconn
    if hasattr(given, "connect") and hasattr(given, "dialect") and not hasattr(given, "in_transaction"):  # an engine
        return given.connect, lambda connection: connection.close()
    if callable(given) and not isinstance(given, sqlite3.Connection):
        return given, None
    return None, None


def _from_url(url: str) -> _Make:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _SqliteFile(sqlite_path(url)).connect
    if parts.scheme in ("postgresql", "postgres"):
        return lambda: _psycopg_connect(url)
    message = f"home: an inbox's URL is sqlite:///path, postgresql://… or redis://…, not {url!r}"
    raise InvalidArgument(message)


def sqlite_path(url: str) -> str:
    """Return the file that a URL of SQLite names. SQLite takes an empty name for a file that it removes at the end, and
    ``:memory:`` for none: an inbox there would remember nothing.
    """
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or path in {"", ":memory:"}:
        message = (
            f"home: {url!r} names no file: write sqlite:///shop.db, or sqlite:////var/lib/shop.db; for one thread, in "
            "memory, give the inbox sqlite3.connect(':memory:')"
        )
        raise InvalidArgument(message)
    return path


class _SqliteFile:
    """A file of SQLite that the first connection makes. No later one does: if the file is gone by then, another one in
    its place would know no key, and every effect would happen again.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._was_there = False

    def connect(self) -> sqlite3.Connection:
        """Connect; ``Unavailable`` if the file was there and is not any more."""
        if self._was_there and not self._path.exists():
            message = f"the inbox's file {self._path} was moved or removed: put it back"
            raise Unavailable(message)
        try:
            if not self._was_there:
                self._path.touch()  # SQLite would make it later
            self._was_there = True
            name = f"{self._path.as_uri()}?mode=rw"
            return sqlite3.connect(name, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except (sqlite3.OperationalError, OSError) as error:
            reason = _no_file_here(self._path)
            if reason is None:  # no file handles left, say: that passes
                raise
            message = f"home: the inbox's database cannot be opened: {reason}"
            raise InvalidArgument(message) from error


def _no_file_here(path: Path) -> str | None:
    """Return why no file can be opened at a path, if that stays so; SQLite says only that it cannot."""
    if path.is_dir():
        return f"{path} is a folder: name a file in it"
    if not path.parent.is_dir():
        return f"{path.parent} is not a folder: make it, or name another file"
    if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK):
        return f"this user may not write {path}"
    return None


def _psycopg_connect(url: str) -> Any:
    try:
        import psycopg  # noqa: PLC0415
    except ImportError as error:
        message = "an inbox in PostgreSQL needs psycopg 3: pip install 'oncelog[postgres]'"
        raise Unsupported(message) from error
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        message = f"{url!r} is not a URL of PostgreSQL: {error}"
        raise InvalidArgument(message) from None  # the cause would show the password
    options = f"{_SERVER_OPTIONS} {parts.get('options') or ''}"  # the user's come later, and count
    return psycopg.connect(url, autocommit=True, options=options)


def _opened(given: Any) -> Any:
    """Return a client for a URL of Redis, which finds its connections itself; anything else as it is."""
    if not isinstance(given, str) or urlsplit(given).scheme not in ("redis", "rediss", "unix"):
        return given
    try:
        import redis  # noqa: PLC0415
    except ImportError as error:
        message = "an inbox in Redis needs redis: pip install 'oncelog[redis]'"
        raise Unsupported(message) from error
    return redis.Redis.from_url(given)
