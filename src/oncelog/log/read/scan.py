"""Walking a log in order: from sealed files into runs of blocks into the open segment, without a seam."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Literal

import numpy as np

from oncelog.arguments import shown
from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.format.gather import gather
from oncelog.format.manifest import Segment
from oncelog.log.stored.files import SealedFiles
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.rows import Rows
from oncelog.storage.base import Following, LogHome
from oncelog.types import micros

Start = Literal["earliest", "latest"] | int | np.int64 | tuple[int, int] | datetime
READ_BYTES = 8 << 20
RECORD_BYTES = 1 << 10
"""The assumed size of a record before any record was read."""

FIRST_BYTES = 64 << 10
"""At least so much is read at once."""

BEHIND_ALL = 1 << 62


def deleted(name: str) -> NotFound:
    """Return the error for who reads a log that was deleted."""
    return NotFound(f"log {name!r} was deleted")


class Scan:
    """A place in a log, moving forward. Used by one thread at a time.

    ``position`` is that of the next record. Only what is durable is ever seen; a segment that is closed while it is
    being read goes on at the same cursor, one that is sealed at the same position.
    """

    def __init__(self, home: LogHome, manifests: Manifests, name: str, columns: Sequence[str] | None = None) -> None:
        self._home = self.home = home
        self._manifests = manifests
        self._files = SealedFiles(home)
        self._name = name
        self._columns = columns
        known = manifests.newest()
        if known is None:
            message = f"there is no log {name!r}"
            raise NotFound(message)
        self._known: Known = known
        self._entered = known.version  # by which manifest the place below was found
        self.position = known.manifest.first_position
        self._segment: Segment | None = None
        self._sealed: Iterator[Rows] | None = None
        self._number = -1
        self._cursor = 0
        self._not_before_us: int | None = None
        self.read_bytes = READ_BYTES  # of blocks, at once; one block at least
        self._expects = False

    def expect(self, records: int) -> None:
        """Make the first step just large enough for so many records: decoding thousands of blocks for one record costs
        50 ms. Each further step is twice as large.
        """
        self.read_bytes = min(READ_BYTES, max(FIRST_BYTES, records * RECORD_BYTES))
        self._expects = True

    def keep_small(self, size_bytes: int) -> None:
        """Let no step over blocks be larger than so many bytes, or one block."""
        self.read_bytes = min(self.read_bytes, size_bytes)
        self._expects = False

    @property
    def place(self) -> tuple[int, int]:
        """The segment and the cursor in it, for ``LogHome.wait``; behind all there are, when none is open."""
        manifest = self._known.manifest
        if manifest.open_segment is None and self.position >= manifest.next_position:
            return manifest.next_segment - 1, BEHIND_ALL
        return self._number, self._cursor

    def end(self) -> int:
        """Return the position behind the last record that is visible now."""
        while True:
            manifest = self._known.manifest
            entries = self._home.visible(manifest.open_segment) if manifest.open_segment is not None else 0
            if self._newer() is None:
                return manifest.next_position + entries

    # Where to begin.

    def begin(self, start: object) -> None:
        """Go to a start: ``"earliest"``, ``"latest"``, a position, (segment, entry) or a moment."""
        if isinstance(start, np.integer):
            start = int(start)
        if isinstance(start, str) and start in ("earliest", "latest"):
            self._go(self._known.manifest.first_position if start == "earliest" else self.end())
        elif isinstance(start, datetime):
            self._go_to_moment(start)
        elif isinstance(start, tuple) and [type(part) for part in start] == [int, int]:
            self._go(self._position_of(*start))
        elif isinstance(start, int) and not isinstance(start, bool):
            self._check_there(start)
            self._go(start)
        else:
            message = f"start {shown(start)}: must be 'earliest', 'latest', a position, (segment, entry) or a datetime"
            raise InvalidArgument(message)

    def _check_there(self, position: int) -> None:
        if position < 0:
            message = f"start: position {position}: positions count from 0"
            raise InvalidArgument(message)
        end = self.end()
        if position > end:
            message = f"position {position} of log {self._name!r} is behind its end: the next one will be {end}"
            raise NotFound(message, first=self._known.manifest.first_position)

    def _go(self, position: int) -> None:
        """Go to a position that is visible, or the next to be; ``NotFound`` if it was truncated away."""
        segment = self._closed_at(position)
        first = self._known.manifest.first_position
        if position < first:
            message = f"position {position} of log {self._name!r} was truncated away: it begins at {first}"
            raise NotFound(message, first=first)
        self.position = position
        self._entered = self._known.version
        if segment is not None:
            self._enter(segment)
        else:
            self._enter_open()

    def _closed_at(self, position: int) -> Segment | None:
        """Return the closed segment that holds a position, or the first one behind it."""
        self._known, segment = self._manifests.look(
            self._known, lambda manifest: next(self._manifests.closed_from(manifest, position), None)
        )
        return segment

    def _enter(self, segment: Segment) -> None:
        """Go on with a closed segment, at ``position``."""
        entry = max(0, self.position - segment.first_position)
        self._segment, self._number, self._sealed = segment, segment.number, None
        if segment.file is not None:
            self._cursor = 0
            self._sealed = self._files.rows(segment, entry, self._columns, self._not_before_us)
        else:
            self._cursor = self._locate(segment.number, entry, segment.end)

    def _enter_open(self) -> None:
        """Go on with the open segment, if there is one, at ``position``."""
        manifest = self._known.manifest
        number, entry = manifest.open_segment, self.position - manifest.next_position
        self._segment, self._sealed = None, None
        self._number, self._cursor = -1 if number is None else number, 0
        if number is not None and entry:
            self._cursor = self._locate(number, entry, None)

    def _locate(self, number: int, entry: int, end: int | None) -> int:
        if not entry:
            return 0
        try:
            return self._home.locate(number, entry, end)
        except NotFound:
            return 0  # reading it will find that it is gone, too, and look again

    def _go_to_moment(self, when: datetime) -> None:
        if when.tzinfo is None:
            message = f"start {when!r} has no time zone: use datetime.now(UTC) or when.replace(tzinfo=UTC)"
            raise InvalidArgument(message)
        self._not_before_us = moment_us = micros(when)
        found = self._closed_where(lambda segment: segment.last_timestamp_us >= moment_us)
        manifest = self._known.manifest
        self._go(max(found.first_position, manifest.first_position) if found is not None else manifest.next_position)

    def _position_of(self, number: int, entry: int) -> int:
        manifest = self._known.manifest
        if number == manifest.open_segment and entry >= 0:
            self._check_there(manifest.next_position + entry)
            return manifest.next_position + entry
        found = self._closed_where(lambda segment: segment.number == number)
        if found is not None and 0 <= entry < found.entries:
            return found.first_position + entry
        message = f"log {self._name!r} has no entry {entry} in segment {number}"
        raise NotFound(message, first=self._known.manifest.first_position)

    def _closed_where(self, wanted: Callable[[Segment], bool]) -> Segment | None:
        """Return the first closed segment that is wanted."""
        self._known, found = self._manifests.look(
            self._known,
            lambda manifest: next(filter(wanted, self._manifests.closed_from(manifest, manifest.first_position)), None),
        )
        return found

    # Going on.

    def next_rows(self, until: int | None = None) -> list[Rows]:
        """Return the next records, or none when there is nothing more to see now (or before position ``until``)."""
        while until is None or self.position < until:
            try:
                found = self._read(until)
            except CorruptionError:
                self.check_there()  # another log of the name may stand where this one was
                raise
            if not found and not self._move_on():
                return []
            wanted = [rows for part in found if (rows := self._wanted(part, until)).count]
            if wanted:
                return wanted
        return []

    def _wanted(self, rows: Rows, until: int | None) -> Rows:
        """Leave out the rows before the place where the scan begins and behind its end, and go on behind the last."""
        skip = max(0, self.position - rows.first_position)
        if self._not_before_us is not None:
            skip = max(skip, rows.before(self._not_before_us))
        self.position = max(self.position, rows.next_position)
        if skip < rows.count:
            self._not_before_us = None
        return rows.cut(skip, None if until is None else max(skip, until - rows.first_position))

    def _read(self, until: int | None) -> list[Rows]:
        """Return what is at the cursor, checked: that it is whole, and that it is what belongs there."""
        if self._number < 0:
            return []
        try:
            if self._sealed is not None:
                return self._read_sealed(self._sealed)
            end = self._segment.end if self._segment is not None else None
            then = self._following(until)
            buffers, self._cursor = self._home.blocks(self._number, self._cursor, end, self.read_bytes, then)
            if self._expects:
                self.read_bytes = min(READ_BYTES, 2 * self.read_bytes)
        except NotFound:
            self._look_again()
            return self._read(until)
        found = [Rows.of_blocks(blocks) for blocks in gather(buffers)]
        expected = self.position
        for rows in found:
            if rows.segment != self._number or rows.first_position > expected:
                message = (
                    f"log {self._name!r}, segment {self._number}: expected position {expected}, found a block of "
                    f"segment {rows.segment} at position {rows.first_position}"
                )
                raise CorruptionError(message)
            expected = max(expected, rows.next_position)
        return found

    def _following(self, until: int | None) -> Following | None:
        """Return the closed segment that is read next, if its blocks are. One that stands in a page is not told: no
        page is read for this, because old segments are mostly sealed.
        """
        if self._segment is None or (until is not None and until <= self._segment.next_position):
            return None
        segments = self._known.manifest.segments
        at = bisect.bisect_left(segments, self._segment.next_position, key=lambda segment: segment.first_position)
        found = segments[at] if at < len(segments) else None
        is_next = found is not None and found.first_position == self._segment.next_position and found.file is None
        return (found.number, found.end) if found is not None and is_next else None

    def _read_sealed(self, sealed: Iterator[Rows]) -> list[Rows]:
        """Return what comes next in a sealed segment, or none at its end."""
        try:
            rows = next(sealed, None)
        except BaseException:
            assert self._segment is not None
            self._enter(self._segment)  # an iterator that has raised is over, and would pass for one at the end
            raise
        return [rows] if rows is not None else []

    def _look_again(self) -> None:
        """Find the place again by its position in a newer manifest: what was to be read is gone."""
        self.check_there()
        if not self._is_outdated():
            message = f"segment {self._number} of log {self._name!r} is missing: restore it from a copy"
            raise CorruptionError(message)
        self._go(self.position)

    def check_there(self) -> None:
        """Raise ``NotFound`` if this very log was deleted, also if another of its name was made since. One request."""
        if not self._manifests.is_same(self._known):
            raise deleted(self._name)

    def _newer(self) -> Known | None:
        """Go on with a newer manifest, if there is one."""
        newer = self._manifests.newest(self._known)
        if newer is None or newer.version == self._known.version:
            return None
        if newer.manifest.log_id != self._known.manifest.log_id:
            raise deleted(self._name)
        self._known = newer
        return newer

    def _is_outdated(self) -> bool:
        """Tell whether the place was found by an older manifest than there is, and go on with that."""
        self._newer()
        return self._entered < self._known.version

    def _move_on(self) -> bool:
        """Go to the next segment, or notice that this one was closed; ``False`` when there is nothing new."""
        if self._segment is not None and (self._sealed is not None or self._cursor >= self._segment.end):
            self.position = max(self.position, self._segment.next_position)
            return self._next_segment() or (self._newer() is not None and self._next_segment())
        if not self._is_outdated():
            return False
        if self._number == self._known.manifest.open_segment and self._number >= 0:
            self._entered = self._known.version
            return False
        return self._find_again()

    def _next_segment(self) -> bool:
        """Enter what ``position`` is in now; ``False`` when that is nothing, or the open segment as before."""
        manifest = self._known.manifest
        before = self._number
        if self.position >= manifest.next_position and manifest.open_segment is None:
            return False
        self._go(self.position)
        return self._segment is not None or self._number != before

    def _find_again(self) -> bool:
        """Look the open segment up in a newer manifest: it may be closed now, or have gone because it was empty."""
        segment = self._closed_at(self.position)
        if segment is not None and segment.number == self._number and segment.file is None:
            self._segment, self._entered = segment, self._known.version
            return True
        return self._next_segment()
