"""The identities of adopted files of a log with a bounded window: remembered as long as the window's duration says.

Files with many identities bring a run with them, and so do many files with few, once there are enough: then the runs of
the log are searched, and a hit counts if its file is within the duration. What no run has yet is in memory. Files come
by the thousand (one for each task of each micro-batch), so their identities are merged into few sorted pieces, each at
least twice as long as the next. What is too old goes file by file: positions tell which file an identity is of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.format.identities import Identities
from oncelog.format.manifest import Segment

PIECES_MIN = 8
"""So few pieces are searched one by one: merging them would take longer."""


class AdoptedPlaces(NamedTuple):
    """Where identities were found among those in memory: -1 for those that were not."""

    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]


class _Piece(NamedTuple):
    """Identities sorted by their high halves; of those that are the same the newest comes first. Never changed."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]
    positions: NDArray[np.int64]

    def merged(self, newer: _Piece) -> _Piece:
        """Return this piece and one that is newer as one."""
        high = np.concatenate([newer.high, self.high])
        order = np.argsort(high, kind="stable")
        return _Piece(
            high[order],
            np.concatenate([newer.low, self.low])[order],
            np.concatenate([newer.fingerprints, self.fingerprints])[order],
            np.concatenate([newer.positions, self.positions])[order],
        )

    def chosen(self, rows: NDArray[np.bool_]) -> _Piece:
        """Return some of the identities."""
        return _Piece(self.high[rows], self.low[rows], self.fingerprints[rows], self.positions[rows])


class _Ranges:
    """The positions of files, oldest first."""

    def __init__(self, files: Sequence[Segment]) -> None:
        self._starts = np.array([segment.first_position for segment in files], np.int64)
        self._ends = np.array([segment.next_position for segment in files], np.int64)

    def have(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which positions are in one of the files."""
        if not len(self._starts):
            return np.zeros(len(positions), np.bool_)
        at = np.searchsorted(self._starts, positions, side="right") - 1
        inside: NDArray[np.bool_] = (at >= 0) & (positions < self._ends[at])
        return inside


class Adopted:
    """The adopted files that are within the window's duration, and the identities of those that no run covers."""

    def __init__(self, duration_us: int) -> None:
        self._duration_us = duration_us
        self.files: list[Segment] = []  # oldest first
        self.held: list[Segment] = []  # those whose identities are in memory; oldest first
        self.ids = 0
        """How many identities are in memory."""
        self._ranges: _Ranges | None = None
        self._pieces: list[_Piece] = []  # oldest first, and all that is in one is older than all that is in the next

    @classmethod
    def holding(
        cls,
        duration_us: int,
        files: Sequence[Segment],
        load: Callable[[Segment], Identities],
        before: Adopted | None = None,
        covered: Collection[str | None] = (),
    ) -> Adopted:
        """Return these files, of which a run has those that are ``covered``, by their identities' keys.

        Identities that were held before are not loaded again.
        """
        found = cls(duration_us)
        wanted = [segment for segment in files if segment.identities not in covered]
        if before is not None and wanted:
            found._take_over(before, wanted)
        for segment in wanted[len(found.held) :]:
            found._hold(segment, load(segment))
        found.files = list(files)
        return found

    def _take_over(self, before: Adopted, wanted: Sequence[Segment]) -> None:
        """Share the pieces of another one, which are never changed, if it holds a first part of what is wanted."""
        keys = {segment.identities for segment in wanted}
        kept = [segment for segment in before.held if segment.identities in keys]
        same = all(mine.identities == its.identities for mine, its in zip(kept, wanted, strict=False))
        if kept and same:
            self.held, self._pieces, self.ids = list(before.held), list(before._pieces), before.ids
            self._keep(kept)

    def __bool__(self) -> bool:
        """Tell whether there is anything to search here."""
        return bool(self._pieces)

    def add(self, segment: Segment, identities: Identities | None) -> None:
        """Remember this file too, from now on; ``None``: a run has its identities. It is newer than all others."""
        self.files.append(segment)
        self._ranges = None
        if identities is not None:
            self._hold(segment, identities)

    def _hold(self, segment: Segment, identities: Identities) -> None:
        self.ids += len(identities.high)
        positions = segment.first_position + identities.rows.astype(np.int64)
        self._pieces.append(_Piece(identities.high, identities.low, identities.fingerprints, positions))
        self.held.append(segment)  # last: the next writer does not load what is named here (``holding``)

    def drop(self, covered: Callable[[Segment], bool]) -> None:
        """Let go of the identities of files that a run covers."""
        kept = [segment for segment in self.held if not covered(segment)]
        if len(kept) < len(self.held):
            self._keep(kept)

    def _keep(self, held: list[Segment]) -> None:
        """Hold the identities of these files alone, which are among those that are held."""
        if len(held) < len(self.held):
            ranges = _Ranges(held)
            pieces = [piece.chosen(ranges.have(piece.positions)) for piece in self._pieces]
            self._pieces = [piece for piece in pieces if len(piece.positions)]
        self.held = held
        self.ids = sum(len(piece.positions) for piece in self._pieces)

    def evict(self, uptime_us: int) -> None:
        """Forget files that are older than the window's duration."""
        if self.files and self.files[0].last_uptime_us + self._duration_us <= uptime_us:
            self.files = [each for each in self.files if each.last_uptime_us + self._duration_us > uptime_us]
            self._ranges = None
            first = self.first_position
            self.held = [] if first is None else [each for each in self.held if each.first_position >= first]
            gone = (piece for piece in self._pieces if first is None or not (piece.positions >= first).any())
            forgotten = {id(piece) for piece in gone}
            self._pieces = [piece for piece in self._pieces if id(piece) not in forgotten]
            self.ids = sum(len(piece.positions) for piece in self._pieces)

    @property
    def first_position(self) -> int | None:
        """The first position whose identity is kept."""
        return self.files[0].first_position if self.files else None

    def have(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which positions are in files that are within the duration."""
        if self._ranges is None:
            self._ranges = _Ranges(self.files)
        return self._ranges.have(positions)

    def find(self, keys: NDArray[np.uint64]) -> AdoptedPlaces:
        """Look identities up among those in memory."""
        positions = np.full(len(keys), -1, np.int64)
        fingerprints = np.zeros(len(keys), np.uint64)
        first = self.first_position
        if first is not None and self._pieces:
            self._merge()
            for piece in self._pieces:
                at = search(piece, keys)
                hit = np.flatnonzero(at >= 0)
                hit = hit[piece.positions[at[hit]] >= first]
                positions[hit] = piece.positions[at[hit]]
                fingerprints[hit] = piece.fingerprints[at[hit]]
        return AdoptedPlaces(positions, fingerprints)

    def _merge(self) -> None:
        """Merge neighbours until there are few pieces, or each is at least twice as long as the next."""
        if len(self._pieces) <= PIECES_MIN:
            return
        merged: list[_Piece] = []
        for piece in self._pieces:
            merged.append(piece)
            while len(merged) > 1 and len(merged[-2].high) < 2 * len(merged[-1].high):
                newer = merged.pop()
                merged[-1] = merged[-1].merged(newer)
        self._pieces = merged


def search(identities: Identities | _Piece, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
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
