"""Taking a log over: after this there is one writer, and what the one before it left is decided."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from oncelog.errors import CorruptionError, LogBusy, NotFound, WriterFenced
from oncelog.format import block
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.stored.manifests import Change, Known, Manifests
from oncelog.log.stored.object_keys import created_us
from oncelog.log.takeover.adoption import Adoption, adopted
from oncelog.storage.base import LogHome, SegmentEnd


class Holding(NamedTuple):
    """Who has a log, as its manifest says. ``holder`` is a server, ``None`` a process that is none; the log is free
    unless it is ``open``.
    """

    log_id: str
    epoch: int
    open: bool
    holder: tuple[str, int] | None


def holding(manifest: Manifest) -> Holding:
    """Return who has a log."""
    return Holding(manifest.log_id, manifest.epoch, manifest.open_segment is not None, manifest.holder)


def take(
    home: LogHome,
    manifests: Manifests,
    writer: bytes,
    *,
    holder: tuple[str, int] | None = None,
    epoch: int | None = None,
) -> Known:
    """Make ``writer`` the log's only writer, and decide the fate of what was in flight before it.

    The epoch is won first, so that of two takers one loses; then the open segment is fenced, so that its tail can be
    known; only the manifest version that closes it decides, for everybody and for ever. On return the newest
    manifest has an open segment that nobody has written to.

    A server names itself as the ``holder``. With ``epoch``, the log is taken from that epoch alone: ``LogBusy`` if
    another has taken it since.
    """
    known = manifests.update(_claim(writer, holder, epoch))
    manifest = known.manifest
    if manifest.open_segment is None or manifest.open_epoch == manifest.epoch:
        return known
    tail = home.fence(manifest.open_segment, manifest.epoch)
    abandoned = _describe(home, manifest, tail)
    return manifests.update(_close_abandoned(manifest.epoch, manifest.open_segment, abandoned), known)


def _claim(writer: bytes, holder: tuple[str, int] | None, epoch: int | None) -> Change:
    def change(manifest: Manifest) -> Manifest:
        if manifest.writer == writer:
            return manifest
        if epoch is not None and manifest.epoch != epoch:
            message = f"log {manifest.name!r} was taken by another writer just now (epoch {manifest.epoch})"
            raise LogBusy(message)
        claimed = msgspec.structs.replace(manifest, epoch=manifest.epoch + 1, writer=writer, holder=holder)
        return claimed if claimed.open_segment is not None else _open_next(_with_window(claimed))

    return change


def _close_abandoned(epoch: int, number: int, closed: Segment | None) -> Change:
    """Return the change by which a new writer closes what the one before left open, and opens a segment of its own."""

    def change(manifest: Manifest) -> Manifest:
        check_epoch(manifest, epoch)
        if manifest.open_segment != number:
            return manifest
        after = _with_window(_close(manifest, closed, 0))
        if closed is None:  # it was begun, perhaps, and has nothing that anybody will read
            after = msgspec.structs.replace(after, doomed=(*after.doomed, f"blocks:{number}"))
        return _open_next(after)

    return change


def _with_window(manifest: Manifest) -> Manifest:
    """Note the window that the writer keeps from here on. What is before was written under the one before."""
    window = manifest.settings.window if manifest.settings.idempotence != "off" else None
    if window == manifest.writer_window:
        return manifest
    return msgspec.structs.replace(manifest, writer_window=window, window_since=manifest.next_position)


def close_and_open(epoch: int, number: int, closed: Segment | None) -> Change:
    """Return the change by which the writer of ``epoch`` closes its segment and opens the next."""

    def change(manifest: Manifest) -> Manifest:
        check_epoch(manifest, epoch)
        if manifest.open_segment != number:
            return manifest
        return _open_next(_close(manifest, closed, 0))

    return change


def close(epoch: int, number: int, closed: Segment | None, uptime_us: int) -> Change:
    """Return the change by which the writer of ``epoch`` closes its segment and leaves."""

    def change(manifest: Manifest) -> Manifest:
        check_epoch(manifest, epoch)
        if manifest.open_segment != number:
            return manifest
        return _close(manifest, closed, uptime_us)

    return change


def adopt(
    epoch: int, number: int, closed: Segment | None, adoption: Adoption, *, timestamp_us: int, uptime_us: int
) -> Change:
    """Return the change by which the writer of ``epoch`` closes its segment, adopts files, and opens the next."""

    def change(manifest: Manifest) -> Manifest:
        check_epoch(manifest, epoch)
        if manifest.open_segment != number:
            return manifest
        keys = [file.key for file in (*adoption.staged, *adoption.conflicts)]
        keys += [adoption.run.key] if adoption.run is not None else []
        late = next((key for key in keys if created_us(key) < manifest.staging_floor_us), None)
        if late is not None:
            message = f"{late} was staged too long ago and may be gone: stage its records again"
            raise NotFound(message)
        manifest = _close(manifest, closed, uptime_us)
        return _open_next(adopted(manifest, adoption, timestamp_us, uptime_us))

    return change


def check_epoch(manifest: Manifest, epoch: int) -> None:
    """Raise ``WriterFenced`` unless the log is still that of the writer of ``epoch``."""
    if manifest.epoch != epoch:
        message = f"log {manifest.name!r} was taken by another writer (epoch {manifest.epoch}, this one had {epoch})"
        raise WriterFenced(message)


def _close(manifest: Manifest, closed: Segment | None, uptime_us: int) -> Manifest:
    """Return the manifest without an open segment. An empty one leaves no trace but its number."""
    uptime_us = max(manifest.uptime_us, uptime_us, closed.last_uptime_us if closed else 0)
    if closed is None:
        return msgspec.structs.replace(manifest, open_segment=None, uptime_us=uptime_us)
    assert closed.first_position == manifest.next_position, "segments follow each other without a gap"
    return msgspec.structs.replace(
        manifest,
        open_segment=None,
        segments=(*manifest.segments, closed),
        next_position=closed.next_position,
        last_timestamp_us=max(manifest.last_timestamp_us, closed.last_timestamp_us),
        uptime_us=uptime_us,
        labels=manifest.labels | closed.labels,
    )


def _open_next(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(
        manifest, open_segment=manifest.next_segment, open_epoch=manifest.epoch, next_segment=manifest.next_segment + 1
    )


def _describe(home: LogHome, manifest: Manifest, tail: SegmentEnd) -> Segment | None:
    """Return what the manifest will say of a segment that was left open, or ``None`` if it is empty."""
    if tail.entries == 0:
        return None
    number = manifest.open_segment
    assert number is not None
    first = _header_at(home, number, 0, tail)
    last = _header_at(home, number, home.locate(number, tail.entries - 1, tail.end), tail)
    if first.first_position != manifest.next_position or last.next_entry != tail.entries:
        message = (
            f"segment {number} begins at position {first.first_position} and ends at entry "
            f"{last.next_entry}; the manifest expects {manifest.next_position}, its tail {tail.entries}"
        )
        raise CorruptionError(message)
    return Segment(
        number=number,
        first_position=first.first_position,
        entries=tail.entries,
        epoch=manifest.open_epoch,
        end=tail.end,
        checksum=tail.checksum,
        size_bytes=tail.size_bytes,
        first_timestamp_us=first.timestamp_us,
        last_timestamp_us=last.timestamp_us,
        last_uptime_us=last.uptime_us,
        ids=0,  # not counted: too few only makes a recovery without snapshots read more
    )


def _header_at(home: LogHome, number: int, cursor: int, tail: SegmentEnd) -> block.BlockHeader:
    blocks, _ = home.blocks(number, cursor, tail.end, 1)
    header = block.read_header(blocks[0]) if blocks else None
    if header is None:
        message = f"segment {number} has no block at {cursor}, below its tail {tail.end}"
        raise CorruptionError(message)
    return header
