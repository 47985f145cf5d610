"""Where a broker keeps its state: the contract of a small SQL database, and the tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from oncelog.errors import Unavailable
from oncelog.handle import Handle

Row = tuple[Any, ...]

WAIT_S = 30.0
"""So long a transaction waits for those of others, unless its caller has less time."""

WAIT_S_MIN = 1.0
"""So long it waits at least: healthy neighbours are through by then."""


class StateBusy(Unavailable):
    """Another process, or another thread, is in a transaction and does not end it. Nothing was written."""


def patience_s(timeout_s: float) -> float:
    """Return how long a transaction of a call that may take ``timeout_s`` waits for others.

    >>> patience_s(0), patience_s(5), patience_s(1e9)
    (1.0, 5, 30.0)
    """
    return min(max(timeout_s, WAIT_S_MIN), WAIT_S)


@contextlib.contextmanager
def locked(lock: threading.RLock, wait_s: float) -> Iterator[None]:
    """Hold a connection's lock; ``StateBusy`` if another thread keeps it.

    One call in C takes the lock and notes it: Ctrl-C that is heeded between two calls would leave the lock taken.
    """
    held: list[bool] = []
    try:
        held.extend(map(lock.acquire, (True,), (wait_s,)))
        if not held[0]:
            message = f"another thread has used the queue's state for {wait_s:.1f} s: try again"
            raise StateBusy(message)
        yield
    finally:
        if held and held[0]:
            lock.release()


class Transaction(Protocol):
    """Statements that take effect together. ``?`` stands for a value."""

    def all(self, statement: str, *values: object) -> list[Row]:
        """Run a statement; return its rows."""
        ...

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each row of values."""
        ...

    def now_us(self) -> int:
        """Return wall time, by the clock that all who use the database have in common."""
        ...


class StateDatabase(Protocol):
    """A database that several processes may use at once. Safe to share between threads.

    ``durable=False``: what is written is seen by others at once and survives any process, and may be lost with the
    power; it is for what can be found out again. Failures are ``Unavailable``, ``CorruptionError`` and so on.
    """

    one_machine: bool
    """Whether all who use it have the same steady clock."""

    def writing(self, *, durable: bool = True, wait_s: float = WAIT_S) -> AbstractContextManager[Transaction]:
        """Begin a transaction that nobody else can be in; leaving commits it, an error takes all of it back.

        ``StateBusy`` if another keeps it for ``wait_s``: a process may be stopped in the midst of its transaction.
        """
        ...

    def reading(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """Begin to read."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class StatePair(Handle):
    """A state database in two parts: each commit to ``_state`` is durable, a commit to ``_gate`` need not be."""

    _what = "queue's state"
    _state: Any
    _gate: Any

    def writing(self, *, durable: bool = True, wait_s: float = WAIT_S) -> AbstractContextManager[Transaction]:
        """Begin a transaction in one of the parts."""
        self._check_usable()
        return (self._state if durable else self._gate).writing(wait_s)  # type: ignore[no-any-return]

    def reading(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """Begin to read one of the parts."""
        self._check_usable()
        return (self._state if durable else self._gate).reading()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close both parts."""
        if self._closes_now():
            self._state.close()
            self._gate.close()


LOCK = " /* lock */"
"""Stands behind a SELECT whose rows a writing transaction keeps to itself until it ends."""

STATE_TABLES = (
    """CREATE TABLE IF NOT EXISTS oncelog_queue (
        id /* identity */, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, settings TEXT NOT NULL,
        paused INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE IF NOT EXISTS oncelog_group (
        id /* identity */, queue BIGINT NOT NULL, name TEXT NOT NULL, ordered INTEGER NOT NULL,
        paused INTEGER NOT NULL DEFAULT 0, token BIGINT NOT NULL DEFAULT 0, queue_us BIGINT NOT NULL DEFAULT 0,
        wall_us BIGINT NOT NULL DEFAULT 0, steady_us BIGINT NOT NULL DEFAULT 0,
        delivered BIGINT NOT NULL DEFAULT 0, acked BIGINT NOT NULL DEFAULT 0, refused BIGINT NOT NULL DEFAULT 0,
        timed_out BIGINT NOT NULL DEFAULT 0, buried BIGINT NOT NULL DEFAULT 0, UNIQUE (queue, name))""",
    """CREATE TABLE IF NOT EXISTS oncelog_cursor (
        grp BIGINT NOT NULL, part INTEGER NOT NULL, next BIGINT NOT NULL, PRIMARY KEY (grp, part)) /* clustered */""",
    """CREATE TABLE IF NOT EXISTS oncelog_run (
        grp BIGINT NOT NULL, part INTEGER NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL,
        condition INTEGER NOT NULL, at_us BIGINT NOT NULL, attempts INTEGER NOT NULL, token BIGINT NOT NULL,
        last_error TEXT, key TEXT, policy TEXT, deadline_us BIGINT, PRIMARY KEY (grp, part, first)) /* clustered */""",
    "CREATE TABLE IF NOT EXISTS oncelog_generation (one INTEGER PRIMARY KEY CHECK (one = 1), token TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS oncelog_run_due ON oncelog_run (grp, condition, at_us)",
    "CREATE INDEX IF NOT EXISTS oncelog_run_token ON oncelog_run (grp, token) WHERE token > 0",
    "CREATE INDEX IF NOT EXISTS oncelog_run_key ON oncelog_run (grp, key, first) WHERE key IS NOT NULL",
)
GENERATION_BYTES = 16
NEW_GENERATION = "INSERT INTO oncelog_generation (one, token) VALUES (1, ?) ON CONFLICT (one) DO NOTHING"
"""Gives a state that was just made a random name. With it, the number of a row never comes again, also if the state is
lost and its rows are numbered from 1 again.
"""
GATE_TABLES = (
    """CREATE TABLE IF NOT EXISTS oncelog_gate (
        queue TEXT NOT NULL, identity TEXT NOT NULL, status TEXT NOT NULL, last_error TEXT, part INTEGER NOT NULL,
        position BIGINT, session TEXT NOT NULL, at_us BIGINT NOT NULL, unanswered INTEGER NOT NULL,
        PRIMARY KEY (queue, identity)) /* clustered */""",
    "CREATE INDEX IF NOT EXISTS oncelog_gate_age ON oncelog_gate (queue, at_us)",
    """CREATE TABLE IF NOT EXISTS oncelog_want (
        queue TEXT NOT NULL, part INTEGER NOT NULL, session TEXT NOT NULL, until_us BIGINT NOT NULL,
        PRIMARY KEY (queue, part, session))""",
)
"""The second group of tables need not survive the power: what they say can be found out again."""
