"""What consumers were heard to say, held against the promises of a queue."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

Place = tuple[int, int]


class Got(NamedTuple):
    """A delivery that was heard of, with the end of its lease in queue time."""

    partition: int
    position: int
    attempts: int
    token: int
    until_us: int
    key: str


@dataclass
class History:
    """All that was heard, in the order of tokens."""

    lease_us: int
    got: list[Got] = field(default_factory=list)
    acked: set[tuple[Place, int]] = field(default_factory=set)
    nacked: set[tuple[Place, int]] = field(default_factory=set)
    maybe: set[tuple[Place, int]] = field(default_factory=set)
    """Deliveries whose answer was lost with their consumer: it may have been stored."""

    def complaints(self, everything: set[Place], dead: dict[Place, int]) -> list[str]:
        """Return every promise that was broken, given all messages there are, and the dead letters' attempts."""
        found: list[str] = []
        by_place: dict[Place, list[Got]] = defaultdict(list)
        for one in sorted(self.got, key=lambda one: one.token):
            by_place[one.partition, one.position].append(one)
        for place in sorted(everything):
            found += self._ends(place, by_place[place], dead)
            found += self._deliveries(place, by_place[place], dead.get(place))
        found += self._order(by_place)
        return found

    def _ends(self, place: Place, deliveries: list[Got], dead: dict[Place, int]) -> list[str]:
        acked = [one for one in deliveries if (place, one.token) in self.acked]
        perhaps = [one for one in deliveries if (place, one.token) in self.maybe]
        if place in dead and acked:
            return [f"{place}: acknowledged, and dead all the same"]
        if place not in dead and not acked and not perhaps:
            return [f"{place}: neither acknowledged nor dead"]
        return [
            f"{place}: delivered again after its acknowledgement"
            for one in acked
            if any(later.token > one.token for later in deliveries)
        ]

    def _deliveries(self, place: Place, deliveries: list[Got], dead_attempts: int | None) -> list[str]:
        found = []
        for before, after in pairwise(deliveries):
            if after.token <= before.token:
                found.append(f"{place}: one token twice")
            if after.attempts <= before.attempts:
                found.append(f"{place}: attempt {after.attempts} after attempt {before.attempts}")
            answered = {(place, before.token)} & (self.nacked | self.maybe)
            if not answered and after.until_us - self.lease_us < before.until_us:
                found.append(f"{place}: delivered while it was leased")
        if dead_attempts is not None and deliveries and dead_attempts < deliveries[-1].attempts:
            found.append(f"{place}: died after {dead_attempts} attempts, of {deliveries[-1].attempts}")
        return found

    def _order(self, by_place: dict[Place, list[Got]]) -> list[str]:
        keys: dict[tuple[int, str], list[list[Got]]] = defaultdict(list)
        for (partition, _), deliveries in sorted(by_place.items()):
            if deliveries and deliveries[0].key != "-":
                keys[partition, deliveries[0].key].append(deliveries)
        return [
            f"{after[0].key}: {after[0].position} was delivered before {before[0].position} was done"
            for messages in keys.values()
            for before, after in pairwise(messages)
            if after[0].token < before[-1].token
        ]
