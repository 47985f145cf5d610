"""The segment that a writer is writing: stores blocks in it, and rolls to the next when it is full."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.concurrency.trouble import Trouble
from oncelog.errors import Closed, OncelogError, WriterFenced
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.append.tail import SegmentTail
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.segment_index import Places, SegmentIndex
from oncelog.log.stored.staged import Staged
from oncelog.log.takeover import fencing
from oncelog.log.takeover.adoption import Adoption
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome, SegmentWriter

if TYPE_CHECKING:
    from oncelog.log.append.groups import Group

_logger = logging.getLogger("oncelog.log")


class SegmentRun:
    """One writer's way through its segments: all that it asks of storage. Used by one thread at a time, except for
    ``append``.

    The writer's epoch never changes; ``known`` is the newest manifest this writer has seen. ``tail`` is the pure half:
    it is still that of the segment before while the next one is prepared.
    """

    def __init__(
        self,
        home: LogHome,
        manifests: Manifests,
        known: Known,
        *,
        tail: SegmentTail,
        clock: Clock,
        settings: LogSettings,
    ) -> None:
        self.known = known
        self.epoch = known.manifest.epoch
        self.tail = tail
        self._home = home
        self._trouble = Trouble("oncelog.log", f"storing a block of the log of {home.location('manifest')}")
        self._manifests = manifests
        self._settings = settings
        self._clock = clock
        self._index = SegmentIndex(manifests)
        self._segment_writer: SegmentWriter | None = None
        self._begin()
        tail.begin(*self.start, clock.elapsed_us())

    def _begin(self) -> None:
        number = self.known.manifest.open_segment
        assert number is not None
        self.start: tuple[int, int] = (
            number,
            self.known.manifest.next_position,
        )  # read by other threads, so replaced as one

    @property
    def segment(self) -> int:
        """The number of the segment that is open now."""
        return self.start[0]

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

    def begin(self, group: Group) -> None:
        """Have the device begin with a group's block, if that gains time. Only ``append`` tells what came of it."""
        assert group.block is not None
        writer = self._segment_writer
        if writer is not None:
            writer.begin(group.number, group.block.chunks)

    def append(self, group: Group) -> int:
        """Store a group's block; on return it is durable. Return the cursor behind it. ``Closed`` if this writer ended
        meanwhile, in another thread.
        """
        assert group.block is not None
        writer = self._segment_writer
        if writer is None:
            message = f"the log of {self._home.location('manifest')} was let go: the block was not offered again"
            raise Closed(message)
        try:
            end = writer.append(group.number, group.block.chunks)
        except WriterFenced:
            _logger.warning("another writer has taken the log of %s", self._home.location("manifest"))
            raise
        except OncelogError as error:
            self._trouble.begin(error)
            raise
        if self._trouble.begun:
            self._trouble.end()
        if writer.ends_early:
            self.tail.ends_early = True
        return end

    def prepare(self) -> None:
        """Make sure that there is a segment to put the next block into. Nothing may be in flight if this one is
        full.
        """
        if self.segment == self.tail.segment and self.tail.is_full(self._clock.elapsed_us()):
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
        oldest_us = min(map(object_keys.created_us, keys)) - object_keys.STAGED_S * 1_000_000

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
        timestamp_us = self.tail.timestamp_us(self._clock.now_us())
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
        return self.tail.closed() if self.tail.segment == self.segment else None
