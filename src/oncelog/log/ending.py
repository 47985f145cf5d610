"""How a writer ends: what is pending is stored, the segment is closed, the log is let go.

This is a part of its own, without a reference to the writer: the log keeps it, and so do the threads that let the log
go. So a writer that its user drops is collected at once, and its log is let go all the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from oncelog import arguments
from oncelog.clock import SYSTEM
from oncelog.concurrency import futures
from oncelog.concurrency.batcher import Batcher
from oncelog.errors import Closed, NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.handle import Handle, weakly
from oncelog.log.append.session import WriterSession
from oncelog.log.standing import Standing
from oncelog.log.submitting import Knock
from oncelog.log.takeover.handover import Watch
from oncelog.log.takeover.recovery import Held, LeftTable
from oncelog.log.upkeep.keeper import Keeper
from oncelog.settings import TIMEOUT_S
from oncelog.storage.base import Claim


class Ending(Handle):
    """Ends one writer. Every method may be called by any thread, and again."""

    def __init__(
        self,
        session: WriterSession,
        *,
        claim: Claim,
        watch: Watch,
        keeper: Keeper,
        door: Batcher[Knock],
        standing: Standing,
    ) -> None:
        super().__init__()
        self._what = f"writer of log {session.run.known.manifest.name!r}"
        self._session = session
        self._home = session.home
        self._run = session.run
        self._claim = claim
        self._watch = watch
        self._committer = committer = session.committer
        self._keeper = keeper
        self._door = door
        self._standing = standing
        self._uptime = uptime = session.core.uptime
        self._clock = session.clock
        self._lock = threading.Lock()
        self._left: LeftTable | None = None
        self.closed_then: Callable[[], None] = lambda: None
        """Called when the writer is closed."""
        watch.serve(self._let_go, lambda: committer.error is not None, self._storage_seen)
        if uptime.looks and session.home.exclusive:
            uptime.probe = weakly(self._probe)
        if session.clock is SYSTEM:
            self._close_at_exit()

    @property
    def held(self) -> Held:
        """What the next writer of this process need not read again: identities of adopted files, and runs; the table,
        if this one has left the log in order.
        """
        return Held(self._session.core.seen.adopted, self._session.recall.view.runs, self._left)

    @property
    def _pending(self) -> int:
        """How many records are not stored yet, nor refused."""
        return self._committer.locked(self._count_pending) + self._door.waiting

    def _count_pending(self) -> int:
        """Count what is pending with the lock held: a thread that decides records counts them twice meanwhile."""
        core = self._committer.core
        return core.next_position - core.stored_position + len(core.submitted)

    def close(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Store what is pending, close the segment and let the log go, as ``Writer.close`` says."""
        if self._closed:
            return
        if not self._of_this_process:
            self._closed = True
            return
        deadline_us = self._deadline(timeout_s)  # first: a bad argument leaves the writer open
        self._watch.stop()
        self._door.wait_idle(timeout_s)
        try:
            self._end(deadline_us, Closed("this writer is closed"))
        finally:
            self._closed = True
            self.closed_then()

    def _storage_seen(self) -> None:
        """Note that storage has answered: without that the ids of an idle writer do not age.

        The thread that calls serves other logs as well: it does not wait for a writer that is busy.
        """
        self._committer.locked_if_free(lambda: self._uptime.seen(self._clock.elapsed_us()))

    def _probe(self) -> None:
        """Look whether storage is there: a writer that is idle would not notice otherwise that it is away."""
        if not self._closed and self._claim.answers():
            self._storage_seen()

    def _let_go(self) -> None:
        """Leave the log to a writer that asked for it; from here on this one is fenced."""
        message = "the log was let go to another writer, which asked for it: reopen if you must"
        with contextlib.suppress(Unavailable):  # the futures have been told
            self._end(self._deadline(TIMEOUT_S), WriterFenced(message, outcome="unknown"))

    def _end(self, deadline_us: int | None, reason: OncelogError) -> None:
        """Store what is pending, close the segment and let the log go; wait for a thread that does so already."""
        with self._lock:
            try:
                self._leave(deadline_us, reason)
            except BaseException as error:
                # The futures say that the outcome is unknown.
                why = reason if isinstance(reason, WriterFenced) else futures.unsettled(error)
                self._committer.locked(self._committer.stop, why)
                raise
            finally:
                self._committer.locked(self._committer.stop, reason)
                self._keeper.stop()
                self._run.abandon()
                self._claim.release()
                self._home.wake()

    def _leave(self, deadline_us: int | None, reason: OncelogError) -> None:
        """Settle what is pending and close the segment, if this is still the log's writer."""
        if not self._committer.locked(self._committer.leave, reason, deadline_us):
            return
        self._keeper.leave()
        with contextlib.suppress(Unavailable, WriterFenced, NotFound):
            # Everything is durable: if this fails, the next writer closes the segment, or the log was deleted.
            self._run.finish(self._session.uptime_us)
            self._committer.locked(self._standing.freeze)
            self._committer.locked(self._committer.stop, reason)  # before another can have the table
            self._left = LeftTable.of(self._session.core.seen.window, self._run.known.manifest)

    def _deadline(self, timeout_s: float | None) -> int | None:
        if timeout_s is None:
            return None
        return self._clock.elapsed_us() + int(arguments.seconds("timeout_s", timeout_s) * 1e6)
