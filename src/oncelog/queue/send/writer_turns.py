"""Writing to partitions that several processes write to: a log has one writer, so they take turns.

A sender takes the partition's writer and keeps it until somebody asks for it. If it is taken, a sender leaves a wish in
the state database; the holder sees it within ``LOOK_S``, stores what is on its way, and lets go. On homes that can
fence, a holder that does not answer is fenced by the log itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from oncelog.clock import Clock
from oncelog.concurrency.trouble import Trouble
from oncelog.errors import Closed, LogBusy, NotFound, OncelogError, Unavailable
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.queue.state import gate, statements
from oncelog.queue.state.database import StateDatabase

LOOK_S = 0.05
"""How often a holder looks whether others want to write."""

TENURE_S = 0.1
"""So long a holder writes before it lets go, and so long it stands back then."""

_STEP_S = 0.25


class _Seat:
    """A partition's writer, if it is here, who uses it now, and who takes it."""

    def __init__(self) -> None:
        self.writer: Writer | None = None
        self.users: set[object] = set()
        self.taking: object | None = None
        self.leaving = False
        self.since_us = 0
        self.not_before_us = 0


class WriterTurns:
    """The writers of a topic's partitions that this process has. Safe to share between threads."""

    def __init__(self, topic: str, queue_id: int, logs: list[Log], database: StateDatabase, clock: Clock) -> None:
        self.session = clock.token(8).hex()
        self._topic = topic
        self._trouble = Trouble("oncelog.queue", f"looking who else sends to queue {topic!r}")
        self._queue_id = queue_id
        self._logs = logs
        self._database = database
        self._clock = clock
        self._guard = threading.RLock()  # a ``with`` of the condition could leave it taken after Ctrl-C
        self._changed = threading.Condition(self._guard)
        self._seats = [_Seat() for _ in logs]
        self._keeper: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._closed

    def held(self) -> list[int]:
        """Return the partitions whose writer is here."""
        return [number for number, seat in enumerate(self._seats) if seat.writer is not None and not seat.leaving]

    @contextlib.contextmanager
    def writing(self, partition: int, timeout_s: float) -> Iterator[Writer]:
        """Have a partition's writer for a while, taking it if it is not here; ``Unavailable`` if others keep it.

        A writer that is lent to this process is borrowed each time: the lender decides when to let it go.
        """
        if inner.is_lent(self._logs[partition]):
            with inner.lent(self._logs[partition]) as writer:
                yield writer
            return
        user = object()
        try:
            yield self._sit(partition, timeout_s, user)
        finally:
            try:
                self._stand_up(self._seats[partition], user)
            except BaseException:  # Ctrl-C as it began
                self._stand_up(self._seats[partition], user)
                raise

    def _stand_up(self, seat: _Seat, user: object) -> None:
        """Note that somebody does not use a writer any more, nor takes it, however far that had come."""
        with self._guard:
            if seat.leaving or seat.taking is user:  # else nobody waits for it, and the keeper would look each time
                self._changed.notify_all()  # first: the call after Ctrl-C in here does so again
            seat.users.discard(user)
            if seat.taking is user:
                seat.taking = None

    def drop(self, partition: int, writer: Writer) -> None:
        """Let go of a writer that is no good any more: another took the log."""
        seat = self._seats[partition]
        with self._guard:
            if seat.writer is not writer:
                return
            seat.writer = None
        with contextlib.suppress(OncelogError):
            writer.close(timeout_s=0)

    def _sit(self, partition: int, timeout_s: float, user: object) -> Writer:
        seat = self._seats[partition]
        deadline_us = self._clock.elapsed_us() + round(timeout_s * 1e6)
        with self._guard:
            while seat.taking or seat.leaving:
                left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
                if left_s <= 0:
                    raise self._busy(partition, None)
                self._clock.wait(self._changed, left_s)
            if self._closed:
                message = f"queue {self._topic!r} is closed"
                raise Closed(message)
            if seat.writer is not None:
                seat.users.add(user)
                return seat.writer
            seat.taking = user
        writer = self._taken(partition, deadline_us, timeout_s)
        try:
            self._seat(seat, user, writer)
        except BaseException:  # Ctrl-C: nobody would close it, and its log would stay taken
            if seat.writer is not writer:
                writer.close(timeout_s=0)
            raise
        return writer

    def _seat(self, seat: _Seat, user: object, writer: Writer) -> None:
        """Have a writer that was taken."""
        with self._guard:
            seat.users.add(user)
            seat.since_us = self._clock.elapsed_us()
            self._changed.notify_all()
            seat.taking, seat.writer = None, writer
            self._start_keeper()

    # Taking.

    def _taken(self, partition: int, deadline_us: int, timeout_s: float) -> Writer:
        """Become the writer, if the queue is there before and still is then: who deletes it says so first, and takes
        the writers afterwards.
        """
        self._check_there()
        writer = self._take(partition, deadline_us, timeout_s)
        try:
            self._check_there()
        except BaseException:
            with contextlib.suppress(OncelogError):
                writer.close(timeout_s=0)
            raise
        return writer

    def _check_there(self) -> None:
        """Raise ``NotFound`` if the queue is being deleted, or is another one of that name."""
        with self._database.reading() as transaction:
            row = statements.queue(transaction, self._topic)
        if row is None or row.id != self._queue_id or row.deleting:
            message = f"queue {self._topic!r} was deleted: open it again"
            raise NotFound(message)

    def _take(self, partition: int, deadline_us: int, timeout_s: float) -> Writer:
        """Become the writer; ask for it when somebody else is."""
        log = self._logs[partition]
        self._stand_back(partition, deadline_us)
        busy: LogBusy | None = None
        try:
            return log.writer(wait_s=0)
        except LogBusy as error:  # no ``suppress``: Ctrl-C in its end would lose the writer
            busy = error
        self._ask(partition, timeout_s)
        try:
            while (left_s := (deadline_us - self._clock.elapsed_us()) / 1e6) > 0:
                try:
                    return log.writer(wait_s=min(left_s, _STEP_S))
                except LogBusy as error:
                    busy = error
        finally:
            with self._database.writing(durable=False) as transaction:
                gate.unwant(transaction, self._topic, partition, self.session, transaction.now_us())
        raise self._busy(partition, busy) from busy

    def _ask(self, partition: int, timeout_s: float) -> None:
        with self._database.writing(durable=False) as transaction:
            until_us = transaction.now_us() + round(min(timeout_s, 60.0) * 1e6)
            gate.want(transaction, self._topic, partition, self.session, until_us)

    def _stand_back(self, partition: int, deadline_us: int) -> None:
        """Let the one who asked go first."""
        until_us = min(self._seats[partition].not_before_us, deadline_us)
        while self._clock.elapsed_us() < until_us and partition in self._wanted():
            with self._guard:
                self._clock.wait(self._changed, LOOK_S / 5)

    def _busy(self, partition: int, error: LogBusy | None) -> Unavailable:
        holder = f" (process {error.pid})" if error is not None and error.pid is not None else ""
        message = (
            f"queue {self._topic!r}: partition {partition} is written by another process{holder} that does not let go: "
            "try again, or wait longer"
        )
        return Unavailable(message)

    # Letting go.

    def _start_keeper(self) -> None:
        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(target=self._keep, name=f"oncelog-turns-{self._topic}", daemon=True)
            self._keeper.start()

    def _keep(self) -> None:
        """Look whether others want what is here, until nothing is."""
        while True:
            with self._guard:
                if not self._closed:
                    self._clock.wait(self._changed, LOOK_S)
                if self._closed or not self.held():
                    self._keeper = None
                    return
            try:
                for partition in self._wanted():
                    self._yield(partition)
                self._trouble.end()
            except OncelogError as error:
                self._trouble.begin(error)

    def _wanted(self) -> set[int]:
        with self._database.reading(durable=False) as transaction:
            return gate.wanted(transaction, self._topic, self.session, transaction.now_us())

    def _yield(self, partition: int) -> None:
        """Give a writer up, once its time is over and what was begun is done."""
        seat = self._seats[partition]
        with self._guard:
            tenure_us = self._clock.elapsed_us() - seat.since_us
            if seat.writer is None or seat.leaving or tenure_us < TENURE_S * 1e6:
                return
            writer, seat.leaving = seat.writer, True
            while seat.users:
                self._clock.wait(self._changed, None)
        try:
            writer.close()
        finally:
            with self._guard:
                seat.writer, seat.leaving = None, False
                seat.not_before_us = self._clock.elapsed_us() + round(TENURE_S * 1e6)
                self._changed.notify_all()

    def close(self) -> None:
        """Let everything go; what is on its way is stored first."""
        with self._guard:
            self._closed = True
            self._changed.notify_all()
            keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join()
        with contextlib.ExitStack() as ending:
            for seat in self._seats:
                if seat.writer is not None:
                    ending.callback(seat.writer.close)
