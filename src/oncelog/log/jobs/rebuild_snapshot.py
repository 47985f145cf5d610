"""Rebuilding a dedup snapshot from the log alone: the fold is the truth, and snapshots only cache it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from oncelog.clock import Clock
from oncelog.dedup.refreshing import window_class
from oncelog.errors import InvalidArgument
from oncelog.format.manifest import Manifest
from oncelog.log.jobs.workers import Hands, JobContext, Unit
from oncelog.log.stored import bases, snapshots
from oncelog.log.stored.manifests import Manifests
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Remembered
from oncelog.log.upkeep import sealing
from oncelog.storage.base import LogHome

Progress = Callable[[int, int], None]


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What was rebuilt: how many ids are remembered up to which position, and how many records were read for that.

    ``snapshot`` is the key of the snapshot of a bounded window. So many ``runs`` were made: of adopted files there, of
    all records in a log without bounds, which has no snapshot.
    """

    snapshot: str
    ids: int
    position: int
    records: int
    runs: int = 0


def rebuild(
    home: LogHome,
    manifests: Manifests,
    manifest: Manifest,
    clock: Clock,
    hands: Hands,
    *,
    progress: Progress | None = None,
) -> Rebuilt:
    """Fold what the window can need of the closed segments into a snapshot, and store it.

    Anybody may do this, also beside the writer. ``InvalidArgument`` for a log that keeps no ids.
    """
    settings = manifest.settings
    if settings.idempotence == "off":
        message = f"log {manifest.name!r} keeps no ids (its idempotence is off), so there is no window to rebuild"
        raise InvalidArgument(message)
    kept = settings.window
    window = window_class(refresh_on_hit=kept.refresh_on_hit)(kept.duration_us, kept.keys_max)
    needed = recovery.needed(manifests, manifest, manifest.first_position, manifest.uptime_us)
    segments = [segment for segment in needed if segment.identities is None]
    total = sum(segment.entries for segment in segments)
    done = 0
    units = list(sealing.units(segments))
    for unit, found in zip(units, hands.each(JobContext.of(home, manifest, clock), remembered, units), strict=True):
        for some in found:
            recovery.fold_some(window, some)
        done += sum(segment.entries for segment in unit)
        if progress is not None:
            progress(done, total)
    window.evict(manifest.uptime_us)
    last = next(manifests.closed_back(manifest), None)
    taken = snapshots.snapshot_of(
        window,
        settings=settings,
        log_id=manifest.log_id,
        now_us=clock.now_us(),
        uptime_us=manifest.uptime_us,
        watermark=manifest.next_position,
        pending_until=0,
        segments=[(last.number, last.entries - 1)] if last is not None else [],
        producers=bases.remembered(bases.recover_producers(home, manifests, manifest, None).marks(), manifest),
    )
    key = snapshots.save(home, manifest.log_id, taken, clock)
    return Rebuilt(snapshot=key, ids=len(taken.positions), position=manifest.next_position, records=total)


def remembered(desk: JobContext, unit: Unit) -> list[Remembered]:
    """Hash the ids and the contents of some segments."""
    return list(recovery.remembered_of(desk.hasher, desk.rows(unit)))
