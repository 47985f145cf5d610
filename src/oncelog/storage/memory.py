"""A home in this process's memory: as quick as it gets, and gone when the process is."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence

import pyarrow as pa

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import CorruptionError, InvalidArgument, LogBusy, NotFound, WriterFenced
from oncelog.format import block as block_format
from oncelog.storage.base import Chunk, Following, SegmentEnd
from oncelog.storage.bell import Bell
from oncelog.storage.chunks import joined
from oncelog.storage.keys import check_home_key, check_key, check_prefix

Buffers = list[pa.Buffer]


class MemoryStorage:
    """The home of a database that lives as long as this object does. Cursors are block numbers."""

    def __init__(self, *, url: str = "memory://", clock: Clock = SYSTEM, in_flight_max: int = 1) -> None:
        """Make an empty one. ``in_flight_max`` is how many blocks of a segment may be appended at once."""
        self.url = url
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._homes: dict[str, MemoryHome] = {}

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """Return the storage of that name, which lives as long as the process; without a name a new one."""
        if not name:
            return cls()
        with _named_lock:
            return _named.setdefault(name, cls(url=f"memory://{name}"))

    def homes(self) -> list[str]:
        """Return the keys of the homes something was created in, sorted."""
        with self._lock:
            return sorted(key for key, home in self._homes.items() if home.is_there())

    def home(self, key: str) -> MemoryHome:
        """Return the home of one log, the same object for the same key."""
        with self._lock:
            if key not in self._homes:
                self._homes[check_home_key(key)] = MemoryHome(key, self._clock, self._in_flight_max)
            return self._homes[key]

    def remove_home(self, key: str) -> None:
        """Delete a log's home and all in it; its writers are fenced."""
        self.home(key).clear()

    def close(self) -> None:
        """Keep everything: the bytes live as long as this object, also when it is closed."""


class MemoryHome:
    """The home of one log in memory. Every method is atomic."""

    exclusive = True
    seals_early = False
    looking_costs = False

    def __init__(self, key: str, clock: Clock, in_flight_max: int) -> None:
        """Make an empty home; ``MemoryStorage.home`` calls this."""
        self.key = key
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._lock = threading.RLock()
        self._released = threading.Condition(self._lock)
        self._bell = Bell()
        self._objects: dict[str, pa.Buffer] = {}
        self._segments: dict[int, _Segment] = {}
        self._claim: MemoryClaim | None = None

    def probe(self) -> None:
        """Do nothing: memory can do it all."""

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Store an object that nobody has stored; ``False`` when it exists."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = joined(data)
            return True

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:  # noqa: ARG002
        """Return an object's bytes from ``start``, at most ``length`` of them."""
        with self._lock:
            found = self._objects.get(check_key(key))
        if found is None:
            message = f"memory: no object {key!r} in {self.key!r}"
            raise NotFound(message)
        start = min(start, found.size)
        return found.slice(start, found.size - start if length is None else min(length, found.size - start))

    def location(self, key: str) -> str:
        """Return an object's key: nobody else can reach it."""
        return key

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        with self._lock:
            return check_key(key) in self._objects

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        check_prefix(prefix)
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        with self._lock:
            self._objects.pop(check_key(key), None)

    def claim(self, wait_s: float, *, force: bool) -> MemoryClaim:
        """Obtain the right to write this log; ``force`` takes it from its holder, whom ``fence`` then stops."""
        deadline_us = self._clock.elapsed_us() + round(wait_s * 1_000_000)
        with self._lock:
            while self._claim is not None and not force:
                left_s = (deadline_us - self._clock.elapsed_us()) / 1_000_000
                if left_s <= 0:
                    message = (
                        f"log {self.key!r} is held by another writer in this process: close it, or take it by force"
                    )
                    raise LogBusy(message)
                self._clock.wait(self._released, left_s)
            self._claim = MemoryClaim(self)
            return self._claim

    def start_segment(self, segment: int, epoch: int) -> MemorySegmentWriter:
        """Prepare a new segment for the writer of ``epoch``; if it is fenced already, the first append says so."""
        with self._lock:
            state = self._segments.setdefault(segment, _Segment(segment))
            if state.epoch is None:
                state.epoch = epoch
            self._bell.nudge()
            return MemorySegmentWriter(self, state, epoch, self._in_flight_max)

    def fence(self, segment: int, epoch: int) -> SegmentEnd:
        """Stop all appends to a segment, for ever, by every writer; return where it ends."""
        with self._lock:
            state = self._segments.setdefault(segment, _Segment(segment))
            state.fenced_by = epoch if state.fenced_by is None else max(state.fenced_by, epoch)
            state.early.clear()
            self._bell.ring()
            return state.tail()

    def blocks(
        self,
        segment: int,
        cursor: int,
        end: int | None,
        limit_bytes: int,
        then: Following | None = None,  # noqa: ARG002  nothing is fetched ahead
    ) -> tuple[Buffers, int]:
        """Return blocks from number ``cursor`` on, about ``limit_bytes`` of them, and the next number."""
        with self._lock:
            stored, behind = self._stored(segment, end)
            found: Buffers = []
            for number in range(cursor, behind):
                found.append(stored[number])
                limit_bytes -= stored[number].size
                if limit_bytes <= 0:
                    break
            return found, cursor + len(found)

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the number of the block that holds ``entry``, or the end when that lies behind what is visible."""
        with self._lock:
            _, behind = self._stored(segment, end)
            return bisect.bisect_right(self._segments[segment].entries, entry, 0, behind) if behind else 0

    def visible(self, segment: int) -> int:
        """Return how many entries of a segment can be read now."""
        with self._lock:
            state = self._segments.get(segment)
            return state.entries[-1] if state is not None and state.entries else 0

    def has_segments(self) -> bool:
        """Tell whether a segment was started and not removed."""
        with self._lock:
            return any(state.blocks for state in self._segments.values())

    def at_risk(self, segment: int, end: int) -> bool:  # noqa: ARG002
        """Return ``False``: a block has one place here."""
        return False

    def remove_segment(self, segment: int) -> None:
        """Delete a segment's blocks. That it was fenced is remembered."""
        with self._lock:
            state = self._segments.get(segment)
            if state is not None:
                state.remove()

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Return when there are blocks behind ``(segment, number)`` or a later segment, or the time is over."""
        return self._bell.wait(lambda: self._has_behind(*cursor_seen), timeout_s, self._clock)

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:  # noqa: ARG002
        """Return ``False``: looking costs nothing here."""
        return False

    def wake(self) -> None:
        """Make every ``wait`` return now."""
        self._bell.ring()

    def forget(self) -> None:
        """Do nothing: no copies are kept."""

    def is_there(self) -> bool:
        """Tell whether anything was created here."""
        with self._lock:
            return bool(self._objects)

    def clear(self) -> None:
        """Delete everything, and stop the writer."""
        with self._lock:
            for segment in self._segments.values():
                segment.fenced_by = segment.epoch or 0
                segment.remove()
            self._segments.clear()
            self._objects.clear()
            self._bell.ring()

    def release(self, claim: MemoryClaim) -> None:
        """Give the right to write back, if this claim still has it."""
        with self._lock:
            if self._claim is claim:
                self._claim = None
                self._released.notify_all()

    def append(self, state: _Segment, epoch: int, number: int, block: Sequence[Chunk]) -> int:
        """Store a block for a segment's writer."""
        whole = joined(block)
        with self._lock:
            state.check_writer(epoch)
            state.store(number, whole)
            self._bell.nudge()
            return number + 1

    def _stored(self, segment: int, end: int | None) -> tuple[Buffers, int]:
        """Return a segment's blocks, and how many of them may be read."""
        state = self._segments.get(segment)
        blocks = state.blocks if state is not None else []
        if end is not None and len(blocks) < end:
            message = f"memory: segment {segment} of {self.key!r} is gone"
            raise NotFound(message)
        return blocks, len(blocks) if end is None else end

    def _has_behind(self, segment: int, cursor: int) -> bool:
        state = self._segments.get(segment)
        if state is not None and len(state.blocks) > cursor:
            return True
        return any(number > segment and later.epoch is not None for number, later in list(self._segments.items()))


class MemoryClaim:
    """The right to write one log in memory, until it is released or taken by force."""

    def __init__(self, home: MemoryHome) -> None:
        """Hold a home; ``MemoryHome.claim`` calls this."""
        self._home = home

    def release(self) -> None:
        """Give the right back. May be repeated."""
        self._home.release(self)

    def answers(self) -> bool:
        """Return ``True``: memory is there."""
        return True


class MemorySegmentWriter:
    """Appends blocks to one open segment in memory."""

    commit_interval_s = 0.0
    ends_early = False

    def __init__(self, home: MemoryHome, state: _Segment, epoch: int, in_flight_max: int) -> None:
        """Write for one epoch; ``MemoryHome.start_segment`` calls this."""
        self.in_flight_max = in_flight_max
        self._home = home
        self._state = state
        self._epoch = epoch

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Do nothing: memory has no device."""

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Store a block under the next number; return the number behind it."""
        return self._home.append(self._state, self._epoch, number, block)

    def close(self) -> None:
        """Nothing is held open."""


class _Segment:
    """A run of blocks. ``entries[i]`` is how many entries there are up to the end of block ``i``.

    ``early`` holds blocks whose predecessors are still on their way: not visible, and lost to a fence.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch: int | None = None
        self.fenced_by: int | None = None
        self.blocks: list[pa.Buffer] = []
        self.entries: list[int] = []
        self.early: dict[int, pa.Buffer] = {}

    def check_writer(self, epoch: int) -> None:
        if self.fenced_by is not None or epoch != self.epoch:
            message = f"segment {self.number} is closed to the writer of epoch {epoch}: another writer took the log"
            raise WriterFenced(message, outcome="unknown")

    def store(self, number: int, block: pa.Buffer) -> None:
        if number < len(self.blocks):
            if not self.blocks[number].equals(block):
                message = f"block {number} of segment {self.number} is there with other bytes: the log was taken"
                raise WriterFenced(message)
            return
        self.early[number] = block
        while (following := self.early.pop(len(self.blocks), None)) is not None:
            header = block_format.read_header(following, 0)
            if header is None:
                message = f"block {len(self.blocks)} of segment {self.number} has no header"
                raise InvalidArgument(message)
            self.blocks.append(following)
            self.entries.append(header.first_entry + header.count)

    def tail(self) -> SegmentEnd:
        if not self.blocks:
            return SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
        last = block_format.read_header(self.blocks[-1], 0)
        if last is None:
            message = f"memory: the last block of segment {self.number} has lost its header"
            raise CorruptionError(message)
        return SegmentEnd(
            entries=self.entries[-1],
            blocks=len(self.blocks),
            end=len(self.blocks),
            checksum=last.checksum,
            size_bytes=sum(block.size for block in self.blocks),
        )

    def remove(self) -> None:
        self.blocks = []
        self.entries = []
        self.early.clear()


_named: dict[str, MemoryStorage] = {}
_named_lock = threading.Lock()
