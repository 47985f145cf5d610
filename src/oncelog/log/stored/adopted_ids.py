"""The identities of adopted files, searched as long as the window's duration says.

Files come by the thousand (one for each task of each micro-batch), so their identities are merged into few sorted runs,
each at least twice as long as the next. What is too old goes file by file: positions tell which file an identity is of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.format.identities import Identities
from oncelog.format.manifest import Segment

RUNS_MIN = 8
"""So few runs are searched one by one: merging them would take longer."""


class Found(msgspec.Struct, frozen=True):
    """Where identities were found among adopted files: -1 for those that were not."""

    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    times: NDArray[np.int64]


class _Run(NamedTuple):
    """Identities sorted by their high halves; of those that are the same the newest comes first. Never changed."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]
    positions: NDArray[np.int64]

    def merged(self, newer: _Run) -> _Run:
        """Return this run and one that is newer as one."""
        high = np.concatenate([newer.high, self.high])
        order = np.argsort(high, kind="stable")
        return _Run(
            high[order],
            np.concatenate([newer.low, self.low])[order],
            np.concatenate([newer.fingerprints, self.fingerprints])[order],
            np.concatenate([newer.positions, self.positions])[order],
        )


class Adopted:
    """The identities of adopted files that are still within the window's duration."""

    def __init__(self, duration_us: int) -> None:
        self._duration_us = duration_us
        self.files: list[Segment] = []  # oldest first
        self._runs: list[_Run] = []  # oldest first, and all that is in one is older than all that is in the next

    @classmethod
    def holding(
        cls,
        duration_us: int,
        segments: Sequence[Segment],
        load: Callable[[Segment], Identities],
        before: Adopted | None = None,
    ) -> Adopted:
        """Return the identities of these files; what was held before is not loaded again."""
        found = cls(duration_us)
        if before is not None and segments:
            found._take_over(before, segments)
        for segment in segments[len(found.files) :]:
            found.add(segment, load(segment))
        return found

    def _take_over(self, before: Adopted, segments: Sequence[Segment]) -> None:
        """Share the runs of another one, which are never changed, if it holds a first part of what is wanted."""
        first = segments[0].first_position
        kept = [segment for segment in before.files if segment.first_position >= first]
        same = all(mine.identities == wanted.identities for mine, wanted in zip(kept, segments, strict=False))
        if kept and same and len(kept) <= len(segments):
            self.files = kept
            self._runs = list(before._runs)

    def __bool__(self) -> bool:
        """Tell whether there is anything to search."""
        return bool(self.files)

    def add(self, segment: Segment, identities: Identities) -> None:
        """Search this file too, from now on. It is newer than all others."""
        self.files.append(segment)
        positions = segment.first_position + identities.rows.astype(np.int64)
        self._runs.append(_Run(identities.high, identities.low, identities.fingerprints, positions))

    def evict(self, uptime_us: int) -> None:
        """Forget files that are older than the window's duration."""
        if self.files and self.files[0].last_uptime_us + self._duration_us <= uptime_us:
            self.files = [each for each in self.files if each.last_uptime_us + self._duration_us > uptime_us]
            first = self.first_position
            gone = (run for run in self._runs if first is None or not (run.positions >= first).any())
            forgotten = {id(run) for run in gone}
            self._runs = [run for run in self._runs if id(run) not in forgotten]

    @property
    def first_position(self) -> int | None:
        """The first position whose identity is kept here."""
        return self.files[0].first_position if self.files else None

    def find(self, keys: NDArray[np.uint64]) -> Found:
        """Look identities up."""
        positions = np.full(len(keys), -1, np.int64)
        fingerprints = np.zeros(len(keys), np.uint64)
        first = self.first_position
        if first is not None:
            self._merge()
            for run in self._runs:
                at = search(run, keys)
                hit = np.flatnonzero(at >= 0)
                hit = hit[run.positions[at[hit]] >= first]
                positions[hit] = run.positions[at[hit]]
                fingerprints[hit] = run.fingerprints[at[hit]]
        return Found(positions, fingerprints, self._times(positions))

    def _times(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the files with these positions were adopted; -1 for no position."""
        times = np.full(len(positions), -1, np.int64)
        hit = np.flatnonzero(positions >= 0)
        if hit.size:
            starts = np.array([segment.first_position for segment in self.files])
            moments = np.array([segment.first_timestamp_us for segment in self.files])
            times[hit] = moments[np.searchsorted(starts, positions[hit], side="right") - 1]
        return times

    def _merge(self) -> None:
        """Merge neighbours until there are few runs, or each is at least twice as long as the next."""
        if len(self._runs) <= RUNS_MIN:
            return
        merged: list[_Run] = []
        for run in self._runs:
            merged.append(run)
            while len(merged) > 1 and len(merged[-2].high) < 2 * len(merged[-1].high):
                newer = merged.pop()
                merged[-1] = merged[-1].merged(newer)
        self._runs = merged


def search(identities: Identities | _Run, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the first place of each key among identities sorted by their high halves, -1 for those not there."""
    count = len(identities.high)
    at = np.searchsorted(identities.high, keys[:, 0])
    found = np.full(len(keys), -1, np.int64)
    looking = np.arange(len(keys))
    while looking.size:
        # Halves of 64 bits hardly ever repeat, so this is one round, and almost never a second.
        places = at[looking]
        inside = places < count
        looking, places = looking[inside], places[inside]
        same = identities.high[places] == keys[looking, 0]
        looking, places = looking[same], places[same]
        hit = identities.low[places] == keys[looking, 1]
        found[looking[hit]] = places[hit]
        looking = looking[~hit]
        at[looking] += 1
    return found
