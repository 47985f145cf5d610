"""Ids that are in a log more than once, all of them: what came in beyond the window, for an audit and for a purge.

The window is not asked, the log itself is: every identity of every record is hashed, sorted and compared, several
segments at a time. What is kept of a record meanwhile is 24 bytes; a log with more records than fit is gone through
several times, each time for a part of the identities.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.identity import Hasher
from oncelog.format import arrays
from oncelog.format.manifest import Manifest, Segment
from oncelog.log import naming
from oncelog.log.files import Files, rows_of
from oncelog.log.manifests import Manifests
from oncelog.log.rows import Rows
from oncelog.storage.base import LogHome

RECORDS_A_PASS = 50_000_000
"""How many identities are compared at once: about 2 GB while they are sorted."""

Look = Callable[[Rows], None]
Progress = Callable[[int, int], None]


class Repeats(NamedTuple):
    """Records whose id is in the log before them, by position; ``firsts`` is where, ``same`` whether with the same
    content.
    """

    positions: NDArray[np.int64]
    firsts: NDArray[np.int64]
    same: NDArray[np.bool_]


class Walk:
    """Goes through the closed segments of a log, several at a time."""

    def __init__(self, home: LogHome, manifests: Manifests, manifest: Manifest) -> None:
        self._home = home
        self._first_position = manifest.first_position
        self.hasher = naming.hasher_of(manifest)
        self.segments = list(manifests.closed_from(manifest, manifest.first_position))
        self._threads = min(8, os.cpu_count() or 1)

    def each(self, segments: list[Segment], look: Callable[[Segment, Files], None], progress: Progress | None) -> None:
        """Have every segment looked at; what is wrong with one is raised when the others are done."""
        total = sum(segment.entries for segment in segments)
        done = 0
        with ThreadPoolExecutor(self._threads) as pool:
            waiting = [(segment, pool.submit(look, segment, Files(self._home))) for segment in segments]
            for segment, future in waiting:
                future.result()
                done += segment.entries
                if progress is not None:
                    progress(done, total)

    def rows(self, files: Files, segment: Segment, names: tuple[str, ...] | None = None) -> Iterator[Rows]:
        """Yield a segment's records from the log's first position on."""
        if segment.file is not None:
            yield from files.rows(segment, max(0, self._first_position - segment.first_position), names)
        else:
            yield from rows_of(self._home, files, segment, self._first_position)


def find(walk: Walk, look: Look | None = None, progress: Progress | None = None) -> Repeats:
    """Return the records whose id was there before. ``look`` sees all records, in columns, in any order."""
    passes = max(1, -(-sum(segment.entries for segment in walk.segments) // RECORDS_A_PASS))
    found = [_pass(walk, (number, passes), look if not number else None, progress) for number in range(passes)]
    positions = np.concatenate([part[0] for part in found])
    firsts = np.concatenate([part[1] for part in found])
    order = np.argsort(positions)
    positions, firsts = positions[order], firsts[order]
    prints = _fingerprints(walk, np.union1d(positions, firsts))
    same = prints(positions) == prints(firsts)
    return Repeats(positions, firsts, same)


def _pass(
    walk: Walk, part: tuple[int, int], look: Look | None, progress: Progress | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return repeated positions and where each was first, for one part of the identities (its number, of how many)."""
    number, passes = part
    parts: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []

    def take(segment: Segment, files: Files) -> None:
        for rows in walk.rows(files, segment, ("id", "producer", "type", "stream", "tenant")):
            if look is not None:
                look(rows)
            keys, positions = identities(walk.hasher, rows)
            if passes > 1:
                mine = keys[:, 1] % np.uint64(passes) == number
                keys, positions = keys[mine], positions[mine]
            if len(positions):
                parts.append((keys, positions))  # of a list, append is atomic

    walk.each(walk.segments, take, progress)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return repeated(np.concatenate([keys for keys, _ in parts]), np.concatenate([places for _, places in parts]))


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


def repeated(keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions whose key occurs at an earlier one, and the earliest of each.

    Almost all keys occur once: those whose high half does are put aside before anything else is compared.
    """
    high = np.sort(keys[:, 0])
    suspects = np.unique(high[1:][high[1:] == high[:-1]])
    if not len(suspects):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(suspects, keys[:, 0]), len(suspects) - 1)
    chosen = np.flatnonzero(suspects[at] == keys[:, 0])
    keys, positions = keys[chosen], positions[chosen]
    order = np.lexsort((positions, keys[:, 1], keys[:, 0]))
    keys, positions = keys[order], positions[order]
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    firsts = positions[np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))]
    return positions[~begins], firsts[~begins]


def _fingerprints(walk: Walk, wanted: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], NDArray[np.uint64]]:
    """Return what tells the fingerprint of a record by its position, for those that are wanted."""
    prints = np.zeros(len(wanted), np.uint64)

    def take(segment: Segment, files: Files) -> None:
        for rows in walk.rows(files, segment):
            low, high = np.searchsorted(wanted, (rows.first_position, rows.next_position))
            if low < high:
                chosen = rows.payload.take(pa.array(wanted[low:high] - rows.first_position))
                prints[low:high] = walk.hasher.fingerprints(chosen)

    concerned = [
        segment
        for segment in walk.segments
        if np.searchsorted(wanted, segment.first_position) < np.searchsorted(wanted, segment.next_position)
    ]
    walk.each(concerned, take, None)
    return lambda positions: prints[np.searchsorted(wanted, positions)]
