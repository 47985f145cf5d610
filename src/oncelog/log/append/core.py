"""The append core: the queue of groups from a position to the acknowledgement, without lock, thread, clock or I/O.

The shape is that of etcd's raft (``RawNode``: ``Ready``, ``Advance``). *Events* are methods; time comes in as a number.
*Effects* are state that the driver (``committer``) reads, performs, and then reports by another event: an effect that
was returned would be lost when Ctrl-C comes between the return and the act. The core calls nobody above it.

Effect and how it is read, then the event that reports it:

- store a block: ``work`` returns its group; ``landed`` or ``failed``
- prepare a segment: ``work`` returns ``PREPARE``; ``prepared`` or ``prepare_failed``
- decide what was submitted: ``work`` returns ``ABSORB``; ``Decider.absorb`` or ``Decider.absorb_rows``
- answer tokens: ``unanswered``; ``told``
- take a snapshot, tidy: bits of ``due``, which the driver clears when it has begun

An event sets ``error`` to ``TORN`` first and clears it last. What is interrupted inside stays ``TORN``: half of it may
be noted, so nothing more is taken, and the driver calls ``end``. The core is safe at every bytecode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.table import Table
from oncelog.dedup.window import Later
from oncelog.errors import Closed, CorruptionError, OncelogError, WriterFenced
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Seen
from oncelog.log.append.groups import Crowd, Group, Submitted, submitted_bytes
from oncelog.log.append.sequences import Sequences
from oncelog.log.append.tail import SegmentTail
from oncelog.log.append.uptime import Uptime
from oncelog.settings import LogSettings

TORN: Final = Closed("an event of the append core was interrupted")
"""``Core.error`` while an event runs, and after one that was interrupted. It is never raised."""

PREPARE: Final = "prepare"
ABSORB: Final = "absorb"
Work: TypeAlias = Group | Literal["prepare", "absorb"] | None
"""What there is to do now."""

SNAPSHOT: Final = 1
TIDY: Final = 2
"""Bits of ``Core.due``: a snapshot is due; a segment was closed."""

BACKOFF_S, BACKOFF_S_MAX = 0.05, 5.0
INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What a signal handler raises in the midst of anything."""


class Core:
    """What one writer has accepted and not stored, in order, and what it remembers of what is stored.

    Invariants, between events: ``stored_position`` never goes back, and everything below it is durable and settled. The
    first group of ``offered`` begins there; the groups of ``offered`` and then ``waiting`` follow each other without a
    gap up to ``next_position``. At most ``in_flight_max`` are offered. ``pending_bytes`` is the sum of their sizes,
    ``failures`` that of their attempts. The pending keys of the window are the ids in these groups.
    ``ended`` is set by ``end`` only: code that does not hold the lock reads ``ended``, never ``error``.
    """

    def __init__(
        self,
        *,
        tail: SegmentTail,
        uptime: Uptime,
        seen: Seen,
        sequences: Sequences,
        settings: LogSettings,
        counters: Counters,
        next_position: int,
    ) -> None:
        self.tail = tail
        self.uptime = uptime
        self.seen = seen
        self.window = seen.window
        self.sequences = sequences
        self.settings = settings
        self.counters = counters
        self.next_position = next_position
        self.stored_position = next_position
        self.offered: deque[Group] = deque()
        self.waiting: deque[Group] = deque()
        self.pending_bytes = 0
        self.failures = 0
        self.submitted: list[Submitted] = []
        self.submitted_ids: list[str | None] = []
        self.submitted_tokens: list[Any] = []
        self.submitted_bytes = 0
        self.unanswered: list[Crowd] = []
        self.error: OncelogError | None = None
        self.ended: OncelogError | None = None
        self.leaving: OncelogError | None = None
        self.draining = 0  # callers that wait until nothing is pending: a block that is not full is formed at once
        self.absorbing = False  # a thread decides what was submitted, perhaps without the lock
        self.behind = False  # too many ids, or runs, wait to be put into runs
        self.is_prepared = self.preparing = False
        self.prepare_at_us = self.prepare_failures = 0
        self.in_flight_max = 1
        self.interval_us = -1  # not known before there is a segment
        self.formed_at_us = 0
        self.due = 0
        self.snapshotting = False
        self.snapshot_position = next_position
        self.snapshot_uptime_us = 0
        self._snapshot_interval_us = settings.snapshot_interval_s * 1e6
        self._ages = seen.window is not None and not isinstance(seen.window, Table)
        self._settled_segment = tail.segment
        self._unsubmitted: Crowd | None = None

    # Questions. They change nothing.

    def idle(self, now_us: int) -> bool:
        """Tell whether nothing is pending and nothing stands in the way of storing one record at once."""
        return (
            self.is_prepared
            and self.interval_us == 0
            and self.in_flight_max == 1
            and not (self.offered or self.waiting or self.submitted or self.preparing or self.prepare_failures)
            and not (self.absorbing or self.behind)
            and self.error is None
            and self.leaving is None
            and not self.tail.is_full(now_us)
        )

    def has_room(self, size_bytes: int, records: int) -> bool:
        """Tell whether that much more may be pending, now."""
        if self.behind:
            return False
        pending = self.next_position - self.stored_position + len(self.submitted)
        pending_bytes = self.pending_bytes + self.submitted_bytes
        return pending == 0 or (
            pending_bytes + size_bytes <= self.settings.pending_bytes
            and pending + records <= self.settings.pending_records
        )

    @property
    def is_pending(self) -> bool:
        """Whether something is not stored, decided or answered yet, or is being prepared."""
        return bool(
            self.offered
            or self.waiting
            or self.submitted
            or self.unanswered
            or self.absorbing
            or self.preparing
            or self.prepare_failures
        )

    @property
    def stalled(self) -> bool:
        """Whether storage did not take what it was offered last, and will be asked again."""
        return self.failures > 0 or self.prepare_failures > 0

    def defers(self, count: int) -> bool:
        """Guess whether the values of so many new rows would be hashed while the device works. The lock need not be
        held.
        """
        return self.in_flight_max == 1 and self.seen.defers(count)

    @property
    def owed(self) -> list[Later]:
        """What is left to hash, which can be done while the device works, and then ``finish``. The lock need not be
        held.
        """
        return [] if self.window is None else self.window.owed

    def check_open(self) -> None:
        """Raise unless more may be added."""
        reason = self.ended or self.leaving
        if isinstance(reason, WriterFenced):
            raise WriterFenced(str(reason), outcome="not written")
        if reason is not None:
            raise reason

    def work(self, now_us: int) -> Work:
        """Return what is to be done now: a block to store (to ``form`` first if it waits), or one of the constants."""
        if self.error is not None:
            return None
        for group in self.offered:
            if not group.busy and group.state == "offered" and group.retry_at_us <= now_us:
                return group
        if not self._may_form(now_us):
            return None
        if self.submitted and not self.absorbing:
            return ABSORB
        if not self.waiting or (self.interval_us > 0 and self._form_at_us() > now_us):
            return None
        return self.waiting[0] if self.is_prepared and not self.tail.is_full(now_us) else PREPARE

    def _may_form(self, now_us: int) -> bool:
        """Tell whether a block may follow those that are offered. It names the checksum of the one before, whose bytes
        must be fixed; and a segment closes only at a tail that is known.
        """
        if self.preparing or self.prepare_at_us > now_us or len(self.offered) >= self.in_flight_max:
            return False
        return not self.offered or (self.offered[-1].block is not None and not self.tail.is_full(now_us))

    def _form_at_us(self) -> int:
        """Return when the next block may be formed: one that is not full waits, in case more comes."""
        first = self.waiting[0]
        full = first.size_bytes >= self.settings.block_bytes or first.count >= self.settings.block_records
        if full or len(self.waiting) > 1 or self.draining or self.leaving is not None:
            return 0
        return self.formed_at_us + self.interval_us

    def wake_us(self, now_us: int) -> int | None:
        """Return when ``work`` should be asked again although nothing happens; ``None``: only an event changes it."""
        moments = [
            group.retry_at_us
            for group in self.offered
            if group.attempts and not group.busy and group.state == "offered"
        ]
        if self.prepare_at_us and not self.preparing:
            moments.append(self.prepare_at_us)
        if self.interval_us > 0 and self.waiting and self._form_at_us() > now_us:
            moments.append(self._form_at_us())
        return min(moments) if moments else None

    def group_of(self, position: int) -> Group:
        """Return the pending group that holds a position."""
        for groups in (self.offered, self.waiting):
            for group in groups:
                if position < group.next_position:
                    return group
        message = f"position {position} is not pending"
        raise AssertionError(message)

    def groups_of(self, positions: NDArray[np.int64]) -> list[Group]:
        """Return the pending groups that hold any of these positions."""
        pending = np.sort(positions[positions >= self.stored_position])
        if not pending.size:
            return []
        groups = (*self.offered, *self.waiting)
        starts = np.searchsorted(pending, [group.first_position for group in groups])
        ends = np.searchsorted(pending, [group.next_position for group in groups])
        return [group for group, start, end in zip(groups, starts, ends, strict=True) if end > start]

    # What the decider does inside its events.

    def group_for(self, size_bytes: int, records: int) -> Group:
        """Return the group that so much more goes into: the newest, if it has not been offered and has room."""
        if self.waiting:
            newest = self.waiting[-1]
            fits = (
                newest.size_bytes + size_bytes <= self.settings.block_bytes
                and newest.count + records <= self.settings.block_records
            )
            if fits:
                return newest
        group = Group(self.next_position, self.next_position)
        self.waiting.append(group)
        return group

    def count_in(self, size_bytes: int, records: int) -> None:
        """Count what was just added to the newest group."""
        self.next_position += records
        self.pending_bytes += size_bytes

    def cut_submitted(self, count: int) -> None:
        """Forget the first of what was submitted. Called last: until then only ``submitted`` knows the tokens."""
        if count == len(self.submitted):
            size_bytes = self.submitted_bytes
        else:
            size_bytes = submitted_bytes(self.submitted[:count], self.submitted_ids[:count])
        del self.submitted[:count]
        del self.submitted_ids[:count]
        del self.submitted_tokens[:count]
        self.submitted_bytes -= size_bytes

    # Events.

    def submit(self, submitted: Submitted, id: str | None, size_bytes: int, token: Any) -> None:
        """Put a record aside; nothing is decided."""
        self.error = TORN
        self.submitted_bytes += size_bytes
        self.submitted_tokens.append(token)
        self.submitted_ids.append(id)
        self.submitted.append(submitted)
        self.error = None

    def reject(self, count: int, error: OncelogError) -> None:
        """Refuse the first of what was submitted: nobody can tell now whether they are new."""
        self.error = TORN
        self.unanswered.append(Crowd(self.submitted_tokens[:count], None, error))
        self.cut_submitted(count)
        self.error = None

    def form(self, now_us: int, wall_us: int) -> Group:
        """Give the oldest waiting group its place, and return it: it is to be stored."""
        self.error = TORN
        group = self.waiting[0]
        group.state = "offered"
        self.offered.append(group)  # before it leaves ``waiting``: it is always in one of them
        self.waiting.popleft()
        if self.interval_us > 0:
            self.formed_at_us = now_us
        group.timestamp_us = self.tail.timestamp_us(wall_us)
        group.uptime_us = self.uptime.stamp_at(now_us)
        self.tail.place(group)
        if group.count == 1:
            self.tail.encode(group)  # sooner done than the lock is given back
        self.error = None
        return group

    def finish(self, count: int) -> None:
        """Do what the window left for later, so much of it. An interrupt tears nothing: it is done again. The window of
        a core that has ended may be another's.
        """
        if self.window is not None and self.error is None:
            self.window.finish(count)

    def landed(self, group: Group, request: int, end: int, started_us: int, now_us: int) -> None:
        """Note that storage has a block; settle every block that has landed and has no gap before it."""
        if group.state != "offered":
            return  # ended meanwhile: the next writer decides
        self.error = TORN
        if end > self.tail.end:  # noqa: PLR1730 (one call less; blocks may land in any order)
            self.tail.end = end
        self.uptime.answered(request, now_us)
        self.counters.committed(group, now_us - started_us)
        group.state = "landed"
        while self.offered and self.offered[0].state == "landed":
            self._settle(self.offered[0], now_us)
        if self.uptime.asked_us and not (self.offered or self.preparing):
            self.uptime.forget_asked(now_us)
        self.error = None

    def _settle(self, group: Group, now_us: int) -> None:
        """Note that a group is durable, and its tokens to be answered. It leaves ``offered`` last."""
        group.state = "stored"
        if group.crowds:
            self.unanswered += group.crowds
            group.crowds = []
        self.stored_position = group.next_position
        self.pending_bytes -= group.size_bytes
        self.failures -= group.attempts
        if group.ids and self.window is not None:
            self.window.commit(group.next_position, group.uptime_us, group.timestamp_us)
        if group.pushed is not None:
            uptime_us = self.uptime.at(now_us)
            self.sequences.persist(group.pushed, group.uptime_us, uptime_us, self.stored_position)
        if (
            group.next_position - self.snapshot_position >= self.settings.snapshot_records
            or group.uptime_us - self.snapshot_uptime_us >= self._snapshot_interval_us
        ) and (not self.snapshotting and (self._ages or self.sequences.in_use)):
            self.due |= SNAPSHOT
        if group.segment != self._settled_segment:
            self._settled_segment = group.segment
            self.due |= TIDY
        self.offered.popleft()
        group.parts, group.block = [], None

    def failed(self, group: Group, request: int, error: BaseException, now_us: int, chance: float) -> None:
        """Note that storage did not take a block: the same bytes are offered again, unless that cannot help."""
        if group.state != "offered":
            return
        if group.block is None or not _is_survivable(error):
            self.end(reason_of(error))
            return
        self.error = TORN
        group.attempts += 1
        self.failures += 1
        self.uptime.failed(request, now_us)
        self.counters.failed(str(error))
        group.retry_at_us = now_us + _backoff_us(group.attempts, chance)
        self.error = None

    def prepared(self, request: int, start: tuple[int, int], in_flight_max: int, interval_us: int, now_us: int) -> None:
        """Note that there is a segment for the next block: its number, and its first position."""
        self.error = TORN
        self.uptime.answered(request, now_us, stored=False)
        if start[0] != self.tail.segment:
            self.tail.begin(*start, now_us)
        self.in_flight_max = in_flight_max
        self.interval_us = interval_us
        self.prepare_at_us = self.prepare_failures = 0
        self.is_prepared = True
        self.error = None

    def prepare_failed(self, request: int, error: BaseException, now_us: int, chance: float) -> None:
        """Note that there is no segment yet: storage is asked again, unless that cannot help."""
        if not _is_survivable(error):
            self.end(reason_of(error))
            return
        self.error = TORN
        self.prepare_failures += 1
        self.uptime.failed(request, now_us)
        self.counters.failed(str(error))
        self.prepare_at_us = now_us + _backoff_us(self.prepare_failures, chance)
        self.error = None

    def adopting(self) -> None:
        """Begin to adopt files, with nothing pending. ``adopted`` or ``not_adopted`` follows: the core is torn until
        then, because the manifest may have the files already.
        """
        assert self.next_position == self.stored_position
        self.error = TORN

    def not_adopted(self) -> None:
        """Note that the manifest was not changed."""
        self.error = None

    def adopted(self, records: int, start: tuple[int, int], now_us: int) -> None:
        """Note records that came into the log without passing through here, by ``adopting``."""
        self.next_position += records
        self.stored_position += records
        self.tail.begin(*start, now_us)
        self.is_prepared = False
        self.error = None

    def told(self, crowds: Iterable[Crowd]) -> None:
        """Note that tokens were answered."""
        answered = set(crowds)
        self.unanswered = [crowd for crowd in self.unanswered if crowd not in answered]

    def end(self, error: OncelogError) -> None:
        """Take nothing more, and fail what is pending. It may be repeated: the first reason stays."""
        if self.ended is not None:
            return
        self.error = TORN
        unoffered = WriterFenced(str(error), outcome="not written") if isinstance(error, WriterFenced) else error
        for group in (*self.offered, *self.waiting):
            self._fail(group, unoffered if group.state == "waiting" else error)
        if self.submitted_tokens:
            if self._unsubmitted is None:
                self._unsubmitted = Crowd(list(self.submitted_tokens), None, unoffered)
            if self._unsubmitted not in self.unanswered:
                self.unanswered.append(self._unsubmitted)
        self.submitted, self.submitted_ids, self.submitted_tokens = [], [], []
        self.submitted_bytes = self.failures = 0
        self.offered.clear()
        self.waiting.clear()
        self.ended = error
        self.error = error

    def _fail(self, group: Group, error: OncelogError) -> None:
        """Fail a group, unless it is stored: a torn event leaves a stored one in ``offered``."""
        if group.state != "stored":
            if group.error is None:
                group.error = error
            group.state = "failed"
            for crowd in group.crowds:
                crowd.error = group.error
        for crowd in group.crowds:
            if crowd not in self.unanswered:
                self.unanswered.append(crowd)
        group.crowds = []


def reason_of(error: BaseException) -> OncelogError:
    """Return what is said to callers when this error has ended a writer."""
    if isinstance(error, WriterFenced):
        return WriterFenced(str(error), outcome="unknown")
    if isinstance(error, OncelogError):
        return error
    reason = Closed(f"the writer ended on an unexpected error: {error!r}")
    reason.__cause__ = error
    return reason


def _is_survivable(error: BaseException) -> bool:
    """Tell whether the same bytes may be offered again: after all but losing the log, damage, and bugs.

    KeyboardInterrupt and SystemExit come from a signal handler, not from storage.
    """
    if isinstance(error, INTERRUPTS):
        return True
    return isinstance(error, OncelogError) and not isinstance(error, WriterFenced | CorruptionError | Closed)


def _backoff_us(attempts: int, chance: float) -> int:
    """Return how long to wait after so many attempts in vain: exponential backoff with jitter."""
    delay_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(attempts - 1, 16)) * (0.5 + chance / 2)
    return int(delay_s * 1e6)
