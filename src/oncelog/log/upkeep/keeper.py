"""Looking after a log while it is written: snapshots, sealing and retention, all off the append path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow, WindowState
from oncelog.errors import OncelogError
from oncelog.format.snapshot import Snapshot
from oncelog.log.append.core import SNAPSHOT, TIDY
from oncelog.log.append.session import WriterSession
from oncelog.log.stored import snapshots
from oncelog.log.stored.bases import Remembering
from oncelog.log.upkeep import retention, sealing
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.upkeep.memory_keeper import MemoryKeeper

SNAPSHOT_RECORDS_AT_CLOSE = 1000
"""A gap shorter than this is read faster than a snapshot is written."""


class Keeper:
    """Does for one writer what is due, as groups become durable. Its fields are guarded by the committer's lock."""

    def __init__(
        self, session: WriterSession, memory: MemoryKeeper, *, watermark: int, follow_policy: Callable[[], None]
    ) -> None:
        self._session = session
        self._home = home = session.home
        self._manifests = session.manifests
        self._run = session.run
        self._committer = committer = session.committer
        self._core = session.core
        self._seen = seen = session.core.seen
        self._settings = settings = session.settings
        self._clock = session.clock
        self._counters = session.core.counters
        self._sequences = session.core.sequences
        self._follow_policy = follow_policy
        self._housekeeper = Housekeeper("oncelog.log", f"the log of {home.location('manifest')}")
        self._core.snapshot_position = watermark
        self._core.snapshot_uptime_us = session.uptime_us
        committer.start_due = self.start_due
        self._memory = memory
        memory.ask = committer.hurry = self._ask_memory
        memory.begin()
        self._tail_position = watermark
        self._ages = seen.window is not None and not isinstance(seen.window, Table)
        if home.seals_early and settings.seal == "auto":
            self._housekeeper.ask("tidy", self._tidy)  # the writer before this one may have left segments at risk

    def start_due(self) -> None:
        """Begin what the core says is due. The committer's lock is held."""
        core = self._core
        if core.due & TIDY:
            self._memory.note_load()
            if not self._ages or self._memory.has_runs:
                self._ask_memory()
            self._housekeeper.ask("tidy", self._tidy)
            core.due &= ~TIDY
        if core.due & SNAPSHOT:
            core.snapshotting = True
            self._housekeeper.ask("snapshot", self._snapshot_when_due)
            core.due &= ~SNAPSHOT

    def _ask_memory(self) -> None:
        self._housekeeper.ask("memory", self._memory.work)

    def snapshot(self, *, with_tail: bool = True) -> None:
        """Store a dedup snapshot of what is durable now; of a log without bounds the producers alone, if asked to."""
        taken = self._committer.locked(lambda: self._take(with_tail=with_tail))
        if taken is None:
            return
        try:
            snapshots.save(self._home, taken.log_id, taken, self._clock)
        except OncelogError:
            self._counters.snapshot_failures += 1
            raise
        self._counters.snapshots += 1

    def _take(self, *, with_tail: bool) -> Snapshot | None:
        """Return the window and the position it belongs to, taken together. The committer's lock is held.

        Of a log without bounds that is the tail, what no run has; without it, the producers alone.
        """
        self._committer.check()
        tail = self._memory.tail() if with_tail else None
        window = self._seen.window
        position = self._core.stored_position
        if isinstance(window, Table):
            if tail is None:
                window = None
            else:
                self._tail_position = position
        if window is None and not self._sequences.in_use:
            return None
        uptime_us = self._session.uptime_us
        self._core.snapshot_position, self._core.snapshot_uptime_us = position, uptime_us
        segment, entry = self._run.place_of(position - 1) if position else (None, None)
        last = [] if segment is None or entry is None else [(segment, entry)]
        return snapshots.snapshot_of(
            window,
            settings=self._settings,
            log_id=self._run.known.manifest.log_id,
            now_us=self._clock.now_us(),
            uptime_us=uptime_us,
            watermark=position,
            pending_until=self._core.next_position if self._ages and self._window_pending() else 0,
            segments=[*(tail.segments if tail is not None else ()), *last],
            producers=self._sequences.marks(uptime_us, position),
            tail_from=-1 if tail is None else tail.first_position,
        )

    def _window_pending(self) -> bool:
        return self._seen.window is not None and self._seen.window.pending_count > 0

    def _snapshot_when_due(self) -> None:
        try:
            if self._sequences.in_use:
                self._follow_policy()
            self.snapshot(with_tail=False)
        finally:
            self._core.snapshotting = False

    def _tidy(self) -> None:
        """Seal what is worth a file, and let go what retention does not want kept: a segment has been closed."""
        settings = self._settings
        if settings.seal == "auto":
            # What was sealed since the last segment was opened must not be read again: its blocks may be there yet.
            known = self._manifests.newest(self._run.known) or self._run.known
            parts = self._home, self._manifests, self._clock, known
            for _ in sealing.seal_worthwhile(*parts, settings.segment_bytes):
                if self._committer.is_leaving:
                    return
                if self._memory.is_urgent:  # appends may soon wait for that, and never for sealing
                    self._ask_memory()
                    self._housekeeper.ask("tidy", self._tidy)
                    break
        if settings.retention_s is not None or settings.retention_bytes is not None:
            known = self._manifests.newest(self._run.known) or self._run.known  # with what was just sealed
            _, before = self._manifests.look(
                known, lambda manifest: retention.wanted(self._manifests, manifest, self._clock.now_us())
            )
            done = retention.truncate(
                self._home,
                self._manifests,
                self._clock,
                before,
                window_from=self.window_from(),
                remembering=self._remembering(),
            )
            self.begin_at(done.first_position)

    def begin_at(self, first_position: int) -> None:
        """Note that the log was truncated: where ids are remembered without bounds, theirs are forgotten."""
        self._memory.begin_at(first_position)

    def _remembering(self) -> Remembering:
        sequences = self._sequences
        policy, marks = self._committer.locked(
            lambda: (sequences.policy, sequences.marks(self._session.uptime_us, self._core.stored_position))
        )
        return Remembering(policy, lambda _: marks)

    def window_from(self) -> int | None:
        """Return the first position that the dedup window needs; ``None`` when there is no window."""
        window = self._seen.window
        if window is None:
            return None
        return self._floor(window) if isinstance(window, Table) else self._committer.locked(self._oldest, window)

    def _oldest(self, window: DedupWindow) -> int:
        """Return the first position that a bounded window remembers. The committer's lock is held."""
        oldest = int(window.dump().positions.min(initial=self._core.stored_position))
        adopted = self._seen.adopted.first_position
        return oldest if adopted is None else min(oldest, adopted)

    def _floor(self, table: Table) -> int:
        """Return the first position that truncation must leave in a log without bounds."""
        newest = self._manifests.newest(self._run.known) or self._run.known
        uptime_us = self._session.uptime_us
        _, first = self._manifests.look(newest, lambda manifest: retention.floor(self._manifests, manifest, uptime_us))
        kept, end = self._committer.locked(self._from, table, first)
        return first if kept is None else retention.oldest_within(kept.positions, kept.ticks, uptime_us, first, end)

    def _from(self, table: Table, first: int) -> tuple[WindowState | None, int]:
        """Return the durable ids from a position on, if the table has them all, and where they end. The committer's
        lock is held.
        """
        end = self._core.stored_position
        return None if self._memory.covers_from(first) else table.between(first, end), end

    def leave(self) -> None:
        """Finish what was begun, and store a last snapshot if that saves the next writer time."""
        self._housekeeper.stop()
        if self._saves_time():
            with contextlib.suppress(OncelogError):
                self.snapshot()

    def _saves_time(self) -> bool:
        """Tell whether the next writer opens sooner with a snapshot, by more than it takes to store one."""
        if self._ages or self._seen.window is None:
            return self._core.stored_position - self._core.snapshot_position >= SNAPSHOT_RECORDS_AT_CLOSE
        gap_min = max(SNAPSHOT_RECORDS_AT_CLOSE, self._seen.window.count // 2)
        return self._core.stored_position - self._tail_position >= gap_min

    def stop(self) -> None:
        """Begin nothing more, and return when what was begun is done."""
        self._housekeeper.stop()
