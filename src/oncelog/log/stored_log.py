"""A log as it is stored: what can be read, checked and put in order without being its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.format import sealed
from oncelog.format.base import Base
from oncelog.format.manifest import File, Manifest, Mark, Segment
from oncelog.format.payload.tables import Tabular
from oncelog.handle import Handle
from oncelog.log import info
from oncelog.log.append import payloads
from oncelog.log.info import Extent, SealedFileInfo
from oncelog.log.ingest import conflicts, staging
from oncelog.log.jobs import audit, purge, rebuild_snapshot, verify
from oncelog.log.jobs.audit import Audit, By
from oncelog.log.jobs.purge import Purge
from oncelog.log.jobs.rebuild_memory import Rebuilding
from oncelog.log.jobs.rebuild_snapshot import Rebuilt
from oncelog.log.jobs.verify import Verification
from oncelog.log.jobs.workers import Hands, JobContext, checked_hands
from oncelog.log.memory.objects import RunObjects
from oncelog.log.read.scan import Scan, Start
from oncelog.log.stored import bases, secrets
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.staged import Staged
from oncelog.log.takeover.fencing import Holding, holding
from oncelog.log.upkeep import sealing
from oncelog.log.upkeep.sealing import Sealing
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome


class StoredLog(Handle):
    """The half of ``Log`` that needs no writer: where the log is, what its manifest says, jobs on closed segments."""

    def __init__(self, name: str, home: LogHome, manifests: Manifests, known: Known, clock: Clock) -> None:
        super().__init__()
        self.name = name
        self._home = home
        self._manifests = manifests
        self._known = known
        self._clock = clock
        self._objects = RunObjects(home)

    @property
    def settings(self) -> LogSettings:
        """The settings as they are stored now."""
        return self._manifest().settings

    def _is_same(self, other: StoredLog) -> bool:
        """Tell whether another handle is of this very log, not of one that was deleted and created again."""
        return self._known.manifest.log_id == other._known.manifest.log_id

    def _is_there(self) -> bool:
        """Tell whether this very log is still there. That is one request."""
        return self._manifests.is_same(self._known)

    def _manifest(self) -> Manifest:
        return self._refresh().manifest

    def _refresh(self) -> Known:
        self._check_usable()
        newest = self._manifests.newest(self._known)
        assert newest is not None
        self._known = newest
        return newest

    def _holding(self) -> Holding:
        """Return who has the log, as its manifest says now."""
        return holding(self._manifest())

    def _base(self) -> Base:
        """Return what is remembered of the records that were truncated away: all before the log's first position."""
        self._known, (found, first) = self._manifests.look(
            self._refresh(), lambda manifest: (bases.load(self._home, manifest), manifest.first_position)
        )
        return msgspec.structs.replace(found, position=first)

    def _scan(self, columns: Sequence[str] | None = None) -> Scan:
        """Return a place in the log that moves forward, by runs of records: what reading is made of."""
        self._check_usable()
        return Scan(self._home, self._manifests, self.name, columns)

    @arguments.checked
    def seal(self, progress: Callable[[Sealing], None] | None = None) -> Sealing:
        """Turn every closed segment into Parquet files, small neighbours together; return what was done.

        Writers do this by themselves. ``progress`` is called after each file.
        """
        return sealing.seal_all(self._home, self._manifests, self._clock, self._refresh(), progress)

    def stage(self, tables: Iterable[Tabular]) -> Staged:
        """Write tables, with the columns of ``append_arrow``, as a file that ``Writer.ingest`` can make a part of the
        log.

        Anybody may do this, anywhere, without being the writer. A file that is not adopted within a day may be
        removed.
        """
        return self._store(self._prepare(arguments.yielding("tables", tables, "tables")))

    def _prepare(self, tables: Iterable[Tabular], columns: Iterable[str] | None = None) -> staging.Prepared:
        """Make the file that ``stage`` writes. ``columns`` are all that the tables may have, if the file is to have no
        others.
        """
        manifest = self._manifest()
        found = (payloads.intake_of(table, manifest.settings, manifest.log_id) for table in tables)
        with_ids = ["id"] if manifest.settings.idempotence == "content" else []
        schema = sealed.STAGED_SCHEMA if columns is None else sealed.staged_schema([*columns, *with_ids])
        return staging.prepare(secrets.hasher_of(self._home, manifest), found, schema)

    def _store(self, prepared: staging.Prepared) -> Staged:
        """Write what was prepared."""
        return staging.store(self._home, self._clock, prepared, self._known.manifest.staging_floor_us)

    @property
    def log_id(self) -> str:
        """The log's permanent id: a log that was deleted and made again has another."""
        return self._known.manifest.log_id

    def first_position(self) -> int:
        """Return the position of the first record there is, or will be."""
        return self._manifest().first_position

    def end_position(self) -> int:
        """Return the position behind the last record that can be read now."""
        return self._scan().end()

    def position_at(self, start: Start) -> int:
        """Return the position that ``read`` would begin with; for a moment, that of the first record not before it."""
        scan = self._scan(["position"])
        scan.begin(start)
        if not isinstance(start, datetime):
            return scan.position
        found = scan.next_rows()  # the first of them may be purged, and has its position all the same
        return found[0].first_position if found else self.end_position()

    def _extents(self, start: int, end: int) -> list[Extent]:
        """Return how the records from ``start`` to ``end`` are kept, so that work on them can be shared out."""
        self._known, segments = self._manifests.look(
            self._refresh(), lambda manifest: list(self._manifests.closed_from(manifest, start))
        )
        return info.extents_of(segments, self._known.manifest.next_position, end)

    def marks(self) -> list[Mark]:
        """Return how far the producers of batches (Spark queries) have come, the most recently active last."""
        return list(self._manifest().marks)

    def sweep(self) -> list[str]:
        """Remove files that were staged more than a day ago and never adopted; return their keys.

        The manifest says so before a file is removed: adopting the file later is refused.
        """
        self._check_usable()
        return sealing.sweep(self._home, self._manifests, self._clock)

    def files(self) -> list[SealedFileInfo]:
        """Return the sealed files with their first positions, oldest first: for DuckDB, pandas, polars.

        The record in row ``n`` of a file has position ``first_position + n``. Records before the log's first position
        may still be in the first of them. A file that was staged elsewhere has only the columns that its rows have:
        read several by the names of their columns (in DuckDB: ``union_by_name = true``).
        """
        return info.files_of(self._home, self._closed_segments())

    def _file(self, first_position: int) -> File | None:
        """Return the sealed file that begins with a position; ``None`` if there is none."""
        return info.file_of(self._closed_segments(), first_position)

    @arguments.checked
    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        """Read everything, check every promise that can be checked; return what was found, each with place and
        severity.

        ``progress`` is called with the number of positions done and in all.
        """
        is_whole = self._manifests.whole is self._manifests
        aside = conflicts.ConflictManifests(self._home, self._clock) if is_whole else None
        return verify.verify(self._home, self._manifests, self._refresh(), aside, progress)

    def _desk(self, first_position: int) -> JobContext:
        """Return what work on parts of this log is done with, for ``Hands`` of another process that go by a manifest in
        which the log begins at ``first_position``.
        """
        return JobContext(self._home, secrets.hasher_of(self._home, self._manifest()), self._clock, first_position)

    @arguments.checked
    def audit(
        self, by: By = "producer", progress: Callable[[int, int], None] | None = None, *, hands: Hands | None = None
    ) -> Audit:
        """Count the records of all closed segments, by a column and by time, and find the ids that are there again.

        Those came in when the window had forgotten the first: ``purge`` removes them. ``hands`` do the work, threads of
        this process unless others are given.
        """
        parts = self._home, self._manifests
        doing = checked_hands(hands)
        self._known, found = self._manifests.look(
            self._refresh(),
            lambda manifest: audit.audit(*parts, manifest, self._clock, doing, by=by, progress=progress),
        )
        return found

    @arguments.checked
    def purge(
        self, *, remove: bool = False, progress: Callable[[int, int], None] | None = None, hands: Hands | None = None
    ) -> Purge:
        """Find the duplicates that came in when the window had forgotten the first; with ``remove``, purge them.

        A purged record leaves its place behind: no position moves, readers skip it, and a retry still meets it. Only
        sealed files are written again: ``seal`` first, to reach all that is closed. Records in conflict are left alone.
        """
        parts = self._home, self._manifests, self._refresh(), self._clock
        return purge.purge(*parts, checked_hands(hands), remove=remove, progress=progress)

    @arguments.checked
    def rebuild(self, progress: Callable[[int, int], None] | None = None, *, hands: Hands | None = None) -> Rebuilt:
        """Make what opening the log needs again, from the closed segments, whatever is there; return what it holds.

        In a log without bounds those are runs: sound ones stay, what they do not cover is read. With a bounded window
        it is a dedup snapshot, runs of the files that were adopted within its duration, and runs that are there and not
        sound. Its writer need not stop.
        ``hands`` do the work, threads of this process unless others are given.
        """
        parts = self._home, self._manifests
        doing = checked_hands(hands)
        known = self._refresh()
        memory = Rebuilding(self._manifests, self._objects, self._clock, doing)
        if known.manifest.settings.window.unbounded and known.manifest.settings.idempotence != "off":
            return memory.run_all(known, progress)
        self._known, done = self._manifests.look(
            known, lambda manifest: rebuild_snapshot.rebuild(*parts, manifest, self._clock, doing, progress=progress)
        )
        return memory.run_adopted(self._known, done)

    def _closed_segments(self) -> list[Segment]:
        """Return the closed segments, oldest first."""
        self._known, found = self._manifests.look(
            self._refresh(), lambda manifest: list(self._manifests.closed_from(manifest, manifest.first_position))
        )
        return found
