"""Becoming a log's writer: taken over, recovered, and only then ready to write."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.dedup.producers import Producers
from oncelog.format.manifest import Manifest
from oncelog.log.append.decisions import Seen
from oncelog.log.append.open_segment import Run
from oncelog.log.append.uptime import Uptime
from oncelog.log.stored import bases, record_identities, snapshots
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.takeover import fencing, recovery
from oncelog.log.takeover.handover import Watch
from oncelog.log.writer import Writer
from oncelog.settings import ProducerPolicy
from oncelog.storage.base import Claim, LogHome


def open_writer(
    home: LogHome,
    manifests: Manifests,
    clock: Clock,
    claim: Claim,
    *,
    held: Adopted | None,
    policy: Callable[[], ProducerPolicy],
) -> Writer:
    """Take a log over under a claim, and return a writer that knows all that the log says.

    ``held`` is what a writer before this one, in the same process, knew of adopted files.
    """
    identity = clock.token(16)
    known, _ = fencing.take(home, manifests, identity)
    watch = Watch(home, clock, known.manifest.epoch)
    settings = known.manifest.settings
    try:
        known, seen, producers, watermark, uptime_us = _recovered(home, manifests, known, held)
        return Writer(
            home=home,
            manifests=manifests,
            run=Run(home, manifests, known, writer=identity, settings=settings, clock=clock),
            claim=claim,
            watch=watch,
            seen=seen,
            hasher=record_identities.hasher_of(known.manifest),
            uptime=Uptime(clock, uptime_us, looks=not home.exclusive),
            settings=settings,
            clock=clock,
            watermark=watermark,
            producers=Producers(bases.remembered(producers.marks(), known.manifest)),
            policy=policy,
        )
    except BaseException:
        watch.stop()
        raise


def _recovered(
    home: LogHome, manifests: Manifests, known: Known, held: Adopted | None
) -> tuple[Known, Seen, Producers, int, int]:
    """Return what the log says: ids, producers, up to which position a snapshot has them, and the up-time."""
    manifest = known.manifest
    settings = manifest.settings
    manifests.sweep(known)
    snapshots.discard(home, manifest.log_id, manifest.next_position)
    if settings.idempotence == "off":
        known, producers = manifests.look(known, lambda newest: recovered_producers(home, manifests, newest))
        return known, Seen(None, Adopted(0)), producers, manifest.next_position, manifest.uptime_us
    hasher = record_identities.hasher_of(manifest)
    known, found = manifests.look(
        known, lambda newest: recovery.recover(home, manifests, newest, settings, hasher, held=held)
    )
    return known, Seen(found.window, found.adopted), found.producers, found.watermark, found.uptime_us


def recovered_producers(home: LogHome, manifests: Manifests, manifest: Manifest) -> Producers:
    """Return how far producers got, of a log whose ids are not kept."""
    taken = next(snapshots.readable(home, manifest.log_id, manifest.next_position), None)
    return bases.recover_producers(home, manifests, manifest, taken)
