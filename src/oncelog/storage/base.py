"""What a log needs of its home: the contract that memory, a local disk, a bucket and a quorum of nodes keep.

A home stores two kinds of bytes. *Objects* are created once, whole, and never change: manifests, snapshots,
sealed files. *Blocks* are what commits write: a segment is a run of them, numbered from 0 without holes.

There are only three kinds of failure, and every method may raise them:

- ``Unavailable(outcome="not written")``: nothing happened and nothing will.
- ``Unavailable(outcome="unknown")``: it may have happened, or happen yet. The caller offers the same bytes
  again, or looks.
- ``WriterFenced``, from a ``SegmentWriter``: another writer has the log; nothing of this one is accepted any more.

``CorruptionError`` says that bytes were read which were never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

Chunk: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""A piece of what is to be written; a sequence of them is written as one."""

Following: TypeAlias = tuple[int, int]
"""A closed segment, by its number, and its end cursor."""

QUORUM_HOME = "~quorum"
"""The key of the home in which the store of a quorum keeps who its nodes are."""

FIRST_MEMBERS = f"members/{1:020d}"
"""The key of the first of these lists. It is there, in that home, for as long as the quorum is."""

ENSEMBLES = "ensembles/"
"""The prefix of what the store of a quorum keeps for each segment whose blocks are on nodes."""

REMOVING = "removing"
"""The key of an object that is in a home whose removal has begun, where that cannot be done at once."""


class SegmentEnd(msgspec.Struct, frozen=True):
    """Where a segment ends: all that recovery may count on, and no more.

    ``entries`` and ``blocks`` are how many there are; ``end`` is the cursor behind the last block and
    ``checksum`` that block's own (0 when there is none). ``torn_bytes`` were cut off behind it;
    ``size_bytes`` is what all the blocks together take.
    """

    entries: int
    blocks: int
    end: int
    checksum: int
    torn_bytes: int = 0
    size_bytes: int = 0


class Unsealed(msgspec.Struct, frozen=True, kw_only=True):
    """Which segments of a log are not sealed: ``closed`` ones, each with its end, and all from ``first_open`` on."""

    closed: dict[int, int] = {}
    first_open: int = 0


class SegmentWriter(Protocol):
    """Appends blocks to one open segment, for one writer. Not safe to share between threads, except that
    up to ``in_flight_max`` calls of ``append`` with different numbers may run at once.

    ``commit_interval_s`` is how long a block that is not full had better wait after the one before was offered.
    ``ends_early`` becomes true when the segment should be closed before it is full: too few stores hold its blocks.
    """

    in_flight_max: int
    commit_interval_s: float

    @property
    def ends_early(self) -> bool:
        """Whether the next block had better begin another segment."""
        ...

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Have the device begin with a block, if that gains time: ``append`` of the same block follows.

        It promises nothing and reports no failure of storage: only ``append`` tells what came of the block.
        """
        ...

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Store a block under the next number; return the cursor behind it.

        On return the block is on stable storage and visible to readers (once those before it are). After a failure
        the same number is offered again *with the same bytes*, until this returns or raises ``WriterFenced``;
        a block that was stored though its answer was lost is then recognised, not stored twice.
        """
        ...

    def close(self) -> None:
        """Let go of what is held open. Stores nothing, settles nothing, may be repeated."""
        ...


class Claim(Protocol):
    """The right to write one log, as far as the home itself can give it (an OS lock on a local disk)."""

    def release(self) -> None:
        """Give the right back. May be repeated."""
        ...

    def answers(self) -> bool:
        """Tell whether the home is there, at the price of one system call at most. Asked where it is exclusive."""
        ...


class LogHome(Protocol):
    """The home of one log. Safe to share between threads and processes, but for what ``SegmentWriter`` says.

    Keys are relative paths of ASCII letters, digits and ``._-/~%``. ``exclusive`` tells whether a claim keeps everybody
    else out; where it does not, a holder is asked for the log through the log itself, and fenced. ``seals_early`` tells
    whether ``at_risk`` can ever be true: where it can, a new writer looks at the segments of the one before.
    ``looking_costs`` tells whether each look is a paid request: a long wait leaves the looks to ``wait``.
    """

    exclusive: bool
    seals_early: bool
    looking_costs: bool

    def probe(self) -> None:
        """Raise ``Unsupported`` if this home cannot do what a log needs. Called before a log is created."""
        ...

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Store an object that nobody has stored: ``True`` when this call did, ``False`` when it exists.

        On return the object is on stable storage, whole, and every reader finds it. Of any number of callers
        at once, exactly one gets ``True``. Nobody ever sees a part of it.
        """
        ...

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:
        """Return an object's bytes, or those from ``start``, at most ``length`` of them; ``NotFound`` if it is not
        there. What was read once is there after any crash, until somebody deletes it.

        ``mapped``: a home on this machine may show the bytes where they are, instead of loading them. Only what is
        touched takes memory then, and a file that shrinks meanwhile ends the process.
        """
        ...

    def location(self, key: str) -> str:
        """Return where an object is, as other programs would name it: a path, or a URL."""
        ...

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted. A prefix ends with ``/`` or is empty."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error. Buffers already read from it stay valid."""
        ...

    def claim(self, wait_s: float, *, force: bool) -> Claim:
        """Obtain the right to write this log, waiting up to ``wait_s``; else ``LogBusy``.

        ``force`` takes it from a living holder where the home can fence that holder's blocks (a local disk cannot).
        """
        ...

    def start_segment(self, segment: int, epoch: int) -> SegmentWriter:
        """Prepare a new, empty segment for the writer of ``epoch``. Called under a claim, once a segment."""
        ...

    def fence(self, segment: int, epoch: int) -> SegmentEnd:
        """Stop every writer of an epoch below ``epoch`` from adding to a segment, for ever; return where it ends.

        All that is below the returned tail is durable, readable and will not change; nothing will ever be behind it.
        A segment that was never started has an empty tail. Repeatable, with the same answer.
        """
        ...

    def blocks(
        self, segment: int, cursor: int, end: int | None, limit_bytes: int, then: Following | None = None
    ) -> tuple[Sequence[pa.Buffer], int]:
        """Return whole blocks from ``cursor`` on (0 is the start), about ``limit_bytes`` of them, and the next cursor.

        ``end`` is the end cursor of a segment that is closed; ``None`` reads an open one, as far as it is visible:
        *durable, and impossible to take back*. An empty list means that there is nothing more now. At least one block
        is returned if there is one, whatever the limit. Buffers stay valid and unchanged as long as they are held.
        Framing is checked, the blocks' own checksums are not, unless ``CheckedBlocks`` are returned. ``NotFound`` when
        a closed segment is gone.

        ``then`` is the closed segment that the caller reads next, if it reads on: a home may fetch blocks of it, too,
        before they are asked for.
        """
        ...

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the cursor of the block that holds ``entry``, or the end cursor when that lies behind what is
        visible.
        """
        ...

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now; 0 when there is no such segment."""
        ...

    def has_segments(self) -> bool:
        """Tell whether blocks of any segment are here, whatever the log's manifest says."""
        ...

    def at_risk(self, segment: int, end: int) -> bool:
        """Tell whether a closed segment should be sealed now, however small it is: too few stores hold its blocks."""
        ...

    def remove_segment(self, segment: int) -> None:
        """Delete a segment's blocks; one that is not there is no error. Buffers already read stay valid."""
        ...

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Return when there may be blocks behind ``(segment, cursor)``, or the log has moved on, or the time is
        over; ``False`` if nothing was found behind the cursor.
        """
        ...

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:
        """Tell, at no cost, whether this process has written nothing since blocks were looked for there in vain.

        Asked where ``looking_costs`` alone; else ``False`` is an answer, too.
        """
        ...

    def wake(self) -> None:
        """Make every ``wait`` in this process return now."""
        ...

    def forget(self) -> None:
        """Let go of what is kept of blocks: another log stands here now, or none."""
        ...


class Storage(Protocol):
    """The home of a database: of its logs, by key. Safe to share between threads and processes."""

    url: str

    def homes(self) -> list[str]:
        """Return the keys of the logs' homes there are, sorted. One that is empty may be among them."""
        ...

    def home(self, key: str) -> LogHome:
        """Return the home of one log. Nothing is created before the first ``create`` in it."""
        ...

    def remove_home(self, key: str) -> None:
        """Delete a log's home and all in it. Where it is cut short, ``REMOVING`` stays: call it again."""
        ...

    def close(self) -> None:
        """Let go of what is held open. May be repeated."""
        ...
