"""Becoming a log's writer: taken over, recovered, and only then ready to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oncelog import limits
from oncelog.clock import SYSTEM, Clock
from oncelog.dedup.producers import ProducerMark, Producers
from oncelog.dedup.table import Table
from oncelog.format.manifest import Manifest
from oncelog.log.append.committer import Committer
from oncelog.log.append.core import Core
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Seen
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.append.sequences import Sequences
from oncelog.log.append.session import WriterSession
from oncelog.log.append.tail import NO_LIMIT, SegmentTail
from oncelog.log.append.uptime import Uptime
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import RunSet
from oncelog.log.read.scan import Scan
from oncelog.log.stored import bases, secrets, snapshots, stream_index
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.takeover import fencing, recovery
from oncelog.log.takeover.handover import MAILBOX_BYTES, Mailbox, Watch
from oncelog.log.takeover.recovery import Held, Recovered
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.storage.base import Claim, LogHome


class Term(NamedTuple):
    """How a log is taken. ``holder`` is the server that takes it, if a server does. With ``epoch``, the log is taken
    from that epoch only. The log is kept for ``tenure_s`` at least when others ask for it. A holder that has not
    answered after ``answer_s`` counts as dead.
    """

    holder: tuple[str, int] | None = None
    epoch: int | None = None
    tenure_s: float | None = None
    answer_s: float | None = None


EMBEDDED = Term()


def open_writer(
    home: LogHome,
    manifests: Manifests,
    clock: Clock,
    claim: Claim,
    *,
    objects: RunObjects,
    held: Held,
    policy: Callable[[], ProducerPolicy],
    mailbox: Mailbox | None = None,
    term: Term = EMBEDDED,
) -> Writer:
    """Take a log over under a claim, and return a writer that knows all that the log says.

    ``mailbox`` is where this process is asked for the log, where no lock keeps others out.
    """
    identity = (mailbox.name if mailbox is not None else clock.token(MAILBOX_BYTES)) + clock.token(8)
    known = fencing.take(home, manifests, identity, holder=term.holder, epoch=term.epoch)
    watch = Watch(home, clock, known.manifest, mailbox, term.tenure_s)
    settings = known.manifest.settings  # of the ids that recovery finds; a newer manifest may have others
    try:
        watch.begin()
        epoch = known.manifest.epoch
        known, found = _recovered(home, manifests, known, objects, held)
        fencing.check_epoch(known.manifest, epoch)  # recovery may have read a newer manifest: that of another writer
        tail = SegmentTail(
            epoch=epoch,
            writer=identity,
            settings=settings,
            last_timestamp_us=known.manifest.last_timestamp_us,
            ids_max=limits.MEMORY_RUN_IDS if isinstance(found.window, Table) else NO_LIMIT,
        )
        run = SegmentRun(home, manifests, known, tail=tail, clock=clock, settings=settings)
        session = _session(home, manifests, clock, settings, run=run, found=found, policy=policy(), objects=objects)
        return Writer(
            session, claim=claim, watch=watch, watermark=found.watermark, policy=policy, unreadable=found.unreadable
        )
    except BaseException:
        watch.stop()
        raise


def _ages(settings: LogSettings, clock: Clock) -> bool:
    """Tell whether ids are forgotten by their age, and the clock's pulse asks for signs of a storage with a lock."""
    return clock is SYSTEM and settings.idempotence != "off" and not settings.window.unbounded


def _session(
    home: LogHome,
    manifests: Manifests,
    clock: Clock,
    settings: LogSettings,
    *,
    run: SegmentRun,
    found: Recovered,
    policy: ProducerPolicy,
    objects: RunObjects,
) -> WriterSession:
    """Return the parts of a writer that begins with what was found."""
    manifest = run.known.manifest
    counters = Counters()
    producers = Producers(bases.remembered(found.producers.marks(), manifest))
    core = Core(
        tail=run.tail,
        uptime=Uptime(clock, found.uptime_us, looks=not home.exclusive or _ages(settings, clock)),
        seen=Seen(found.window, found.adopted),
        sequences=Sequences(producers, policy, counters),
        settings=settings,
        counters=counters,
        next_position=manifest.next_position,
    )
    return WriterSession(
        home=home,
        manifests=manifests,
        clock=clock,
        settings=settings,
        hasher=secrets.hasher_of(home, manifest),
        core=core,
        committer=Committer(core, run, clock),
        run=run,
        recall=Recall(found.runs, manifest.first_position),
        objects=objects,
    )


def _recovered(
    home: LogHome, manifests: Manifests, known: Known, objects: RunObjects, held: Held
) -> tuple[Known, Recovered]:
    """Return what the log says: ids, producers, up to which position a snapshot has them, and the up-time."""
    manifest = known.manifest
    settings = manifest.settings
    manifests.sweep(known)
    snapshots.discard(home, manifest.log_id, manifest.next_position)
    if settings.id_scope == "stream":  # only such a log has an index; its labels may be older than the index
        stream_index.discard(home, manifest.next_position)
    if settings.idempotence == "off":
        known, producers = manifests.look(known, lambda newest: recovered_producers(home, manifests, newest))
        nothing = RunSet.open(objects, ())
        return known, Recovered(None, Adopted(0), manifest.next_position, manifest.uptime_us, producers, nothing)
    hasher = secrets.hasher_of(home, manifest)
    return manifests.look(
        known, lambda newest: recovery.recover(home, manifests, newest, settings, hasher, objects=objects, held=held)
    )


def recovered_producers(home: LogHome, manifests: Manifests, manifest: Manifest) -> Producers:
    """Return how far producers got, of a log whose ids are not kept."""
    taken = next(snapshots.readable(home, manifest.log_id, manifest.next_position), None)
    return bases.recover_producers(home, manifests, manifest, taken)


def read_producers(home: LogHome, manifests: Manifests, known: Known, scan: Scan) -> dict[str, ProducerMark]:
    """Return how far producers got, as the log itself says: up to the last record that can be read."""
    known, producers = manifests.look(known, lambda manifest: recovered_producers(home, manifests, manifest))
    scan.begin(known.manifest.next_position)
    while found := scan.next_rows():
        for rows in found:
            bases.fold_producers(producers, rows)
    return bases.remembered(producers.marks(), known.manifest)
