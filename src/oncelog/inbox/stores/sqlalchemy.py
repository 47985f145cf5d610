"""SQLAlchemy, plain and asynchronous, connections and sessions, on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.inbox.steps import Steps
from oncelog.inbox.stores.drivers import COMMITTED_INSIDE, FAILED_BEFORE, FAILED_INSIDE, IN_ERROR, Psycopg
from oncelog.inbox.stores.sql import BoundStatement, Rows, SqlConnection

_AUTOCOMMIT = (
    "this connection of SQLAlchemy has the isolation level AUTOCOMMIT: effect and key would not be one transaction; "
    "use another level"
)
_FLUSHES_MAX = 100
"""How often SQLAlchemy itself flushes a session before it commits, while what it flushes leaves more to flush."""


def _is_psycopg(driver: Any) -> bool:
    return type(driver).__module__.startswith("psycopg") and hasattr(driver, "pipeline")


class Sqlalchemy(SqlConnection):
    """A connection or a session of SQLAlchemy, plain or asynchronous, to SQLite or PostgreSQL."""

    def __init__(self, raw: Any, clock: Clock) -> None:
        import sqlalchemy  # noqa: PLC0415  (the package is installed where this is called)

        super().__init__(clock)
        self.raw = raw
        self._text: Callable[[str], Any] = lru_cache(maxsize=64)(sqlalchemy.text)
        self._error = sqlalchemy.exc.DBAPIError
        self._ended = sqlalchemy.exc.InvalidRequestError
        self._is_session = hasattr(raw, "get_bind")
        self._two_phases = sqlalchemy.TwoPhaseTransaction
        name = (raw.get_bind() if self._is_session else raw).dialect.name
        if name not in ("sqlite", "postgresql"):
            message = f"an inbox is kept in SQLite, PostgreSQL or Redis, not in {name}"
            raise Unsupported(message)
        self.dialect = name
        self._begun: list[tuple[Any, bool]] = []
        self._gone = False

    def busy(self) -> bool:
        """Tell whether a transaction was begun."""
        return bool(self.raw.in_transaction())

    def begin_with(self, call: BoundStatement | None) -> Steps[Rows]:
        """Begin; SQLAlchemy itself sends BEGIN with the first statement."""
        joined = self.busy()
        if joined:
            yield from self._check_not_failed(FAILED_BEFORE)
            yield from self._begin_in_sqlite("BEGIN")
        transaction = yield (self.raw.begin_nested() if joined else self.raw.begin())
        self._begun.append((transaction, joined))
        try:
            if not joined:
                yield from self._begin_in_sqlite("BEGIN" if call is None else "BEGIN IMMEDIATE")
            yield from self._check_has_transactions()
            return [] if call is None else (yield from self.make(call))
        except BaseException:
            yield from self.rollback()
            raise

    def _begin_in_sqlite(self, words: str) -> Steps[None]:
        """Have a transaction in SQLite where SQLAlchemy has one: sqlite3 begins it too late, and a savepoint that is
        alone would be committed when it is released.
        """
        driver = yield from self._driver()
        if isinstance(driver, sqlite3.Connection) and not driver.in_transaction:
            driver.execute(words)

    def _driver(self) -> Steps[Any]:
        """Return the driver's own connection."""
        return (yield from self._plain()).connection.driver_connection

    def _plain(self) -> Steps[Any]:
        """Return the plain connection of SQLAlchemy that is below."""
        connection = (yield self.raw.connection()) if self._is_session else self.raw
        return getattr(connection, "sync_connection", connection)

    def commit_with(self, call: BoundStatement | None) -> Steps[bool]:
        """Commit, or leave that to the user whose transaction it is."""
        if not self._begun[-1][0].is_active:
            yield from self.rollback()
            raise InvalidArgument(COMMITTED_INSIDE)
        try:
            yield from self._check_not_failed()
            together = call is not None and (yield from self._together())
            kept = together or call is None or bool((yield from self.make(call)))
        except BaseException:
            yield from self.rollback()
            raise
        if not kept:
            yield from self.rollback()
            return False
        if together:
            assert call is not None
            return (yield from self._commit_together(call))
        yield from self._commit()
        return True

    def _together(self) -> Steps[bool]:
        """Tell whether the driver can send a call and COMMIT in one round trip, and nothing of SQLAlchemy's, or of the
        user's, is to happen in between.
        """
        driver = yield from self._driver()
        if self._begun[-1][1] or not _is_psycopg(driver):
            return False
        connection = yield from self._plain()
        if connection.dispatch.commit or isinstance(connection.get_transaction(), self._two_phases):
            return False
        session = getattr(self.raw, "sync_session", self.raw) if self._is_session else None
        if session is None:
            return True
        if session.dispatch.before_commit:
            return False
        for _ in range(_FLUSHES_MAX):
            if not (session.new or session.dirty or session.deleted):
                return True
            yield self.raw.flush()
        return False

    def _commit_together(self, call: BoundStatement) -> Steps[bool]:
        """Commit through the driver: when SQLAlchemy comes to it, there is nothing left to send."""
        driver = yield from self._driver()
        below = Psycopg(driver, self._clock)
        try:
            kept = yield from below.commit_together(call, lambda: driver.cursor().execute("COMMIT"))
        except BaseException as error:
            self._gone = self._gone or below.lost()
            with contextlib.suppress(self._error):  # it may be gone
                yield from self.rollback()
            raise self._as_alchemys(error) from error
        if not kept:
            yield from self.rollback()
            return False
        yield from self._commit()
        return True

    def _as_alchemys(self, error: BaseException) -> BaseException:
        """Return a driver's error as those who use SQLAlchemy know it."""
        import psycopg  # noqa: PLC0415

        if not isinstance(error, psycopg.Error):
            return error
        return self._error.instance("COMMIT", None, error, psycopg.Error, connection_invalidated=self._gone)

    def _check_has_transactions(self) -> Steps[None]:
        """Raise if each statement would be committed by itself, whatever SQLAlchemy says of transactions."""
        driver = yield from self._driver()
        if _is_psycopg(driver) and driver.autocommit:
            raise InvalidArgument(_AUTOCOMMIT)

    def _check_not_failed(self, message: str = FAILED_INSIDE) -> Steps[None]:
        """Raise if PostgreSQL would answer a commit by taking all back."""
        if self.dialect != "postgresql":
            return
        driver = yield from self._driver()
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        if status is None:  # this driver does not tell; the server does
            yield from self.make(BoundStatement("SELECT 1", {}))
        elif status == IN_ERROR:
            raise InvalidArgument(message)

    def _commit(self) -> Steps[None]:
        driver = yield from self._driver()
        transaction, joined = self._begun.pop()
        try:
            yield transaction.commit()
        except BaseException:
            if not joined:
                yield self.raw.rollback()
                if isinstance(driver, sqlite3.Connection):
                    driver.rollback()  # SQLAlchemy takes the transaction for ended, and SQLite still has it
            raise

    def rollback(self) -> Steps[None]:
        """Take back what was begun."""
        transaction, joined = self._begun.pop()
        if transaction.is_active:
            yield transaction.rollback()
        elif self._is_session:
            with contextlib.suppress(self._ended):  # one whose flush failed waits for this, one that ended does not
                yield transaction.rollback()
        if not joined and self.busy():  # it was ended inside, and SQLAlchemy has begun another by itself since
            yield self.raw.rollback()

    def make(self, call: BoundStatement) -> Steps[Rows]:
        """Make a call."""
        try:
            result = yield self.raw.execute(self._text(call.sql), dict(call.values))
        except self._error as error:
            self._gone = self._gone or error.connection_invalidated
            raise
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def lost(self) -> bool:
        """Tell whether the connection is gone."""
        return self._gone or bool(getattr(self.raw, "invalidated", False) or getattr(self.raw, "closed", False))

    def close(self) -> Steps[None]:
        """Give the connection back to its pool."""
        yield self.raw.close()

    def lacks_tables(self, error: BaseException) -> bool:
        """Tell whether the tables are not there."""
        words = str(getattr(error, "orig", ""))
        return "oncelog_" in words and ("no such table" in words or "does not exist" in words)
