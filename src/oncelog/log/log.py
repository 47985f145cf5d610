"""A log: what a database hands out by name."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import pyarrow as pa

from oncelog import arguments
from oncelog import settings as settings_module
from oncelog.clock import Clock
from oncelog.dedup.producers import ProducerMark
from oncelog.errors import InvalidArgument, NotFound, OncelogError
from oncelog.format import manifest_rules
from oncelog.format.manifest import Manifest
from oncelog.format.payload import intake
from oncelog.handle import Handle, closes_anywhere, weakly
from oncelog.log import info, inner, open_writer
from oncelog.log.ending import Ending
from oncelog.log.find import Compared, Finder, check_keeps_ids, surviving
from oncelog.log.info import LogInfo
from oncelog.log.ingest import conflicts
from oncelog.log.read.leases import ReaderLease
from oncelog.log.read.reader import Reader, Tail, check_columns
from oncelog.log.read.scan import Start, deleted
from oncelog.log.stored import bases, snapshots
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.policies import Policies
from oncelog.log.stored_log import StoredLog
from oncelog.log.takeover import handover
from oncelog.log.takeover.handover import Mailbox
from oncelog.log.takeover.recovery import Held
from oncelog.log.upkeep import retention, sealing
from oncelog.log.upkeep.retention import Truncation
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, ProducerPolicy, resolve
from oncelog.storage.base import LogHome
from oncelog.types import Location, Record

_Opened = TypeVar("_Opened", bound=Handle)

Lender = Callable[["Log"], contextlib.AbstractContextManager[Writer]]
"""Lends the writer of a log for a while: code with a lender opens no writer of its own."""


class Log(StoredLog):
    """An append-only log. Made by ``Database.log``; safe to share between threads."""

    _what = "log"

    def __init__(
        self,
        name: str,
        home: LogHome,
        manifests: Manifests,
        known: Known,
        clock: Clock,
        *,
        policies: Policies | None = None,
        lender: Lender | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        super().__init__(name, home, manifests, known, clock)
        self._policies = policies
        self._lender = lender
        self._mailbox = mailbox
        self._readers: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._writer_ref: weakref.ref[Writer] | None = None  # weak: a writer that its user drops lets go
        self._ending: Ending | None = None
        self._held = Held()
        self._finder = Finder(home, manifests, self._objects, name)

    @property
    def _writer(self) -> Writer | None:
        """The last writer that was opened here, if its user still has it."""
        return None if self._writer_ref is None else self._writer_ref()

    @arguments.checked
    def writer(
        self,
        *,
        wait_s: float = 5.0,
        takeover: Literal["polite", "force"] = "polite",
        producer: str | None = None,
        initial_sequence: int | None = None,
    ) -> Writer:
        """Become the log's writer: after this nobody else is, and the dedup window is as the log says.

        Raises ``LogBusy`` when another living process holds the log and keeps it for ``wait_s``. In a bucket the holder
        is asked, and lets it go once it has had it for a while; one that does not answer is fenced.
        ``takeover="force"`` asks nobody, where the home can fence the holder. With ``producer``, all that is appended
        and says no other is that producer's, by sequences that are given or counted (from ``initial_sequence``, or
        behind the last).
        """
        if takeover not in ("polite", "force"):
            message = f"takeover {takeover!r}: must be 'polite' or 'force'"
            raise InvalidArgument(message)
        writer = self._taken(arguments.seconds("wait_s", wait_s), open_writer.EMBEDDED, ask=takeover == "polite")
        if producer is not None:
            try:
                inner.own(writer, producer, initial_sequence)
            except BaseException:
                writer.close()
                raise
        return writer

    def _taken(self, wait_s: float, term: open_writer.Term, *, ask: bool) -> Writer:
        self._check_usable()
        if self._manifests.whole is not self._manifests:  # the holder of the log itself is not asked
            raise conflicts.unwritable()
        claim = self._home.claim(wait_s, force=not ask)
        ending = self._ending
        mailbox = None if self._home.exclusive else self._mailbox
        try:
            if mailbox is not None and ask:
                handover.ask(self._home, self._manifests, self._clock, wait_s, term.answer_s, mailboxes=mailbox.home)
            writer = open_writer.open_writer(
                self._home,
                self._manifests,
                self._clock,
                claim,
                objects=self._objects,
                held=self._held if ending is None else ending.held,
                policy=self.producer_policy,
                mailbox=mailbox,
                term=term,
            )
        except BaseException:
            claim.release()
            raise
        self._writer_ref, self._ending = weakref.ref(writer), inner.ending(writer)
        self._ending.closed_then = weakly(self._forget_ending)
        if self._closed:  # by another thread, while this one opened the writer
            writer.close()
        self._check_usable()
        return writer

    def _forget_ending(self) -> None:
        """Keep of a writer that is closed only what the next one need not read again: its tables take memory."""
        ending = self._ending
        if ending is not None and ending.closed:
            self._held, self._ending = ending.held, None

    @property
    def _is_lent(self) -> bool:
        """Whether somebody holds the log's writer and lends it: see ``lent``."""
        return self._lender is not None

    def _lent(self) -> contextlib.AbstractContextManager[Writer]:
        """Borrow the writer from the one that holds it for this process."""
        self._check_usable()
        assert self._lender is not None
        return self._lender(self)

    @arguments.checked
    def read(self, start: Start = "earliest", *, limit: int | None = None, lease_s: float | None = None) -> Reader:
        """Return the entries from ``start`` to the log's end as it is now; iterate them, with or without ``with``.

        ``start``: ``"earliest"``, ``"latest"``, a position, (segment, entry), or a moment (an aware datetime). Raises
        ``NotFound`` for a position that is not there, with ``first`` when it was truncated away.
        ``limit`` counts positions: of so many, those that were purged are not among the entries.
        With ``lease_s`` nothing that is yet to be read is truncated while the reader goes on, and for that long after
        it has stopped without being closed.
        """
        return self._opened(Reader(self._scan(), start, lease=self._lease(lease_s), limit=limit))

    @arguments.checked
    def read_arrow(
        self,
        start: Start = "earliest",
        *,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        lease_s: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return the entries from ``start`` on as ``pyarrow.RecordBatch``es, all columns or those named."""
        return self._reader(start, limit=limit, columns=columns, lease_s=lease_s).batches()

    def _reader(
        self, start: Start, *, limit: int | None, columns: Sequence[str] | None, lease_s: float | None
    ) -> Reader:
        """Return a reader of all columns or those named: for one who takes the rows as they are kept."""
        check_columns(columns)
        lease = self._lease(lease_s)
        return self._opened(Reader(self._scan(columns), start, lease=lease, limit=limit, columns=columns))

    @arguments.checked
    def tail(self, start: Start = "latest", *, lease_s: float | None = None) -> Tail:
        """Return the entries from ``start`` on as they become durable, for ever. ``lease_s`` is as in ``read``."""
        return self._opened(Tail(self._home, self._scan(), start, lease=self._lease(lease_s), clock=self._clock))

    def _end_tails(self) -> None:
        """End those who follow the log: it was deleted, and another of its name may stand there soon."""
        for reader in list(self._readers):
            if isinstance(reader, Tail):
                inner.end_deleted(reader, deleted(self.name))

    def _lease(self, duration_s: float | None) -> ReaderLease | None:
        return (
            None
            if duration_s is None
            else ReaderLease.of(self.name, self._home, self._manifests, self._clock, duration_s)
        )

    def _opened(self, handle: _Opened) -> _Opened:
        self._check_usable()
        self._readers.add(handle)
        return handle

    @arguments.checked
    def configure(self, settings: LogSettings) -> None:
        """Change the stored settings. Writers that are opened after this keep to the new ones.

        Switching idempotence on later builds the window from the records that carry ids. The policy for producers is
        followed at once, by the writer that is open here.
        """
        self._check_usable()
        checked = settings_module.check(settings)
        self._known = self._manifests.update(lambda manifest: manifest_rules.configured(manifest, checked), self._known)
        self._follow_policy()

    # Producers.

    def producer_policy(self) -> ProducerPolicy:
        """Return the policy for producers that holds for this log: its own over its namespace's over the database's."""
        own = self._manifest().settings.producers
        return self._policies.effective(self.name, own) if self._policies is not None else resolve(own)

    def producers(self) -> dict[str, ProducerMark]:
        """Return how far each producer got: last sequence, its position, and the up-time of that."""
        writer = self._writer
        if writer is not None and not writer.closed:
            return writer.producers()
        return open_writer.read_producers(self._home, self._manifests, self._refresh(), self._scan())

    @arguments.checked
    def forget_producer(self, name: str, *, wait_s: float = 5.0) -> bool:
        """Forget how far a producer got, for good: its next sequence is taken for its first. Return whether it was
        known.

        Needs the log's writer: the one that this handle has open, or one that is opened for it.
        """
        writer = self._writer
        if writer is None or writer.closed:
            with self.writer(wait_s=wait_s):
                return self.forget_producer(name)
        known = name in writer.producers()
        if known:
            inner.forget_producer(writer, name, self._forgotten)
        return known

    def _forgotten(self, name: str, position: int) -> None:
        self._known = self._manifests.update(lambda manifest: bases.forget(manifest, name, position), self._known)

    def _follow_policy(self) -> None:
        """Have the writer that is open here keep to the policy for producers as it is stored now."""
        writer = self._writer
        if writer is not None and not writer.closed:
            inner.writer_follow_policy(writer)

    # The life of a log.

    @arguments.checked
    def find(self, id: str, *, stream: str | None = None) -> Location | None:
        """Return where the record with an id is, from what the log remembers; ``None`` if it remembers no such id.

        If a purge emptied the record that answers for the id, the record that stands in for it is returned.
        ``stream`` is that of the record, in a log whose ids are of their stream. Without a writer open here, the first
        call reads what a writer would read when it opens. ``InvalidArgument`` for a log that keeps no ids.
        """
        known = self._refresh()
        check_keeps_ids(known.manifest)
        intake.check_record(Record(b"", id=arguments.text("id", id), stream=stream))
        found = self._found(known, id, stream)
        return None if found is None else surviving(self._home, self._manifests, known, found)

    def _found(self, known: Known, id: str, stream: str | None) -> Location | None:
        """Return what the writer here remembers, or what the log holds if there is none, or it has ended."""
        writer = self._writer
        if writer is not None and inner.epoch(writer) == known.manifest.epoch:
            try:
                return inner.find(writer, id, stream)  # not of one that lost the log: its "no" may be wrong by now
            except OncelogError:
                if not inner.has_ended(writer):
                    raise
        return self._finder.find(known, id, stream)

    def _compare(self, table: pa.Table | pa.RecordBatch) -> Compared:
        """Return which rows of a table, with the columns of ``append_arrow``, the log knows. Nothing is written."""
        return self._finder.compare(self._refresh(), table)

    def _tidy(self) -> None:
        """Put small neighbours together in files worth the name, and let go what retention does not want kept.

        Writers that append do this by themselves. A writer that only ingests, and closes each time, has to call this.
        """
        known = self._refresh()
        settings = known.manifest.settings
        if settings.seal == "auto":
            parts = self._home, self._manifests, self._clock, known
            for _ in sealing.seal_worthwhile(*parts, settings.segment_bytes):
                continue
            conflicts.tidy(self._home, self._clock, settings.segment_bytes)
        if settings.retention_s is not None or settings.retention_bytes is not None:
            self.retain()

    @arguments.checked
    def truncate(self, before: int) -> Truncation:
        """Remove everything before a position, as far as neither the dedup window nor a reader's lease needs it.

        Returns where the log begins now, and what held it back if that is before what was asked.
        """
        known = self._refresh()
        before = arguments.count("before", before)
        end = self._scan().end()
        if before > end:
            message = f"truncate before {before}: log {self.name!r} ends at {end}"
            raise NotFound(message, first=known.manifest.first_position)
        if self._manifests.whole is not self._manifests:
            return conflicts.truncate(self._home, self._manifests.whole, before)
        return self._truncate(known, before)

    def retain(self) -> Truncation:
        """Remove what the log's retention settings do not want kept, as ``truncate`` would; of its conflicts, too.

        Writers do this by themselves, but for conflicts.
        """
        aside = conflicts.retain(self._home, self._manifests.whole, self._clock)
        if self._manifests.whole is not self._manifests:
            return aside
        known, before = self._manifests.look(
            self._refresh(), lambda manifest: retention.wanted(self._manifests, manifest, self._clock.now_us())
        )
        return self._truncate(known, before)

    def _truncate(self, known: Known, before: int) -> Truncation:
        done = retention.truncate(
            self._home,
            self._manifests,
            self._clock,
            before,
            window_from=self._window_from(known),
            remembering=bases.Remembering(self.producer_policy(), self._active_producers),
        )
        writer = self._writer
        if writer is not None and not writer.closed:
            inner.begin_at(writer, done.first_position)
        return done

    def _active_producers(self, manifest: Manifest) -> Mapping[str, ProducerMark]:
        """Return how far producers got, and when they were active, as the writer or its newest snapshot knows it."""
        writer = self._writer
        if writer is not None and not writer.closed:
            return writer.producers()
        taken = next(snapshots.readable(self._home, manifest.log_id, manifest.next_position), None)
        return taken.producers if taken is not None else {}

    def _window_from(self, known: Known) -> int | None:
        writer = self._writer
        here = inner.window_from(writer) if writer is not None else None
        if here is not None:
            return here
        _, needed_from = self._manifests.look(
            known, lambda manifest: retention.window_from(self._home, self._manifests, manifest)
        )
        return needed_from

    def info(self) -> LogInfo:
        """Return what there is to know about the log now."""
        closed = self._closed_segments()
        known = self._known
        manifest = known.manifest
        writer = self._writer
        writer = None if writer is None or writer.closed else writer
        taken = snapshots.heads(self._home, manifest.log_id)
        return LogInfo(
            name=self.name,
            log_id=manifest.log_id,
            settings=manifest.settings,
            version=known.version,
            epoch=manifest.epoch,
            first_position=manifest.first_position,
            last_position=self.end_position() - 1,
            segments=len(closed),
            sealed_segments=sum(segment.file is not None for segment in closed),
            open_segment=manifest.open_segment,
            bytes=sealing.size(closed),
            uptime_s=manifest.uptime_us / 1e6,
            snapshots={key: head.watermark for key, head in taken},
            snapshot_age_s=(self._clock.now_us() - taken[0][1].created_us) / 1e6 if taken else None,
            window=dict(writer.window_state) if writer is not None else {},
            counters=writer.counts() if writer is not None else None,
            memory=info.memory_of(manifest, writer.window_state if writer is not None else {}),
            adopted_records=info.adopted_records_of(manifest, closed),
            at_risk=info.at_risk_of(self._home, closed),
        )

    @closes_anywhere
    def close(self) -> None:
        """Close the log's readers and its writer; what is pending is stored first."""
        if not self._closes_now():
            return
        with contextlib.ExitStack() as ending:  # all are ended, also if one of them fails
            writer = self._writer or self._ending
            if writer is not None:
                ending.callback(writer.close)
            ending.callback(self._objects.close)
            for reader in list(self._readers):
                ending.callback(reader.close)
