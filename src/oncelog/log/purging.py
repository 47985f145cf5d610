"""Purging duplicates that came in when the window had forgotten the first: a row is emptied and marked, not removed.

The sealed file that holds it is written anew under a name of its own, then the manifest points to that, then the
original is deleted. Killed on the way, the log is as before, or as after. Nobody's position moves; a reader does not
see a purged record; a retry still meets it, and gets the position that it always got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.errors import NotFound, Unsupported
from oncelog.format import sealed
from oncelog.format.manifest import STREAMS, File, Manifest, Segment
from oncelog.format.sealed import Purged
from oncelog.log import naming, sealing
from oncelog.log.files import Files
from oncelog.log.manifests import Known, Manifests
from oncelog.log.repeats import Repeats, Walk, find
from oncelog.log.rows import Rows
from oncelog.storage.base import LogHome

AT_ONCE = 2
"""How many files are written anew at once: each is in memory as a whole."""

Progress = Callable[[int, int], None]


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge found and did.

    ``duplicates`` are records whose id and content were there before; ``purged`` of them are emptied now, ``unsealed``
    are not in a sealed file yet. ``conflicts``, the same id with other content, are left alone: somebody has to look.
    """

    records: int
    duplicates: int
    conflicts: int
    purged: int = 0
    unsealed: int = 0
    files: int = 0


def check(manifest: Manifest) -> None:
    """Raise ``Unsupported`` for a log whose records are counted by others."""
    if manifest.labels & STREAMS:
        message = f"log {manifest.name!r} holds streams, whose versions count their events: it cannot be purged"
        raise Unsupported(message)


def purge(
    home: LogHome, manifests: Manifests, known: Known, clock: Clock, *, remove: bool, progress: Progress | None
) -> Purge:
    """Find the duplicates in a log's closed segments and, if asked to, purge those in sealed files."""
    check(known.manifest)
    purged = files = 0
    while True:
        known, (segments, repeats) = manifests.look(known, lambda manifest: _find(home, manifests, manifest, progress))
        same = repeats.same
        chosen = Repeats(repeats.positions[same], repeats.firsts[same], same[same])
        counts = _purge_files(home, manifests, clock, segments, chosen) if remove else []
        duplicates = purged + len(chosen.positions)
        purged, files = purged + sum(counts), files + sum(count > 0 for count in counts)
        if all(counts):
            break
        known = manifests.newest(known) or known  # somebody else changed a file: look at what it has become
    if purged:
        sealing.collect(home, manifests)
    return Purge(
        records=sum(segment.entries for segment in segments),
        duplicates=duplicates,
        conflicts=int((~repeats.same).sum()),
        purged=purged,
        unsealed=duplicates - purged if remove else 0,
        files=files,
    )


def _find(
    home: LogHome, manifests: Manifests, manifest: Manifest, progress: Progress | None
) -> tuple[list[Segment], Repeats]:
    walk = Walk(home, manifests, manifest)
    return walk.segments, find(walk, None, progress)


def _purge_files(
    home: LogHome, manifests: Manifests, clock: Clock, segments: Sequence[Segment], chosen: Repeats
) -> list[int]:
    """Purge what is chosen; return how many records of each file that is concerned (0: somebody else changed it)."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        units = _units(segments, chosen.positions)
        return list(pool.map(lambda unit: _purge_file(home, manifests, clock, unit, chosen), units))


def _units(segments: Sequence[Segment], positions: NDArray[np.int64]) -> Iterator[list[Segment]]:
    """Yield the segments of each sealed file that holds one of the positions."""
    by_file: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.file is not None:
            by_file.setdefault(segment.file.key, []).append(segment)
    for unit in by_file.values():
        low, high = np.searchsorted(positions, (unit[0].first_position, unit[-1].next_position))
        if low < high:
            yield unit


def _purge_file(home: LogHome, manifests: Manifests, clock: Clock, unit: Sequence[Segment], chosen: Repeats) -> int:
    """Write one file anew, with its duplicates emptied; return how many those are (0: somebody else changed it)."""
    original = unit[0].file
    assert original is not None
    known = manifests.newest()
    assert known is not None
    try:
        marks = _marks(home, known.manifest, unit, chosen)
        data = encode(sealed.emptied(Files(home).open(original).table(), marks))
    except NotFound:
        return 0
    key = sealing.new_key(clock, known.manifest.staging_floor_us)
    home.create(key, [data])
    changes = {}
    for segment in unit:
        assert segment.file is not None
        file = File(key, segment.file.row, data.size, xxhash.xxh3_64_intdigest(data))
        changes[segment.number] = msgspec.structs.replace(segment, file=file)
    after = manifests.update(lambda manifest: sealing.point_to(manifests, manifest, unit, changes), known).manifest
    now = next(manifests.closed_from(after, max(after.first_position, unit[-1].first_position)), None)
    if now is None or now.file is None or now.file.key != key:
        sealing.delete_quietly(home, key)
        return 0
    return len(marks.rows)


def encode(table: pa.Table) -> pa.Buffer:
    """Return a table with purged rows as the bytes of a sealed file."""
    return sealed.encode(table.to_batches(), table.schema)


def _marks(home: LogHome, manifest: Manifest, unit: Sequence[Segment], chosen: Repeats) -> Purged:
    """Return the rows of a file that are to be purged, with who they are."""
    hasher = naming.hasher_of(manifest)
    found = []
    for segment in unit:
        for rows in Files(home).rows(segment, 0):
            low, high = np.searchsorted(chosen.positions, (rows.first_position, rows.next_position))
            if low < high:
                assert segment.file is not None
                found.append(_of_rows(hasher, rows, segment.file.row, chosen, slice(low, high)))
    return Purged(*(np.concatenate([getattr(part, name) for part in found]) for name in Purged.__struct_fields__))


def _of_rows(hasher: Hasher, rows: Rows, first_row: int, chosen: Repeats, part: slice) -> Purged:
    numbers = chosen.positions[part] - rows.first_position
    payload = rows.payload.take(pa.array(numbers))
    return Purged(
        numbers + rows.first_entry + first_row,
        chosen.firsts[part],
        hasher.keys(payload),
        hasher.fingerprints(payload),
    )
