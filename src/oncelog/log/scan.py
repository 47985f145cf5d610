"""Walking a log's blocks in order, from closed segments into the open one, without a seam."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.format import block
from oncelog.format.manifest import Segment
from oncelog.log.manifests import Known, Manifests
from oncelog.log.rows import Rows
from oncelog.storage.base import LogHome
from oncelog.types import micros

Start = Literal["earliest", "latest"] | int | tuple[int, int] | datetime
READ_BYTES = 8 << 20
_BEYOND = 1 << 62


class Scan:
    """A place in a log, moving forward. Used by one thread at a time.

    ``position`` is the next record's, or -1 while it is not known ("latest", before the first block). Only what is
    durable is ever seen; a segment that is closed while it is being read goes on at the same cursor.
    """

    def __init__(self, home: LogHome, manifests: Manifests, name: str) -> None:
        self._home = home
        self._manifests = manifests
        self._name = name
        known = manifests.newest()
        if known is None:
            message = f"there is no log {name!r}"
            raise NotFound(message)
        self._known: Known = known
        self.position = known.manifest.first_position
        self._segment: Segment | None = None
        self._number = -1
        self._cursor = 0
        self._not_before_us: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The segment and the cursor in it, for ``LogHome.wait``."""
        return self._number, self._cursor

    # Where to begin.

    def begin(self, start: object) -> None:
        """Go to a start: ``"earliest"``, ``"latest"``, a position, (segment, entry) or a moment."""
        if start == "earliest":
            self._go(self._known.manifest.first_position)
        elif start == "latest":
            self._go_to_end()
        elif isinstance(start, datetime):
            self._go_to_moment(start)
        elif isinstance(start, tuple) and [type(part) for part in start] == [int, int]:
            self._go(self._position_of(*start))
        elif isinstance(start, int) and not isinstance(start, bool):
            self._go(start)
        else:
            message = f"start {start!r}: must be 'earliest', 'latest', a position, (segment, entry) or a datetime"
            raise InvalidArgument(message)

    def _go(self, position: int) -> None:
        manifest = self._known.manifest
        if position < 0:
            message = f"position {position}: positions count from 0"
            raise InvalidArgument(message)
        if position < manifest.first_position:
            message = (
                f"position {position} of log {self._name!r} was truncated away: it begins at {manifest.first_position}"
            )
            raise NotFound(message, first=manifest.first_position)
        self.position = position
        segment = next(self._manifests.closed_from(manifest, position), None)
        if segment is not None:
            self._enter(segment, self._home.locate(segment.number, position - segment.first_position, segment.end))
            return
        entry = position - manifest.next_position
        self._enter_open(entry)
        if entry and not self._visible(entry):
            message = f"position {position} of log {self._name!r} is behind its end"
            raise NotFound(message, first=manifest.first_position)

    def _visible(self, entry: int) -> bool:
        """Tell whether the open segment has ``entry``, or ends right before it."""
        if self._number < 0:
            return False
        blocks, _ = self._home.blocks(self._number, self._cursor, None, 1)
        if blocks:
            return True
        before = self._home.locate(self._number, entry - 1, None)
        blocks, _ = self._home.blocks(self._number, before, None, 1)
        return bool(blocks)

    def _enter(self, segment: Segment, cursor: int) -> None:
        self._segment, self._number, self._cursor = segment, segment.number, cursor

    def _enter_open(self, entry: int) -> None:
        number = self._known.manifest.open_segment
        self._segment, self._number, self._cursor = None, -1 if number is None else number, 0
        if number is not None and entry:
            self._cursor = self._home.locate(number, entry, None)

    def _go_to_end(self) -> None:
        manifest = self._known.manifest
        self._enter_open(0)
        self.position = manifest.next_position
        if self._number >= 0:
            self._cursor = self._home.locate(self._number, _BEYOND, None)
            self.position = manifest.next_position if self._cursor == 0 else -1

    def _go_to_moment(self, when: datetime) -> None:
        if when.tzinfo is None:
            message = f"start {when!r} has no time zone: use datetime.now(UTC) or when.replace(tzinfo=UTC)"
            raise InvalidArgument(message)
        moment_us = micros(when)
        manifest = self._known.manifest
        self._not_before_us = moment_us
        for segment in self._manifests.closed_from(manifest, manifest.first_position):
            if segment.last_timestamp_us >= moment_us:
                self.position = max(segment.first_position, manifest.first_position)
                self._go(self.position)
                return
        self.position = manifest.next_position
        self._enter_open(0)

    def _position_of(self, number: int, entry: int) -> int:
        manifest = self._known.manifest
        if number == manifest.open_segment:
            return manifest.next_position + entry
        for segment in self._manifests.closed_from(manifest, manifest.first_position):
            if segment.number == number and 0 <= entry < segment.entries:
                return segment.first_position + entry
        message = f"log {self._name!r} has no entry {entry} in segment {number}"
        raise NotFound(message, first=manifest.first_position)

    # Going on.

    def end(self) -> tuple[int, int]:
        """Return the place up to which the log is visible now: a segment, and a cursor in it."""
        manifest = self._known.manifest
        if manifest.open_segment is not None:
            return manifest.open_segment, self._home.locate(manifest.open_segment, _BEYOND, None)
        last = next(self._manifests.closed_back(manifest), None)
        return (last.number, last.end) if last is not None else (-1, 0)

    def next_rows(self, until: tuple[int, int] | None = None) -> list[Rows]:
        """Return the next records, or none when there is nothing more to see now (or before ``until``)."""
        while until is None or (self._number, self._cursor) < until:
            limit = until[1] if until is not None and until[0] == self._number else None
            found = self._read(limit)
            if not found and not self._move_on():
                return []
            wanted = [rows for part in found if (rows := self._wanted(part)).count]
            if wanted:
                return wanted
        return []

    def _wanted(self, rows: Rows) -> Rows:
        """Leave out the rows before the place where the scan begins, and go on behind the last."""
        skip = max(0, self.position - rows.first_position) if self.position >= 0 else 0
        if self._not_before_us is not None:
            skip = max(skip, rows.before(self._not_before_us))
        self.position = rows.next_position
        if skip < rows.count:
            self._not_before_us = None
        return rows.cut(skip)

    def _read(self, limit: int | None) -> list[Rows]:
        """Return what is at the cursor, checked: that it is whole, and that it is what belongs there."""
        if self._number < 0:
            return []
        end = limit if limit is not None or self._segment is None else self._segment.end
        try:
            buffers, self._cursor = self._home.blocks(self._number, self._cursor, end, READ_BYTES)
        except NotFound:
            self._look_again()
            return []
        found = [Rows.of_block(block.decode(buffer)) for buffer in buffers]
        for rows in found:
            if rows.segment != self._number:
                message = f"segment {self._number} of log {self._name!r} holds a block of segment {rows.segment}"
                raise CorruptionError(message)
        return found

    def _look_again(self) -> None:
        """Find the place again by its position in a newer manifest: its segment's blocks are gone."""
        newer = self._newer()
        if newer is None:
            message = f"the blocks of segment {self._number} of log {self._name!r} are missing"
            raise CorruptionError(message)
        self._go(self.position)

    def _newer(self) -> Known | None:
        """Go on with a newer manifest, if there is one."""
        newer = self._manifests.newest(self._known)
        if newer is None or newer.version == self._known.version:
            return None
        self._known = newer
        return newer

    def _move_on(self) -> bool:
        """Go to the next segment, or notice that this one was closed; ``False`` when there is nothing new."""
        if self._segment is not None and self._cursor >= self._segment.end:
            self.position = self._segment.next_position
            return self._next_segment() or (self._newer() is not None and self._next_segment())
        return self._newer() is not None and self._find_again()

    def _next_segment(self) -> bool:
        """Enter the segment that begins at ``position``, if the manifest knows it."""
        manifest = self._known.manifest
        if self.position < manifest.first_position:
            self._go(self.position)  # raises: truncated away
        segment = next(self._manifests.closed_from(manifest, self.position), None)
        if segment is not None:
            self._enter(segment, 0)
            return True
        if manifest.open_segment is not None and manifest.open_segment != self._number:
            self._enter_open(0)
            return True
        return False

    def _find_again(self) -> bool:
        """Look the open segment up in a newer manifest: it may be closed now, or have gone because it was empty."""
        manifest = self._known.manifest
        if self._number >= 0:
            if self._number == manifest.open_segment:
                return False
            for segment in self._manifests.closed_back(manifest):
                if segment.number == self._number:
                    self._segment = segment
                    return True
                if segment.number < self._number:
                    break
        if self.position < 0:
            self.position = manifest.first_position
        return self._next_segment()
