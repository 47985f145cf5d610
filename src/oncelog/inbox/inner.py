"""What a worker asks of an inbox, and no user: the inner half of ``Inbox``."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future

from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.inbox.contract import Connection, KeyClaim
from oncelog.inbox.decisions import Identity
from oncelog.inbox.inbox import Inbox
from oncelog.inbox.steps import Steps, run_async
from oncelog.inbox.stores.redis import Redis

SLOW_S = 5.0
"""After so long without an answer of its database, a worker that begins says that it waits."""


def final(inbox: Inbox) -> tuple[type[BaseException], ...]:
    """Return the errors of a handler after which the handler is not tried again."""
    return inbox._rules.final


def is_single(inbox: Inbox) -> bool:
    """Tell whether all effects share one connection, and so cannot run at the same time."""
    return not inbox._home.several


def check_usable(inbox: Inbox, slow: Callable[[], None]) -> None:
    """Raise for an inbox that can never be used from the threads of a worker: its file cannot be opened, it is damaged,
    it is closed, its connection is one thread's alone. What may pass is not raised here.

    ``slow`` is called when the database has not answered for a while; it is waited for nevertheless.
    """
    asked: Future[None] = Future()
    threading.Thread(target=_ping, args=(inbox, asked), daemon=True).start()  # Ctrl-C does not wait for a server
    try:
        error = asked.exception(SLOW_S)
    except TimeoutError:
        slow()
        error = asked.exception()
    if isinstance(error, OncelogError) and not isinstance(error, Unavailable):
        raise error
    if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
        message = (
            "the inbox's connection of sqlite3 is for the thread alone that made it, and handlers run in others: make "
            "it with check_same_thread=False, or give the inbox a URL"
        )
        raise InvalidArgument(message) from error


def probe(inbox: Inbox) -> None:
    """Raise what keeps the inbox from taking any key: it is away, or may only be read. Nothing is stored."""
    inbox._asked(lambda connection: _tried(inbox, connection))


async def aprobe(inbox: Inbox) -> None:
    """Do as ``probe`` does, where connections may be asynchronous."""
    inbox._check_usable()
    await run_async(inbox._ask(lambda connection: _tried(inbox, connection)))


def _tried(inbox: Inbox, connection: Connection) -> Steps[None]:
    claim = KeyClaim(Identity("", "", "", ""), inbox._nonce(), inbox._owner, None, None, None)
    if isinstance(connection, Redis):  # nothing can be taken back there: a script that finds no such key
        yield from connection.renew(claim._replace(lease_us=1))
        return
    yield from connection.claim(claim)
    yield from connection.rollback()


def _ping(inbox: Inbox, asked: Future[None]) -> None:
    try:
        inbox.ping()
    except BaseException as error:  # noqa: BLE001  the future has it
        asked.set_exception(error)
    else:
        asked.set_result(None)


def in_transaction(inbox: Inbox) -> bool:
    """Tell whether the connection that the inbox was given is in a transaction, which effects would join."""
    return inbox._home.in_transaction()
