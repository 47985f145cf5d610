"""Looking after a log while it is written: snapshots, sealing and retention, all off the append path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.errors import OncelogError
from oncelog.format.snapshot import Snapshot
from oncelog.limits import MIB
from oncelog.log.append import decisions
from oncelog.log.append.committer import Committer
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Seen
from oncelog.log.append.groups import Group
from oncelog.log.append.open_segment import Run
from oncelog.log.append.sequences import Sequences
from oncelog.log.append.uptime import Uptime
from oncelog.log.stored import snapshots
from oncelog.log.stored.bases import Remembering
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep import retention, sealing
from oncelog.log.upkeep.background import Housekeeper
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome

SEAL_BYTES_MIN = 8 * MIB
"""A writer makes no smaller files by itself (half of it is enough at the end of a run of segments)."""

SNAPSHOT_RECORDS_AT_CLOSE = 1000
"""A gap shorter than this is read faster than a snapshot is written."""


class Keeper:
    """Does for one writer what is due, as groups become durable. Its fields are guarded by the committer's lock."""

    def __init__(
        self,
        *,
        home: LogHome,
        manifests: Manifests,
        run: Run,
        committer: Committer,
        seen: Seen,
        settings: LogSettings,
        uptime: Uptime,
        clock: Clock,
        counters: Counters,
        sequences: Sequences,
        watermark: int,
        follow_policy: Callable[[], None],
    ) -> None:
        self._home = home
        self._manifests = manifests
        self._run = run
        self._committer = committer
        self._seen = seen
        self._settings = settings
        self._uptime = uptime
        self._clock = clock
        self._counters = counters
        self._sequences = sequences
        self._follow_policy = follow_policy
        self._housekeeper = Housekeeper()
        self._snapshot_position = watermark
        self._snapshot_uptime_us = uptime.now_us()
        self._snapshotting = False
        self._segment = run.segment

    def look_after(self, group: Group) -> None:
        """Have done what is due now that a group is durable. The committer's lock is held."""
        gap = group.next_position - self._snapshot_position
        age_us = group.uptime_us - self._snapshot_uptime_us
        due = gap >= self._settings.snapshot_records or age_us >= self._settings.snapshot_interval_s * 1e6
        if due and not self._snapshotting and (self._seen.window is not None or self._sequences.in_use):
            self._snapshotting = True
            self._housekeeper.ask("snapshot", self._snapshot_when_due)
        if group.segment != self._segment:
            self._segment = group.segment
            self._housekeeper.ask("tidy", self._tidy)

    def snapshot(self) -> None:
        """Store a dedup snapshot of what is durable now."""
        with self._committer.changed:
            self._committer.check()
            taken = self._take()
        if taken is None:
            return
        try:
            snapshots.save(self._home, taken.log_id, taken, self._clock)
        except OncelogError:
            self._counters.snapshot_failures += 1
            raise
        self._counters.snapshots += 1

    def _take(self) -> Snapshot | None:
        """Return the window and the position it belongs to, taken together. The committer's lock is held."""
        if self._seen.window is None and not self._sequences.in_use:
            return None
        position = self._committer.stored_position
        self._snapshot_position, self._snapshot_uptime_us = position, self._uptime.now_us()
        segment, entry = self._run.place_of(position - 1) if position else (None, None)
        return decisions.snapshot_of(
            self._seen.window,
            settings=self._settings,
            log_id=self._run.known.manifest.log_id,
            now_us=self._clock.now_us(),
            uptime_us=self._uptime.now_us(),
            watermark=position,
            pending_until=self._committer.next_position if self._window_pending() else 0,
            segments=[] if segment is None or entry is None else [(segment, entry)],
            producers=self._sequences.marks(),
        )

    def _window_pending(self) -> bool:
        return self._seen.window is not None and self._seen.window.pending_count > 0

    def _snapshot_when_due(self) -> None:
        try:
            if self._sequences.in_use:
                self._follow_policy()
            self.snapshot()
        finally:
            self._snapshotting = False

    def _tidy(self) -> None:
        """Seal what is worth a file, and let go what retention does not want kept: a segment has been closed."""
        settings = self._settings
        if settings.seal == "auto":
            for _ in sealing.seal(
                self._home,
                self._manifests,
                self._clock,
                self._run.known,
                file_bytes=max(settings.segment_bytes, SEAL_BYTES_MIN),
                bytes_min=SEAL_BYTES_MIN // 2,
            ):
                if self._committer.is_leaving:
                    return
        if settings.retention_s is not None or settings.retention_bytes is not None:
            known = self._manifests.newest(self._run.known) or self._run.known  # with what was just sealed
            _, before = self._manifests.look(
                known, lambda manifest: retention.wanted(self._manifests, manifest, self._clock.now_us())
            )
            retention.truncate(
                self._home,
                self._manifests,
                self._clock,
                before,
                window_from=self.window_from(),
                remembering=self._remembering(),
            )

    def _remembering(self) -> Remembering:
        with self._committer.changed:
            policy, marks = self._sequences.policy, self._sequences.marks()
        return Remembering(policy, lambda _: marks)

    def window_from(self) -> int | None:
        """Return the first position that the dedup window needs; ``None`` when there is no window."""
        if self._seen.window is None:
            return None
        with self._committer.changed:
            oldest = int(self._seen.window.dump().positions.min(initial=self._committer.stored_position))
            adopted = self._seen.adopted.first_position
            return oldest if adopted is None else min(oldest, adopted)

    def leave(self) -> None:
        """Finish what was begun, and store a last snapshot if that saves the next writer time."""
        self._housekeeper.stop()
        if self._committer.stored_position - self._snapshot_position >= SNAPSHOT_RECORDS_AT_CLOSE:
            with contextlib.suppress(OncelogError):
                self.snapshot()

    def stop(self) -> None:
        """Begin nothing more, and return when what was begun is done."""
        self._housekeeper.stop()
