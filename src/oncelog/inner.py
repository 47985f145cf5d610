"""What servers and the command line ask of a database, and no user: the inner half of ``Database``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from oncelog.connect import Database
from oncelog.log.log import Lender
from oncelog.queue.queue import Queue
from oncelog.storage.base import LogHome


def home(database: Database, key: str) -> LogHome:
    """Return a home beside those of the logs, in which servers keep what they share. No key of a log begins with
    ``~``.
    """
    return database._home_beside(key)


def lend_writers(
    database: Database, lender: Lender, without: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    """Have streams and queues of a database borrow the writers of their logs, and open none of their own.

    ``without`` is entered with the name of a log while it is deleted: nobody may have its writer then.
    """
    database._lend_writers(lender, without)


def dead_count(queue: Queue) -> int:
    """Return how many dead letters a queue has, and read none of them."""
    return queue.dead_letters._count()


def listed(database: Database) -> list[str]:
    """Return the names of the logs, sorted, as one listing shows them. No log is looked into: a name may be among them
    whose log was never finished. With 100,000 logs this is the quick way; ``logs`` is the exact one.
    """
    return database._listed()
