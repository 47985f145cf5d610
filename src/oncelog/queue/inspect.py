"""Looking at a queue without touching it: how far each group is, and what waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from oncelog import limits
from oncelog.clock import Clock
from oncelog.errors import LogBusy, NotFound
from oncelog.queue.rules import message
from oncelog.queue.rules.delivery import Condition, MessageRun
from oncelog.queue.rules.queue_time import resumed_us
from oncelog.queue.send.topic import Topic, size_bytes
from oncelog.queue.state import statements
from oncelog.queue.state.database import StateDatabase, Transaction
from oncelog.types import Entry

Standing = Literal["new", "waiting", "leased", "dying"]
_STANDING: dict[Condition, Standing] = {
    Condition.WAITING: "waiting",
    Condition.LEASED: "leased",
    Condition.DYING: "dying",
    Condition.PARKED: "waiting",
}


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is.

    ``lag`` is all that it has not settled: ``new`` was never delivered, ``waiting`` rests or is delayed, ``leased`` is
    in workers' hands, ``dying`` is on its way to the dead letters. The rest is counted since the group began.
    """

    ordered: bool
    paused: bool
    lag: int
    new: int
    waiting: int
    leased: int
    dying: int
    watermarks: list[int]
    delivered: int
    acked: int
    refused: int
    timed_out: int
    buried: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is now: ``ends`` are the positions behind the last message of each partition."""

    name: str
    partitions: int
    paused: bool
    ends: list[int]
    groups: dict[str, GroupStats]


class Peeked(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group has not settled, and its state. ``due_in_s`` is the time until it is delivered, or until
    its lease ends.
    """

    partition: int
    position: int
    standing: Standing
    attempts: int
    last_error: str | None
    due_in_s: float | None
    id: str
    key: str
    tenant: str
    value: bytes


def stats(topic: Topic, database: StateDatabase, row: statements.QueueRow, groups: Iterable[str]) -> QueueStats:
    """Return how a queue stands."""
    ends = topic.ends()
    found = {name: _group(database, row.id, name, ends) for name in groups}
    return QueueStats(name=topic.name, partitions=topic.partitions, paused=row.paused, ends=ends, groups=found)


def _group(database: StateDatabase, queue_id: int, name: str, ends: Sequence[int]) -> GroupStats:
    with database.reading() as transaction:
        row = statements.group(transaction, queue_id, name)
        assert row is not None
        cursors = statements.cursors(transaction, row.id)
        lowest = statements.watermarks(transaction, row.id)
        totals = statements.totals(transaction, row.id)
        counts = statements.counts(transaction, row.id)
    new = sum(max(0, end - cursor) for end, cursor in zip(ends, cursors, strict=True))
    return GroupStats(
        ordered=row.ordered,
        paused=row.paused,
        lag=new + sum(totals.values()),
        new=new,
        waiting=totals.get(Condition.WAITING, 0) + totals.get(Condition.PARKED, 0),
        leased=totals.get(Condition.LEASED, 0),
        dying=totals.get(Condition.DYING, 0),
        watermarks=[lowest.get(part, cursor) for part, cursor in enumerate(cursors)],
        **counts,
    )


def kept_from(topic: Topic, database: StateDatabase, queue_id: int, groups: Sequence[str]) -> list[int]:
    """Return the first position of each partition that a group may still need."""
    if not groups:
        return topic.starts("earliest")
    ends = topic.ends()
    marks = [_group(database, queue_id, name, ends).watermarks for name in groups]
    return [min(column) for column in zip(*marks, strict=True)]


def remove_group(topic: str, database: StateDatabase, queue_id: int, group: str, clock: Clock, *, force: bool) -> None:
    """Forget a group; ``LogBusy`` while workers hold messages of it, unless that is forced."""
    with database.writing() as transaction:
        row = statements.group(transaction, queue_id, group)
        if row is None:
            raise no_group(topic, group, statements.groups(transaction, queue_id))
        leased = held(transaction, row, clock.elapsed_us(), one_machine=database.one_machine)
        if leased and not force:
            message = f"group {group!r} of queue {topic!r} is in use: workers hold {leased} messages; wait, or force it"
            raise LogBusy(message)
        statements.remove_group(transaction, row.id)


def held(transaction: Transaction, row: statements.GroupRow, steady_us: int, *, one_machine: bool) -> int:
    """Return how many messages of a group are in workers' hands."""
    now_us = resumed_us(row.noted, transaction.now_us(), steady_us, one_machine=one_machine)
    return statements.held(transaction, row.id, now_us)


def no_group(topic: str, group: str, there: Sequence[str]) -> NotFound:
    """Return the error that there is no such group."""
    known = f"there are {', '.join(map(repr, there))}" if there else "there are none: the first consumer makes one"
    return NotFound(f"queue {topic!r} has no group {group!r}: {known}")


def peek(
    topic: Topic, database: StateDatabase, queue_id: int, group: str, limit: int, *, steady_us: int
) -> list[Peeked]:
    """Return the first unsettled messages of a group: those it has looked at, then those that are new. Large messages
    are fewer: not more than ``QUEUE_CLAIM_BYTES_MAX``, unless the first alone is larger.
    """
    with database.reading() as transaction:
        row = statements.group(transaction, queue_id, group)
        if row is None:
            raise no_group(topic.name, group, statements.groups(transaction, queue_id))
        wall_us = transaction.now_us()
        runs = statements.unsettled(transaction, row.id, limit)
        cursors = statements.cursors(transaction, row.id)
    now_us = resumed_us(row.noted, wall_us, steady_us, one_machine=database.one_machine)
    places: list[tuple[int, int, int, MessageRun | None]] = [(run.partition, run.first, run.count, run) for run in runs]
    places += [(partition, cursor, limit, None) for partition, cursor in enumerate(cursors)]
    found: list[Peeked] = []
    left_bytes = limits.QUEUE_CLAIM_BYTES_MAX
    for partition, first, count, looked_at in places:
        start, end = first, first + min(count, limit - len(found))
        while start < end:
            entries = topic.read(partition, start, end - start, limits.QUEUE_CLAIM_BYTES_MAX)
            for entry in entries:
                left_bytes -= size_bytes(entry)
                if left_bytes < 0 and found:  # others behind it may fit, but are not the first
                    return found
                found.append(_peeked(partition, entry, looked_at, now_us))
            start = entries[-1].position + 1 if entries else end
    return found


def _peeked(partition: int, entry: Entry, run: MessageRun | None, now_us: int) -> Peeked:
    return Peeked(
        partition=partition,
        position=entry.position,
        standing=_STANDING[run.condition] if run is not None else "new",
        attempts=run.attempts if run is not None else 0,
        last_error=run.last_error if run is not None else None,
        due_in_s=max(0, run.at_us - now_us) / 1e6 if run is not None else None,
        id=message.id_of(entry, message.envelope_of(entry)) if message.is_readable(entry) else "",
        key=entry.stream or "",
        tenant=entry.tenant or "",
        value=entry.value,
    )
