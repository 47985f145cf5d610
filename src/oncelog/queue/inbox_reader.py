"""Readers that store their position with what they made of it: in one transaction, so that neither is ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from oncelog.errors import LeaseLost, Unsupported
from oncelog.log.log import Log
from oncelog.queue import inbox_states as states
from oncelog.queue.inbox_effect import explained
from oncelog.queue.inbox_homes import Home
from oncelog.queue.inbox_sql import SqlConnection
from oncelog.queue.inbox_steps import Steps, run
from oncelog.queue.inbox_store import Connection
from oncelog.types import Entry


class Step:
    """Some entries, and a transaction in which to use them. Set ``state`` to what the next step is to find there."""

    def __init__(self, entries: Sequence[Entry], position: int, state: Any, connection: Connection) -> None:
        self.entries = entries
        self.position = position
        """Where it begins."""
        self.state = state
        """What the step before has left; ``None`` in the first."""
        self.connection: Any = connection.raw

    @property
    def next_position(self) -> int:
        """Where the next step begins."""
        return self.entries[-1].position + 1 if self.entries else self.position


class Reading:
    """What ``PositionReader.step`` returns: enter it with ``with``."""

    def __init__(self, home: Home, name: str, read: Callable[[int], Sequence[Entry]], start: int) -> None:
        self._home = home
        self._name = name
        self._read = read
        self._start = start
        self._connection: SqlConnection
        self._step: Step

    def __enter__(self) -> Step:
        return run(self._entered())

    def _entered(self) -> Steps[Step]:
        with explained(None):
            connection = yield from self._home.take()
        if not isinstance(connection, SqlConnection):
            yield from self._home.give_back(connection)
            message = "a position is stored in a transaction, and there is none here: use SQLite or PostgreSQL"
            raise Unsupported(message)
        self._connection = connection
        try:
            with explained(connection):
                yield from self._begin()
        except BaseException:
            yield from self._home.give_back(connection)
            raise
        return self._step

    def _begin(self) -> Steps[None]:
        """Begin where the last step ended. Whoever else is at it is waited for."""
        position, state = yield from self._connection.position(self._name, self._start)
        try:
            entries = self._read(position)
        except BaseException:
            yield from self._connection.rollback()
            raise
        self._step = Step(entries, position, states.decode_result(state), self._connection)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._left(error))

    def _left(self, error: BaseException | None) -> Steps[None]:
        connection, step = self._connection, self._step
        try:
            with explained(connection, "unknown"):
                if error is not None or not step.entries:
                    yield from connection.rollback()
                    return
                state = states.encode_result(step.state)
                if not (yield from connection.advance(self._name, step.position, step.next_position, state)):
                    message = (
                        f"reader {self._name!r} is not at {step.position} any more: another has gone on from there"
                    )
                    raise LeaseLost(message)
        finally:
            yield from self._home.give_back(connection)


class PositionReader:
    """Reads a log step by step, each from where the last that was committed ended. Made by ``Inbox.reader``.

    Several may run under one name: each step is one's alone.
    """

    def __init__(self, home: Home, log: Log, name: str, start: int) -> None:
        self._home = home
        self._log = log
        self._name = name
        self._start = start

    def step(self, limit: int = 1000) -> Reading:
        """Return the next entries (none: there are none now) to be used in a ``with``. What is done there on
        ``step.connection``, the state and the new position are committed together, or, after an error, not at all.
        """
        return Reading(self._home, self._name, lambda position: self._entries(position, limit), self._start)

    def _entries(self, position: int, limit: int) -> list[Entry]:
        with self._log.read(start=position) as entries:
            return list(itertools.islice(entries, limit))
