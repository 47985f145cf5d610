"""Retention: what is too old, or too much, goes; never what the dedup window or a reader's lease still needs."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.memory import coverage
from oncelog.log.read import leases
from oncelog.log.stored import bases, snapshots
from oncelog.log.stored.manifests import Change, Known, Manifests
from oncelog.log.stored.object_keys import created_us
from oncelog.log.takeover.recovery import adopted_within, covers, needed
from oncelog.log.upkeep import sealing
from oncelog.settings import DURATION_S, MAX_KEYS
from oncelog.storage.base import LogHome


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log begins after a truncation, and, if that is before what was asked, what held it back."""

    first_position: int
    held_by: Literal["window", "lease", "open segment"] | None = None


def truncate(
    home: LogHome,
    manifests: Manifests,
    clock: Clock,
    before: int,
    *,
    window_from: int | None,
    remembering: bases.Remembering,
) -> Truncation:
    """Truncate everything before a position, as far as nothing needs it; the space of whole segments comes back.

    ``window_from`` is the first position that the dedup window needs, ``remembering`` tells which producers are kept.
    """
    if before < 0:
        message = f"truncate before {before}: positions count from 0"
        raise InvalidArgument(message)
    token = clock.token(8)
    while True:
        known = manifests.newest()
        assert known is not None
        target, held_by = _allowed(known.manifest, before, window_from)
        if target <= known.manifest.first_position:
            sealing.collect(home, manifests)  # what a truncation that was killed left behind
            return Truncation(first_position=known.manifest.first_position, held_by=held_by)
        known = manifests.update(_announce(target, token), known)
        lease = leases.held_from(home, clock)
        if lease is not None and lease < target:
            target, held_by = max(lease, known.manifest.first_position), "lease"
        base = _stored_base(home, manifests, clock, known, target, remembering)
        after = manifests.update(_cut(manifests, target, token, base)).manifest
        if after.first_position >= target:
            sealing.collect(home, manifests)
            return Truncation(first_position=after.first_position, held_by=held_by)


def _allowed(
    manifest: Manifest, before: int, window_from: int | None
) -> tuple[int, Literal["window", "lease", "open segment"] | None]:
    if window_from is not None and window_from < before and window_from < manifest.next_position:
        return window_from, "window"
    if before > manifest.next_position:
        return manifest.next_position, "open segment"
    return before, None


def _announce(target: int, token: bytes) -> Change:
    def change(manifest: Manifest) -> Manifest:
        if (manifest.truncating, manifest.truncator) == (target, token):
            return manifest
        return msgspec.structs.replace(manifest, truncating=target, truncator=token)

    return change


def _stored_base(  # noqa: PLR0917
    home: LogHome, manifests: Manifests, clock: Clock, known: Known, target: int, remembering: bases.Remembering
) -> str | None:
    """Store what is to be remembered of the records before ``target``; return its key.

    Another truncation announces itself, and this one begins again: the base before stays as it is.
    """

    def look(manifest: Manifest) -> str | None:
        return bases.write(home, manifests, manifest, clock, target, remembering=remembering)

    _, key = manifests.look(known, look)
    return key


def _cut(manifests: Manifests, target: int, token: bytes, base: str | None) -> Change:
    return lambda manifest: _without(manifests, manifest, target, token, base)


def _without(manifests: Manifests, manifest: Manifest, target: int, token: bytes, base: str | None) -> Manifest:
    """Return the manifest without what lies before ``target``, unless a reader has stopped the truncation.

    Another one's announcement does not do: a lease may have come between this one's look for leases and that.
    """
    if manifest.truncating < target or manifest.truncator != token or manifest.first_position >= target:
        return manifest
    if base is not None and base != manifest.base and created_us(base) < manifest.staging_floor_us:
        return manifest  # it may be gone: begin again
    gone = [segment for segment in _closed(manifests, manifest, target) if segment.next_position <= target]
    kept = next(manifests.closed_from(manifest, target), None)
    doomed = [manifest.base] if manifest.base not in (None, base) else []
    for segment in gone:
        if segment.file is None:
            doomed.append(f"blocks:{segment.number}")
        elif kept is None or kept.file is None or kept.file.key != segment.file.key:
            doomed.append(segment.file.key)
        if segment.identities is not None:
            doomed.append(segment.identities)
    forgotten = manifest.forgotten
    if base != manifest.base:  # it is without those who were forgotten before it, and so are all snapshots behind it
        forgotten = tuple((name, position) for name, position in forgotten if position >= target)
    memory, forgotten_runs = coverage.truncated(manifest, target)
    doomed += forgotten_runs
    pages = tuple(page for page in manifest.pages if page.next_position > target)
    doomed += [page.key for page in manifest.pages if page.next_position <= target]
    return msgspec.structs.replace(
        manifest,
        first_position=target,
        base=base,
        forgotten=forgotten,
        truncating=0,
        truncator=b"",
        memory=memory,
        pages=pages,
        segments=tuple(segment for segment in manifest.segments if segment.next_position > target),
        doomed=(*manifest.doomed, *dict.fromkeys(doomed)),
    )


def _closed(manifests: Manifests, manifest: Manifest, target: int) -> list[Segment]:
    found = []
    for segment in manifests.closed_from(manifest, manifest.first_position):
        if segment.first_position >= target:
            break
        found.append(segment)
    return found


def window_from(home: LogHome, manifests: Manifests, manifest: Manifest) -> int | None:
    """Return the first position that the dedup window can need, as it can be told without the writer.

    That is the oldest in the newest snapshot; without one, or with one of a smaller window than the next writer keeps,
    the first of the segments that a rebuild would read. Adopted files are in no snapshot, so the oldest of them that is
    within the window's duration counts too.
    """
    if manifest.settings.idempotence == "off":
        return None
    if manifest.settings.window.unbounded:
        first = floor(manifests, manifest, manifest.uptime_us)
        taken = next(snapshots.readable(home, manifest.log_id, manifest.next_position), None)
        in_runs = any(run.next_position > first for run in manifest.memory)
        if in_runs or taken is None or not 0 <= taken.tail_from <= first or taken.watermark < manifest.next_position:
            return first
        return oldest_within(taken.positions, taken.ticks, manifest.uptime_us, first, manifest.next_position)
    duration_us = manifest.settings.window.duration_us
    adopted = adopted_within(manifests, manifest, duration_us, manifest.uptime_us)
    return min([_kept_from(home, manifests, manifest), *(segment.first_position for segment in adopted)])


def floor(manifests: Manifests, manifest: Manifest, uptime_us: int) -> int:
    """Return the first position that truncation must leave where ids are remembered as long as their records live.

    Truncation takes such ids with their records. It never takes one sooner than a window of ``DURATION_S`` and
    ``MAX_KEYS`` would forget it: a queue that trims what was consumed, say, still knows what it has just sent.
    """
    before, ids = manifest.next_position, 0
    for segment in manifests.closed_back(manifest):
        gone = segment.next_position <= manifest.first_position
        if gone or segment.last_uptime_us + DURATION_S * 1e6 <= uptime_us or ids >= MAX_KEYS:
            break
        left = MAX_KEYS - ids
        ids += segment.ids
        before = segment.first_position
        if segment.ids == segment.entries > left:
            before = segment.next_position - left
    return max(before, manifest.first_position)


def oldest_within(positions: NDArray[np.int64], ticks: NDArray[np.int64], uptime_us: int, first: int, end: int) -> int:
    """Return the position of the first id, from the floor on, that is not older than the floor allows; else the end."""
    needed = positions[(positions >= first) & (ticks + int(DURATION_S * 1e6) > uptime_us)]
    return int(needed.min(initial=end))


def _kept_from(home: LogHome, manifests: Manifests, manifest: Manifest) -> int:
    taken = next(snapshots.readable(home, manifest.log_id, manifest.next_position), None)
    if taken is not None and covers(taken, manifest.settings):
        return int(taken.positions.min(initial=taken.watermark))
    segments = needed(manifests, manifest, manifest.first_position, manifest.uptime_us)
    return segments[0].first_position if segments else manifest.next_position


def wanted(manifests: Manifests, manifest: Manifest, now_us: int) -> int:
    """Return the position before which the log's retention settings want nothing kept."""
    settings = manifest.settings
    before = manifest.first_position
    if settings.retention_s is not None:
        oldest_us = now_us - int(settings.retention_s * 1e6)
        for segment in manifests.closed_from(manifest, before):
            if segment.last_timestamp_us >= oldest_us:
                break
            before = segment.next_position
    if settings.retention_bytes is not None:
        before = max(before, _within_bytes(manifests, manifest, settings.retention_bytes))
    return before


def _within_bytes(manifests: Manifests, manifest: Manifest, bytes_max: int) -> int:
    """Return the first position of the newest closed segments that together have at most so many bytes."""
    before, total, files = manifest.next_position, 0, set[str]()
    for segment in manifests.closed_back(manifest):
        if segment.file is None:
            total += segment.size_bytes
        elif segment.file.key not in files:
            files.add(segment.file.key)
            total += segment.file.size_bytes
        if total > bytes_max or segment.next_position <= manifest.first_position:
            break
        before = segment.first_position
    return before
