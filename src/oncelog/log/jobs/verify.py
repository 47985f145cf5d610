"""Verifying a log: everything is read, and every promise that can be checked from outside is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pyarrow as pa

from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format import snapshot
from oncelog.format.gather import GatheredBlocks, gather
from oncelog.format.identities import Identities
from oncelog.format.manifest import Segment
from oncelog.format.payload.schema import mask_of
from oncelog.format.payload.soundness import check_sound
from oncelog.format.snapshot import Snapshot
from oncelog.log.jobs.check_memory import MemoryCheck
from oncelog.log.jobs.window_rules import Finding, ProducerCheck, Severity, SnapshotCheck, WindowRepeats
from oncelog.log.memory.objects import RunObjects
from oncelog.log.stored import bases, object_keys, record_identities, secrets, snapshots
from oncelog.log.stored.files import READ_BYTES, SealedFiles
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.rows import Rows
from oncelog.log.stored.staged import read_identities
from oncelog.log.takeover.recovery import FOLD_ROWS, remembered_of
from oncelog.log.upkeep import sealing
from oncelog.storage.base import LogHome

__all__ = ["Finding", "Progress", "Severity", "Verification", "verify"]

Progress = Callable[[int, int], None]


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


def verify(
    home: LogHome, manifests: Manifests, known: Known, aside: Manifests | None, progress: Progress | None = None
) -> Verification:
    """Read the whole log and check it; ``progress`` is called with positions done and in all.

    ``aside`` are the manifests of its conflicts, which are read, too; ``None``: this is a log of conflicts itself.
    """
    if aside is None:
        return _Verifier(home, manifests, known, progress).run_aside()
    found = _Verifier(home, manifests, known, progress).run()
    conflicts = aside.newest()
    if conflicts is None or not conflicts.manifest.segments:
        return found
    more = [
        Finding(finding.severity, f"conflicts, {finding.where}", finding.what)
        for finding in _Verifier(home, aside, conflicts, None).run_aside().findings
    ]
    return msgspec.structs.replace(found, findings=(*found.findings, *more))


def _gathered(buffers: list[pa.Buffer]) -> Iterator[GatheredBlocks]:
    """Yield blocks, checked in full, gathered; all those before one that is damaged, then its error."""
    done = 0
    try:
        for found in gather(buffers, full=True):
            done += len(found.counts)
            yield found
    except (CorruptionError, Unsupported):
        for buffer in buffers[done:]:
            yield from gather([buffer], full=True)
        raise


class _Verifier:
    """One pass over a log, with what it has seen so far.

    A log that is verified lives on: what is sealed, merged or truncated meanwhile is looked up in a newer manifest.
    What comes in behind ``end``, where the log ended when the pass began, is left out.
    """

    def __init__(self, home: LogHome, manifests: Manifests, known: Known, progress: Progress | None) -> None:
        self._home = home
        self._manifests = manifests
        self._known = known
        self._progress = progress
        self._files = SealedFiles(home)
        self._hasher = secrets.hasher_of(home, known.manifest)
        self._findings: list[Finding] = []
        self._records = self._bytes = self._segments = 0
        self._first = self._position = known.manifest.first_position
        self._end = 0
        self._timestamp_us = 0
        self._uptime_us = 0
        self._objects = RunObjects(home)
        self._memory = MemoryCheck(known.manifest)
        self._repeats = WindowRepeats(known.manifest, self._memory.covers)
        self._parts: list[Rows] = []
        self._parts_rows = 0
        self._snapshot: SnapshotCheck | None = None
        self._producers: ProducerCheck | None = None

    def run(self) -> Verification:
        """Check the manifest, the snapshots, and every record."""
        self._check_base()
        self._check_snapshots()
        self._check_records()
        if self._snapshot is not None:
            self._findings += self._snapshot.findings(self._known.manifest)
        if self._producers is not None:
            self._findings += self._producers.findings(self._known.manifest.first_position)
        self._findings += self._memory.findings(self._objects, self._known.manifest, self._repeats.tail)
        self._objects.close()
        self._check_leftovers()
        return self._verified()

    def run_aside(self) -> Verification:
        """Check the rows that were put aside: they have no window, and snapshots and leftovers are their log's."""
        self._check_records()
        return self._verified()

    def _check_records(self) -> None:
        self._end = self._visible_end()
        while self._position < self._end:
            before = self._position, self._known.version
            self._check_next()
            if (self._position, self._known.version) == before and not self._renew():
                self._note("error", f"position {before[0]}", f"is not there, and the log goes to {self._end - 1}")
                break
            self._tell()

    def _verified(self) -> Verification:
        self._tell()
        return Verification(
            records=self._records, bytes=self._bytes, segments=self._segments, findings=tuple(self._findings)
        )

    def _note(self, severity: Severity, where: str, what: str) -> None:
        self._findings.append(Finding(severity, where, what))

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self._position, self._end) - self._first, self._end - self._first)

    def _renew(self) -> bool:
        """Go on with a newer manifest, if there is one."""
        newer = self._manifests.newest(self._known)
        if newer is None or newer.version == self._known.version:
            return False
        self._known = newer
        return True

    def _check_base(self) -> None:
        """Look whether what truncation left to be remembered can be read: nothing could rebuild it."""
        try:
            self._known, _ = self._manifests.look(self._known, lambda manifest: bases.load(self._home, manifest))
        except (CorruptionError, Unsupported) as error:
            self._note("error", str(self._known.manifest.base), str(error))

    def _check_snapshots(self) -> None:
        """Look for snapshots that cannot be read, and keep the newest to be compared with the log."""
        newest: Snapshot | None = None
        for key in self._home.list(snapshots.prefix(self._known.manifest.log_id)):
            try:
                taken = snapshot.decode(self._home.read(key), key)
            except (CorruptionError, Unsupported) as error:
                self._note("warning", key, f"a snapshot that cannot be read (a longer recovery, no more): {error}")
                continue
            except NotFound:
                continue
            self._renew()  # a writer may have gone on, and taken this snapshot since
            if taken.watermark > self._visible_end():
                self._note("error", key, f"a snapshot up to position {taken.watermark}, which is ahead of the log")
            elif taken.pending_until > self._visible_end():
                continue  # records that it counts as pending are not stored: no writer uses it before they are
            elif newest is None or taken.watermark > newest.watermark:
                newest = taken
        if newest is not None and self._known.manifest.settings.idempotence != "off":
            self._snapshot = SnapshotCheck(newest, self._known.manifest)
        if newest is not None and newest.producers:
            self._producers = ProducerCheck(newest)

    def _visible_end(self) -> int:
        while True:
            manifest = self._known.manifest
            number = manifest.open_segment
            end = manifest.next_position + (self._home.visible(number) if number is not None else 0)
            if not self._renew():
                return end

    def _check_next(self) -> None:
        """Check the segment at the position that was reached, or find out that it is another by now."""
        self._known, segment = self._manifests.look(
            self._known, lambda manifest: next(self._manifests.closed_from(manifest, self._position), None)
        )
        self._position = max(self._position, self._known.manifest.first_position)
        if segment is None:
            self._check_open()
        else:
            self._check_segment(segment)

    def _check_segment(self, segment: Segment) -> None:
        where = f"segment {segment.number}"
        if segment.first_position > self._position:
            self._note("error", where, f"begins at position {segment.first_position}, {self._position} was expected")
            self._position = segment.first_position
        begin = self._position
        try:
            for rows in self._rows(segment):
                self._check_rows(rows, where, adopted=segment.identities is not None)
        except NotFound as error:
            if self._renew():
                return  # it was sealed, merged or truncated meanwhile
            self._note("error", where, str(error))
        except OncelogError as error:
            self._note("error", where, str(error))
        finally:
            self._look_up(where, adopted=segment.identities is not None)
        if segment.identities is not None and begin <= max(segment.first_position, self._first):
            self._check_identities(segment, segment.identities)
        if self._position != segment.next_position:
            self._note("error", where, f"ends at position {self._position}, {segment.next_position} was expected")
        self._position = segment.next_position
        self._segments += 1

    def _rows(self, segment: Segment) -> Iterator[Rows]:
        if segment.file is not None:
            self._bytes += segment.file.size_bytes if segment.file.row == 0 else 0
            for rows in self._files.rows(segment, max(0, self._position - segment.first_position)):
                check_sound(rows.payload, mask_of(rows.payload.schema), segment.file.key)
                yield rows
            return
        self._bytes += segment.size_bytes
        checksum = 0
        for rows, checksum in self._blocks(segment.number, segment.first_position, segment.end):  # noqa: B007
            yield rows
        if checksum != segment.checksum:
            message = "its last block is not the one that the manifest says was last"
            raise CorruptionError(message)

    def _blocks(self, number: int, first_position: int, end: int | None) -> Iterator[tuple[Rows, int]]:
        """Yield a segment's blocks with their checksums, each chained to the one before."""
        cursor, previous, entry = 0, 0, 0
        while True:
            buffers, cursor = self._home.blocks(number, cursor, end, READ_BYTES)
            if not buffers:
                return
            for found in _gathered(list(buffers)):
                if found.previous != previous or found.first_entry != entry:
                    message = f"the block at entry {found.first_entry} does not follow the one before it"
                    raise CorruptionError(message)
                if found.segment != number or found.first_position != first_position + entry:
                    message = f"a block says it is of segment {found.segment}, position {found.first_position}"
                    raise CorruptionError(message)
                previous, entry = found.checksum, entry + sum(found.counts)
                yield Rows.of_blocks(found), previous

    def _check_open(self) -> None:
        manifest = self._known.manifest
        number = manifest.open_segment
        if number is None:
            return
        where = f"segment {number} (open)"
        try:
            for rows, _ in self._blocks(number, manifest.next_position, None):
                self._check_rows(rows.cut(0, self._end - rows.first_position), where, adopted=False)
        except NotFound as error:
            if not self._renew():
                self._note("error", where, str(error))
        except OncelogError as error:
            self._note("error", where, str(error))
            self._position = self._end
        finally:
            self._look_up(where, adopted=False)

    def _check_rows(self, rows: Rows, where: str, *, adopted: bool) -> None:
        """Check the places and times of consecutive records, and look their ids up, many at a time."""
        rows = rows.cut(self._position - rows.first_position)
        if not rows.count:
            return
        if rows.first_position != self._position:
            self._note("error", where, f"position {rows.first_position} follows {self._position - 1}")
        self._check_order(rows, where)
        self._records += rows.count
        self._position = rows.next_position
        if self._producers is not None and not adopted:
            self._producers.add(rows)
        self._parts.append(rows)
        self._parts_rows += rows.count
        if self._parts_rows >= FOLD_ROWS:
            self._look_up(where, adopted=adopted)

    def _look_up(self, where: str, *, adopted: bool) -> None:
        """Hold the ids of the records that were gathered, all of one segment, against rules, runs and snapshot."""
        parts, self._parts, self._parts_rows = self._parts, [], 0
        for given in remembered_of(self._hasher, parts):
            self._memory.add(given)
            if self._snapshot is not None and (self._snapshot.is_of_table or not adopted):
                self._snapshot.add(given, parts[0].segment)
            if not adopted:  # the ids of an adopted file are looked up together
                self._findings += [Finding("error", where, what) for what in self._repeats.add(given)]

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

    def _check_identities(self, segment: Segment, key: str) -> None:
        """Hold an adopted file's identities against its records, and look for them in the window."""
        try:
            told = record_identities.identities_of(self._hasher, self._files.rows(segment, 0))
        except OncelogError:
            return  # that it cannot be read has been noted
        try:
            beside = read_identities(self._home, key)
            if not all(
                np.array_equal(getattr(beside, name), getattr(told, name)) for name in Identities.__struct_fields__
            ):
                self._note("error", key, f"the identities beside segment {segment.number} are not those of its records")
        except (CorruptionError, NotFound, Unsupported) as error:
            if not isinstance(error, NotFound) or not self._memory.covers(segment.next_position - 1):
                self._note("warning", key, f"identities that cannot be read (a longer recovery, no more): {error}")
        found = self._repeats.adopt(segment, told)
        self._findings += [Finding("error", f"segment {segment.number}", what) for what in found]

    def _check_leftovers(self) -> None:
        """Look for files that nothing refers to, and for what is announced to be deleted."""
        present = self._home.list(object_keys.PREFIX)
        self._renew()
        self._known, used = self._manifests.look(self._known, lambda manifest: sealing.used(self._manifests, manifest))
        for key in present:
            if key not in used:
                self._note("note", key, "a file that nothing refers to: a sealing is at work, or was killed")
        for what in self._known.manifest.doomed:
            self._note("note", what, "nothing refers to it any more: the next sealing or truncation deletes it")
