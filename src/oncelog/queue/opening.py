"""Queues by their names: opened as they are stored, or made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, NotFound
from oncelog.limits import QUEUE_PARTITIONS_MAX
from oncelog.log import names
from oncelog.log.log import Log
from oncelog.queue import settings, state
from oncelog.queue.database import StateDatabase
from oncelog.queue.queue import Queue
from oncelog.queue.settings import QueueSettings
from oncelog.queue.topic import DEAD_LETTERS, OpenLog, Topic, log_name


def open_queue(
    name: str,
    database: StateDatabase,
    clock: Clock,
    open_log: OpenLog,
    sibling: Callable[[str], Queue],
    *,
    given: QueueSettings | None,
    partitions: int | None,
    create: bool,
    adopt: bool,
) -> Queue:
    """Open a queue that exists, or create it when asked; ``NotFound``, or ``InvalidArgument`` naming what differs."""
    names.check(name, "queue")
    longest = name if name.startswith(DEAD_LETTERS) else DEAD_LETTERS + name
    names.check(log_name(longest, QUEUE_PARTITIONS_MAX))
    wanted = settings.check(given) if given is not None else None
    if partitions is not None:
        settings.check_partitions(partitions)
    with database.reading() as transaction:
        row = state.queue(transaction, name)
    if row is None:
        row = _made(name, database, open_log, wanted, partitions, create=create, adopt=adopt)
    if row.deleting:
        error = f"queue {name!r} is being deleted, or that was cut short: delete it again"
        raise NotFound(error)
    _check_same(name, row, wanted, partitions)
    logs = [_log(log_name(name, part), row, open_log) for part in range(row.partitions)]
    return Queue(Topic(name, logs), row, database, clock, sibling)


def _log(name: str, row: state.QueueRow, open_log: OpenLog) -> Log:
    """Open a partition's log as it is stored: its settings may have been changed there."""
    try:
        return open_log(name, None, False)
    except NotFound:
        return open_log(name, row.settings.log, True)


def _made(
    name: str,
    database: StateDatabase,
    open_log: OpenLog,
    wanted: QueueSettings | None,
    partitions: int | None,
    *,
    create: bool,
    adopt: bool,
) -> state.QueueRow:
    """Make a queue, or say why not. Logs of that name that hold messages are adopted only when asked to."""
    found = _logs_there(name, open_log)
    messages = sum(log.info().last_position + 1 for log in found)
    with database.reading() as transaction:
        row = state.queue(transaction, name)
    if row is not None:  # another made it meanwhile, and may have sent already
        return row
    if messages and not (create and adopt):
        error = (
            f"queue {name!r}: its {len(found)} logs are there, with messages, but not what became of them: name the "
            "state that its brokers share; if that is lost, create it with adopt: all messages are delivered again"
        )
        raise InvalidArgument(error) if create else NotFound(error)
    if not create:
        error = f"there is no queue {name!r}: create=True makes it"
        raise NotFound(error)
    if messages and partitions not in (None, len(found)):
        error = f"queue {name!r} has {len(found)} partitions, not {partitions}: their number is fixed when it is made"
        raise InvalidArgument(error)
    count = len(found) if messages else partitions or 1
    with database.writing() as transaction:
        state.add_queue(transaction, name, count, wanted or QueueSettings())
        row = state.queue(transaction, name)
    assert row is not None
    return row


def _logs_there(name: str, open_log: OpenLog) -> list[Log]:
    """Return the logs of a queue's partitions, as many as there are."""
    found: list[Log] = []
    for part in count():
        try:
            found.append(open_log(log_name(name, part), None, False))
        except NotFound:
            return found
    raise AssertionError


def _check_same(name: str, row: state.QueueRow, wanted: QueueSettings | None, partitions: int | None) -> None:
    if partitions is not None and partitions != row.partitions:
        error = (
            f"queue {name!r} has {row.partitions} partitions, not {partitions}: their number is fixed when it is made"
        )
        raise InvalidArgument(error)
    if wanted is not None and wanted != row.settings:
        before, after = msgspec.to_builtins(row.settings), msgspec.to_builtins(wanted)
        different = [
            f"{part}: stored {before[part]}, given {after[part]}" for part in before if before[part] != after[part]
        ]
        error = f"queue {name!r} has other settings ({'; '.join(different)}): open it without, or configure() it"
        raise InvalidArgument(error)
