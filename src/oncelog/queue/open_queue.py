"""Queues by their names: opened as they are stored, or made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from oncelog import names
from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.limits import QUEUE_PARTITIONS_MAX
from oncelog.log.log import Log
from oncelog.queue.queue import OpenSibling, Queue
from oncelog.queue.rules import settings
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.topic import DEAD_LETTERS, OpenLog, Topic, log_name
from oncelog.queue.state import statements
from oncelog.queue.state.database import StateDatabase
from oncelog.settings import keeping_window

LogsThere = Callable[[], Sequence[str]]
"""Gives the names of all logs there are."""


def open_queue(
    name: str,
    database: StateDatabase | None,
    clock: Clock,
    open_log: OpenLog,
    sibling: OpenSibling,
    *,
    logs_there: LogsThere,
    given: QueueSettings | None,
    partitions: int | None,
    create: bool,
    adopt: bool,
) -> Queue:
    """Open a queue that exists, or create it when asked; ``NotFound``, or ``InvalidArgument`` naming what differs.

    Without a ``database`` no queue has a state yet: none is there.
    """
    names.check(name, "queue")
    longest = name if name.startswith(DEAD_LETTERS) else DEAD_LETTERS + name
    names.check(log_name(longest, QUEUE_PARTITIONS_MAX))
    wanted = settings.check(given) if given is not None else None
    if partitions is not None:
        settings.check_partitions(partitions)
    if database is None:
        raise NotFound(_absent(name, len(_logs_from_first(name, open_log))))
    with database.reading() as transaction:
        row = statements.queue(transaction, name)
    if row is None:
        row = _made(name, database, open_log, wanted, partitions, logs_there=logs_there, create=create, adopt=adopt)
    if row.deleting:
        error = f"queue {name!r} is being deleted, or that was cut short: delete it again"
        raise NotFound(error)
    if row.damage is not None:
        row = _repaired(name, row, database, wanted if create else None)
    _check_same(name, row, wanted, partitions)
    with database.reading() as transaction:  # before the logs, which only grow
        reached = statements.reached(transaction, row.id)
    logs = [_log(log_name(name, part), row, open_log, reached.get(part, 0)) for part in range(row.partitions)]
    return Queue(Topic(name, logs), row, database, clock, sibling)


def _repaired(
    name: str, row: statements.QueueRow, database: StateDatabase, wanted: QueueSettings | None
) -> statements.QueueRow:
    """Store settings in the place of some that cannot be read, if they are given and it may be made."""
    if wanted is None:
        error = (
            f"queue {name!r}: its settings cannot be read ({row.damage}): open it with settings and create=True to "
            "store those, or delete it"
        )
        raise CorruptionError(error)
    with database.writing() as transaction:
        statements.configure(transaction, row.id, wanted)
    return row._replace(settings=wanted, damage=None)


def _log(name: str, row: statements.QueueRow, open_log: OpenLog, reached: int) -> Log:
    """Open a partition's log as it is stored: its settings may have been changed there. ``CorruptionError`` if a group
    is ahead of the log's end: the group would skip new messages up to its position.
    """
    try:
        log = open_log(name, None, False)
    except NotFound:
        if reached:
            raise _behind(name, 0, reached) from None
        return open_log(name, row.settings.log, True)
    end = log.info().last_position + 1
    if reached > end:
        raise _behind(name, end, reached)
    return log


def _behind(name: str, end: int, reached: int) -> CorruptionError:
    return CorruptionError(
        f"log {name!r} ends at {end}, and a group of its queue was at {reached} already: messages are lost, or the log "
        "was restored without its queue's state; restore both, or delete the queue"
    )


def _made(
    name: str,
    database: StateDatabase,
    open_log: OpenLog,
    wanted: QueueSettings | None,
    partitions: int | None,
    *,
    logs_there: LogsThere,
    create: bool,
    adopt: bool,
) -> statements.QueueRow:
    """Make a queue, or say why not. Logs of that name are adopted only when asked to: another state may know them."""
    found = _logs_from_first(name, open_log)
    with database.reading() as transaction:
        row = statements.queue(transaction, name)
    if row is not None:  # another made it meanwhile, and may have sent already
        return row
    if not (adopt if found else create):
        error = _absent(name, len(found))
        raise InvalidArgument(error) if create else NotFound(error)
    if adopt and not name.startswith(DEAD_LETTERS):
        _check_none_missing(name, len(found), logs_there())
    if found and partitions not in (None, len(found)):
        error = f"queue {name!r} has {len(found)} partitions, not {partitions}: their number is fixed when it is made"
        raise InvalidArgument(error)
    count = len(found) or partitions or 1
    with database.writing() as transaction:
        statements.add_queue(transaction, name, count, wanted or QueueSettings())
        row = statements.queue(transaction, name)
    assert row is not None
    return row


def _absent(name: str, logs: int) -> str:
    """Return why a queue that its state does not know is not opened. Its logs may be there."""
    if not logs:
        return f"there is no queue {name!r}: create=True makes it"
    return (
        f"queue {name!r}: its {logs} logs are there, but not what became of their messages: name "
        "the state that its brokers share; if that is lost, create it with adopt: all messages are delivered again"
    )


def _logs_from_first(name: str, open_log: OpenLog) -> list[Log]:
    """Return the logs of a queue's partitions, up to the first that is not there."""
    found: list[Log] = []
    for part in count():
        try:
            found.append(open_log(log_name(name, part), None, False))
        except NotFound:
            return found
    raise AssertionError


def _check_none_missing(name: str, count: int, logs: Sequence[str]) -> None:
    """Raise if there are logs behind the first that is missing: keys would go to other partitions than before."""
    stem = log_name(name, 0).removesuffix("0")
    later = [one for one in logs if one.startswith(stem) and one.removeprefix(stem).isdecimal()]
    if len(later) > count:
        error = (
            f"queue {name!r}: log {log_name(name, count)!r} is missing, and later partitions are there: restore it, or "
            "create it empty if its messages are lost"
        )
        raise InvalidArgument(error)


def _check_same(name: str, row: statements.QueueRow, wanted: QueueSettings | None, partitions: int | None) -> None:
    if partitions is not None and partitions != row.partitions:
        error = (
            f"queue {name!r} has {row.partitions} partitions, not {partitions}: their number is fixed when it is made"
        )
        raise InvalidArgument(error)
    if wanted is not None:
        wanted = msgspec.structs.replace(wanted, log=keeping_window(row.settings.log, wanted.log))
    if wanted is not None and wanted != row.settings:
        before, after = msgspec.to_builtins(row.settings), msgspec.to_builtins(wanted)
        different = [
            f"{part}: stored {before[part]}, given {after[part]}" for part in before if before[part] != after[part]
        ]
        error = f"queue {name!r} has other settings ({'; '.join(different)}): open it without, or configure() it"
        raise InvalidArgument(error)
