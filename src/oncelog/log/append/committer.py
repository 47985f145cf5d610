"""Ordered and durable: turns what was admitted into blocks, stores them one after the other, then acknowledges.

A *group* is what becomes one block. Groups are formed into blocks in the order of their positions, offered to storage
as the same bytes until their outcome is known, and acknowledged in order. Whoever waits for a group may store it itself
(no hand-over between threads, so one append costs little more than its sync); what fails is taken over by threads of
the committer's own, which offer it again whether anybody waits or not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.errors import Closed, CorruptionError, OncelogError, Unavailable, WriterFenced
from oncelog.log.append.counters import Counters
from oncelog.log.append.futures import AckFuture, Answers, settle
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Crowd, Group, Submitted, Ticket, Waiting
from oncelog.log.append.open_segment import Run
from oncelog.log.append.uptime import Uptime
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record

BACKOFF_S, BACKOFF_S_MAX = 0.05, 5.0
_ONCE = (True,)
INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What a signal handler raises in the midst of anything."""

_T = TypeVar("_T")

Settle = Callable[[Group], None]
Answer = Callable[[Ticket, str | None], Ack]


class Committer:
    """Stores groups in order. ``changed`` guards all state here, and the dedup window beside it.

    Invariants: the groups in ``_offered`` are older than those in ``_waiting``, and both are in the order of their
    positions without a gap; at most ``in_flight_max`` are offered; ``stored_position`` is behind all that is durable.
    """

    def __init__(
        self,
        run: Run,
        *,
        settings: LogSettings,
        uptime: Uptime,
        clock: Clock,
        counters: Counters,
        next_position: int,
        settle: Settle,
        answer: Answer,
        absorb: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.next_position = next_position
        self.stored_position = next_position
        self.error: OncelogError | None = None
        self._run = run
        self._settings = settings
        self._uptime = uptime
        self._clock = clock
        self._counters = counters
        self._settle = settle
        self._answer = answer
        self._absorb = absorb
        self.answered = threading.Condition()
        self.absorbing = False  # whether a thread decides what was submitted, perhaps without the lock
        self.behind = False  # whether too many ids, or runs, wait to be put into runs
        self.hurry: Callable[[], None] = lambda: None
        self.submitted: list[Submitted] = []
        self._submitted_bytes = 0
        self._waiting: deque[Group] = deque()
        self._offered: deque[Group] = deque()
        self._forming = False
        self._form_retry_at_us = 0
        self._form_attempts = 0
        self._pending_bytes = 0
        self._attempts = 0  # in vain, of the groups that are offered
        self._sleeping = 0
        self._telling = 0  # threads that answer futures now
        self._told_position = -1  # up to which the threads were told of what is pending
        self._threads: list[threading.Thread] = []
        self._leaving: OncelogError | None = None
        self._draining = 0
        self._interval_us = -1  # not known before there is a segment
        self._direct = False  # whether who appends one record may store it at once
        self._formed_at_us = 0
        self._stopping = False

    # What the writer calls with ``changed`` held.

    def room(self, size_bytes: int, records: int, deadline_us: int | None) -> None:
        """Wait until that much more may be pending; ``Unavailable`` when time runs out first."""
        while True:
            self.check_open()
            if self.behind:
                self._until_caught_up(deadline_us)
                continue
            if self.has_room(size_bytes, records):
                return
            if not self._past(deadline_us):
                self._step(deadline_us)
                continue
            pending, pending_bytes = self.pending()
            message = (
                f"{pending} records ({pending_bytes} bytes) are waiting for storage, which is as many as may: "
                "slow down, or raise pending_bytes and pending_records"
            )
            raise Unavailable(message)

    def _until_caught_up(self, deadline_us: int | None) -> None:
        """Wait until the memory of ids has got into runs, and have that done again if it failed."""
        while self.behind:
            self.check_open()
            if self._past(deadline_us):
                message = f"ids come faster than storage takes the runs that remember them{self._why()}: slow down"
                raise Unavailable(message)
            self.hurry()
            left_s = None if deadline_us is None else (deadline_us - self._clock.elapsed_us()) / 1e6
            self._sleep(BACKOFF_S if left_s is None else max(0.0, min(BACKOFF_S, left_s)))

    def until_absorbed(self, deadline_us: int | None) -> None:
        """Return when no thread decides what was submitted any more; ``Unavailable`` when time runs out first."""
        while self.absorbing and self.error is None:
            if self._past(deadline_us):
                message = "the ids that were submitted before are not looked up yet: try again"
                raise Unavailable(message)
            self._sleep(None if deadline_us is None else max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6))

    def group_for(self, size_bytes: int, records: int) -> Group:
        """Return the group that so much more goes into: the newest, if it has not been offered and has room."""
        if self._waiting:
            newest = self._waiting[-1]
            fits = (
                newest.size_bytes + size_bytes <= self._settings.block_bytes
                and newest.count + records <= self._settings.block_records
            )
            if fits:
                return newest
        group = Group(self.next_position)
        self._waiting.append(group)
        return group

    def admitted(self, size_bytes: int, records: int) -> None:
        """Count what was just added to the newest group."""
        self.next_position += records
        self._pending_bytes += size_bytes

    def adopted(self, records: int) -> None:
        """Count records that came into the log without passing through here. Nothing is pending."""
        assert self.next_position == self.stored_position
        self.next_position += records
        self.stored_position += records

    def group_of(self, position: int) -> Group:
        """Return the pending group that holds a position."""
        for groups in (self._offered, self._waiting):
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
        groups = (*self._offered, *self._waiting)
        starts = np.searchsorted(pending, [group.first_position for group in groups])
        ends = np.searchsorted(pending, [group.next_position for group in groups])
        return [group for group, start, end in zip(groups, starts, ends, strict=True) if end > start]

    def check(self) -> None:
        """Raise what ended this committer, if something did."""
        if self.error is not None:
            raise self.error

    def check_open(self) -> None:
        """Raise unless more may be added."""
        reason = self.error or self._leaving
        if isinstance(reason, WriterFenced):
            raise WriterFenced(str(reason), outcome="not written")
        if reason is not None:
            raise reason

    @property
    def is_leaving(self) -> bool:
        """Whether nothing more is taken: the writer is being closed, or has ended."""
        return self._leaving is not None or self.error is not None

    def leave(self, reason: OncelogError) -> None:
        """Take nothing more from now on, and say why: what is pending is the last."""
        self._leaving = reason
        self.tell()

    def refuse(self, reason: OncelogError) -> None:
        """Take nothing more, and say why: ``leave`` follows. The lock need not be held: it is one assignment."""
        if self._leaving is None:
            self._leaving = reason

    def pending(self) -> tuple[int, int]:
        """Return how many records, and bytes, are not stored yet."""
        return (
            self.next_position - self.stored_position + len(self.submitted),
            self._pending_bytes + self._submitted_bytes,
        )

    def has_room(self, size_bytes: int, records: int) -> bool:
        """Tell whether that much more may be pending, now."""
        pending, pending_bytes = self.pending()
        return not self.behind and (
            pending == 0
            or (
                pending_bytes + size_bytes <= self._settings.pending_bytes
                and pending + records <= self._settings.pending_records
            )
        )

    def submit(self, record: Record, size_bytes: int, future: AckFuture[Ack]) -> AckFuture[Ack]:
        """Put a record aside, to be decided with others that come meanwhile; return the future of its ack."""
        if not self.submitted:
            self.start_threads()
        self.submitted.append((record, size_bytes, future))
        self._submitted_bytes += size_bytes
        return future

    @property
    def stalled(self) -> bool:
        """Whether storage did not take what it was offered last, and will be asked again."""
        return self._attempts > 0 or self._form_attempts > 0

    def take_submitted(self) -> list[Submitted]:
        """Return what was submitted and not decided yet, to be decided now."""
        taken, self.submitted, self._submitted_bytes = self.submitted, [], 0
        return taken

    def answer(self, waiting: Sequence[Waiting]) -> None:
        """Answer futures whose records are stored."""
        futures = [one.future for one in waiting]
        self.answer_crowds([(futures, lambda: [self._result(one) for one in waiting])])

    def answer_crowds(self, crowds: Sequence[Crowd]) -> None:
        """Answer crowds whose records are stored, each at once."""
        self._tell_futures(lambda: settle(self.answered, list(map(_told, crowds))))

    def _result(self, one: Waiting) -> Ack | OncelogError:
        try:
            return self._answer(one.ticket, one.id)
        except OncelogError as error:
            return error

    def start_threads(self) -> None:
        """Make sure that what is pending is stored although nobody waits for it; ``Unavailable`` without a thread."""
        while len(self._threads) < self._run.in_flight_max:
            thread = threading.Thread(target=self._work, name=f"oncelog-committer-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if self._threads:
                    break
                message = f"no thread to store with ({error}): end some, and try again with the same id"
                raise Unavailable(message, outcome="unknown") from error
            self._threads.append(thread)
        self.tell()

    def wait(self, group: Group, deadline_us: int | None) -> None:
        """Return when a group is stored; raise its error, or ``Unavailable(outcome="unknown")`` when time runs out."""
        while group.state != "stored":
            if group.error is not None:
                raise group.error
            if self._past(deadline_us):
                self.start_threads()  # somebody must offer it again
                message = f"not stored in time{self._why()}: the write stays pending, retry it with the same id"
                raise Unavailable(message, outcome="unknown")
            self._step(deadline_us)

    def drain(self, deadline_us: int | None) -> None:
        """Return when nothing is pending."""
        self._draining += 1
        self.tell()
        try:
            self._absorb()
            while self._offered or self._waiting:
                self.wait((self._waiting or self._offered)[-1], deadline_us)
                self._absorb()
        finally:
            self._draining -= 1

    def stop(self, error: OncelogError) -> None:
        """End: nothing is accepted or offered any more. What is still pending fails with ``error``."""
        self._stopping = True
        if self.error is None:
            self._fail_all(error)
        self.tell()

    @property
    def idle(self) -> bool:
        """Whether nothing is pending and nothing stands in the way of storing one record at once."""
        return (
            self._direct
            and not (self._offered or self._waiting or self.submitted or self._forming or self._form_attempts)
            and not (self.absorbing or self.behind)
            and self.error is None
            and self._leaving is None
            and self._run.ready
        )

    def place_one(self, value: bytes, id: bytes | None, uptime_us: int) -> Group:
        """Make a plain record a block of its own, to be offered next; return its group. The committer is ``idle``."""
        group = Group(self.next_position)
        group.state = "offered"
        group.count = 1
        group.size_bytes = len(value) + RECORD_OVERHEAD_BYTES
        if id is not None:
            group.ids = 1
            group.size_bytes += len(id)
        group.next_position += 1
        group.timestamp_us = self._run.timestamp_us(self._clock.now_us())
        group.uptime_us = uptime_us
        self._run.place(group)
        self._run.encode_one(group, value, id)
        self._pending_bytes += group.size_bytes
        self.next_position += 1
        self._offered.append(group)
        return group

    def give_up(self, error: BaseException) -> NoReturn:
        """Raise what came while something was noted here; end, unless it is a refusal: half of it may be noted.

        An id that is known, of a record that is in no group, would be answered for and never stored.
        """
        if not isinstance(error, OncelogError):
            self._die(error)
        raise error

    def fenced(self, error: WriterFenced) -> None:
        """End: another writer has the log. Whoever waits is told."""
        if self.error is None:
            self._die(error)

    def forsake(self, futures: Sequence[AckFuture[Ack]], error: BaseException) -> None:
        """Tell those whose records were being decided, and whom nobody else knows, what came in between; end and raise
        it, unless it is a refusal.
        """
        try:
            if not isinstance(error, OncelogError):
                self._die(error)
        finally:
            reason = error if isinstance(error, OncelogError) else self.error or Closed("this writer has ended")
            self.unlocked(lambda: settle(self.answered, [(futures, [reason] * len(futures))]))

    # Storing. ``changed`` is held on entry and on exit, and let go while storage works.

    def _step(self, deadline_us: int | None) -> None:
        """Do a piece of the work that is there to do, or wait until something changes."""
        if self._run.in_flight_max == 1 and not self.stalled and self._work_once():
            return
        if self.stalled or self._run.in_flight_max > 1 or self._interval_us > 0:
            self._have_it_stored()
        self._sleep(None if deadline_us is None else max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6))

    def _have_it_stored(self) -> None:
        """Have the committer's own threads store what is pending; tell them once of all that is new.

        A waiter that told them whenever it woke would wake the other waiters, and they would wake it.
        """
        if self._told_position != self.next_position or len(self._threads) < self._run.in_flight_max:
            self._told_position = self.next_position
            self.start_threads()

    def _sleep(self, timeout_s: float | None) -> None:
        self._sleeping += 1
        try:
            self._clock.wait(self.changed, timeout_s)
        finally:
            self._sleeping -= 1

    def tell(self) -> None:
        """Wake those who wait for a change, if there are any."""
        if self._sleeping:
            self.changed.notify_all()

    def _work(self) -> None:
        """Store what is pending until stopped: the life of one of the committer's own threads."""
        with self.changed:
            while not self._stopping and self.error is None:
                try:
                    if not self._work_once():
                        self._sleep(self._until_retry_s())
                except INTERRUPTS:
                    continue  # out of a callback: that is no reason to leave what is pending
                except BaseException:  # noqa: BLE001
                    return  # everybody who waits has been told by _die

    def _work_once(self) -> bool:
        """Offer one block, if there is one that may be offered now."""
        now_us = self._clock.elapsed_us()
        for group in self._offered:
            if not group.busy and group.state == "offered" and group.retry_at_us <= now_us:
                self.offer(group, now_us)
                return True
        if self._forming or self._form_retry_at_us > now_us or len(self._offered) >= self._run.in_flight_max:
            return False
        if self._offered and self._run.full:
            return False  # a segment closes only at a tail that is known
        if self.submitted:
            self._absorb()
            return True
        if not self._waiting or (self._interval_us > 0 and self._form_at_us() > now_us):
            return False
        return self._form()

    def _form_at_us(self) -> int:
        """Return when the next block may be formed: one that is not full waits, in case more comes."""
        first = self._waiting[0]
        full = first.size_bytes >= self._settings.block_bytes or first.count >= self._settings.block_records
        if full or len(self._waiting) > 1 or self._draining or self._leaving is not None:
            return 0
        return self._formed_at_us + self._interval_us

    def _form(self) -> bool:
        """Give the oldest waiting group its place, and offer it."""
        self._forming = True
        request = 0
        group: Group | None = None
        try:
            if not self._run.ready:
                request = self._uptime.ask(self._clock.elapsed_us())
                self.unlocked(self._run.prepare)
                self._uptime.answered(request, self._clock.elapsed_us(), stored=False)
                if not self._waiting:
                    return True  # stopped meanwhile
            group = self._waiting[0]
            group.state = "offered"
            group.busy = True
            self._offered.append(group)  # known here before it is gone there, whatever interrupts
            self._waiting.popleft()
            if self._interval_us < 0:
                self._interval_us = int(self._run.commit_interval_s * 1e6)
                self._direct = self._interval_us == 0 and self._run.in_flight_max == 1
            if self._interval_us > 0:
                self._formed_at_us = self._clock.elapsed_us()
            group.timestamp_us = self._run.timestamp_us(self._clock.now_us())
            group.uptime_us = self._uptime.stamp_us()
            self._run.place(group)
            self._encode_early(group)
            self._form_attempts = self._form_retry_at_us = 0
            group.busy = False
        except BaseException as error:
            if group is not None or not self._survivable(error):
                self._die(error)
                return True
            self._form_attempts += 1
            self._form_retry_at_us = self._later(request, self._form_attempts, error)
            if isinstance(error, INTERRUPTS):
                raise
            return True
        finally:
            self._forming = False
            self.tell()
        if group.state == "offered":
            self.offer(group, self._clock.elapsed_us())
        return True

    def _encode_early(self, group: Group) -> None:
        """Fix a block's bytes before it is offered, where that is better than to do it then, with the lock given back
        once for both.
        """
        if group.count == 1:
            self._run.encode(group)  # sooner done than the lock is given back
        elif self._run.in_flight_max > 1:
            self.unlocked(lambda: self._run.encode(group))  # the next block names this one's checksum

    def offer(self, group: Group, started_us: int) -> None:
        """Offer a block to storage, now; on failure leave it for the next attempt, byte for byte as it is."""
        request = self._uptime.ask(started_us)
        try:
            group.busy = True
            end = self.unlocked(self._append, group)
        except BaseException as error:
            group.busy = False
            if group.block is None or not self._survivable(error):
                self._die(error)
                return
            group.attempts += 1
            self._attempts += 1
            group.retry_at_us = self._later(request, group.attempts, error)
            self.tell()
            if isinstance(error, INTERRUPTS):
                raise
            return
        group.busy = False
        if group.state != "offered":
            return  # stopped meanwhile: the next writer decides
        answered: list[Group] = []
        try:
            ended_us = self._clock.elapsed_us()
            self._run.end = max(self._run.end, end)  # blocks may land in any order
            self._uptime.answered(request, ended_us)
            self._counters.committed(group, ended_us - started_us)
            group.state = "landed"
            self._acknowledge(answered)
        except BaseException as error:  # noqa: BLE001
            try:
                self.give_up(error)
            finally:  # nobody else would, and not before all is over: what is half noted must not be met
                self._tell_futures(lambda: self._answer_groups(answered))
        if answered:
            try:
                self._tell_futures(lambda: self._answer_groups(answered))
            except INTERRUPTS:
                self._tell_futures(lambda: self._answer_groups(answered))
                raise

    def _append(self, group: Group) -> int:
        if group.block is None:
            self._run.encode(group)
        return self._run.append(group) if group.state == "offered" else 0  # else stopped meanwhile

    def _acknowledge(self, answered: list[Group]) -> None:
        """Settle, in order, every block that has landed and has no other before it; note those to be answered."""
        while self._offered and self._offered[0].state == "landed":
            group = self._offered[0]
            if group.waiting or group.crowds:
                answered.append(group)
            self._offered.popleft()
            group.state = "stored"
            self.stored_position = group.next_position
            self._pending_bytes -= group.size_bytes
            self._attempts -= group.attempts
            self._settle(group)
            group.parts, group.block = [], None
        if self._sleeping:
            self.changed.notify_all()

    def _tell_futures(self, settle: Callable[[], None]) -> None:
        """Answer futures, and let ``wait_until_told`` know when that is done."""
        self._telling += 1
        try:
            self.unlocked(settle)
        finally:
            self._telling -= 1
            self.tell()

    def wait_until_told(self, deadline_us: int | None) -> None:
        """Return when the futures of all that is stored have their answers, or time runs out."""
        while self._telling and not self._past(deadline_us):
            self._sleep(None if deadline_us is None else (deadline_us - self._clock.elapsed_us()) / 1e6)

    def _answer_groups(self, groups: Sequence[Group]) -> None:
        told: list[Answers] = []
        for group in groups:
            told += map(_told, group.crowds)
            told.append(([one.future for one in group.waiting], [self._result(one) for one in group.waiting]))
        settle(self.answered, told)
        for group in groups:
            group.waiting, group.crowds = [], []

    def unlocked(self, work: Callable[..., _T], *given: Group) -> _T:
        """Let go of the lock while something is done. It is held again at the end, whatever interrupts.

        Ctrl-C comes when a call is over, or ends a wait for the lock: what one call in C noted tells which it was.
        """
        try:
            self.lock.release()  # in here: interrupted behind it, the lock would stay free
            return work(*given)
        finally:
            held: list[bool] = []
            try:
                held.extend(map(self.lock.acquire, _ONCE))
            except BaseException:
                if not held:
                    held.extend(map(self.lock.acquire, _ONCE))
                raise

    # Failing.

    def _survivable(self, error: BaseException) -> bool:
        """Tell whether the same bytes may be offered again: after all but losing the log, damage, and bugs.

        KeyboardInterrupt and SystemExit come from a signal handler, not from storage.
        """
        if isinstance(error, INTERRUPTS):
            return True
        return isinstance(error, OncelogError) and not isinstance(error, WriterFenced | CorruptionError | Closed)

    def _later(self, request: int, attempts: int, error: BaseException) -> int:
        """Note an outage; return the moment of the next attempt."""
        self._uptime.failed(request)
        self._counters.failed(str(error))
        delay_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(attempts - 1, 16)) * (0.5 + self._clock.chance() / 2)
        return self._clock.elapsed_us() + int(delay_s * 1e6)

    def _until_retry_s(self) -> float | None:
        failed = [group for group in self._offered if group.attempts and not group.busy and group.state == "offered"]
        moments = [group.retry_at_us for group in failed]
        if self._form_retry_at_us and not self._forming:
            moments.append(self._form_retry_at_us)
        if self._interval_us > 0 and self._waiting and self._form_at_us() > self._clock.elapsed_us():
            moments.append(self._form_at_us())
        return max(0.0, (min(moments) - self._clock.elapsed_us()) / 1e6) if moments else None

    def _die(self, error: BaseException) -> None:
        """End because of an error that no further attempt can mend; whoever waits is told."""
        if isinstance(error, WriterFenced):
            self._fail_all(WriterFenced(str(error), outcome="unknown"))
        elif isinstance(error, OncelogError):
            self._fail_all(error)
        else:
            self._fail_all(Closed(f"the writer ended on an unexpected error: {error!r}"))
            assert self.error is not None
            self.error.__cause__ = error
            raise error

    def _fail_all(self, error: OncelogError) -> None:
        self.error = error
        told: list[Answers] = []
        unoffered = WriterFenced(str(error), outcome="not written") if isinstance(error, WriterFenced) else error
        for group in (*self._offered, *self._waiting):
            group.error = unoffered if group.state == "waiting" else error
            group.state = "failed"
            futures = [one.future for one in group.waiting]
            for crowd, _ in group.crowds:
                futures += crowd
            told.append((futures, [group.error] * len(futures)))
        self._offered.clear()
        self._waiting.clear()
        self._attempts = 0
        self.tell()
        submitted = [future for _, _, future in self.take_submitted()]
        told.append((submitted, [unoffered] * len(submitted)))
        if any(futures for futures, _ in told):
            self.unlocked(lambda: settle(self.answered, told))

    def _past(self, deadline_us: int | None) -> bool:
        return deadline_us is not None and self._clock.elapsed_us() >= deadline_us

    def _why(self) -> str:
        return f" ({self._counters.last_failure})" if self.stalled else ""


def _told(crowd: Crowd) -> Answers:
    """Return a crowd with its answers, or with the error for which there are none now."""
    futures, answers = crowd
    try:
        return futures, answers()
    except OncelogError as error:
        return futures, [error] * len(futures)
