"""Purging duplicates that came in when the window had forgotten the first: a row is emptied and marked, not removed.

The sealed file that holds it is written again under a name of its own, then the manifest points to that, then the
original is deleted. Killed on the way, the log is as before, or as after. No position changes; a reader does not
see a purged record; a retry still meets it, and gets the position that it always got.
"""

from __future__ import annotations

import msgspec
import xxhash

from oncelog.clock import Clock
from oncelog.errors import NotFound, Unsupported
from oncelog.format import sealed
from oncelog.format.manifest import STREAMS, File, Manifest, Segment, labels_of
from oncelog.format.sealed import Purged
from oncelog.log.jobs.find_repeats import Progress, Repeats, Walk, concerned, find
from oncelog.log.jobs.workers import Hands, JobContext, Unit
from oncelog.log.stored import bases, object_keys
from oncelog.log.stored.files import SealedFiles
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.upkeep import sealing
from oncelog.storage.base import LogHome


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge found and did.

    ``duplicates`` are records with the id and content of an earlier one; ``purged`` of them are emptied now,
    ``unsealed`` are not in a sealed file yet. ``conflicts``, the same id with other content, are left alone: somebody
    has to look.
    """

    records: int
    duplicates: int
    conflicts: int
    purged: int = 0
    unsealed: int = 0
    files: int = 0


def check(home: LogHome, manifests: Manifests, manifest: Manifest) -> None:
    """Raise ``Unsupported`` for a log whose records are counted by others."""
    if manifest.labels & STREAMS and _has_streams(home, manifests, manifest):
        message = f"log {manifest.name!r} holds streams, whose versions count their events: it cannot be purged"
        raise Unsupported(message)


def _has_streams(home: LogHome, manifests: Manifests, manifest: Manifest) -> bool:
    """Tell whether a record has a stream, or had one before it was truncated away.

    Nobody noted that of a segment that a crash left open. It is read, until it is sealed.
    """
    if bases.load(home, manifest).streams:
        return True
    ends = manifest.first_position, manifest.next_position
    found = bases.labelled(home, manifests, manifest, *ends, labels=STREAMS)
    return any(labels_of(rows.payload) & STREAMS for rows in found)


def purge(
    home: LogHome,
    manifests: Manifests,
    known: Known,
    clock: Clock,
    hands: Hands,
    *,
    remove: bool,
    progress: Progress | None,
) -> Purge:
    """Find the duplicates in a log's closed segments and, if asked to, purge those in sealed files."""
    known, _ = manifests.look(known, lambda manifest: check(home, manifests, manifest))
    purged = files = 0
    while True:
        known, (walk, repeats) = manifests.look(
            known, lambda manifest: _find(Walk(home, manifests, manifest, clock, hands), progress)
        )
        chosen = repeats.where(repeats.same)
        counts = _purge_files(manifests, walk, chosen, progress) if remove else []
        duplicates = purged + len(chosen.positions)
        purged, files = purged + sum(counts), files + sum(count > 0 for count in counts)
        if all(counts):
            break
        known = manifests.newest(known) or known  # somebody else changed a file: look at what it has become
    if purged:
        sealing.collect(home, manifests)
    return Purge(
        records=walk.records,
        duplicates=duplicates,
        conflicts=int((~repeats.same).sum()),
        purged=purged,
        unsealed=duplicates - purged if remove else 0,
        files=files,
    )


def _find(walk: Walk, progress: Progress | None) -> tuple[Walk, Repeats]:
    return walk, find(walk, None, progress).repeats


def _purge_files(manifests: Manifests, walk: Walk, chosen: Repeats, progress: Progress | None) -> list[int]:
    """Purge what is chosen; return how many records of each file that is concerned (0: somebody else changed it).

    The hands write the files again, several at once; each is entered into the manifest here.
    """
    known = manifests.newest()
    assert known is not None
    floor_us = known.manifest.staging_floor_us
    parts = [
        PurgePart(unit, chosen.within(unit), floor_us)
        for unit, _ in concerned(walk, chosen.positions)
        if unit[0].file is not None
    ]
    records = [sum(segment.entries for segment in part.unit) for part in parts]
    counts = []
    for part, file in zip(parts, walk.each(rewrite_file, parts), strict=True):
        counts.append(_point_to(manifests, walk.desk, part, file) if file is not None else 0)
        if progress is not None:
            progress(sum(records[: len(counts)]), sum(records))
    return counts


class PurgePart(msgspec.Struct, frozen=True):
    """A file that a purge writes again: its segments, its rows to purge, and the staging floor of the log."""

    unit: Unit
    chosen: Repeats
    floor_us: int


def rewrite_file(desk: JobContext, part: PurgePart) -> File | None:
    """Write a file again, with its duplicates emptied, under a name of its own; ``None`` if it is gone."""
    original = part.unit[0].file
    assert original is not None
    marks = Purged(
        part.chosen.positions - part.unit[0].first_position + original.row,
        part.chosen.firsts,
        part.chosen.keys,
        part.chosen.fingerprints,
    )
    try:
        data = sealed.rewritten(SealedFiles(desk.home).open(original), marks)
    except NotFound:
        return None
    key = object_keys.new_key(desk.clock, part.floor_us)
    desk.home.create(key, [data])
    return File(key, 0, data.size, xxhash.xxh3_64_intdigest(data))


def _point_to(manifests: Manifests, desk: JobContext, part: PurgePart, file: File) -> int:
    """Have the manifest point to a new file; return how many duplicates it is without (0: somebody else changed it)."""
    changes = {}
    for segment in part.unit:
        assert segment.file is not None
        changes[segment.number] = msgspec.structs.replace(
            segment, file=msgspec.structs.replace(file, row=segment.file.row)
        )
    until = int(part.chosen.positions[-1]) + 1
    after = manifests.update(lambda manifest: _purged(manifests, manifest, part.unit, changes, until)).manifest
    last = part.unit[-1]
    now = next(manifests.closed_from(after, max(after.first_position, last.first_position)), None)
    if now is None or now.file is None or now.file.key != file.key:
        sealing.delete_quietly(desk.home, file.key)
        return 0
    return len(part.chosen.positions)


def _purged(manifests: Manifests, manifest: Manifest, unit: Unit, changes: dict[int, Segment], until: int) -> Manifest:
    """Return the manifest with a purged file in place of the one before, or unchanged if that is not there any more."""
    changed = sealing.point_to(manifests, manifest, unit, changes)
    if changed is manifest:
        return manifest
    return msgspec.structs.replace(changed, purged_until=max(changed.purged_until, until))
