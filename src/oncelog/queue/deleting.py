"""Deleting a queue: first nobody can open it, then its logs go, then what is remembered of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from oncelog.errors import InvalidArgument, LogBusy, NotFound, Unavailable
from oncelog.log.log import Log
from oncelog.queue import gate, state
from oncelog.queue.database import StateDatabase
from oncelog.queue.delivery import Condition
from oncelog.queue.queue import Queue
from oncelog.queue.topic import DEAD_LETTERS, log_name

_WAIT_S = 5.0


def delete_queue(
    name: str,
    database: StateDatabase,
    open_queue: Callable[[str], Queue],
    open_log: Callable[[str], Log],
    delete_log: Callable[[str], None],
    *,
    force: bool,
) -> None:
    """Delete a queue with its dead letters. Cut short, it is there for nobody, and deleting it again goes on.

    Raises ``NotFound``, and ``LogBusy`` while it is in use: workers hold messages (which ``force`` does not ask), or
    another process sends and does not let go.
    """
    if name.startswith(DEAD_LETTERS):
        error = f"{name!r} goes with the queue whose dead letters it holds: delete that, or discard() the letters"
        raise InvalidArgument(error)
    with database.reading() as transaction:
        found = {one: state.queue(transaction, one) for one in (name, DEAD_LETTERS + name)}
    rows = {one: row for one, row in found.items() if row is not None}
    if name not in rows:
        error = f"there is no queue {name!r}"
        raise NotFound(error)
    if not rows[name].deleting:
        _make_unreachable(name, rows, database, [open_queue(one) for one in rows], force=force)
    for one, row in rows.items():
        for part in range(row.partitions):
            with contextlib.suppress(NotFound):  # an earlier attempt got so far
                _close(open_log(log_name(one, part)))
            with contextlib.suppress(NotFound):
                delete_log(log_name(one, part))
    with database.writing(durable=False) as transaction:
        for one in rows:
            gate.forget_topic(transaction, one)
    with database.writing() as transaction:
        for row in rows.values():
            state.remove_queue(transaction, row.id)


def _close(log: Log) -> None:
    """Take a log from who wrote it in a bucket, where nobody's death closes it."""
    log.writer(wait_s=_WAIT_S).close()


def _make_unreachable(
    name: str,
    rows: dict[str, state.QueueRow],
    database: StateDatabase,
    queues: Sequence[Queue],
    *,
    force: bool,
) -> None:
    """See that nobody uses it, and that nobody begins to."""
    if not force:
        _check_leases(name, rows[name], database)
    try:
        for queue in queues:
            queue.take_writers(_WAIT_S)
    except Unavailable as error:
        message = f"queue {name!r} is in use, and nothing of it was deleted: {error}"
        raise LogBusy(message, pid=getattr(error.__cause__, "pid", None)) from error
    with database.writing() as transaction:
        state.mark_deleting(transaction, rows[name].id)
    for queue in queues:
        queue.close()


def _check_leases(name: str, row: state.QueueRow, database: StateDatabase) -> None:
    with database.reading() as transaction:
        groups = [state.group(transaction, row.id, group) for group in state.groups(transaction, row.id)]
        leased = sum(state.totals(transaction, group.id).get(Condition.LEASED, 0) for group in groups if group)
    if leased:
        message = f"queue {name!r} is in use: workers hold {leased} of its messages; wait for them, or force it"
        raise LogBusy(message)
