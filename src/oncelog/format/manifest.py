"""The manifest: a log's truth, as versions that point to bodies, which point to pages of old segments.

A *version* is a few dozen bytes that are never deleted. A *body* has everything that changes often. *Pages* hold the
segments of long ago, so that the cost of a version does not grow with the log's age.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pyarrow as pa

from oncelog.format import frame
from oncelog.format.manifest_rules import Checksum, Count, Doomed, Key, Micros, Part, check_manifest, check_segments
from oncelog.format.runs.run import Run
from oncelog.settings import LogSettings, Window
from oncelog.shapes import prepare

FORMAT = 1
BODY_FORMAT = 2
"""Since 2 a window may be unbounded, and ids are in runs: an older version would forget them, and store them twice.
The secret may be in an object of its own: an older version would hash with none."""

VERSION_KIND, BODY_KIND, PAGE_KIND = b"OLMV", b"OLMB", b"OLMP"
INLINE_SEGMENTS_MAX = 512
PAGE_SEGMENTS = 256

PRODUCERS, STREAMS = 1, 2
"""Labels that records of a segment carry, and that truncation must not forget."""

ANY_LABELS = PRODUCERS | STREAMS


def labels_of(payload: pa.RecordBatch) -> int:
    """Return the labels that a payload's records carry."""
    names = payload.schema.names
    return (PRODUCERS if "producer" in names else 0) | (STREAMS if "stream" in names else 0)


class File(msgspec.Struct, frozen=True, array_like=True):
    """A sealed file, and from which of its rows on it holds the segment.

    Small neighbours share a file. ``checksum`` is over all its bytes.
    """

    key: Key
    row: Count
    size_bytes: Count
    checksum: Checksum


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A segment that is closed: where it stands in the log, and how its run of blocks ends.

    ``end`` is the cursor behind its last block and ``checksum`` that block's own, so that damage to the last
    block is seen. ``ids`` counts the records that carry one, ``last_uptime_us`` is the up-time of its last
    block: together they tell recovery which segments the dedup window cannot need.

    A sealed segment has a ``file``, and no blocks. One that was adopted never had any: its ``identities`` are an object
    of their own, so that it does not spend the window's keys. ``labels`` are those its records carry; -1: perhaps any.
    """

    number: Count
    first_position: Count
    entries: Count
    epoch: Count
    end: Count
    checksum: Checksum
    size_bytes: Count
    first_timestamp_us: Micros
    last_timestamp_us: Micros
    last_uptime_us: Count
    ids: Count
    file: File | None = None
    identities: Key | None = None
    labels: int = -1

    @property
    def next_position(self) -> int:
        """The position behind the segment's last record."""
        return self.first_position + self.entries


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A pointer to a page: an immutable object with consecutive segments of long ago."""

    key: Key
    checksum: Checksum
    first_position: Count
    next_position: Count
    segments: Count
    size_bytes: Count


class MarkedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of a producer: its number, the number of its rows, and a digest of its rows that does not depend on their
    order.
    """

    number: int
    records: Count
    digest: Checksum


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far a producer of batches (a Spark query, say) has come: its last batches, the newest last.

    ``owner`` is the query that first used the name. The totals count what was adopted, duplicates, and what
    was put aside because its id was taken by other content.
    """

    producer: str
    owner: str
    marked_us: Micros
    batches: tuple[MarkedBatch, ...]
    records: Count = 0
    duplicates: Count = 0
    conflicts: Count = 0

    @property
    def last(self) -> int:
        """The number of the newest batch."""
        return self.batches[-1].number


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a log that is not in its blocks.

    Closed segments, oldest first, are those in ``pages`` and then those in ``segments``; positions run through them
    without a gap from ``first_position`` to ``next_position``, where the open segment, if there is one, begins.
    Segment numbers only grow; one that ended up empty leaves a gap in them. An open segment whose ``open_epoch`` is
    below ``epoch`` was abandoned by its writer and is being closed by the next. ``doomed`` is what nothing refers to
    any more, keys of objects and numbers of segments whose blocks remain: it is deleted first, and forgotten here then.
    ``window_since`` is the first position whose writers kept the window that the last of them had, ``writer_window``.
    ``truncating`` announces a truncation to that position by ``truncator``, so that a reader's lease comes before it or
    stops it.
    Files named before ``staging_floor_us`` that nothing refers to may be deleted, so nothing may come to refer to them.
    ``marks`` tell how far producers of batches have come. ``conflicts``, behind ``conflict_pages``, are segments of
    rows whose id was taken by other content: positions of their own, from 0.
    ``labels`` are those that records of closed segments ever carried (-1: perhaps any). ``base`` is the key of what
    the records before ``first_position`` come to: how far producers and streams had got. ``forgotten`` are producers of
    which what was stored before a position does not count.
    ``memory`` are the runs that remember ids, oldest first: ranges of closed segments that do not overlap. A closed
    segment that none covers is remembered by the log's writer, in memory.
    ``purged_until`` is the position behind the last row that was purged, 0 if none was.
    ``secret`` is that of a log of format 1; others have it in an object of its own, which readers need not see.
    ``holder`` is the server that won ``epoch``: its name and incarnation; ``None`` for a process that is no server.
    """

    name: str
    log_id: Part
    settings: LogSettings
    created_us: Micros
    secret: bytes = b""
    epoch: Count = 0
    writer: bytes = b""
    writer_window: Window | None = None
    window_since: Count = 0
    open_segment: Count | None = None
    open_epoch: Count = 0
    next_segment: Count = 0
    first_position: Count = 0
    next_position: Count = 0
    last_timestamp_us: Micros = 0
    uptime_us: Count = 0
    pages: tuple[Page, ...] = ()
    segments: tuple[Segment, ...] = ()
    doomed: tuple[Doomed, ...] = ()
    staging_floor_us: int = 0
    truncating: Count = 0
    truncator: bytes = b""
    marks: tuple[Mark, ...] = ()
    conflicts: tuple[Segment, ...] = ()
    conflict_pages: tuple[Page, ...] = ()
    labels: int = -1
    base: Key | None = None
    forgotten: tuple[tuple[str, Count], ...] = ()
    memory: tuple[Run, ...] = ()
    purged_until: Count = 0
    holder: tuple[str, Count] | None = None


class Version(msgspec.Struct, frozen=True, array_like=True):
    """One version: which body it points to. ``nonce`` tells whose it is when an answer was lost."""

    number: Count
    epoch: Count
    nonce: bytes
    body_key: Key
    body_checksum: Checksum


_T = TypeVar("_T")


def encode_version(version: Version) -> bytes:
    """Return a version as the bytes of its object."""
    return frame.wrap(VERSION_KIND, FORMAT, msgspec.msgpack.encode(version))


def decode_version(data: pa.Buffer, what: str) -> Version:
    """Return the version that the bytes hold; ``CorruptionError`` or ``Unsupported`` otherwise."""
    return _decode(VERSION_KIND, FORMAT, data, Version, what)


def encode_body(manifest: Manifest) -> bytes:
    """Return a manifest as the bytes of a body."""
    return frame.wrap(BODY_KIND, BODY_FORMAT, msgspec.msgpack.encode(manifest))


def decode_body(data: pa.Buffer, what: str) -> Manifest:
    """Return the manifest that the bytes hold; ``CorruptionError`` or ``Unsupported`` otherwise."""
    manifest = _decode(BODY_KIND, BODY_FORMAT, data, Manifest, what)
    check_manifest(manifest, what)
    return manifest


def encode_page(segments: tuple[Segment, ...]) -> bytes:
    """Return consecutive segments as the bytes of a page."""
    return frame.wrap(PAGE_KIND, FORMAT, msgspec.msgpack.encode(segments))


def decode_page(data: pa.Buffer, what: str) -> tuple[Segment, ...]:
    """Return the segments that a page holds; ``CorruptionError`` or ``Unsupported`` otherwise."""
    segments = _decode(PAGE_KIND, FORMAT, data, tuple[Segment, ...], what)
    check_segments(segments, what)
    return segments


def _decode(kind: bytes, newest: int, data: pa.Buffer, shape: type[_T], what: str) -> _T:
    return frame.unpack(frame.unwrap(kind, newest, data, what), shape, what)


prepare(Version, Manifest, tuple[Segment, ...])
