"""The segment that a writer is writing: places blocks in it, stores them, and rolls to the next when it is full."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.errors import WriterFenced
from oncelog.format import block
from oncelog.format.manifest import Manifest, Segment, labels_of
from oncelog.log.ingest.staging import Adoption, Staged
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.segment_index import Places, SegmentIndex
from oncelog.log.takeover import fencing
from oncelog.log.upkeep import sealing
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome, SegmentWriter

if TYPE_CHECKING:
    from oncelog.log.append.groups import Group

NO_LIMIT = 1 << 62
"""As many ids as come fit a segment."""


class Run:
    """One writer's way through its segments. Used by one thread at a time, except for ``append``.

    The writer's epoch never changes; ``known`` is the newest manifest this writer has seen.
    """

    def __init__(
        self,
        home: LogHome,
        manifests: Manifests,
        known: Known,
        *,
        writer: bytes,
        settings: LogSettings,
        clock: Clock,
        ids_max: int = NO_LIMIT,
    ) -> None:
        assert known.manifest.open_segment is not None
        self.known = known
        self.epoch = known.manifest.epoch
        self._home = home
        self._manifests = manifests
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._ids_max = ids_max
        self._index = SegmentIndex(manifests)
        self._last_timestamp_us = known.manifest.last_timestamp_us
        self._segment_writer: SegmentWriter | None = None
        self._begin()

    def _begin(self) -> None:
        number = self.known.manifest.open_segment
        assert number is not None
        self.segment = number
        self.first_position = self.known.manifest.next_position
        self.start = (self.segment, self.first_position)  # read by other threads, so replaced as one
        self.started_us = self._clock.elapsed_us()
        self.entries = self.blocks = self.size_bytes = self.ids = 0
        self.end = self.checksum = 0  # where the durable blocks end; the last block's checksum
        self.first_timestamp_us = self.last_uptime_us = 0
        self.labels = 0

    @property
    def in_flight_max(self) -> int:
        """How many blocks may be offered before the first of them is known to be stored."""
        return self._segment_writer.in_flight_max if self._segment_writer is not None else 1

    @property
    def commit_interval_s(self) -> float:
        """How long a block that is not full waits after the one before was offered."""
        if self._settings.commit_interval_s is not None:
            return self._settings.commit_interval_s
        return self._segment_writer.commit_interval_s if self._segment_writer is not None else 0.0

    @property
    def full(self) -> bool:
        """Whether the next block belongs into another segment."""
        if self.entries == 0:
            return False
        if self.size_bytes >= self._settings.segment_bytes or self.ids >= self._ids_max:
            return True
        age_s = self._settings.segment_age_s
        return age_s is not None and self._clock.elapsed_us() - self.started_us >= age_s * 1e6

    @property
    def ready(self) -> bool:
        """Whether the next block can be stored without asking anything else of storage before."""
        if self._segment_writer is None:
            return False
        fits = self.size_bytes < self._settings.segment_bytes and self.ids < self._ids_max
        if fits and self._settings.segment_age_s is None:
            return True  # nearly always, and asked before every append
        return not self.full

    def timestamp_us(self, now_us: int) -> int:
        """Return the time of the next block: the clock's, but never before the block before it."""
        self._last_timestamp_us = max(self._last_timestamp_us, now_us)
        return self._last_timestamp_us

    def place_of(self, position: int) -> tuple[int | None, int | None]:
        """Return the segment and entry of a stored position (nothing, if that was truncated away)."""
        segment, first_position = self.start
        if position >= first_position:
            return segment, position - first_position
        found = self._closed_with(position)
        return (None, None) if found is None else (found.number, position - found.first_position)

    def places_of(self, positions: NDArray[np.int64]) -> Places:
        """Return where stored positions are: all -1 where they were truncated away; no times of the open segment."""
        segment, first_position = self.start
        segments, entries = np.full(len(positions), segment), positions - first_position
        older = np.flatnonzero(entries < 0)
        times = np.full((2, len(positions)), -1)
        if older.size:
            _, found = self._manifests.look(self.known, lambda manifest: self._index.places(manifest, positions[older]))
            segments[older], entries[older] = found.segments, found.entries
            times[:, older] = found.first_us, found.last_us
        return Places(segments, entries, times[0], times[1])

    def _closed_with(self, position: int) -> Segment | None:
        """Return the closed segment that holds a position, if it is there."""
        known = self.known
        segments = known.manifest.segments
        at = bisect.bisect_right(segments, position, key=lambda segment: segment.first_position) - 1
        found: Segment | None = segments[at] if at >= 0 else None
        if at < 0:
            _, found = self._manifests.look(
                known, lambda manifest: next(self._manifests.closed_from(manifest, position), None)
            )
        return found if found is not None and found.first_position <= position < found.next_position else None

    def place(self, group: Group) -> None:
        """Give a group its segment, block number and first entry."""
        group.segment, group.number, group.first_entry = self.segment, self.blocks, self.entries
        if self.entries == 0:
            self.first_timestamp_us = group.timestamp_us
        self.entries += group.count
        self.blocks += 1
        self.ids += group.ids
        self.last_uptime_us = group.uptime_us

    def encode(self, group: Group) -> None:
        """Fix a placed group's bytes, for good."""
        record = group.only_record()
        if record is not None:
            self.encode_one(group, record.value, None if record.id is None else record.id.encode())
            return
        payload = group.payload()
        self.labels |= labels_of(payload)
        encoded = block.encode(
            payload,
            segment=group.segment,
            first_entry=group.first_entry,
            first_position=group.first_position,
            epoch=self.epoch,
            writer=self._writer,
            uptime_us=group.uptime_us,
            timestamp_us=group.timestamp_us,
            previous=self.checksum,
        )
        self.checksum = encoded.checksum
        self.size_bytes += encoded.size_bytes
        group.block = encoded  # last: who is interrupted before it has not encoded

    def encode_one(self, group: Group, value: bytes, id: bytes | None) -> None:
        """Fix the bytes of a placed group of one record that is plain: a value, perhaps an id, and nothing else."""
        encoded = block.encode_one(
            value,
            id,
            segment=group.segment,
            first_entry=group.first_entry,
            first_position=group.first_position,
            epoch=self.epoch,
            writer=self._writer,
            uptime_us=group.uptime_us,
            timestamp_us=group.timestamp_us,
            previous=self.checksum,
        )
        self.checksum = encoded.checksum
        self.size_bytes += encoded.size_bytes
        group.block = encoded  # last: who is interrupted before it has not encoded

    def append(self, group: Group) -> int:
        """Store a group's block; on return it is durable. Return the cursor behind it."""
        assert group.block is not None
        assert self._segment_writer is not None
        return self._segment_writer.append(group.number, group.block.chunks)

    def prepare(self) -> None:
        """Make sure that there is a segment to put the next block into. Nothing may be in flight if this one is
        full.
        """
        if self.full:
            self._roll()
        if self._segment_writer is None:
            self._segment_writer = self._home.start_segment(self.segment, self.epoch)

    def _roll(self) -> None:
        """Close this segment in the manifest, at its known tail, and open the next."""
        self.known = self._manifests.update(
            fencing.close_and_open(self.epoch, self.segment, self._closed()), self.known
        )
        self._let_go()
        self._begin()

    def holds(self, staged: Sequence[Staged]) -> str | None:
        """Return the key of a staged file that is a part of this log already, if one is.

        Two segments of one file would lose it together. What was adopted is not older than its file, give or take how
        far clocks differ.
        """
        keys = {file.key for file in staged}
        oldest_us = min(map(sealing.created_us, keys)) - sealing.STAGED_S * 1_000_000

        def look(manifest: Manifest) -> str | None:
            for segment in self._manifests.closed_back(manifest):
                if segment.last_timestamp_us < oldest_us:
                    break
                if segment.file is not None and segment.file.key in keys:
                    return segment.file.key
            return next((key for key in manifest.doomed if key in keys), None)

        _, found = self._manifests.look(self.known, look)
        return found

    def adopt(self, adoption: Adoption, uptime_us: int) -> list[Segment]:
        """Close this segment, adopt files behind it and open the next, by one manifest version. Nothing is in
        flight.
        """
        closed = self._closed()  # as old as its last record, not as the adoption
        timestamp_us = self.timestamp_us(self._clock.now_us())
        change = fencing.adopt(
            self.epoch, self.segment, closed, adoption, timestamp_us=timestamp_us, uptime_us=uptime_us
        )
        self.known = self._manifests.update(change, self.known)
        self._let_go()
        self._begin()
        first = self.known.manifest.next_position - sum(file.records for file in adoption.staged)
        _, segments = self._manifests.look(
            self.known, lambda manifest: list(self._manifests.closed_from(manifest, first))
        )
        return segments

    def check_held(self) -> None:
        """Raise ``WriterFenced`` if another writer has taken the log since."""
        newest = self._manifests.newest(self.known)
        if newest is None or newest.manifest.epoch != self.epoch:
            message = f"another writer has taken log {self.known.manifest.name!r}: stop, reopen if you must"
            raise WriterFenced(message, outcome="not written")

    def finish(self, uptime_us: int) -> None:
        """Close this segment in the manifest, at its known tail: the writer is leaving."""
        self._let_go()
        self.known = self._manifests.update(
            fencing.close(self.epoch, self.segment, self._closed(), uptime_us), self.known
        )

    def abandon(self) -> None:
        """Leave the segment as it is, to be fenced by the next writer."""
        self._let_go()

    def _let_go(self) -> None:
        if self._segment_writer is not None:
            self._segment_writer.close()
            self._segment_writer = None

    def _closed(self) -> Segment | None:
        if self.entries == 0:
            return None
        return Segment(
            number=self.segment,
            first_position=self.first_position,
            entries=self.entries,
            epoch=self.epoch,
            end=self.end,
            checksum=self.checksum,
            size_bytes=self.size_bytes,
            first_timestamp_us=self.first_timestamp_us,
            last_timestamp_us=self._last_timestamp_us,
            last_uptime_us=self.last_uptime_us,
            ids=self.ids,
            labels=self.labels,
        )
