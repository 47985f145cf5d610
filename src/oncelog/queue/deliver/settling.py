"""Settling: what consumers say of their deliveries becomes steps of a broker, waited for or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from oncelog.arguments import stored_reason
from oncelog.concurrency.pending import Pending, begun, failed
from oncelog.concurrency.pending import settle as answer
from oncelog.errors import InvalidArgument, LeaseLost, OncelogError
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.deliver.settler import ConsumerStep

if TYPE_CHECKING:
    from oncelog.queue.deliver.consumer import Delivery


_lease_of = attrgetter("lease")


class SettlementRequest(NamedTuple):
    """What becomes of deliveries: "acked", "refused", "extended" or "returned"."""

    kind: str
    reason: str = ""
    again: bool = True
    extend_us: int = 0

    @classmethod
    def refusal(cls, reason: object, *, retry: bool) -> SettlementRequest:
        """Return a refusal; its reason is cut to what is stored. ``InvalidArgument`` for a reason that is no text."""
        if not isinstance(reason, str):
            error = f"reason: is {type(reason).__name__}, must be a str that says what went wrong"
            raise InvalidArgument(error)
        return cls("refused", reason=stored_reason(reason), again=retry)


def _by_lease(deliveries: Sequence[Delivery]) -> dict[tuple[int, int], Sequence[Delivery]]:
    """Return deliveries by token and partition. Most often all of them share the lease of the first."""
    lease = deliveries[0].lease if deliveries else None
    if lease is not None and not [one for one in deliveries if one.lease is not lease]:
        return {(lease.token, lease.partition): deliveries}
    grouped: dict[tuple[int, int], list[Delivery]] = {}
    for run, neighbours in groupby(deliveries, _lease_of):
        grouped.setdefault((run.token, run.partition), []).extend(neighbours)
    return {**grouped}


def _positions_of(deliveries: Sequence[Delivery]) -> Sequence[int]:
    """Return where messages stand in their partitions' logs; those of neighbours are a range."""
    positions = [one.position for one in deliveries]
    between = range(positions[0], positions[0] + len(positions))
    return between if positions == list(between) else positions


class _Leases:
    """Deliveries by their leases: neighbours share theirs."""

    def __init__(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
        self._grouped = _by_lease(deliveries)
        self.steps = [
            ConsumerStep(token, partition, _positions_of(held), *settlement)
            for (token, partition), held in self._grouped.items()
        ]

    def among(self, lost: Sequence[Sequence[int]]) -> list[Delivery]:
        """Return the deliveries at positions that were lost, step by step."""
        found: list[Delivery] = []
        for held, positions in zip(self._grouped.values(), lost, strict=True):
            if positions:
                by_position = {one.position: one for one in held}
                found += [by_position[position] for position in positions]
        return found


class LeaseName(NamedTuple):
    """A message in somebody's hands, by the number of its lease and its place."""

    token: int
    partition: int
    position: int


def settle_leases(broker: Broker, leases: Iterable[LeaseName], settlement: SettlementRequest) -> list[LeaseName]:
    """Settle what was delivered elsewhere, by name, in one commit; return what was lost to others."""
    grouped: dict[tuple[int, int], list[int]] = {}
    for lease in leases:
        grouped.setdefault((lease.token, lease.partition), []).append(lease.position)
    steps = [
        ConsumerStep(token, partition, positions, *settlement) for (token, partition), positions in grouped.items()
    ]
    lost = broker.settle(steps)
    if settlement.kind == "refused":
        broker.bury()
    return [
        LeaseName(step.token, step.partition, position)
        for step, positions in zip(steps, lost, strict=True)
        for position in positions
    ]


def lost_of(broker: Broker, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> list[Delivery]:
    """Settle deliveries in one commit; return those that were lost to others."""
    leases = _Leases(deliveries, settlement)
    lost = broker.settle(leases.steps)
    if settlement.kind == "refused":
        broker.bury()
    return leases.among(lost)


def settle(broker: Broker, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
    """Settle deliveries in one commit; ``LeaseLost`` if some were lost to others."""
    _check(lost_of(broker, deliveries, settlement))


def submit(broker: Broker, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Pending[None]:
    """Settle deliveries without waiting; all that are submitted at about the same time go together."""
    leases = _Leases(deliveries, settlement)
    pending = begun()

    def ended(lost: Sequence[Sequence[int]] | BaseException) -> None:
        if isinstance(lost, BaseException):
            pending.set_exception(lost)
        else:
            answer(pending, lambda: _check(leases.among(lost)))

    try:
        broker.submit(leases.steps, ended)
    except OncelogError as error:
        return failed(error)
    return pending


def _check(lost: Sequence[Delivery]) -> None:
    if lost:
        one = lost[0]
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        error = (
            f"message {one.position} of {one.topic!r}, partition {one.partition}{more}: lease {one.token} is over: it "
            "was settled before, or its time ran out; then it is delivered again, and what another makes of it stands"
        )
        raise LeaseLost(error)
