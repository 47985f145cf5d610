"""Homes in a bucket: everything is an object, and conditional creates are the only coordination there is.

::

    <prefix>/logs/<home>/<key>                          an object
    <prefix>/logs/<home>/segments/<segment>/<number>    a block, or a fence

A block is created at the next number of its segment, if nothing is there. So is a fence: whichever comes first stays,
for ever. A writer has at most ``IN_FLIGHT_MAX`` blocks on their way and acknowledges none before all before it are
there. So a fence in the first hole stops it for good, however late an upload arrives: what lies behind the hole was
never acknowledged, and readers, who stop at the first hole, never saw it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound, WriterFenced
from oncelog.format import frame
from oncelog.format.block import HEADER_BYTES, BlockHeader, read_header
from oncelog.storage.base import ENSEMBLES, FIRST_MEMBERS, QUORUM_HOME, REMOVING, Chunk, Following, SegmentEnd
from oncelog.storage.bell import Bell
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.fetching import Fetching, Place, result
from oncelog.storage.chunks import joined
from oncelog.storage.keys import check_home_key, check_key, check_prefix
from oncelog.storage.looks import Looks

IN_FLIGHT_MAX = 4
COMMIT_INTERVAL_S = 0.1
"""A block that is not full is offered so long after the one before at the earliest: every block is a paid request."""

FETCHER = "oncelog-fetch"
FETCHERS = 16
READ_AHEAD = 64
"""So many blocks are asked for at once, by so many threads."""

READ_AHEAD_BYTES = 32 << 20
"""What is fetched before a reader asks for it comes to about so much, if the reader goes on from block to block."""

FENCE_KIND = b"OLfn"
FENCE_VERSION = 1


class ObjectStorage:
    """The home of a database in a bucket, shared by everybody who can reach it."""

    def __init__(self, bucket: Bucket, clock: Clock = SYSTEM, *, plain: bool = False) -> None:
        """Keep a bucket; nothing is asked of it yet. ``plain``: whether a quorum's store is refused."""
        self.url = bucket.url
        self._unchecked = plain
        self._bucket = bucket
        self._clock = clock
        self._pool = ThreadPoolExecutor(FETCHERS, thread_name_prefix=FETCHER)

    def homes(self) -> list[str]:
        """Return the keys of the homes there are, sorted."""
        return self._bucket.folders("logs/")

    def home(self, key: str) -> ObjectHome:
        """Return the home of one log."""
        if self._unchecked:
            self._check_no_quorum()
        return ObjectHome(self._bucket, f"logs/{check_home_key(key)}/", self._pool, self._clock)

    def _check_no_quorum(self) -> None:
        """Raise ``InvalidArgument`` for the store of a quorum: a reader would miss what nodes hold, and say nothing."""
        if self._bucket.size(f"logs/{QUORUM_HOME}/{FIRST_MEMBERS}") is not None:
            raise _on_nodes(self._bucket)
        self._unchecked = False

    def remove_home(self, key: str) -> None:
        """Delete all objects of a home, its manifest versions last. ``REMOVING`` is there from the first to the last of
        them, so that what was cut short can be finished.
        """
        home = self.home(key)
        home.create(REMOVING, [b"all of this is to go"])
        keys = [name for name in home.list("") if name != REMOVING]
        versions = [name for name in keys if name.startswith("manifest/")]
        for name in [name for name in keys if not name.startswith("manifest/")] + versions[::-1] + [REMOVING]:
            home.delete(name)

    def close(self) -> None:
        """Let go of the threads that fetch. May be repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _on_nodes(bucket: Bucket) -> InvalidArgument:
    return InvalidArgument(f"{bucket.url} is the store of a quorum: connect to quorum:{bucket.url}")


class ObjectHome:
    """The home of one log in a bucket. Safe to share between threads and processes."""

    exclusive = False
    seals_early = False
    looking_costs = True
    commit_interval_s = COMMIT_INTERVAL_S

    def __init__(self, bucket: Bucket, prefix: str, pool: ThreadPoolExecutor, clock: Clock) -> None:
        """Keep everything below a prefix of a bucket; ``ObjectStorage.home`` calls this."""
        self._bucket = bucket
        self._prefix = prefix
        self._clock = clock
        self._bell = Bell()
        self._seen: dict[int, tuple[int, int]] = {}
        self._looks = Looks(self._bell, clock)
        self._pool = pool
        self._fetching = Fetching(pool, self._block)
        self._block_bytes = 0

    # Objects.

    def probe(self) -> None:
        """Raise ``Unsupported`` unless the store keeps a second create from replacing the first."""
        self._bucket.check_creates(f"{self._prefix}probe/{self._clock.token(8).hex()}")

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Create an object if nothing is there. Where the client repeated its request, ``False`` may be of its own."""
        return self._bucket.create(self._prefix + check_key(key), data)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:  # noqa: ARG002
        """Return an object's bytes from ``start``, at most ``length`` of them."""
        return self._bucket.get(self._prefix + check_key(key), start, length)

    def location(self, key: str) -> str:
        """Return an object's URL."""
        return f"{self._bucket.url}/{self._prefix}{key}"

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        return self._bucket.size(self._prefix + check_key(key)) is not None

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return [key for key, _ in self._listed(check_prefix(prefix))]

    def _listed(self, prefix: str, after: str | None = None) -> Sequence[tuple[str, int]]:
        behind = None if after is None else self._prefix + after
        found = self._bucket.below(self._prefix + prefix, behind)
        return [(path.removeprefix(self._prefix), size_bytes) for path, size_bytes in found]

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._bucket.delete(self._prefix + check_key(key))

    # Writing blocks.

    def claim(self, wait_s: float, *, force: bool) -> ObjectClaim:  # noqa: ARG002  the fence decides, not a lock
        """Return at once: in a bucket nobody holds a lock, and the fence decides who writes."""
        return ObjectClaim()

    def start_segment(self, segment: int, epoch: int) -> ObjectSegmentWriter:  # noqa: ARG002  its blocks name the epoch
        """Return what writes a new segment; there is nothing to prepare."""
        return ObjectSegmentWriter(self, segment)

    def append(self, segment: int, number: int, block: Sequence[Chunk]) -> int:
        """Create a block at its number, or recognise it there; ``WriterFenced`` when something else is."""
        key = _block_key(segment, number)
        if not self.create(key, block) and not self.read(key).equals(joined(block)):
            message = f"{self.location(key)}: something else is there, so another writer took the log"
            raise WriterFenced(message, outcome="unknown")
        self._bell.nudge()
        return number + 1

    def fence(self, segment: int, epoch: int) -> SegmentEnd:
        """Put a fence into the first hole of a segment, or find one there; return what is before it."""
        fence = frame.wrap(FENCE_KIND, FENCE_VERSION, str(epoch).encode())
        distance = 1
        while True:
            sizes = dict(self._listed(_segment_prefix(segment)))
            hole = _first_hole(segment, sizes)
            if hole == 0 and not sizes:
                self._check_no_quorum(segment)
            if _block_key(segment, hole) in sizes or self.create(_block_key(segment, hole), [fence]):
                self._bell.ring()
                return self._tail(segment, hole, sizes)
            # A block got in: stop a writer that is quicker than this further ahead, then come back for the hole.
            self.create(_block_key(segment, hole + distance), [fence])
            distance *= 2

    def _tail(self, segment: int, hole: int, sizes: dict[str, int]) -> SegmentEnd:
        if hole == 0:
            return SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
        last = self._header(segment, hole - 1)
        return SegmentEnd(
            entries=last.next_entry,
            blocks=hole,
            end=hole,
            checksum=last.checksum,
            size_bytes=sum(sizes[_block_key(segment, number)] for number in range(hole)),
        )

    def _check_no_quorum(self, segment: int) -> None:
        """Raise ``InvalidArgument`` if the blocks of a segment are on the nodes of a quorum: it is not empty."""
        if self.exists(f"{ENSEMBLES}{segment:020d}"):
            raise _on_nodes(self._bucket)

    # Reading blocks.

    def blocks(
        self, segment: int, cursor: int, end: int | None, limit_bytes: int, then: Following | None = None
    ) -> tuple[Sequence[pa.Buffer], int]:
        """Return blocks from number ``cursor`` on, several fetched at once, and the next number.

        Of a closed segment, what was fetched and is too much for now is kept for the next call, and more is fetched for
        it meanwhile: as much again at first, and all that threads can fetch as soon as a reader is seen to go on.
        Behind the last block, fetching goes on with the segment ``then``: with one block, until a reader goes on.
        """
        found: list[pa.Buffer] = []
        kept = self._fetching  # once: ``forget`` takes another
        total, sounds, goes_on = 0, self._bell.sounds, kept.has((segment, cursor))
        beyond = FETCHERS if goes_on else 1
        while total < limit_bytes and (end is None or cursor < end):
            known = (total // len(found) if found else 0) or self._block_bytes
            count = _how_many(len(found), limit_bytes - total, known, None if end is None else end - cursor)
            places = [(segment, number) for number in range(cursor, cursor + count)]
            fetching = kept.begin(places)
            if end is not None:  # another reader may know of an end before this one does
                ahead = READ_AHEAD_BYTES // max(1, known) if goes_on else count
                kept.ahead(_behind(places[-1], end, ahead, then, beyond))
            for nth, fetch in enumerate(fetching):
                if total >= limit_bytes:
                    if end is not None:
                        kept.keep(places[nth:], fetching[nth:])
                    break
                block = result(fetch)
                if block is None and end is None:
                    self._looks.note((segment, cursor), sounds, found=bool(found))
                    return found, cursor
                if block is None:
                    message = f"{self.location(_block_key(segment, cursor))}: the block is gone"
                    raise NotFound(message)
                found.append(block)
                total += block.size
                cursor += 1
        if found and end is not None:
            self._block_bytes = total // len(found)
            kept.ahead(_behind((segment, cursor - 1), end, len(found), then, beyond))
        return found, cursor

    def _block(self, segment: int, number: int) -> pa.Buffer | None:
        """Return a block, or ``None`` where there is nothing, or a fence."""
        key = _block_key(segment, number)
        try:
            data = self.read(key)
        except NotFound:
            return None
        header = read_header(data)
        if header is None:
            frame.unwrap(FENCE_KIND, FENCE_VERSION, data, self.location(key))
            return None
        if header.size_bytes != data.size or header.segment != segment:
            message = (
                f"{self.location(key)}: a block of segment {header.segment} and {header.size_bytes} bytes, not this"
            )
            raise CorruptionError(message)
        return data

    def _header(self, segment: int, number: int) -> BlockHeader:
        key = _block_key(segment, number)
        header = read_header(self.read(key, 0, HEADER_BYTES))
        if header is None:
            message = f"{self.location(key)}: not a block"
            raise CorruptionError(message)
        return header

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the number of the block that holds ``entry``, by looking at a few headers."""
        behind = self._visible(segment)[0] if end is None else end
        return bisect_right(range(behind), entry, key=lambda number: self._header(segment, number).next_entry)

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now."""
        return self._visible(segment)[1]

    def _visible(self, segment: int) -> tuple[int, int]:
        """Return how many blocks, and entries, are there without a hole.

        A look at the next block is all it takes when there is nothing new; only else the rest is listed.
        """
        known = self._seen.get(segment, (0, 0))
        number = known[0]
        if (self._bucket.size(self._prefix + _block_key(segment, number)) or 0) < HEADER_BYTES:
            return known
        sizes = dict(self._listed(_segment_prefix(segment), _block_key(segment, number - 1) if number else None))
        number = _first_hole(segment, sizes, number)
        if number == known[0]:
            return known
        last = self._header(segment, number - 1)
        found = number, last.next_entry
        self._seen[segment] = max(found, self._seen.get(segment, found))
        return found

    def has_segments(self) -> bool:
        """Tell whether there is a block or a fence."""
        return bool(self._listed("segments/"))

    def at_risk(self, segment: int, end: int) -> bool:  # noqa: ARG002
        """Return ``False``: a block has one place here."""
        return False

    def remove_segment(self, segment: int) -> None:
        """Delete a segment's blocks. Fences stay: a writer that slept must not find a freed number."""
        for key, size_bytes in self._listed(_segment_prefix(segment)):
            if size_bytes >= HEADER_BYTES:
                self.delete(key)
        self._seen.pop(segment, None)

    # Waiting.

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Return when there is a block at ``(segment, number)``, or it is time to look whether the log has moved on."""
        path = self._prefix + _block_key(*cursor_seen)
        return self._looks.wait(cursor_seen, lambda: self._bucket.size(path) is not None, timeout_s)

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:
        """Tell whether this process has written nothing since a block was looked for there in vain."""
        return self._looks.is_silent(cursor_seen)

    def wake(self) -> None:
        """Make every ``wait`` in this process return now."""
        self._bell.ring()

    def forget(self) -> None:
        """Let go of blocks that were fetched ahead, and of how many were seen."""
        self._fetching = Fetching(self._pool, self._block)
        self._seen.clear()


class ObjectClaim:
    """Nothing: the fence decides."""

    def release(self) -> None:
        """Give nothing back."""

    def answers(self) -> bool:
        """Return ``True``: the thread that watches for requests notices an outage."""
        return True


class ObjectSegmentWriter:
    """Creates the blocks of one segment."""

    in_flight_max = IN_FLIGHT_MAX
    ends_early = False

    def __init__(self, home: ObjectHome, segment: int) -> None:
        """Write one segment; ``ObjectHome.start_segment`` calls this."""
        self.commit_interval_s = home.commit_interval_s
        self._home = home
        self._segment = segment

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Do nothing: a block is one request."""

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Store a block under its number."""
        return self._home.append(self._segment, number, block)

    def close(self) -> None:
        """Nothing is held open."""


def _how_many(fetched: int, wanted_bytes: int, block_bytes: int, left: int | None) -> int:
    """Return how many blocks to fetch at once: as many as are wanted, if they are like those before.

    The end of an open segment is not known: the first look asks for one block, each further one for as many as came.
    """
    if left is None:
        return min(READ_AHEAD, max(1, fetched), 1 + wanted_bytes // block_bytes if fetched else 1)
    return min(READ_AHEAD, left, 1 + wanted_bytes // block_bytes if block_bytes else 1)


def _segment_prefix(segment: int) -> str:
    return f"segments/{segment:020d}/"


def _block_key(segment: int, number: int) -> str:
    return f"{_segment_prefix(segment)}{number:010d}"


def _first_hole(segment: int, sizes: dict[str, int], number: int = 0) -> int:
    """Return the first number without a block: a fence is none, and shorter than any."""
    while sizes.get(_block_key(segment, number), 0) >= HEADER_BYTES:
        number += 1
    return number


def _behind(last: Place, end: int, count: int, then: Following | None, beyond: int) -> list[Place]:
    """Return the places behind a block of a closed segment to be fetched for the next call, at most one a thread.

    A reader that reaches the end goes on with the next segment: without its blocks, threads would wait there. At most
    ``beyond`` are of that one: who reads a few records and ends has not paid for many others.
    """
    segment, first = last[0], last[1] + 1
    count = min(max(1, count), FETCHERS)
    places = [(segment, number) for number in range(first, min(end, first + count))]
    if then is not None:
        places += [(then[0], number) for number in range(min(then[1], count - len(places), beyond))]
    return places
