"""The driver of the append core: the one lock, the threads, the waits, and what is asked of storage.

Only this file and ``alone`` take the lock. Other parts of a writer give a function to ``Committer.locked``.

It reads from the core what is to be done (``work``, ``unanswered``, ``due``), does it with the lock given back, and
reports the outcome to the core. A thread that waits for a group stores blocks itself (no hand-over between threads, so
one append costs little more than its sync). A block that failed is offered again by threads of the committer's own,
also when nobody waits for it. This is group commit: what comes while a block is stored goes into the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar, TypeVarTuple

from oncelog.clock import Clock
from oncelog.concurrency.futures import AckFuture, Answered, settle
from oncelog.concurrency.steady import SteadyCondition
from oncelog.errors import OncelogError, Unavailable, WriterFenced
from oncelog.log.append.core import ABSORB, BACKOFF_S, INTERRUPTS, PREPARE, TORN, Core, reason_of
from oncelog.log.append.groups import Crowd, Group, submitted_as
from oncelog.log.append.open_segment import SegmentRun
from oncelog.types import Ack, Record

_T = TypeVar("_T")
_Given = TypeVarTuple("_Given")

REST_S = 1.0
"""A thread of a committer ends when it had nothing to do for so long. The next record that needs a thread starts it."""


def _nothing() -> None:
    """Do nothing: the callback until a real one is set."""


class Committer:
    """Drives one core. The lock guards the core and all that belongs to it.

    Methods whose text says nothing else are called with the lock held (``locked``). The lock is given back while
    storage works, while futures are answered, and in a wait (``unlocked``).
    """

    def __init__(self, core: Core, run: SegmentRun, clock: Clock) -> None:
        self.core = core
        self.lock = threading.Lock()
        self._changed = SteadyCondition(self.lock)
        self.unlocked = self._changed.unlocked
        self.answered = threading.Condition()
        self.absorb: Callable[[], None] = _nothing
        """Decides what was submitted."""
        self.start_due: Callable[[], None] = _nothing
        """Begins, in another thread, what the core says is due."""
        self.hurry: Callable[[], None] = _nothing
        """Has ids put into runs, because appends wait for that."""
        self._run = run
        self._clock = clock
        self.sleeping = 0  # threads that wait for a change
        self._told_position = -1  # up to which the threads were told of what is pending
        self._threads = 0
        self._stopping = False

    def locked(self, work: Callable[[*_Given], _T], *given: *_Given) -> _T:
        """Do something with the lock held, which it is not yet.

        The lock itself is taken, never its condition: ``Condition.__enter__`` and ``__exit__`` are Python, and Ctrl-C
        heeded inside them would leave the lock held for ever. A ``with`` of a plain lock heeds none.
        """
        with self.lock:
            return work(*given)

    def locked_if_free(self, work: Callable[[], object]) -> None:
        """Do something with the lock held, if nobody holds the lock now; else nothing.

        For threads that serve many writers, and must not wait for one of them. They are never the main thread, which
        alone heeds Ctrl-C.
        """
        if self.lock.acquire(blocking=False):
            try:
                work()
            finally:
                self.lock.release()

    # Asking.

    @property
    def error(self) -> OncelogError | None:
        """Why nothing is accepted or stored any more; ``None`` while it is. The lock need not be held."""
        return self.core.ended

    @property
    def is_leaving(self) -> bool:
        """Whether nothing more is taken: the writer is being closed, or has ended. The lock need not be held."""
        return self.core.leaving is not None or self.core.ended is not None

    def check(self) -> None:
        """Raise what ended this committer, if something did."""
        if self.core.error is TORN:
            self._end_torn()
        if self.core.ended is not None:
            raise self.core.ended

    def check_open(self) -> None:
        """Raise unless more may be added."""
        if self.core.error is TORN:
            self._end_torn()
        self.core.check_open()

    # Waiting.

    def room(self, size_bytes: int, records: int, deadline_us: int | None) -> None:
        """Wait until that much more may be pending; ``Unavailable`` when time runs out first."""
        core = self.core
        while True:
            if core.error is not None or core.leaving is not None:
                self.check_open()
            if core.has_room(size_bytes, records):
                return
            if core.behind:
                self._until_caught_up(deadline_us)
                continue
            if not self._past(deadline_us):
                self._step(deadline_us)
                continue
            pending = core.next_position - core.stored_position + len(core.submitted)
            message = (
                f"{pending} records ({core.pending_bytes + core.submitted_bytes} bytes) are waiting for storage, which "
                "is as many as may: slow down, or raise pending_bytes and pending_records"
            )
            raise Unavailable(message)

    def _until_caught_up(self, deadline_us: int | None) -> None:
        """Wait until the memory of ids has got into runs, and have that done again if it failed."""
        while self.core.behind:
            self.check_open()
            if self._past(deadline_us):
                message = f"ids come faster than storage takes the runs that remember them{self._why()}: slow down"
                raise Unavailable(message)
            self.hurry()
            left_s = self._left_s(deadline_us)
            self._sleep(BACKOFF_S if left_s is None else min(BACKOFF_S, left_s))

    def until_absorbed(self, deadline_us: int | None) -> None:
        """Return when no thread decides what was submitted any more; ``Unavailable`` when time runs out first."""
        while self.core.absorbing and self.core.ended is None:
            if self._past(deadline_us):
                message = "the ids that were submitted before are not looked up yet: try again"
                raise Unavailable(message)
            self._sleep(self._left_s(deadline_us))

    def wait(self, group: Group, deadline_us: int | None) -> None:
        """Return when a group is stored; raise its error, or ``Unavailable(outcome="unknown")`` when time runs out."""
        while group.state != "stored":
            if self.core.error is TORN:
                self._end_torn()
            if group.error is not None:
                raise group.error
            if self._past(deadline_us):
                self.start_threads()  # somebody must offer it again
                message = f"not stored in time{self._why()}: the write stays pending, retry it with the same id"
                raise Unavailable(message, outcome="unknown")
            self._step(deadline_us)

    def settle_all(self, deadline_us: int | None) -> None:
        """Return when nothing is pending; raise what ended this committer, if something did."""
        self.check()
        self.drain(deadline_us)

    def drain(self, deadline_us: int | None) -> None:
        """Return when nothing is pending."""
        core = self.core
        core.draining += 1
        self.tell()
        try:
            self.absorb()
            while core.offered or core.waiting:
                self.wait((core.waiting or core.offered)[-1], deadline_us)
                self.absorb()
        finally:
            core.draining -= 1

    def _wait_until_told(self, deadline_us: int | None) -> None:
        """Return when the futures of all that is stored have their answers, or time runs out."""
        self._tell_futures()
        while any(crowd.busy for crowd in self.core.unanswered) and not self._past(deadline_us):
            self._sleep(self._left_s(deadline_us))

    def _step(self, deadline_us: int | None) -> None:
        """Do a piece of the work that is there to do, or wait until something changes."""
        core = self.core
        if core.in_flight_max == 1 and not core.stalled and self._work_once():
            return
        if core.stalled or core.in_flight_max > 1 or core.interval_us > 0:
            try:
                self._have_it_stored()
            except Unavailable:  # no thread can be started, at exit for example: this one stores
                if not self._work_once():
                    raise
                return
        self._sleep(self._left_s(deadline_us))

    def _have_it_stored(self) -> None:
        """Have the committer's own threads store what is pending, and notify them once of all new groups.

        If each waiter notified the threads whenever it woke, waiters would wake each other for ever.
        """
        core = self.core
        if self._told_position != core.next_position or self._threads < core.in_flight_max:
            self._told_position = core.next_position
            self.start_threads()

    def _sleep(self, timeout_s: float | None) -> None:
        """Wait for a change. ``sleeping`` is raised before the lock is given back, so no change is missed."""
        self.sleeping += 1
        try:
            self._clock.wait(self._changed, timeout_s)
        finally:
            self.sleeping -= 1

    def tell(self) -> None:
        """Wake the threads that wait for a change, if there are any."""
        if self.sleeping:
            self._changed.notify_all()

    def _past(self, deadline_us: int | None) -> bool:
        return deadline_us is not None and self._clock.elapsed_us() >= deadline_us

    def _left_s(self, deadline_us: int | None) -> float | None:
        return None if deadline_us is None else max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6)

    def _why(self) -> str:
        return f" ({self.core.counters.last_failure})" if self.core.stalled else ""

    # Working.

    def submit_at_once(self, value: bytes, id: str | None, size_bytes: int, future: AckFuture[Ack]) -> bool:
        """Put a plain record aside if nothing is in its way; tell whether it was. The lock is not held yet.

        This is the fast way of most submits: what it calls is counted by a test.
        """
        core = self.core
        with self.lock:
            if core.error is not None or core.leaving is not None or core.failures or core.prepare_failures:
                return False
            if not core.has_room(size_bytes, 1):
                return False
            if not core.submitted:
                self.start_threads()
            try:
                core.submit(value, id, size_bytes, future)
            except BaseException as error:  # noqa: BLE001
                self.give_up(error)
        return True

    def submit(self, record: Record, size_bytes: int, future: AckFuture[Ack]) -> None:
        """Put a record aside: it is decided together with others that arrive soon after it."""
        core = self.core
        if not core.submitted:
            self.start_threads()
        try:
            core.submit(submitted_as(record), record.id, size_bytes, future)
        except BaseException as error:  # noqa: BLE001
            self.give_up(error)

    def start_threads(self) -> None:
        """Start threads that store pending records that no caller waits for; ``Unavailable`` if none can be started."""
        while self._threads < self.core.in_flight_max:
            thread = threading.Thread(target=self._work, name=f"oncelog-committer-{self._threads}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if self._threads:
                    break
                message = f"no thread to store with ({error}): end some, and try again with the same id"
                raise Unavailable(message, outcome="unknown") from error
            self._threads += 1
        self.tell()

    def _work(self) -> None:
        """Store what is pending until stopped, or until nothing comes: the life of one of the committer's threads."""
        with self.lock:
            try:
                self._work_on()
            except BaseException:  # noqa: BLE001, S110
                pass  # the core has ended, and its waiters have their error
            finally:
                # Ctrl-C inside ``Thread.start`` leaves a thread that runs and was not counted.
                self._threads = max(0, self._threads - 1)

    def _work_on(self) -> None:
        is_rested = False
        while not self._stopping and self.core.ended is None and not is_rested:
            try:
                if self.core.error is TORN:
                    self._end_torn()
                elif not self._work_once():
                    is_rested = self._rest()
            except INTERRUPTS:
                continue  # out of a callback: that is no reason to leave what is pending

    def _rest(self) -> bool:
        """Wait for work; tell whether none came for long, and nothing is pending: then the thread is not needed.

        Whoever adds to what is pending calls ``start_threads`` if a thread has to store it.
        """
        core = self.core
        if core.is_pending:
            self._sleep(self._left_s(core.wake_us(self._clock.elapsed_us())))
            return False
        self.sleeping += 1
        try:
            return not self._changed.wait(REST_S) and not core.is_pending  # in real time: nothing is decided by it
        finally:
            self.sleeping -= 1

    def _work_once(self) -> bool:
        """Do what the core has to do now; tell whether there was anything."""
        now_us = self._clock.elapsed_us()
        work = self.core.work(now_us)
        if work is None:
            return False
        if work == ABSORB:
            self.absorb()
        elif work == PREPARE:
            self._prepare(now_us)
        else:
            assert isinstance(work, Group)
            if work.state == "waiting":
                try:
                    self.core.form(now_us, self._clock.now_us())
                except BaseException as error:  # noqa: BLE001
                    self.give_up(error)
            self._store(work, now_us)
        return True

    def _prepare(self, now_us: int) -> None:
        """Have a segment prepared for the next block."""
        core, run = self.core, self._run
        request = core.uptime.ask(now_us)
        try:
            core.preparing = True
            self.unlocked(run.prepare)
        except BaseException as error:
            if core.ended is None:
                core.prepare_failed(request, error, self._clock.elapsed_us(), self._clock.chance())
            self.react()
            if not isinstance(error, OncelogError):
                raise
            return
        finally:
            core.preparing = False
            self.tell()
        if core.error is not None:
            return  # the writer ended while the lock was free
        try:
            interval_us = int(run.commit_interval_s * 1e6)
            core.prepared(request, run.start, run.in_flight_max, interval_us, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self.give_up(error)

    def _store(self, group: Group, started_us: int) -> None:
        """Offer a block to storage, now; on failure leave it for the next attempt, byte for byte as it is."""
        request = self.core.uptime.ask(started_us)
        try:
            group.busy = True
            end = self._encode_and_append(group) if group.block is None else self.unlocked(self._run.append, group)
        except BaseException as error:
            group.busy = False
            self.failed(group, request, error)
            if not isinstance(error, OncelogError):
                raise
            return
        group.busy = False
        self._landed(group, request, end, started_us)

    def failed(self, group: Group, request: int, error: BaseException) -> None:
        """Report that storage did not take a block, or end if an event was interrupted."""
        core = self.core
        if core.error is TORN:
            core.end(reason_of(error))
        elif core.error is None:
            core.failed(group, request, error, self._clock.elapsed_us(), self._clock.chance())
        self.react()

    def _landed(self, group: Group, request: int, end: int, started_us: int) -> None:
        """Report that storage has a block, and do what follows."""
        core = self.core
        if core.error is not None:
            return  # ended meanwhile: the next writer decides
        try:
            core.landed(group, request, end, started_us, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self.give_up(error)
        if self.sleeping or core.unanswered or core.due:
            self.react()

    def _encode_and_append(self, group: Group) -> int:
        """Fix the bytes of a block, and offer it, without the lock."""
        if self.core.in_flight_max == 1:
            return self.unlocked(self._both, group)
        self.unlocked(self.core.tail.encode, group)
        self.tell()  # the next block may be formed: it names the checksum of this one
        return self.unlocked(self._run.append, group) if group.state == "offered" else 0  # else ended meanwhile

    def _both(self, group: Group) -> int:
        self.core.tail.encode(group)
        if group.state != "offered":
            return 0  # ended meanwhile
        owed = self.core.owed
        if owed:
            self._run.begin(group)
            for fingerprints in owed:  # while the device works, and without the lock: large values take long
                fingerprints()
            self.locked(self.core.finish, len(owed))
        return self._run.append(group)

    # Reacting.

    def react(self) -> None:
        """Do what an event has left to do: wake the threads that wait, begin what is due, answer futures."""
        self.tell()
        if self.core.due:
            self.start_due()
        if self.core.unanswered:
            self._tell_futures()

    def answer_with(self, group: Group | None, crowd: Crowd) -> None:
        """Answer futures when a group is stored, or now if there is none."""
        if group is not None and group.state not in {"stored", "failed"}:
            group.crowds.append(crowd)
            self.start_threads()
            return
        crowd.error = None if group is None else group.error
        self.core.unanswered.append(crowd)
        self.react()

    def _tell_futures(self) -> None:
        """Answer the futures that no other thread is answering; once more if a callback is interrupted."""
        crowds = [crowd for crowd in self.core.unanswered if not crowd.busy]
        if crowds:
            try:
                self._settle(crowds)
            except INTERRUPTS:
                self._settle(crowds)
                raise

    def _settle(self, crowds: Sequence[Crowd]) -> None:
        try:
            for crowd in crowds:
                crowd.busy = True
            self.unlocked(lambda: settle(self.answered, list(map(_answered, crowds))))
            self.core.told(crowds)
        except BaseException:  # out of a callback, when all have their answers
            self.core.told(crowd for crowd in crowds if all(future.done() for future in crowd.tokens))
            raise
        finally:
            for crowd in crowds:
                crowd.busy = False
            self.tell()

    # Ending.

    def leave(self, reason: OncelogError, deadline_us: int | None) -> bool:
        """Take nothing more from now on, and say why; return when what is pending is stored and every future answered.

        ``False`` if this committer has ended, or an event was interrupted: then nobody knows what there is to store,
        and the next writer reads the log.
        """
        if self.core.error is TORN:
            self._end_torn()
        if self.core.ended is not None:
            return False
        self.core.leaving = reason
        self.tell()
        self.drain(deadline_us)
        self._wait_until_told(deadline_us)  # after a close every future is answered
        if self.core.error is TORN:
            self._end_torn()
        return self.core.ended is None

    def refuse(self, reason: OncelogError) -> None:
        """Take nothing more, and say why: ``leave`` follows. The lock need not be held: it is one assignment."""
        if self.core.leaving is None:
            self.core.leaving = reason

    def stop(self, error: OncelogError) -> None:
        """End: nothing is accepted or offered any more. What is still pending fails with ``error``."""
        self._stopping = True
        self.core.end(error)
        self.react()

    def fenced(self, error: WriterFenced) -> None:
        """End: another writer has the log."""
        self.core.end(reason_of(error))
        self.react()

    def give_up(self, error: BaseException) -> NoReturn:
        """Raise what came out of an event, or out of what led to it; end, if the event is torn or the error is a bug.

        A refusal, and an interrupt between two events, leave everything as it was.
        """
        if self.core.error is TORN or not isinstance(error, (OncelogError, *INTERRUPTS)):
            self.core.end(reason_of(error))
            self.react()
        self.tell()
        raise error

    def _end_torn(self) -> None:
        """End because an event was interrupted, and so was the thread that should have ended the core."""
        self.core.end(reason_of(KeyboardInterrupt()))
        self.react()


def _answered(crowd: Crowd) -> Answered:
    """Return the tokens of a crowd with their answers, or with the error for which there are none."""
    error = crowd.error
    if error is None:
        assert crowd.answers is not None
        try:
            return crowd.tokens, crowd.answers()
        except OncelogError as refusal:
            error = refusal
    if crowd.pieces > 1 and isinstance(error, WriterFenced):
        error = WriterFenced(str(error), outcome="unknown")
    return crowd.tokens, [error] * len(crowd.tokens)
