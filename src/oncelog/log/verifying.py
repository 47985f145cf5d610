"""Verifying a log: everything is read, and every promise that can be checked from outside is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.identity import Hasher
from oncelog.dedup.window import Window
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format import block, snapshot
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.snapshot import Snapshot
from oncelog.log import sealing, snapshots
from oncelog.log.files import READ_BYTES, Files
from oncelog.log.manifests import Known, Manifests
from oncelog.log.recovery import fold
from oncelog.log.rows import Rows
from oncelog.storage.base import LogHome

Severity = Literal["error", "warning", "note"]
Progress = Callable[[int, int], None]


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be: how bad, where, and what.

    An *error* breaks a promise; a *warning* costs time or safety but no record; a *note* is worth knowing.
    """

    severity: Severity
    where: str
    what: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification read and found. ``ok`` unless there is an error."""

    records: int
    bytes: int
    segments: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no promise was found broken."""
        return not any(finding.severity == "error" for finding in self.findings)


def verify(home: LogHome, manifests: Manifests, known: Known, progress: Progress | None = None) -> Verification:
    """Read the whole log and check it; ``progress`` is called with positions done and in all."""
    return _Verifier(home, manifests, known, progress).run()


class _Verifier:
    """One pass over a log, with what it has seen so far."""

    def __init__(self, home: LogHome, manifests: Manifests, known: Known, progress: Progress | None) -> None:
        self._home = home
        self._manifests = manifests
        self._manifest = known.manifest
        self._version = known.version
        self._progress = progress
        self._files = Files(home)
        self._findings: list[Finding] = []
        self._records = self._bytes = self._segments = 0
        self._position = known.manifest.first_position
        self._timestamp_us = 0
        self._uptime_us = 0
        self._repeats = _Repeats(known.manifest)
        self._snapshot: _SnapshotCheck | None = None

    def run(self) -> Verification:
        """Check the manifest, the snapshots, and every record."""
        manifest = self._manifest
        self._check_snapshots()
        end = manifest.next_position
        if manifest.open_segment is not None:
            end += self._home.visible(manifest.open_segment)
        for segment in self._manifests.closed_from(manifest, manifest.first_position):
            self._segments += 1
            self._check_segment(segment)
            if self._progress is not None:
                self._progress(self._position - manifest.first_position, end - manifest.first_position)
        self._check_open()
        if self._snapshot is not None:
            self._findings += self._snapshot.findings()
        self._check_leftovers()
        if self._progress is not None:
            self._progress(end - manifest.first_position, end - manifest.first_position)
        return Verification(
            records=self._records, bytes=self._bytes, segments=self._segments, findings=tuple(self._findings)
        )

    def _note(self, severity: Severity, where: str, what: str) -> None:
        self._findings.append(Finding(severity, where, what))

    def _check_snapshots(self) -> None:
        """Look for snapshots that cannot be read, and keep the newest to be compared with the log."""
        log_id = self._manifest.log_id
        newest: Snapshot | None = None
        for key in self._home.list(snapshots.prefix(log_id)):
            try:
                taken = snapshot.decode(self._home.read(key), key)
            except (CorruptionError, Unsupported) as error:
                self._note("warning", key, f"a snapshot that cannot be read (a longer recovery, no more): {error}")
                continue
            except NotFound:
                continue
            if taken.watermark > self._visible_end():
                self._note("error", key, f"a snapshot up to position {taken.watermark}, which is ahead of the log")
            elif newest is None or taken.watermark > newest.watermark:
                newest = taken
        if newest is not None and self._manifest.settings.idempotence != "off":
            self._snapshot = _SnapshotCheck(newest, self._manifest)

    def _visible_end(self) -> int:
        number = self._manifest.open_segment
        return self._manifest.next_position + (self._home.visible(number) if number is not None else 0)

    def _check_segment(self, segment: Segment) -> None:
        where = f"segment {segment.number}"
        begin = max(segment.first_position, self._manifest.first_position)
        if begin != self._position:
            self._note("error", where, f"begins at position {begin}, {self._position} was expected")
            self._position = begin
        try:
            for rows in self._rows(segment):
                self._check_rows(rows, where)
        except OncelogError as error:
            self._note("error", where, str(error))
        if self._position != segment.next_position:
            self._note("error", where, f"ends at position {self._position}, {segment.next_position} was expected")
        self._position = segment.next_position

    def _rows(self, segment: Segment) -> Iterator[Rows]:
        if segment.file is not None:
            self._bytes += segment.file.size_bytes if segment.file.row == 0 else 0
            yield from self._files.rows(segment, max(0, self._position - segment.first_position))
            return
        self._bytes += segment.size_bytes
        checksum = 0
        for rows, checksum in self._blocks(segment.number, segment.end):  # noqa: B007
            yield rows
        if checksum != segment.checksum:
            message = "its last block is not the one that the manifest says was last"
            raise CorruptionError(message)

    def _blocks(self, number: int, end: int | None) -> Iterator[tuple[Rows, int]]:
        """Yield a segment's blocks with their checksums, each chained to the one before."""
        cursor, previous, entry = 0, 0, 0
        while True:
            buffers, cursor = self._home.blocks(number, cursor, end, READ_BYTES)
            if not buffers:
                return
            for buffer in buffers:
                found = block.decode(buffer)
                if found.header.previous != previous or found.header.first_entry != entry:
                    message = f"the block at entry {found.header.first_entry} does not follow the one before it"
                    raise CorruptionError(message)
                previous, entry = found.header.checksum, entry + found.header.count
                yield Rows.of_block(found), previous

    def _check_open(self) -> None:
        number = self._manifest.open_segment
        if number is None:
            return
        try:
            for rows, _ in self._blocks(number, None):
                self._check_rows(rows, f"segment {number} (open)")
        except OncelogError as error:
            self._note("error", f"segment {number} (open)", str(error))

    def _check_rows(self, rows: Rows, where: str) -> None:
        """Check the places and times of consecutive records, and look their ids up."""
        rows = rows.cut(self._manifest.first_position - rows.first_position)
        if not rows.count:
            return
        if rows.first_position != self._position:
            self._note("error", where, f"position {rows.first_position} follows {self._position - 1}")
        self._check_order(rows, where)
        self._records += rows.count
        self._position = rows.next_position
        for part in rows.commits():
            found = self._repeats.add(part)
            self._findings += [Finding("error", where, what) for what in found]
        if self._snapshot is not None:
            self._snapshot.add(rows)

    def _check_order(self, rows: Rows, where: str) -> None:
        for name, micros, before in (
            ("timestamps go", rows.timestamp_us, self._timestamp_us),
            ("up-time goes", rows.uptime_us, self._uptime_us),
        ):
            figures = np.array([micros]) if isinstance(micros, int) else micros
            if figures[0] < before or (np.diff(figures) < 0).any():
                self._note("error", where, f"{name} back, from position {rows.first_position} on")
        self._timestamp_us = max(self._timestamp_us, int(np.max(rows.timestamp_us)))
        self._uptime_us = max(self._uptime_us, int(np.max(rows.uptime_us)))

    def _check_leftovers(self) -> None:
        """Look for files that nothing refers to, and for what is announced to be deleted."""
        used = sealing.used(self._manifests, self._manifest)
        for key in self._home.list(sealing.PREFIX):
            if key not in used:
                self._note("note", key, "a file that nothing refers to: a sealing is at work, or was killed")
        for what in self._manifest.doomed:
            self._note("note", what, "nothing refers to it any more: the next sealing or truncation deletes it")


class _Repeats:
    """Looks for ids that were stored again although the window still knew them, by the writer's own clock.

    The window here keeps, instead of positions, how many ids were stored before: an id may be stored again once as
    many ids as the window has keys came after it (after its batch began), or its time is over.
    """

    def __init__(self, manifest: Manifest) -> None:
        kept = manifest.settings.window
        self._max_keys = kept.max_keys
        self._duration_us = int(kept.duration_s * 1e6)
        self._hasher = Hasher(manifest.secret)
        self._judged = manifest.settings.idempotence != "off" and not kept.refresh_on_hit
        self._since = manifest.window_since
        self._window = Window(self._duration_us, self._max_keys)
        self._count = 0

    def add(self, rows: Rows) -> list[str]:
        """Add records that were committed together; return what is wrong with them."""
        if not self._judged or "id" not in rows.payload.schema.names or rows.first_position < self._since:
            return []
        assert isinstance(rows.uptime_us, int)
        payload, positions = _named(rows)
        keys = self._hasher.identities(None, payload.column("id"))
        numbers = np.arange(self._count, self._count + len(keys))
        self._count += len(keys)
        self._window.evict(rows.uptime_us)
        wrong = self._within_commit(keys, positions)
        first = Window.first_occurrence(keys) == np.arange(len(keys))
        handles = self._window.find(keys)
        known = handles >= 0
        if known.any():
            wrong += self._too_soon(handles[known], numbers[known], positions[known])
            self._window.evict_through(int(handles[known].max()))
        starts = _starts(payload)
        batch_numbers = numbers[np.maximum.accumulate(np.where(starts, np.arange(len(numbers)), 0))]
        chosen = first
        self._window.add(
            keys[chosen], numbers[chosen], batch_numbers[chosen].astype(np.uint64), np.ones(chosen.sum(), np.bool_)
        )
        self._window.commit(self._count, rows.uptime_us, rows.uptime_us)
        return wrong

    def _within_commit(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> list[str]:
        first = Window.first_occurrence(keys)
        repeats = np.flatnonzero((first != np.arange(len(first))) & (np.arange(len(first)) - first < self._max_keys))
        return [f"the id at position {positions[row]} is also at {positions[first[row]]}" for row in repeats[:3]]

    def _too_soon(
        self, handles: NDArray[np.int64], numbers: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> list[str]:
        since_batch = numbers - self._window.fingerprints(handles).astype(np.int64)
        soon = np.flatnonzero(since_batch < self._max_keys)
        return [
            f"the id at position {positions[row]} was stored {since_batch[row]} ids before, within the window"
            for row in soon[:3]
        ]


class _SnapshotCheck:
    """Compares a snapshot with the fold of the log up to its watermark."""

    def __init__(self, taken: Snapshot, manifest: Manifest) -> None:
        self._taken = taken
        self._manifest = manifest
        self._hasher = Hasher(manifest.secret)
        self._window = Window(taken.duration_us, taken.max_keys)
        self._matched = np.zeros(len(taken.positions), np.bool_)
        self._order = np.argsort(taken.positions)
        self._sorted = taken.positions[self._order]

    def add(self, rows: Rows) -> None:
        """Add records; those behind the watermark are left out."""
        rows = rows.cut(0, max(0, self._taken.watermark - rows.first_position))
        if not rows.count or "id" not in rows.payload.schema.names:
            return
        payload, positions = _named(rows)
        if not len(positions):
            return
        fold(self._window, iter([rows]), self._hasher)
        places = np.searchsorted(self._sorted, positions)
        inside = (places < len(self._sorted)) & (self._sorted[np.minimum(places, len(self._sorted) - 1)] == positions)
        if not inside.any():
            return
        entries = self._order[places[inside]]
        keys = self._hasher.identities(None, payload.column("id"))[inside]
        prints = self._hasher.fingerprints(payload)[inside]
        same = (self._taken.identities[entries] == keys).all(axis=1) & (self._taken.fingerprints[entries] == prints)
        self._matched[entries[same]] = True

    def findings(self) -> list[Finding]:
        """Return where the snapshot and the fold differ."""
        found = []
        truncated = self._taken.positions < self._manifest.first_position
        wrong = np.flatnonzero(~self._matched & ~truncated)
        where = f"snapshot up to {self._taken.watermark}"
        if len(wrong):
            first = self._taken.positions[wrong[0]]
            what = f"{len(wrong)} of its ids are not in the log where it says, the first at {first}"
            found.append(Finding("error", where, what))
        return found


def _named(rows: Rows) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows that carry an id, and their positions."""
    positions = np.arange(rows.first_position, rows.next_position)
    ids = rows.payload.column("id")
    if not ids.null_count:
        return rows.payload, positions
    present = ids.is_valid()
    return rows.payload.filter(present), positions[present.to_numpy(zero_copy_only=False)]


def _starts(payload: pa.RecordBatch) -> NDArray[np.bool_]:
    if "start" not in payload.schema.names:
        return np.ones(payload.num_rows, np.bool_)
    return np.asarray(payload.column("start").to_numpy(zero_copy_only=False))
