"""Adoption: a file that was written elsewhere becomes a segment of the log by one manifest version, without being
rewritten.

A *staged* file holds records without places or times, and beside it are its records' identities, sorted. The writer,
with nothing pending, looks these up; what is new as a whole is adopted. Adopted identities do not spend the window's
keys: each file's are searched as they are, as long as the window's duration says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.errors import InvalidArgument
from oncelog.format import arrays, sealed
from oncelog.format import identities as identities_format
from oncelog.format.identities import Identities
from oncelog.format.manifest import File, Manifest, Segment
from oncelog.log.sealing import PREFIX, new_key
from oncelog.storage.base import LogHome


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A file that may be adopted: its key, what is in it, and the key of its identities (``None``: no record has an
    id).
    """

    key: str
    records: int
    size_bytes: int
    checksum: int
    identities: str | None = None
    ids: int = 0


def stage(home: LogHome, hasher: Hasher, clock: Clock, payloads: Iterable[pa.RecordBatch], floor_us: int = 0) -> Staged:
    """Write checked payloads as a file that can be adopted; may be called by anybody, without the log's writer.

    ``floor_us`` is the log's staging floor: a clock that was once ahead must not keep new files from being adopted.
    """
    count = 0
    found: list[Identities] = []

    def tables() -> Iterable[pa.RecordBatch]:
        nonlocal count
        for payload in payloads:
            found.append(identities_of(hasher, [(payload, count)]))
            count += payload.num_rows
            yield sealed.to_staged(payload)

    data = sealed.encode(tables(), sealed.STAGED_SCHEMA)
    if not count:
        message = "there are no records to stage"
        raise InvalidArgument(message)
    identities = Identities.joined(found)
    key = new_key(clock, floor_us)
    home.create(key, [data])
    beside = None
    if len(identities.rows):
        beside = key.removesuffix(".parquet") + ".ids"
        home.create(beside, identities_format.encode(identities))
    return Staged(
        key=key,
        records=count,
        size_bytes=data.size,
        checksum=xxhash.xxh3_64_intdigest(data),
        identities=beside,
        ids=len(identities.rows),
    )


def identities_of(hasher: Hasher, payloads: Iterable[tuple[pa.RecordBatch, int]]) -> Identities:
    """Return the identities of payloads, each given with the number of its first row."""
    found = []
    for payload, first_row in payloads:
        named, rows = _named(payload, first_row)
        if len(rows):
            keys = hasher.identities(None, named.column("id"))
            found.append(Identities.sorted(keys, hasher.fingerprints(named), rows))
    return Identities.joined(found)


def _named(payload: pa.RecordBatch, first_row: int) -> tuple[pa.RecordBatch, NDArray[np.uint32]]:
    """Return the rows of a payload that carry an id, and their numbers in the file."""
    at = payload.schema.get_field_index("id")
    if at < 0:
        return payload.slice(0, 0), np.empty(0, np.uint32)
    present = payload.column(at).is_valid()
    rows = np.flatnonzero(arrays.present(payload.column(at))) + first_row
    return (payload if len(rows) == payload.num_rows else payload.filter(present)), rows.astype(np.uint32)


def read_identities(home: LogHome, key: str) -> Identities:
    """Return the identities beside a file, checked."""
    return identities_format.decode(home.read(key), key)


class Found(msgspec.Struct, frozen=True):
    """Where identities were found among adopted files: -1 for those that were not."""

    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    times: NDArray[np.int64]


class Adopted:
    """The identities of adopted files that are still within the window's duration."""

    def __init__(self, duration_us: int) -> None:
        self._duration_us = duration_us
        self._files: list[tuple[Segment, Identities]] = []

    def __bool__(self) -> bool:
        """Tell whether there is anything to search."""
        return bool(self._files)

    def add(self, segment: Segment, identities: Identities) -> None:
        """Search this file too, from now on."""
        self._files.append((segment, identities))

    def evict(self, uptime_us: int) -> None:
        """Forget files that are older than the window's duration."""
        if self._files and self._files[0][0].last_uptime_us + self._duration_us <= uptime_us:
            self._files = [
                (segment, found)
                for segment, found in self._files
                if segment.last_uptime_us + self._duration_us > uptime_us
            ]

    @property
    def first_position(self) -> int | None:
        """The first position whose identity is kept here."""
        return self._files[0][0].first_position if self._files else None

    def find(self, keys: NDArray[np.uint64]) -> Found:
        """Look identities up."""
        positions = np.full(len(keys), -1, np.int64)
        fingerprints = np.zeros(len(keys), np.uint64)
        times = np.full(len(keys), -1, np.int64)
        for segment, identities in self._files:
            at = search(identities, keys)
            hit = at >= 0
            positions[hit] = segment.first_position + identities.rows[at[hit]].astype(np.int64)
            fingerprints[hit] = identities.fingerprints[at[hit]]
            times[hit] = segment.first_timestamp_us
        return Found(positions, fingerprints, times)


def search(identities: Identities, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the place of each key in sorted identities, -1 for those that are not there."""
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


def adopted_segments(
    manifest: Manifest, staged: Sequence[Staged], timestamp_us: int, uptime_us: int
) -> tuple[Segment, ...]:
    """Return the segments that staged files become, behind everything else in the manifest."""
    segments = []
    position = manifest.next_position
    for number, file in enumerate(staged, manifest.next_segment):
        segments.append(
            Segment(
                number=number,
                first_position=position,
                entries=file.records,
                epoch=manifest.epoch,
                end=0,
                checksum=0,
                size_bytes=0,
                first_timestamp_us=timestamp_us,
                last_timestamp_us=timestamp_us,
                last_uptime_us=uptime_us,
                ids=0,  # they do not spend the window's keys
                file=File(file.key, 0, file.size_bytes, file.checksum),
                identities=file.identities,
            )
        )
        position += file.records
    return tuple(segments)


def check(staged: Sequence[Staged]) -> None:
    """Raise ``InvalidArgument`` for what cannot be a staged file."""
    if not staged:
        message = "there is nothing to adopt"
        raise InvalidArgument(message)
    if len({file.key for file in staged}) < len(staged):
        message = "a staged file can be adopted once, and one of these is there twice"
        raise InvalidArgument(message)
    for file in staged:
        if not file.key.startswith(PREFIX) or file.records < 1:
            message = f"{file.key}: not a staged file"
            raise InvalidArgument(message)
