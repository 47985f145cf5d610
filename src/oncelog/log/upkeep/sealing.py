"""Sealing: closed segments become Parquet files, off the append path, and may be killed at any moment.

A file is written under a name of its own, then the manifest points to it, then what it replaces is deleted. Killed
before the manifest: an orphan, which the next sealing removes. Killed after: the manifest knows what is left to delete.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, OncelogError
from oncelog.format import sealed
from oncelog.format.manifest import File, Manifest, Segment, labels_of
from oncelog.format.runs.run import covers
from oncelog.limits import MIB
from oncelog.log.stored.files import SealedFiles, rows_of
from oncelog.log.stored.manifests import Known, Manifests, gone
from oncelog.log.stored.object_keys import PREFIX, STAGED_S, created_us, new_key
from oncelog.log.stored.rows import each
from oncelog.storage.base import LogHome

_BYTES_MIN = 8 * MIB
"""Background sealing makes files of this size at least, about: half of it is enough."""

_PIECES_MAX = 64
"""So many neighbours are put together however small they are."""

_RAW_FACTOR = 4
"""So many times its size a file may come to when it is not compressed. Background sealing allows it once: what is
written into a file is not written again (decision 61).
"""

_FILE_RECORDS_MAX = 4_000_000
"""So many records a file has at most, unless one segment has more."""

_RECORD_BYTES = 64
"""What a record may take in a file, beside what it takes in a block: two times, and what columns have of their own."""

_FOOTER_BYTES = 64 * 1024
"""The end of a file that holds its footer, nearly always."""

_RAW_SIZES_MAX = 10_000
_raw_sizes: dict[str, int] = {}
"""What files come to when they are not compressed, by their keys, which are never used again."""


class Sealing(msgspec.Struct, frozen=True, kw_only=True):
    """What a sealing did: how many files it made, of how many segments and records, and their bytes before and
    after.
    """

    files: int = 0
    segments: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def seal_worthwhile(
    home: LogHome, manifests: Manifests, clock: Clock, known: Known, segment_bytes: int
) -> Iterator[Sealing]:
    """Seal the closed segments that are enough for a file of some size; yield what was done after each file."""
    file_bytes = max(segment_bytes, _BYTES_MIN)
    return _seal(home, manifests, clock, known, _FileTarget(file_bytes, file_bytes, _BYTES_MIN // 2, file_bytes // 2))


def seal_all(
    home: LogHome, manifests: Manifests, clock: Clock, known: Known, progress: Callable[[Sealing], None] | None = None
) -> Sealing:
    """Seal every closed segment, and sweep; return what was done in all. ``progress`` is called after each file."""
    total = Sealing()
    file_bytes = known.manifest.settings.segment_bytes
    for part in _seal(home, manifests, clock, known, _FileTarget(file_bytes, file_bytes * _RAW_FACTOR)):
        total = Sealing(**{name: getattr(total, name) + getattr(part, name) for name in Sealing.__struct_fields__})
        if progress is not None:
            progress(part)
    sweep(home, manifests, clock)
    return total


def _seal(home: LogHome, manifests: Manifests, clock: Clock, known: Known, target: _FileTarget) -> Iterator[Sealing]:
    """Seal every closed segment, small neighbours together in files as ``target`` wants them; yield after each file.

    Neighbours whose files are small are put together again. What is too little for a file is left for later, and so
    is what is small beside a file that would be written again for it, unless too few stores hold it.
    """
    while True:
        try:
            for group, bytes_min in _groups(home, manifests, known.manifest, target):
                is_due = _is_enough(home, group, target, bytes_min) or _is_at_risk(home, group)
                done = _seal_group(home, manifests, clock, group) if is_due else None
                if done is not None:
                    yield done
            break
        except NotFound as error:  # somebody else sealed, merged or truncated what this manifest refers to
            newer = manifests.newest(known)
            if newer is None or not manifests.is_same(newer):  # the log was deleted
                raise
            if newer.version == known.version:
                message = f"{error}, though manifest version {known.version} refers to it: restore it from a copy"
                raise CorruptionError(message) from error
            known = newer
    collect(home, manifests)


def _is_enough(home: LogHome, group: Sequence[Segment], target: _FileTarget, bytes_min: int) -> bool:
    """Tell whether neighbours are worth a file. The largest file among them is written again, so that what comes to it
    must have ``bytes_min``, or half its size, or be many pieces: ten rows are no reason to write a million. Many pieces
    do not wait for more.
    """
    pieces = [(piece[0].file is not None, _weight(home, piece, target).raw_bytes) for piece in units(group)]
    largest = max((raw_bytes for is_sealed, raw_bytes in pieces if is_sealed), default=0)
    added = sum(raw_bytes for _, raw_bytes in pieces) - largest
    if len(pieces) >= _PIECES_MAX:
        return largest + added >= target.bytes_min
    return largest + added >= bytes_min and (added >= bytes_min or 2 * added >= largest)


def _is_at_risk(home: LogHome, group: Sequence[Segment]) -> bool:
    return home.seals_early and any(one.file is None and home.at_risk(one.number, one.end) for one in group)


class _FileTarget(NamedTuple):
    """How large files are to be: what they come to at most, as they are stored and not compressed, and what is worth a
    file, not compressed. The last neighbours wait for ``wait_bytes``, because more will come to them.
    """

    file_bytes: int
    raw_bytes: int
    bytes_min: int = 0
    wait_bytes: int = 0


class _Weight(NamedTuple):
    """What segments come to: bytes as they are stored, bytes that are not compressed, and records."""

    stored_bytes: int = 0
    raw_bytes: int = 0
    records: int = 0

    def fits(self, target: _FileTarget) -> bool:
        """Tell whether so much may be one file: records that compress well must not make one that is merged again and
        again, with all of it in memory.
        """
        return (
            self.stored_bytes <= target.file_bytes
            and self.raw_bytes <= target.raw_bytes
            and self.records <= _FILE_RECORDS_MAX
        )

    def is_large(self, target: _FileTarget) -> bool:
        """Tell whether it is large enough for a file of its own: another like it would not fit into the file."""
        return not self.plus(self).plus(_Weight(-1, -1, 0)).fits(target)

    def plus(self, other: _Weight) -> _Weight:
        """Return what both come to together."""
        return _Weight(*(mine + its for mine, its in zip(self, other, strict=True)))


def _weight(home: LogHome, unit: Sequence[Segment], target: _FileTarget) -> _Weight:
    stored, records = size(unit), sum(segment.entries for segment in unit)
    file = unit[0].file
    at_least = _Weight(stored, stored, records)
    if file is None or at_least.is_large(target):
        return at_least  # not compressed, or large enough as it is
    raw = _raw_sizes.get(file.key)
    if raw is None:
        tail = home.read(file.key, max(0, file.size_bytes - _FOOTER_BYTES), _FOOTER_BYTES)
        raw = sealed.raw_bytes(tail, file.key)
        raw = stored if raw is None else raw
        _note_raw_size(file.key, raw)
    return _Weight(stored, raw, records)


def _raw_bytes(unit: Sequence[Segment]) -> int:
    """Return what a unit comes to when it is not compressed, as far as this process knows."""
    stored, file = size(unit), unit[0].file
    return stored if file is None else _raw_sizes.get(file.key, stored)


def _note_raw_size(key: str, raw_bytes: int) -> None:
    if len(_raw_sizes) >= _RAW_SIZES_MAX:
        _raw_sizes.clear()
    _raw_sizes[key] = raw_bytes


def _groups(
    home: LogHome, manifests: Manifests, manifest: Manifest, target: _FileTarget
) -> Iterator[tuple[list[Segment], int]]:
    """Yield runs of neighbours that may become a file, each with what it must have to be worth that: unsealed ones, and
    sealed ones whose files are small. A small file is not written again for what is large by itself.
    """
    group: list[Segment] = []
    total = _Weight()
    for unit in units(manifests.closed_from(manifest, manifest.first_position)):
        weight = _weight(home, unit, target)
        is_apart = weight.is_large(target) and any(segment.file is not None for segment in (*group, unit[0]))
        if group and (is_apart or not total.plus(weight).fits(target)):
            yield from _worthwhile(group, target.bytes_min)
            group, total = [], _Weight()
        if not is_apart or unit[0].file is None:
            group += unit
            total = total.plus(weight)
    yield from _worthwhile(group, target.wait_bytes)


def units(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield segments, those that share a file together."""
    unit: list[Segment] = []
    for segment in segments:
        if unit and (segment.file is None or unit[-1].file is None or segment.file.key != unit[-1].file.key):
            yield unit
            unit = []
        unit.append(segment)
    if unit:
        yield unit


def size(segments: Sequence[Segment]) -> int:
    """Return the bytes of segments: those of their files, if they have any, each once."""
    files = {segment.file.key: segment.file.size_bytes for segment in segments if segment.file is not None}
    return sum(files.values()) + sum(segment.size_bytes for segment in segments if segment.file is None)


def _worthwhile(group: list[Segment], bytes_min: int) -> Iterator[tuple[list[Segment], int]]:
    files = {segment.file.key if segment.file is not None else segment.number for segment in group}
    if len(files) > 1 or any(segment.file is None for segment in group):
        yield group, bytes_min


def _seal_group(home: LogHome, manifests: Manifests, clock: Clock, group: Sequence[Segment]) -> Sealing | None:
    """Make one file of segments; ``None`` when they were truncated, or sealed by somebody else, meanwhile."""
    labels = dict.fromkeys((segment.number for segment in group), 0)
    schema = schema_of(home, group)
    data = _encoded(home, group, labels, schema)
    known = manifests.newest()
    if known is None:
        raise gone()
    key = new_key(clock, known.manifest.staging_floor_us)
    home.create(key, [data])
    changes: dict[int, Segment] = {}
    row = 0
    for segment in group:
        file = File(key, row, data.size, xxhash.xxh3_64_intdigest(data))
        changes[segment.number] = msgspec.structs.replace(
            segment, file=file, end=0, size_bytes=0, labels=labels[segment.number]
        )
        row += segment.entries
    after = manifests.update(lambda manifest: point_to(manifests, manifest, group, changes), known).manifest
    position = max(after.first_position, group[-1].first_position)
    now = next(manifests.closed_from(after, position), None)
    if now is None or now.file is None or now.file.key != key:
        delete_quietly(home, key)
        return None
    _note_raw_size(key, sum(_raw_bytes(unit) for unit in units(group)))
    return Sealing(files=1, segments=len(group), records=row, bytes_before=size(group), bytes_after=data.size)


def _encoded(home: LogHome, group: Sequence[Segment], labels: dict[int, int], schema: pa.Schema) -> pa.Buffer:
    """Return the file of segments, made in memory of which is known that it is enough, nearly always."""
    raw_bytes, records = sum(map(_raw_bytes, units(group))), sum(segment.entries for segment in group)
    bytes_max = raw_bytes + raw_bytes // 4 + _RECORD_BYTES * records + MIB
    try:
        return sealed.encode(tables(home, group, labels, schema), schema, bytes_max)
    except OSError:
        return sealed.encode(tables(home, group, labels, schema), schema)


def schema_of(home: LogHome, group: Sequence[Segment]) -> pa.Schema:
    """Return the columns of the file that segments become: with those of purged rows, if there are any."""
    files = SealedFiles(home)
    purged = any(segment.file is not None and files.open(segment.file).has_purged for segment in group)
    return sealed.with_purged(sealed.SCHEMA) if purged else sealed.SCHEMA


def tables(
    home: LogHome, group: Sequence[Segment], labels: dict[int, int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the records of segments in the columns of a sealed file, checking that none is missing, and note their
    labels.
    """
    files = SealedFiles(home)
    for segment in group:
        position = segment.first_position
        for rows in rows_of(home, files, segment, position, recheck=True):  # the blocks are removed after this
            if rows.first_position != position:
                message = f"segment {segment.number}: expected position {position}, found {rows.first_position}"
                raise CorruptionError(message)
            position = rows.next_position
            labels[segment.number] |= labels_of(rows.payload)
            times = each(rows.timestamp_us, rows.count), each(rows.uptime_us, rows.count)
            yield sealed.to_table(rows.payload, *times, rows.purged, schema)
        if position != segment.next_position:
            message = f"segment {segment.number}: ends at position {position}, not at {segment.next_position}"
            raise CorruptionError(message)


def point_to(
    manifests: Manifests, manifest: Manifest, group: Sequence[Segment], changes: dict[int, Segment]
) -> Manifest:
    """Return the manifest with the new file in place of what ``group`` had, or unchanged if that is not there any
    more.
    """
    there = {}
    for segment in manifests.closed_from(manifest, group[0].first_position):
        if segment.number > group[-1].number:
            break
        there[segment.number] = segment
    if any(there.get(segment.number) != segment for segment in group):
        return manifest
    file = changes[group[0].number].file
    if file is None or created_us(file.key) < manifest.staging_floor_us:
        return manifest
    old = [f"blocks:{segment.number}" if segment.file is None else segment.file.key for segment in group]
    replaced = manifests.replaced(manifest, changes)
    return msgspec.structs.replace(replaced, doomed=(*replaced.doomed, *dict.fromkeys(old)))


def collect(home: LogHome, manifests: Manifests) -> None:
    """Delete what the manifest says nothing refers to, then let the manifest forget it."""
    known = manifests.newest()
    if known is None or not known.manifest.doomed:
        return
    doomed = known.manifest.doomed
    for what in doomed:
        if what.startswith("blocks:"):
            home.remove_segment(int(what.removeprefix("blocks:")))
        else:
            home.delete(what)
    gone = set(doomed)

    def forget(manifest: Manifest) -> Manifest:
        left = tuple(what for what in manifest.doomed if what not in gone)
        return manifest if left == manifest.doomed else msgspec.structs.replace(manifest, doomed=left)

    manifests.update(forget, known)


def sweep(home: LogHome, manifests: Manifests, clock: Clock) -> list[str]:
    """Delete files that a killed sealing left behind, which no manifest ever pointed to; return their keys.

    The manifest announces first that nothing older than a day will be pointed to any more: a sealer that sleeps that
    long finds its file refused, not gone.
    """
    manifests = manifests.whole
    floor_us = clock.now_us() - STAGED_S * 1_000_000

    def announce(manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(manifest, staging_floor_us=max(manifest.staging_floor_us, floor_us))

    old = [key for key in home.list(PREFIX) if created_us(key) < floor_us]
    known = manifests.newest()
    if known is None or not (set(old) - used(manifests, known.manifest)):
        return []
    manifest = manifests.update(announce, known).manifest
    orphans = sorted(set(old) - used(manifests, manifest))
    for key in orphans:
        delete_quietly(home, key)
    return orphans


def used(manifests: Manifests, manifest: Manifest) -> set[str]:
    """Return the keys of the files that the manifest refers to, if only to delete them."""
    keys = {*manifest.doomed, *([manifest.base] if manifest.base is not None else [])}
    closed = manifests.closed_from(manifest, manifest.first_position)
    for segment in itertools.chain(closed, manifests.conflicts(manifest)):
        keys |= {segment.file.key} if segment.file is not None else set()
    for segment in manifests.conflicts(manifest):
        keys |= {segment.identities} if segment.identities is not None else set()
    for segment in manifests.closed_from(manifest, manifest.first_position):
        # Where a run has the identities, their key is but a mark that the segment was adopted.
        if segment.identities is not None and not is_covered(manifest, segment):
            keys.add(segment.identities)
    return keys.union(*(run.keys() for run in manifest.memory))


def is_covered(manifest: Manifest, segment: Segment) -> bool:
    """Tell whether a run has the ids of a closed segment, as far as that is not truncated away."""
    return covers(manifest.memory, max(segment.first_position, manifest.first_position), segment.next_position)


def delete_quietly(home: LogHome, key: str) -> None:
    """Delete a file nothing refers to, or leave it to the next sweep."""
    try:
        home.delete(key)
    except OncelogError:
        return
