"""Deleting a queue: first it can no longer be opened, then its logs go, then its state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, LogBusy, NotFound, Unavailable
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.queue import inner as queue_inner
from oncelog.queue.inspect import held
from oncelog.queue.queue import Queue
from oncelog.queue.send.topic import DEAD_LETTERS, log_name
from oncelog.queue.state import gate, statements
from oncelog.queue.state.database import StateDatabase, Transaction

_WAIT_S = 5.0
_SESSION = "deleting"


def delete_queue(
    name: str,
    database: StateDatabase | None,
    open_queue: Callable[[str], Queue],
    open_log: Callable[[str], Log],
    delete_log: Callable[[str], None],
    *,
    clock: Clock,
    force: bool,
) -> None:
    """Delete a queue with its dead letters. If this is cut short, the queue cannot be opened, and a
    second delete finishes. ``database`` is ``None`` where no queue was ever made.

    Raises ``NotFound``, and ``LogBusy`` while it is in use: workers hold messages (which ``force`` does not ask), or
    another process sends and does not let go.
    """
    if name.startswith(DEAD_LETTERS):
        error = f"{name!r} goes with the queue whose dead letters it holds: delete that, or discard() the letters"
        raise InvalidArgument(error)
    rows = {} if database is None else _rows(name, database)
    if database is None or name not in rows:
        open_queue(name)  # if its logs are there without its state, this says so
        error = f"there is no queue {name!r}"
        raise NotFound(error)
    if not rows[name].deleting:
        if not force:
            _check_leases(name, rows[name], database, clock)
        rows = _make_unreachable(name, rows, database, _opened(rows, open_queue))
    for one, row in rows.items():
        for part in range(row.partitions):
            with contextlib.suppress(NotFound):  # an earlier attempt got so far
                _close(open_log(log_name(one, part)), one, part, database)
            with database.writing() as transaction:
                _check_still(transaction, one, row)
                with contextlib.suppress(NotFound):
                    delete_log(log_name(one, part))
    with database.writing(durable=False) as transaction:
        for one in rows:
            gate.forget_topic(transaction, one)
    with database.writing() as transaction:
        for row in rows.values():
            statements.remove_queue(transaction, row.id)


def _rows(name: str, database: StateDatabase) -> dict[str, statements.QueueRow]:
    """Return what is stored of a queue and of its dead letters."""
    with database.reading() as transaction:
        found = {one: statements.queue(transaction, one) for one in (name, DEAD_LETTERS + name)}
    return {one: row for one, row in found.items() if row is not None}


def _check_still(transaction: Transaction, name: str, row: statements.QueueRow) -> None:
    """Raise if another has deleted it meanwhile: logs of that name are a new queue's then. While the transaction lasts
    nobody else can end deleting it, and so nobody makes a new one.
    """
    found = statements.queue(transaction, name, lock=True)
    if found is None or found.id != row.id:
        message = f"queue {name!r} was deleted by another meanwhile"
        raise NotFound(message)


def _close(log: Log, topic: str, part: int, database: StateDatabase) -> None:
    """Take a log from its writer. In a bucket the log stays open after its writer died, and is taken, too.

    A writer that is lent is closed by its holder when the log is deleted.
    """
    if inner.is_lent(log):
        return
    with database.writing(durable=False) as transaction:
        gate.want(transaction, topic, part, _SESSION, transaction.now_us() + round(_WAIT_S * 1e6))
    log.writer(wait_s=_WAIT_S).close()


def _opened(names: Iterable[str], open_queue: Callable[[str], Queue]) -> list[Queue]:
    """Return the queues that can be opened: one whose logs are lost can be deleted all the same."""
    found = []
    for name in names:
        with contextlib.suppress(CorruptionError):
            found.append(open_queue(name))
    return found


def _make_unreachable(
    name: str, rows: Mapping[str, statements.QueueRow], database: StateDatabase, queues: Sequence[Queue]
) -> dict[str, statements.QueueRow]:
    """Fence all writers, so that none writes any more; return all that is to be deleted."""
    try:
        for queue in queues:
            queue_inner.take_writers(queue, _WAIT_S)
    except Unavailable as error:
        message = f"queue {name!r} is in use, and nothing of it was deleted: {error}"
        raise LogBusy(message, pid=getattr(error.__cause__, "pid", None)) from error
    letters = DEAD_LETTERS + name
    with database.writing() as transaction:
        _check_still(transaction, name, rows[name])
        statements.add_queue(transaction, letters, 1, rows[name].settings)  # so that who buries now does not make it
        buried = statements.queue(transaction, letters)
        assert buried is not None
        marked = {name: rows[name], letters: buried}
        for row in marked.values():
            statements.mark_deleting(transaction, row.id)
    for queue in queues:
        queue.close()
    return marked


def _check_leases(name: str, row: statements.QueueRow, database: StateDatabase, clock: Clock) -> None:
    with database.reading() as transaction:
        groups = [statements.group(transaction, row.id, one) for one in statements.groups(transaction, row.id)]
        steady_us, one_machine = clock.elapsed_us(), database.one_machine
        leased = sum(held(transaction, group, steady_us, one_machine=one_machine) for group in groups if group)
    if leased:
        message = f"queue {name!r} is in use: workers hold {leased} of its messages; wait for them, or force it"
        raise LogBusy(message)
