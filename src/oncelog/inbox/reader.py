"""Readers that store their position with what they made of it: in one transaction, so that neither is ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from oncelog import arguments
from oncelog.errors import InvalidArgument, LeaseLost, NotFound, Unsupported
from oncelog.inbox import decisions as states
from oncelog.inbox.contract import Connection
from oncelog.inbox.effect import encoded, explained
from oncelog.inbox.steps import Steps, run, run_async
from oncelog.inbox.stores.connections import Home
from oncelog.inbox.stores.sql import SqlConnection
from oncelog.log.log import Log
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
    """What ``PositionReader.step`` returns: enter it with ``with``, or ``async with`` where connections are so."""

    def __init__(self, home: Home, name: str, read: Callable[[int], Sequence[Entry]], start: int) -> None:
        self._home = home
        self._name = name
        self._read = read
        self._start = start
        self._connection: SqlConnection
        self._step: Step

    def __enter__(self) -> Step:
        return run(self._entered())

    async def __aenter__(self) -> Step:
        return await run_async(self._entered())

    def _entered(self) -> Steps[Step]:
        self._connection = yield from _taken(self._home)
        try:
            with explained(self._connection):
                yield from self._begin()
        except BaseException:
            yield from self._home.give_back(self._connection)
            raise
        return self._step

    def _begin(self) -> Steps[None]:
        """Begin where the last step ended. It waits for another thread that does the same."""
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_async(self._left(error))

    def _left(self, error: BaseException | None) -> Steps[None]:
        connection, step = self._connection, self._step
        try:
            with explained(connection, "unknown"):
                if error is not None or not step.entries:
                    yield from connection.rollback()
                    return
                state = yield from self._encoded(step.state)
                if not (yield from connection.advance(self._name, step.position, step.next_position, state)):
                    message = f"the reader is not at {step.position} any more: another has gone on from there"
                    raise LeaseLost(message)
        finally:
            yield from self._home.give_back(connection)

    def _encoded(self, state: object) -> Steps[bytes | None]:
        try:
            return encoded(state, Any)[0]
        except InvalidArgument:
            yield from self._connection.rollback()
            raise


def _taken(home: Home) -> Steps[SqlConnection]:
    with explained(None):
        connection = yield from home.take()
    if not isinstance(connection, SqlConnection):
        yield from home.give_back(connection)
        message = "a position is stored in a transaction, and there is none here: use SQLite or PostgreSQL"
        raise Unsupported(message)
    return connection


class PositionReader:
    """Reads a log step by step, each from where the last that was committed ended. Made by ``Inbox.reader``.

    Several may run under one name: each step is one's alone. The name is the log's own: readers of two logs, or of one
    that was deleted and of its successor, do not meet.
    """

    def __init__(self, home: Home, log: Log, name: str, start: int) -> None:
        self._home = home
        self._log = log
        self._name = name
        self._stored_as = f"{log.log_id}/{name}"
        self._start = start

    def step(self, limit: int = 1000) -> Reading:
        """Return the next entries (none: there are none now) to be used in a ``with``. What is done there on
        ``step.connection``, the state and the new position are committed together, or, after an error, not at all. A
        step without entries changes nothing: what is done in it, and its state, are taken back.

        Entering raises ``NotFound`` when entries that were not read are truncated away: see ``move``.
        """
        if arguments.count("limit", limit) < 1:
            message = f"limit is {limit}, must be at least 1"
            raise InvalidArgument(message)
        return Reading(self._home, self._stored_as, lambda position: self._entries(position, limit), self._start)

    def move(self, to: int) -> None:
        """Go on from a position: what lies before it is left out, or what lies behind it comes again. State stays."""
        run(self._moved(arguments.count("to", to)))

    async def amove(self, to: int) -> None:
        """Do as ``move`` does, where connections are asynchronous."""
        await run_async(self._moved(arguments.count("to", to)))

    def _moved(self, to: int) -> Steps[None]:
        connection = yield from _taken(self._home)
        try:
            with explained(connection):
                position, state = yield from connection.position(self._stored_as, self._start)
                yield from connection.advance(self._stored_as, position, to, state)
        finally:
            yield from self._home.give_back(connection)

    def _entries(self, position: int, limit: int) -> list[Entry]:
        try:
            with self._log.read(start=position) as entries:
                return list(itertools.islice(entries, limit))
        except NotFound as error:
            error.add_note(f"reader {self._name!r} stands at {position}: say where it is to go on by its move(…)")
            raise
