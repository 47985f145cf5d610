"""What a broker remembers, as statements: queues, groups, cursors, runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.queue.rules.delivery import Change, Condition, MessageRun
from oncelog.queue.rules.queue_time import Noted
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.state.database import LOCK, Row, Transaction
from oncelog.shapes import UNREADABLE

_RUN = "part, first, count, condition, at_us, attempts, token, last_error, key, policy, deadline_us"
_KEYS_AT_ONCE = 500
_DELETING = 2
"""In the column ``paused``: the queue is being deleted, and cannot be opened."""
_COUNTED = ("delivered", "acked", "refused", "timed_out", "buried")


class QueueRow(NamedTuple):
    """A queue as it is stored. ``damage`` says why its settings cannot be read, if they cannot: then those here are
    the default ones, with which it can be deleted.
    """

    id: int
    partitions: int
    settings: QueueSettings
    paused: bool
    deleting: bool
    damage: str | None = None


class GroupRow(NamedTuple):
    """A group as it is stored."""

    id: int
    ordered: bool
    paused: bool
    token: int
    noted: Noted | None


class Outlook(NamedTuple):
    """What there is to do for a group: how far it has looked, partition by partition, when the first message of each
    condition is due, whether the group or its queue is paused, and the settings of its queue.
    """

    cursors: list[int]
    waiting_us: int | None
    leased_us: int | None
    dying_us: int | None
    paused: bool
    settings: QueueSettings

    def is_due(self, now_us: int) -> bool:
        """Tell whether a message is due, or a lease is over."""
        times = self.waiting_us, self.leased_us, self.dying_us
        return any(at_us is not None and at_us <= now_us for at_us in times)


def generation(transaction: Transaction) -> str:
    """Return the name of this state: a state that is made after it was lost has another."""
    name: str = transaction.all("SELECT token FROM oncelog_generation")[0][0]
    return name


# Queues.


def queue(transaction: Transaction, name: str, *, lock: bool = False) -> QueueRow | None:
    """Return a queue, if it is there; with ``lock``, nobody else changes it until the transaction ends."""
    statement = "SELECT id, partitions, settings, paused FROM oncelog_queue WHERE name = ?"
    rows = transaction.all(f"{statement}{LOCK}" if lock else statement, name)
    if not rows:
        return None
    id, partitions, settings, paused = rows[0]
    decoded, damage = _settings(settings)
    return QueueRow(id, partitions, decoded, bool(paused), deleting=paused == _DELETING, damage=damage)


@lru_cache
def _settings(stored: str) -> tuple[QueueSettings, str | None]:
    try:
        return msgspec.json.decode(stored, type=QueueSettings), None
    except UNREADABLE as error:
        return QueueSettings(), str(error)


def add_queue(transaction: Transaction, name: str, partitions: int, settings: QueueSettings) -> None:
    """Make a queue; one that is there stays as it is."""
    transaction.all(
        "INSERT INTO oncelog_queue (name, partitions, settings) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
        name,
        partitions,
        _encoded(settings),
    )


def queue_names(transaction: Transaction) -> list[str]:
    """Return the names of the queues there are."""
    statement = "SELECT name FROM oncelog_queue WHERE paused <> ? ORDER BY name"
    return [name for (name,) in transaction.all(statement, _DELETING)]


def configure(transaction: Transaction, queue_id: int, settings: QueueSettings) -> None:
    """Store other settings."""
    transaction.all("UPDATE oncelog_queue SET settings = ? WHERE id = ?", _encoded(settings), queue_id)


def _encoded(settings: QueueSettings) -> str:
    """Return settings as JSON. The JSON is read again first: settings that cannot be read lock all users out."""
    text = msgspec.json.encode(settings)
    if msgspec.json.decode(text, type=QueueSettings) != settings:
        message = "settings: what would be stored reads as other settings"
        raise InvalidArgument(message)
    return text.decode()


def pause(transaction: Transaction, queue_id: int, group: str | None, *, paused: bool) -> None:
    """Have a queue, or one of its groups, deliver nothing until further notice; or go on."""
    if group is None:
        statement = "UPDATE oncelog_queue SET paused = ? WHERE id = ? AND paused <> ?"
        transaction.all(statement, int(paused), queue_id, _DELETING)
    else:
        transaction.all(
            "UPDATE oncelog_group SET paused = ? WHERE queue = ? AND name = ?", int(paused), queue_id, group
        )


def mark_deleting(transaction: Transaction, queue_id: int) -> None:
    """Mark a queue as being deleted: it cannot be opened any more."""
    transaction.all("UPDATE oncelog_queue SET paused = ? WHERE id = ?", _DELETING, queue_id)


def remove_queue(transaction: Transaction, queue_id: int) -> None:
    """Forget a queue and its groups."""
    for table in ("oncelog_run", "oncelog_cursor"):
        statement = f"DELETE FROM {table} WHERE grp IN (SELECT id FROM oncelog_group WHERE queue = ?)"  # noqa: S608
        transaction.all(statement, queue_id)
    transaction.all("DELETE FROM oncelog_group WHERE queue = ?", queue_id)
    transaction.all("DELETE FROM oncelog_queue WHERE id = ?", queue_id)


# Groups.


def group(transaction: Transaction, queue_id: int, name: str) -> GroupRow | None:
    """Return a group, if it is there; in a writing transaction no other transaction changes it before this one ends."""
    columns = "id, ordered, paused, token, queue_us, wall_us, steady_us"
    statement = f"SELECT {columns} FROM oncelog_group WHERE queue = ? AND name = ?{LOCK}"  # noqa: S608
    rows = transaction.all(statement, queue_id, name)
    if not rows:
        return None
    id, ordered, paused, token, *noted = rows[0]
    return GroupRow(id, bool(ordered), bool(paused), token, Noted(*noted) if noted[1] else None)


def groups(transaction: Transaction, queue_id: int) -> list[str]:
    """Return the names of a queue's groups."""
    return [
        name for (name,) in transaction.all("SELECT name FROM oncelog_group WHERE queue = ? ORDER BY name", queue_id)
    ]


def add_group(transaction: Transaction, queue_id: int, name: str, starts: Sequence[int], *, ordered: bool) -> None:
    """Make a group that begins at these positions; one that is there stays as it is."""
    transaction.all(
        "INSERT INTO oncelog_group (queue, name, ordered) VALUES (?, ?, ?) ON CONFLICT (queue, name) DO NOTHING",
        queue_id,
        name,
        int(ordered),
    )
    row = group(transaction, queue_id, name)
    assert row is not None
    transaction.many(
        "INSERT INTO oncelog_cursor (grp, part, next) VALUES (?, ?, ?) ON CONFLICT (grp, part) DO NOTHING",
        [(row.id, part, start) for part, start in enumerate(starts)],
    )


def remove_group(transaction: Transaction, group_id: int) -> None:
    """Forget a group, and how far it was."""
    for table in ("oncelog_run", "oncelog_cursor"):
        transaction.all(f"DELETE FROM {table} WHERE grp = ?", group_id)  # noqa: S608
    transaction.all("DELETE FROM oncelog_group WHERE id = ?", group_id)


def note(
    transaction: Transaction, group_id: int, token: int, noted: Noted, *, delivered: int = 0, timed_out: int = 0
) -> None:
    """Store the newest token and the time of a group, and count what was done."""
    transaction.all(
        "UPDATE oncelog_group SET token = ?, queue_us = ?, wall_us = ?, steady_us = ?, delivered = delivered + ?, "
        "timed_out = timed_out + ? WHERE id = ?",
        token,
        *noted,
        delivered,
        timed_out,
        group_id,
    )


def count(transaction: Transaction, group_id: int, what: str, by: int) -> None:
    """Count what an operator would ask for."""
    assert what in _COUNTED
    transaction.all(f"UPDATE oncelog_group SET {what} = {what} + ? WHERE id = ?", by, group_id)  # noqa: S608


def counts(transaction: Transaction, group_id: int) -> dict[str, int]:
    """Return what was counted."""
    rows = transaction.all(f"SELECT {', '.join(_COUNTED)} FROM oncelog_group WHERE id = ?", group_id)  # noqa: S608
    return dict(zip(_COUNTED, rows[0], strict=True))


def cursors(transaction: Transaction, group_id: int) -> list[int]:
    """Return the position behind all that a group has looked at, partition by partition."""
    return [
        next
        for _, next in transaction.all("SELECT part, next FROM oncelog_cursor WHERE grp = ? ORDER BY part", group_id)
    ]


def reached(transaction: Transaction, queue_id: int) -> dict[int, int]:
    """Return the furthest cursor of each partition, of all groups of a queue."""
    groups = "SELECT id FROM oncelog_group WHERE queue = ?"
    statement = f"SELECT part, max(next) FROM oncelog_cursor WHERE grp IN ({groups}) GROUP BY part"  # noqa: S608
    return dict(transaction.all(statement, queue_id))


def move(transaction: Transaction, group_id: int, partition: int, to: int) -> None:
    """Move a cursor forward."""
    transaction.all(
        "UPDATE oncelog_cursor SET next = ? WHERE grp = ? AND part = ? AND next < ?", to, group_id, partition, to
    )


def watermarks(transaction: Transaction, group_id: int) -> dict[int, int]:
    """Return the first unsettled position of each partition that has one below its cursor."""
    return dict(transaction.all("SELECT part, min(first) FROM oncelog_run WHERE grp = ? GROUP BY part", group_id))


# Runs.


def due(transaction: Transaction, group_id: int, condition: Condition, now_us: int, limit: int) -> list[MessageRun]:
    """Return the runs of a condition whose time has come, the longest overdue first."""
    return _runs(
        transaction.all(
            f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? AND condition = ? AND at_us <= ? "  # noqa: S608
            "ORDER BY at_us, part, first LIMIT ?",
            group_id,
            int(condition),
            now_us,
            limit,
        )
    )


def due_heads(transaction: Transaction, group_id: int, now_us: int, limit: int) -> list[MessageRun]:
    """Return the waiting runs of an ordered group whose time has come, in the order of their positions."""
    return _runs(
        transaction.all(
            f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? AND condition = ? AND at_us <= ? "  # noqa: S608
            "ORDER BY part, first LIMIT ?",
            group_id,
            int(Condition.WAITING),
            now_us,
            limit,
        )
    )


def leased(transaction: Transaction, group_id: int, token: int) -> list[MessageRun]:
    """Return what is held under a token."""
    return _runs(
        transaction.all(f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? AND token = ? AND token > 0", group_id, token)  # noqa: S608
    )


def unsettled(transaction: Transaction, group_id: int, limit: int) -> list[MessageRun]:
    """Return the first runs, in the order of their positions."""
    statement = f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? ORDER BY first, part LIMIT ?"  # noqa: S608
    return _runs(transaction.all(statement, group_id, limit))


def at(transaction: Transaction, group_id: int, partition: int, position: int) -> MessageRun | None:
    """Return the run that holds a position, if one does."""
    runs = _runs(
        transaction.all(
            f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? AND part = ? AND first <= ? ORDER BY first DESC LIMIT 1",  # noqa: S608
            group_id,
            partition,
            position,
        )
    )
    return runs[0] if runs and position < runs[0].end else None


def held_keys(transaction: Transaction, group_id: int, keys: Sequence[str]) -> set[str]:
    """Return which of the keys have an unsettled message."""
    found: set[str] = set()
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        places = ", ".join("?" * len(some))
        statement = f"SELECT DISTINCT key FROM oncelog_run WHERE grp = ? AND key IN ({places})"  # noqa: S608
        found.update(key for (key,) in transaction.all(statement, group_id, *some))
    return found


def first_of_key(transaction: Transaction, group_id: int, key: str) -> MessageRun | None:
    """Return the first unsettled message with a key."""
    statement = f"SELECT {_RUN} FROM oncelog_run WHERE grp = ? AND key = ? ORDER BY first LIMIT 1"  # noqa: S608
    runs = _runs(transaction.all(statement, group_id, key))
    return runs[0] if runs else None


def parked(transaction: Transaction, group_id: int, limit: int) -> int:
    """Return how many messages of an ordered group wait for others of their keys, counting to ``limit`` at most."""
    rows = transaction.all(
        "SELECT count(*) FROM (SELECT 1 FROM oncelog_run WHERE grp = ? AND condition = ? LIMIT ?) AS found",
        group_id,
        int(Condition.PARKED),
        limit,
    )
    return int(rows[0][0])


def outlook(transaction: Transaction, group_id: int) -> Outlook | None:
    """Return what there is to do for a group, ``None`` if it is not there: by one statement, as each claim asks."""
    rows = transaction.all(
        "SELECT next, (SELECT min(at_us) FROM oncelog_run WHERE grp = ? AND condition = 0), "
        "(SELECT min(at_us) FROM oncelog_run WHERE grp = ? AND condition = 1), "
        "(SELECT min(at_us) FROM oncelog_run WHERE grp = ? AND condition = 2), "
        "oncelog_queue.paused + oncelog_group.paused, settings FROM oncelog_cursor "
        "JOIN oncelog_group ON oncelog_group.id = grp JOIN oncelog_queue ON oncelog_queue.id = oncelog_group.queue "
        "WHERE grp = ? ORDER BY part",
        *(group_id,) * 4,
    )
    if not rows:
        return None
    _, waiting_us, leased_us, dying_us, paused, settings = rows[0]
    cursors = [row[0] for row in rows]
    return Outlook(cursors, waiting_us, leased_us, dying_us, bool(paused), _settings(settings)[0])


def totals(transaction: Transaction, group_id: int) -> dict[Condition, int]:
    """Return how many messages are in each condition."""
    rows = transaction.all("SELECT condition, sum(count) FROM oncelog_run WHERE grp = ? GROUP BY condition", group_id)
    return {Condition(condition): int(total) for condition, total in rows}


def held(transaction: Transaction, group_id: int, now_us: int) -> int:
    """Return how many messages are leased, by leases that are not over."""
    statement = "SELECT coalesce(sum(count), 0) FROM oncelog_run WHERE grp = ? AND condition = ? AND at_us > ?"
    return int(transaction.all(statement, group_id, int(Condition.LEASED), now_us)[0][0])


def apply(transaction: Transaction, group_id: int, change: Change) -> None:
    """Store what has changed."""
    if change.gone:
        transaction.many(
            "DELETE FROM oncelog_run WHERE grp = ? AND part = ? AND first = ?",
            [(group_id, run.partition, run.first) for run in change.gone],
        )
    if change.come:
        transaction.many(
            f"INSERT INTO oncelog_run (grp, {_RUN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            [(group_id, *_values(run)) for run in change.come],
        )


def _values(run: MessageRun) -> tuple[object, ...]:
    policy = msgspec.json.encode(run.policy).decode() if run.policy is not None else None
    state = int(run.condition), run.at_us, run.attempts, run.token, run.last_error
    return run.partition, run.first, run.count, *state, run.key, policy, run.deadline_us


def _runs(rows: Iterable[Row]) -> list[MessageRun]:
    return [
        MessageRun(
            part, first, count, Condition(condition), at_us, attempts, token, error, key, _policy(policy), deadline_us
        )
        for part, first, count, condition, at_us, attempts, token, error, key, policy, deadline_us in rows
    ]


def _policy(stored: str | None) -> RetryPolicy | None:
    """Return a message's own policy; one that cannot be read is as none: the queue's holds."""
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored, type=RetryPolicy)
    except UNREADABLE:
        return None
