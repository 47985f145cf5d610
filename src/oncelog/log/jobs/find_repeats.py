"""Ids that are in a log more than once, all of them: what came in beyond the window, for an audit and for a purge.

The window is not asked, the log itself is: every identity of every record is hashed, sorted and compared. Each
record takes 24 bytes of memory for that. A log with more records than fit is read several times, each time for a part
of the identities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.dedup.repeats import repeated
from oncelog.errors import CorruptionError, Unsupported
from oncelog.format.manifest import Manifest
from oncelog.format.payload import arrays
from oncelog.log.jobs.workers import Hands, JobContext, Unit, Work
from oncelog.log.stored.manifests import Manifests
from oncelog.log.stored.rows import Rows
from oncelog.log.upkeep import sealing
from oncelog.storage.base import LogHome

RECORDS_A_PASS = 50_000_000
"""How many identities are compared at once: about 2 GB while they are sorted."""

Progress = Callable[[int, int], None]
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Seen = TypeVar("_Seen")


class Repeats(NamedTuple):
    """Records whose id is in the log before them, by position; ``firsts`` is where, ``same`` whether with the same
    content, and the rest is who they are.
    """

    positions: NDArray[np.int64]
    firsts: NDArray[np.int64]
    same: NDArray[np.bool_]
    keys: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]

    def where(self, chosen: NDArray[np.bool_] | slice) -> Repeats:
        """Return some of them."""
        return Repeats(
            self.positions[chosen], self.firsts[chosen], self.same[chosen], self.keys[chosen], self.fingerprints[chosen]
        )

    def within(self, unit: Unit) -> Repeats:
        """Return those in some segments."""
        return self.where(slice(*np.searchsorted(self.positions, (unit[0].first_position, unit[-1].next_position))))


class Walk:
    """Goes through the closed segments of a log, by somebody's hands."""

    def __init__(self, home: LogHome, manifests: Manifests, manifest: Manifest, clock: Clock, hands: Hands) -> None:
        self._hands = hands
        self.desk = JobContext.of(home, manifest, clock)
        self.segments = list(manifests.closed_from(manifest, manifest.first_position))
        self.units = list(sealing.units(self.segments))
        self.records = sum(segment.entries for segment in self.segments)

    def each(self, work: Work[_Part, _Result], parts: Sequence[_Part]) -> Iterator[_Result]:
        """Yield what ``work`` returns for each part, in their order."""
        return self._hands.each(self.desk, work, parts)


class FoundRepeats(msgspec.Struct, Generic[_Seen], frozen=True):
    """What was found: the repeats, what the observer saw of all rows, and what could not be read."""

    repeats: Repeats
    seen: list[_Seen]
    unreadable: list[str]


def find(
    walk: Walk, look: Callable[[Rows], _Seen] | None = None, progress: Progress | None = None, *, tolerant: bool = False
) -> FoundRepeats[_Seen]:
    """Return the records whose id an earlier record has. ``look`` sees all records, in columns, where the work is done.

    What is damaged is raised or, of the ``tolerant``, left out and told.
    """
    passes = max(1, -(-walk.records // RECORDS_A_PASS))
    parts: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]] = []
    seen: list[_Seen] = []
    unreadable: list[str] = []
    for number in range(passes):
        taken: list[TakenIdentities[_Seen]] = []
        work = _Take(number, passes, None if number else look, tolerant)
        done = 0
        for unit, one in zip(walk.units, walk.each(work, walk.units), strict=True):
            taken.append(one)
            seen += one.seen
            unreadable += [one.error] if one.error is not None and not number else []
            done += sum(segment.entries for segment in unit)
            if progress is not None:
                progress(done, walk.records)
        parts.append(_repeated_in(taken))
    keys, positions, firsts = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(positions)
    keys, positions, firsts = keys[order], positions[order], firsts[order]
    prints = _fingerprints(walk, np.union1d(positions, firsts))
    fingerprints = prints(positions)
    return FoundRepeats(
        Repeats(positions, firsts, fingerprints == prints(firsts), keys, fingerprints), seen, unreadable
    )


class TakenIdentities(msgspec.Struct, Generic[_Seen], frozen=True):
    """What was taken from a unit: the identities of its records, where they are, and what a look at them gave."""

    keys: NDArray[np.uint64]
    positions: NDArray[np.int64]
    seen: list[_Seen]
    error: str | None = None


class _Take(msgspec.Struct, Generic[_Seen], frozen=True):
    """The work of taking identities: those of one part of all that there are (its number, of how many)."""

    number: int
    passes: int
    look: Callable[[Rows], _Seen] | None
    tolerant: bool

    def __call__(self, desk: JobContext, unit: Unit) -> TakenIdentities[_Seen]:
        keys, positions = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
        seen: list[_Seen] = []
        try:
            for rows in desk.rows(unit, ("id", "producer", "type", "stream", "tenant")):
                if self.look is not None:
                    seen.append(self.look(rows))
                found, places = self._mine(*identities(desk.hasher, rows))
                keys.append(found)
                positions.append(places)
        except (CorruptionError, Unsupported) as error:
            if not self.tolerant:
                raise
            return TakenIdentities(keys[0], positions[0], [], str(error))
        return TakenIdentities(np.concatenate(keys), np.concatenate(positions), seen)

    def _mine(
        self, keys: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        if self.passes == 1:
            return keys, positions
        mine = keys[:, 1] % np.uint64(self.passes) == self.number
        return keys[mine], positions[mine]


def identities(hasher: Hasher, rows: Rows) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the identities of the rows that carry an id, and their positions."""
    names = rows.payload.schema.names
    positions = np.arange(rows.first_position, rows.next_position)
    if "id" not in names:
        return np.empty((0, 2), np.uint64), positions[:0]
    payload, ids = rows.payload, rows.payload.column("id")
    if ids.null_count:
        positions = positions[arrays.present(ids)]
        payload = payload.filter(ids.is_valid())
    return hasher.keys(payload), positions


def _repeated_in(
    taken: Sequence[TakenIdentities[_Seen]],
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    none = (np.empty((0, 2), np.uint64), np.empty(0, np.int64))
    keys = np.concatenate([none[0], *(one.keys for one in taken)])
    return repeated(keys, np.concatenate([none[1], *(one.positions for one in taken)]))


def concerned(walk: Walk, wanted: NDArray[np.int64]) -> Iterator[tuple[Unit, NDArray[np.int64]]]:
    """Yield the units in which there are wanted positions, which are sorted, and those."""
    for unit in walk.units:
        low, high = np.searchsorted(wanted, (unit[0].first_position, unit[-1].next_position))
        if low < high:
            yield unit, wanted[low:high]


def _fingerprints(walk: Walk, wanted: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], NDArray[np.uint64]]:
    """Return what tells the fingerprint of a record by its position, for those that are wanted."""
    parts = walk.each(_take_fingerprints, list(concerned(walk, wanted)))
    prints = np.concatenate([np.empty(0, np.uint64), *parts])
    return lambda positions: prints[np.searchsorted(wanted, positions)]


def _take_fingerprints(desk: JobContext, part: tuple[Unit, NDArray[np.int64]]) -> NDArray[np.uint64]:
    unit, wanted = part
    found = [desk.hasher.fingerprints(payload) for payload in chosen(desk, unit, wanted)]
    return np.concatenate(found)


def chosen(desk: JobContext, unit: Unit, wanted: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield the records at these positions, in order."""
    for rows in desk.rows(unit):
        low, high = np.searchsorted(wanted, (rows.first_position, rows.next_position))
        if low < high:
            yield rows.payload.take(arrays.integers(wanted[low:high] - rows.first_position))
