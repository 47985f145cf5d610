"""The end of the open segment, as numbers: where the next block goes, and what it names as the block before it.

Nothing here waits, stores or asks the time. ``open_segment`` has the other half, which talks to storage.
"""

from __future__ import annotations

from oncelog.format import block
from oncelog.format.manifest import Segment, labels_of
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Group
from oncelog.settings import LogSettings

NO_LIMIT = 1 << 62
"""As many ids as come fit a segment."""


class SegmentTail:
    """Gives groups their place in one segment after the other, and fixes their bytes.

    Invariants: ``entries`` and ``blocks`` count what was placed, ``end`` is behind the last block that is known to be
    durable, ``checksum`` is that of the block that was encoded last. Blocks are encoded in the order of their places.
    """

    def __init__(
        self, *, epoch: int, writer: bytes, settings: LogSettings, last_timestamp_us: int, ids_max: int = NO_LIMIT
    ) -> None:
        assert len(writer) == block.WRITER_BYTES, "a writer's id is 16 bytes"
        self._epoch = epoch
        self._writer = writer
        self._bytes_max = settings.segment_bytes
        self._age_us = None if settings.segment_age_s is None else settings.segment_age_s * 1e6
        self._ids_max = ids_max
        self._last_timestamp_us = last_timestamp_us
        self.begin(-1, 0, 0)

    def begin(self, segment: int, first_position: int, now_us: int) -> None:
        """Begin a segment that has nothing in it."""
        self.segment = segment
        self.first_position = first_position
        self._started_us = now_us
        self.entries = self.blocks = self.size_bytes = self.ids = 0
        self.end = self.checksum = 0
        self._first_timestamp_us = self._last_uptime_us = self._labels = 0
        self.ends_early = False

    def is_full(self, now_us: int) -> bool:
        """Tell whether the next block belongs into another segment."""
        if self.entries == 0:
            return False
        if self.size_bytes >= self._bytes_max or self.ids >= self._ids_max or self.ends_early:
            return True
        return self._age_us is not None and now_us - self._started_us >= self._age_us

    def timestamp_us(self, wall_us: int) -> int:
        """Return the time of the next block: the clock's, but never before that of the block before it."""
        if wall_us > self._last_timestamp_us:  # noqa: PLR1730 (one call less)
            self._last_timestamp_us = wall_us
        return self._last_timestamp_us

    def place(self, group: Group) -> None:
        """Give a group its segment, block number and first entry. Its time and up-time are known."""
        group.segment, group.number, group.first_entry = self.segment, self.blocks, self.entries
        if self.entries == 0:
            self._first_timestamp_us = group.timestamp_us
        self.entries += group.count
        self.blocks += 1
        self.ids += group.ids
        self._last_uptime_us = group.uptime_us

    def alone(self, position: int, value: bytes, id: bytes | None, uptime_us: int, wall_us: int) -> Group:
        """Return the group of one plain record, placed and with its bytes fixed.

        It does what ``timestamp_us``, ``place`` and ``encode_one`` do: after a sync, a call costs more than its work.
        """
        last_us = self._last_timestamp_us
        timestamp_us = self._last_timestamp_us = wall_us if wall_us > last_us else last_us  # noqa: FURB136
        entry, number, segment = self.entries, self.blocks, self.segment
        if entry == 0:
            self._first_timestamp_us = timestamp_us
        self.entries = entry + 1
        self.blocks = number + 1
        self._last_uptime_us = uptime_us
        encoded = block.encode_one(
            value, id, segment, entry, position, self._epoch, self._writer, uptime_us, timestamp_us, self.checksum
        )
        self.checksum = encoded.checksum
        self.size_bytes += encoded.size_bytes
        size_bytes, ids = len(value) + RECORD_OVERHEAD_BYTES, 0
        if id is not None:
            size_bytes, ids = size_bytes + len(id), 1
            self.ids += 1
        place = number, segment, entry
        return Group(position, position + 1, 1, ids, size_bytes, "offered", encoded, *place, timestamp_us, uptime_us)

    def encode(self, group: Group) -> None:
        """Fix a placed group's bytes, for good."""
        record = group.only_record()
        if record is not None:
            self.encode_one(group, record.value, None if record.id is None else record.id.encode())
            return
        payload = group.payload()
        self._labels |= labels_of(payload)
        encoded = block.encode(
            payload,
            segment=group.segment,
            first_entry=group.first_entry,
            first_position=group.first_position,
            epoch=self._epoch,
            writer=self._writer,
            uptime_us=group.uptime_us,
            timestamp_us=group.timestamp_us,
            previous=self.checksum,
        )
        self.checksum = encoded.checksum
        self.size_bytes += encoded.size_bytes
        group.block = encoded  # assigned last: `block is None` means that encoding did not complete

    def encode_one(self, group: Group, value: bytes, id: bytes | None) -> None:
        """Fix the bytes of a placed group of one record that is plain: a value, perhaps an id, and nothing else."""
        encoded = block.encode_one(
            value,
            id,
            segment=group.segment,
            first_entry=group.first_entry,
            first_position=group.first_position,
            epoch=self._epoch,
            writer=self._writer,
            uptime_us=group.uptime_us,
            timestamp_us=group.timestamp_us,
            previous=self.checksum,
        )
        self.checksum = encoded.checksum
        self.size_bytes += encoded.size_bytes
        group.block = encoded  # assigned last: `block is None` means that encoding did not complete

    def closed(self) -> Segment | None:
        """Return the segment as it stands in a manifest once it is closed here; ``None`` if nothing is in it."""
        if self.entries == 0:
            return None
        return Segment(
            number=self.segment,
            first_position=self.first_position,
            entries=self.entries,
            epoch=self._epoch,
            end=self.end,
            checksum=self.checksum,
            size_bytes=self.size_bytes,
            first_timestamp_us=self._first_timestamp_us,
            last_timestamp_us=self._last_timestamp_us,
            last_uptime_us=self._last_uptime_us,
            ids=self.ids,
            labels=self._labels,
        )
