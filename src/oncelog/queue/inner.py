"""What other rooms ask of a queue, and no user: the inner half of ``Queue``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncelog.queue.deliver.dead_letters import DeadLetter
from oncelog.queue.deliver.settling import LeaseName, SettlementRequest
from oncelog.queue.queue import Queue


def is_stored(queue: Queue) -> bool:
    """Tell whether a queue is still stored, and was not replaced by another of its name. While the state cannot be
    read, the answer is yes.
    """
    return queue._is_stored()


def take_writers(queue: Queue, timeout_s: float) -> None:
    """Become the writer of every partition; ``Unavailable`` if another process writes one and does not let go."""
    queue._take_writers(timeout_s)


def each_dead_letter(queue: Queue) -> Iterator[DeadLetter]:
    """Yield the dead letters of a queue, without holding all of them."""
    return queue.dead_letters._each()


def dead_letters(queue: Queue, limit: int | None, start: int) -> list[DeadLetter]:
    """Return the dead letters of a queue from a position on: of large ones fewer than there are. None: no more."""
    return queue.dead_letters._page(limit, start)


def settle(queue: Queue, group: str, leases: Iterable[LeaseName], settlement: SettlementRequest) -> list[LeaseName]:
    """Settle deliveries of a group by the names of their leases; return the leases that were lost to other consumers.

    For a server that hands deliveries to other processes. Raises ``NotFound`` when there is no such group.
    """
    return queue._settle_leases(group, leases, settlement)
