"""What a worker asks of an inbox, and no user: the inner half of ``Inbox``."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import Future

from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.inbox.decisions import Identity
from oncelog.inbox.inbox import Inbox
from oncelog.inbox.steps import run_async


def final(inbox: Inbox) -> tuple[type[BaseException], ...]:
    """Return the errors of a handler after which the handler is not tried again."""
    return inbox._rules.final


def is_single(inbox: Inbox) -> bool:
    """Tell whether all effects share one connection, and so cannot run at the same time."""
    return not inbox._home.several


def check_usable(inbox: Inbox) -> None:
    """Raise for an inbox that can never be used from the threads of a worker: its file cannot be opened, it is damaged,
    it is closed, its connection is one thread's alone. What may pass is not raised here.
    """
    asked: Future[None] = Future()
    threading.Thread(target=_ping, args=(inbox, asked), daemon=True).start()  # Ctrl-C does not wait for a server
    error = asked.exception()
    if isinstance(error, OncelogError) and not isinstance(error, Unavailable):
        raise error
    if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
        message = (
            "the inbox's connection of sqlite3 is for the thread alone that made it, and handlers run in others: make "
            "it with check_same_thread=False, or give the inbox a URL"
        )
        raise InvalidArgument(message) from error


async def aping(inbox: Inbox) -> None:
    """Do as ``Inbox.ping`` does, where connections may be asynchronous."""
    inbox._check_usable()
    await run_async(inbox._ask(lambda connection: connection.look(Identity("", "", "", ""))))


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
