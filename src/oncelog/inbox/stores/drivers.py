"""The drivers through which users reach their databases: sqlite3, and psycopg 3, plain and asynchronous."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.inbox.steps import Steps
from oncelog.inbox.stores.sql import BoundStatement, Dialect, Rows, SqlConnection

_NAMED = re.compile(r"(?<!:):(\w+)")
_SAVEPOINT = "oncelog_inbox"
COMMITTED_INSIDE = "the transaction of this effect was ended inside of it: leave committing to the inbox"
FAILED_INSIDE = (
    "a statement of this effect failed and its error was caught: PostgreSQL takes all of the effect back then; let the "
    "error out, or have the statement in a savepoint"
)
FAILED_BEFORE = (
    "this connection is in a transaction in which a statement has failed: nothing more can be done in it; roll it back"
)
_NEVER_OUTSIDE = (
    "a connection of sqlite3 with autocommit=False is always in a transaction, and an effect would never be committed: "
    "make it with autocommit=True, or with isolation_level alone"
)
_IN_PIPELINE = (
    "this connection is in a pipeline: whether an effect was committed would be known only when that is left; enter "
    "the effect outside of it (a pipeline inside of the effect is fine)"
)
MOVED = "SQLITE_READONLY_DBMOVED"
"""The error by which SQLite says that the file which it has open is not at its path any more."""
IN_ERROR = 3
"""What libpq, and so every driver on it, says of a transaction that can only be taken back."""


class Sqlite(SqlConnection):
    """A connection of ``sqlite3``, in any of its modes."""

    dialect: Dialect = "sqlite"

    def __init__(self, raw: sqlite3.Connection, clock: Clock) -> None:
        super().__init__(clock)
        if getattr(raw, "autocommit", None) is False:  # since Python 3.12
            raise InvalidArgument(_NEVER_OUTSIDE)
        self.raw = raw
        self._joined: list[bool] = []
        self._moved = False

    def busy(self) -> bool:
        """Tell whether a transaction was begun."""
        return bool(self.raw.in_transaction)

    def begin_with(self, call: BoundStatement | None) -> Steps[Rows]:
        """Begin; for a call that writes with the lock for it, so that nobody can come in between."""
        joined = self.busy()
        writes = call is not None and not call.sql.startswith("SELECT")
        if not joined:
            self.raw.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        self._joined.append(joined)
        try:
            self.raw.execute(f"SAVEPOINT {_SAVEPOINT}")  # it is gone if the transaction is ended inside
            rows: Rows = [] if call is None else self._execute(call)
        except BaseException as error:
            self._moved = self._moved or getattr(error, "sqlite_errorname", "") == MOVED
            yield from self.rollback()
            raise
        return rows

    def commit_with(self, call: BoundStatement | None) -> Steps[bool]:
        """Commit, or leave that to the user whose transaction it is."""
        if not self.busy():
            self._joined.pop()
            raise InvalidArgument(COMMITTED_INSIDE)
        try:
            kept = call is None or bool(self._execute(call))
            self._end_part("RELEASE" if kept else "ROLLBACK TO")
            if kept and not self._joined[-1]:
                self.raw.execute("COMMIT")
        except BaseException:  # a commit that fails leaves the transaction there
            yield from self.rollback()
            raise
        if not kept:
            yield from self.rollback()
            return False
        self._joined.pop()
        return True

    def rollback(self) -> Steps[None]:
        """Take back what was begun."""
        joined = self._joined.pop()
        if self.busy() and not joined:
            self.raw.execute("ROLLBACK")
        elif self.busy():
            with contextlib.suppress(sqlite3.OperationalError):  # it was ended inside
                self.raw.execute(f"ROLLBACK TO {_SAVEPOINT}")
                self.raw.execute(f"RELEASE {_SAVEPOINT}")
        yield from ()

    def _end_part(self, how: str) -> None:
        """End the part of the transaction that is the effect's; raise if that is gone, and the key with it."""
        try:
            self.raw.execute(f"{how} {_SAVEPOINT}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise InvalidArgument(COMMITTED_INSIDE) from error

    def make(self, call: BoundStatement) -> Steps[Rows]:
        """Make a call."""
        yield from ()
        return self._execute(call)

    def _execute(self, call: BoundStatement) -> Rows:
        cursor = self.raw.cursor()
        cursor.row_factory = None  # rows are tuples, whatever the user likes better
        rows: Rows = cursor.execute(call.sql, dict(call.values)).fetchall()
        return rows

    def lost(self) -> bool:
        """Tell whether its file was moved, removed or replaced: nothing can be stored there any more."""
        return self._moved

    def close(self) -> Steps[None]:
        """Close the file."""
        yield from ()
        self.raw.close()

    def lacks_tables(self, error: BaseException) -> bool:
        """Tell whether the tables are not there."""
        return isinstance(error, sqlite3.OperationalError) and "no such table: oncelog_" in str(error)


@lru_cache(maxsize=64)
def _for_psycopg(sql: str) -> bytes:
    return _NAMED.sub(r"%(\1)s", sql).encode()


class Psycopg(SqlConnection):
    """A connection of psycopg 3. What the inbox asks goes in one round trip with BEGIN and COMMIT."""

    dialect: Dialect = "postgresql"

    def __init__(self, raw: Any, clock: Clock) -> None:
        import psycopg  # noqa: PLC0415  (the package is installed where this is called)

        super().__init__(clock)
        self.raw = raw
        self._errors = psycopg.errors
        self._rows = psycopg.rows.tuple_row
        self._asynchronous = isinstance(raw, psycopg.AsyncConnection)
        # Not connection.transaction(), which in a pipeline opens pipelines of its own.
        self._cursor_class: Any = psycopg.AsyncCursor if self._asynchronous else psycopg.Cursor
        self._transaction: Any = psycopg.AsyncTransaction if self._asynchronous else psycopg.Transaction
        self._pipelines = psycopg.Pipeline.is_supported()
        self._idle = psycopg.pq.TransactionStatus.IDLE
        self._begun: list[tuple[Any, bool]] = []

    def busy(self) -> bool:
        """Tell whether a transaction was begun."""
        return bool(self.raw.info.transaction_status != self._idle)

    def _cursor(self) -> Any:
        """Return a cursor that takes values by name and gives tuples, whatever the user likes better."""
        return self._cursor_class(self.raw, row_factory=self._rows)

    def _enter(self, context: Any) -> Any:
        return context.__aenter__() if self._asynchronous else context.__enter__()

    def _exit(self, context: Any, error: BaseException | None = None) -> Any:
        raised = (type(error) if error is not None else None, error, None)
        return context.__aexit__(*raised) if self._asynchronous else context.__exit__(*raised)

    def begin_with(self, call: BoundStatement | None) -> Steps[Rows]:
        """Send BEGIN and the call together."""
        if self.raw.info.transaction_status == IN_ERROR:
            raise InvalidArgument(FAILED_BEFORE)
        if self.raw.pgconn.pipeline_status:
            raise InvalidArgument(_IN_PIPELINE)
        transaction, joined = self._transaction(self.raw), self.busy()
        if call is None or not self._pipelines:
            yield self._enter(transaction)
            self._begun.append((transaction, joined))
            return (yield from self._make_or_rollback(call)) if call is not None else []
        cursor = self._cursor()
        pipeline = self.raw.pipeline()
        yield self._enter(pipeline)
        failed: BaseException | None = None
        try:
            yield self._enter(transaction)
            self._begun.append((transaction, joined))
            yield cursor.execute(_for_psycopg(call.sql), call.values)  # a long one may fail here already
        except BaseException as error:  # noqa: BLE001  it is raised when all is taken back
            failed = error
        left = yield from self._leave(pipeline)
        failed = failed or left
        if failed is not None:
            if self._begun and self._begun[-1][0] is transaction:
                yield from self.rollback()
            raise failed
        return list((yield cursor.fetchall())) if cursor.description is not None else []

    def _leave(self, pipeline: Any) -> Steps[BaseException | None]:
        """Leave a pipeline: what went wrong in it shows here. Return that, and not that the rest was left out."""
        try:
            yield self._exit(pipeline)
        except BaseException as error:  # noqa: BLE001  also a cancellation: what was begun is taken back first
            first: BaseException = error
            while isinstance(first, self._errors.PipelineAborted) and first.__context__ is not None:
                first = first.__context__
            return first
        return None

    def _make_or_rollback(self, call: BoundStatement) -> Steps[Rows]:
        try:
            return (yield from self.make(call))
        except BaseException:
            yield from self.rollback()
            raise

    def commit_with(self, call: BoundStatement | None) -> Steps[bool]:
        """Send the call and COMMIT together. A call that gives no row fails, and COMMIT is not done then."""
        transaction, joined = self._begun[-1]
        if not self.busy():
            self._begun.pop()
            raise InvalidArgument(COMMITTED_INSIDE)
        if self.raw.info.transaction_status == IN_ERROR:
            yield from self.rollback()
            raise InvalidArgument(FAILED_INSIDE)
        if call is None:
            self._begun.pop()
            yield self._exit(transaction)
            return True
        if joined or not self._pipelines:
            rows = yield from self._make_or_rollback(call)
            if not rows:
                yield from self.rollback()
                return False
            self._begun.pop()
            yield self._exit(transaction)
            return True
        self._begun.pop()
        return (yield from self.commit_together(call, lambda: self._exit(transaction)))

    def commit_together(self, call: BoundStatement, commit: Callable[[], Any]) -> Steps[bool]:
        """Send a call and what commits in one round trip; the call must give back a row, else all is taken back."""
        guarded = f"WITH changed AS ({call.sql}) SELECT 1 / count(*) FROM changed"  # noqa: S608
        pipeline = self.raw.pipeline()
        yield self._enter(pipeline)
        failed: BaseException | None = None
        try:
            yield self._cursor().execute(_for_psycopg(guarded), call.values)
            yield commit()
        except BaseException as error:  # noqa: BLE001  as above
            failed = error
        left = yield from self._leave(pipeline)
        failed = failed or left
        if failed is None:
            return True
        if not self.lost():
            yield self.raw.rollback()
        if isinstance(failed, self._errors.DivisionByZero):
            return False
        raise failed

    def rollback(self) -> Steps[None]:
        """Take back what was begun."""
        import psycopg  # noqa: PLC0415

        transaction, _ = self._begun.pop()
        error = psycopg.Rollback(transaction)
        try:
            yield self._exit(transaction, error)
        except self._errors.OperationalError:
            if not self.lost():
                raise

    def make(self, call: BoundStatement) -> Steps[Rows]:
        """Make a call."""
        cursor = self._cursor()
        yield cursor.execute(_for_psycopg(call.sql), call.values)
        return list((yield cursor.fetchall())) if cursor.description is not None else []

    def lost(self) -> bool:
        """Tell whether the connection is gone."""
        return bool(self.raw.closed)

    def close(self) -> Steps[None]:
        """Close the connection."""
        yield self.raw.close()

    def lacks_tables(self, error: BaseException) -> bool:
        """Tell whether the tables are not there."""
        return isinstance(error, self._errors.UndefinedTable) and "oncelog_" in str(error)
