"""What is remembered of sends, as statements: how each ended, and who wants to write.

None of it need survive the power.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog.queue.state.database import Transaction

_ASKED_MAX = 500
"""So many identities are asked for in one statement."""


class GateRow(NamedTuple):
    """What is known of an attempt to send: its status, and whose it is."""

    status: str
    last_error: str | None
    partition: int
    position: int | None
    session: str


def known(transaction: Transaction, topic: str, identity: str) -> GateRow | None:
    """Return what is known of an identity."""
    rows = transaction.all(
        "SELECT status, last_error, part, position, session FROM oncelog_gate WHERE queue = ? AND identity = ?",
        topic,
        identity,
    )
    return GateRow(*rows[0]) if rows else None


def committed(transaction: Transaction, topic: str, identities: Sequence[str]) -> dict[str, int]:
    """Return those of the identities that are in the queue, each with its position."""
    found: dict[str, int] = {}
    for first in range(0, len(identities), _ASKED_MAX):
        asked = identities[first : first + _ASKED_MAX]
        rows = transaction.all(
            "SELECT identity, position FROM oncelog_gate WHERE queue = ? AND status = 'COMMITTED' "  # noqa: S608
            f"AND position IS NOT NULL AND identity IN ({', '.join('?' * len(asked))})",
            topic,
            *asked,
        )
        found.update(rows)
    return found


def begin(
    transaction: Transaction, topic: str, identities: Iterable[tuple[str, int]], session: str, at_us: int
) -> None:
    """Note that sends begin: (identity, partition) each. The last error of one that failed before stays, and so does
    that one is in the queue.
    """
    transaction.many(
        "INSERT INTO oncelog_gate (queue, identity, status, part, session, at_us, unanswered) "
        "VALUES (?, ?, 'PENDING', ?, ?, ?, 1) ON CONFLICT (queue, identity) DO UPDATE SET status = 'PENDING', "
        "session = excluded.session, at_us = excluded.at_us, position = NULL, unanswered = oncelog_gate.unanswered + 1 "
        "WHERE oncelog_gate.status <> 'COMMITTED'",
        [(topic, identity, partition, session, at_us) for identity, partition in sorted(identities)],
    )


def end(transaction: Transaction, topic: str, outcomes: Iterable[tuple[str, str, str | None, int | None]]) -> None:
    """Note how sends ended: (identity, status, error, position) each. Without an error the last one stays; that a
    duplicate failed does not take the first out of the queue. One that failed while another is on its way, or ended
    nobody knows how, says nothing of that one: the identity stays pending.
    """
    transaction.many(
        "UPDATE oncelog_gate SET status = CASE WHEN ? = 'FAILED' AND unanswered > 1 THEN 'PENDING' ELSE ? END, "
        "last_error = coalesce(?, last_error), position = ?, "
        "unanswered = CASE WHEN ? = 'FAILED' THEN unanswered - 1 ELSE 0 END "
        "WHERE queue = ? AND identity = ? AND (status <> 'COMMITTED' OR ? = 'COMMITTED')",
        [
            (status, status, error, position, status, topic, identity, status)
            for identity, status, error, position in sorted(outcomes)
        ],
    )


def forget(transaction: Transaction, topic: str, before_us: int) -> None:
    """Forget what was begun before a moment, whether it ended or not."""
    transaction.all("DELETE FROM oncelog_gate WHERE queue = ? AND at_us < ?", topic, before_us)


def forget_topic(transaction: Transaction, topic: str) -> None:
    """Forget all that was sent to a topic, and who wants to write to it."""
    for table in ("oncelog_gate", "oncelog_want"):
        transaction.all(f"DELETE FROM {table} WHERE queue = ?", topic)  # noqa: S608


def want(transaction: Transaction, topic: str, partition: int, session: str, until_us: int) -> None:
    """Ask the writer of a partition to let it go."""
    transaction.all(
        "INSERT INTO oncelog_want (queue, part, session, until_us) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (queue, part, session) DO UPDATE SET until_us = excluded.until_us",
        topic,
        partition,
        session,
        until_us,
    )


def unwant(transaction: Transaction, topic: str, partition: int, session: str, now_us: int) -> None:
    """Take a wish back, and those whose time is over."""
    transaction.all(
        "DELETE FROM oncelog_want WHERE queue = ? AND part = ? AND (session = ? OR until_us < ?)",
        topic,
        partition,
        session,
        now_us,
    )


def wanted(transaction: Transaction, topic: str, session: str, now_us: int) -> set[int]:
    """Return the partitions that others want to write now."""
    rows = transaction.all(
        "SELECT DISTINCT part FROM oncelog_want WHERE queue = ? AND session <> ? AND until_us >= ?",
        topic,
        session,
        now_us,
    )
    return {partition for (partition,) in rows}
