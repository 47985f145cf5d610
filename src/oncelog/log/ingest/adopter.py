"""Adopting staged files, as the log's writer and with nothing pending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog import limits
from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.table import Table
from oncelog.dedup.window import WindowState
from oncelog.errors import InvalidArgument, NotFound, OncelogError, Unavailable
from oncelog.format.identities import Identities
from oncelog.format.manifest import File, Segment
from oncelog.format.runs.run import Run
from oncelog.format.runs.times import Commits
from oncelog.log.append.session import WriterSession
from oncelog.log.ingest import staging
from oncelog.log.memory.building import delete_run
from oncelog.log.memory.quest import Found
from oncelog.log.memory.recall import Looked
from oncelog.log.stored.adopted_ids import search
from oncelog.log.stored.files import SealedFiles
from oncelog.log.stored.staged import Staged, read_identities
from oncelog.log.takeover.adoption import Adoption
from oncelog.log.upkeep.memory_keeper import MemoryKeeper

Flags = NDArray[np.bool_]
FILES_AT_ONCE = 8
"""In a bucket, what is asked of a file is waiting for the most part, and a whole cluster waits with it."""

LOCKED_KEYS = 65_536
"""So many identities are looked up in the table at once: appends wait a few milliseconds for it."""


class JudgedFiles(NamedTuple):
    """Staged files and their judgement: for each file its identities, which of them are known (or occur earlier in
    these files), and which of the known ones have other content.

    The judgement was made when the log ended at ``position`` and ``built`` runs had been built.
    """

    staged: tuple[Staged, ...]
    identities: list[Identities | None]
    known: list[Flags]
    conflicts: list[Flags]
    position: int
    built: int

    def rows(self, number: int, flags: Sequence[Flags]) -> NDArray[np.int64]:
        """Return the rows of a file whose identities are flagged, sorted."""
        found = self.identities[number]
        return np.empty(0, np.int64) if found is None else np.sort(found.rows[flags[number]].astype(np.int64))


class _Question(NamedTuple):
    """The question about files: their identities, what the runs know of these, and which identities occur twice among
    them.
    """

    identities: list[Identities | None]
    looked: list[Looked | None]
    twice: list[staging.Repeats]


Locked: TypeAlias = Callable[..., object]
"""Calls a function with the committer's lock held."""


def _held(work: Callable[..., object], *given: object) -> object:
    """Call a function: the lock is held already."""
    return work(*given)


class Adopter:
    """Adopts for one writer: looks identities up, then makes files a part of the log, all under the committer's
    lock.
    """

    def __init__(self, session: WriterSession, memory: MemoryKeeper) -> None:
        self._session = session
        self._clock = session.clock
        self._hasher = session.hasher
        self._recall = session.recall
        self._memory = memory
        self._home = session.home
        self._run = session.run
        self._committer = session.committer
        self._core = session.core
        self._seen = session.core.seen

    def _identities(self, staged: Sequence[Staged]) -> list[Identities | None]:
        def read(file: Staged) -> Identities | None:
            try:
                return None if file.identities is None else self._read(file, file.identities)
            except NotFound as error:
                raise _gone(file.key) from error

        return staging.at_once(read, staged, FILES_AT_ONCE, FILES_AT_ONCE)

    def _read(self, file: Staged, beside: str) -> Identities:
        """Return the identities of a staged file: from beside it or, if it was adopted before, from its records."""
        try:
            return read_identities(self._home, beside)
        except NotFound:
            opened = SealedFiles(self._home).open(File(file.key, 0, file.size_bytes, file.checksum))
            pieces = ((piece.payload, piece.first_row) for piece in opened.pieces(0, file.records))
            return staging.identities_of(self._hasher, pieces)

    def _drain(self, deadline_us: int | None) -> None:
        """Return when nothing is pending. The committer's lock is held."""
        self._committer.check_open()
        self._committer.drain(deadline_us)
        self._committer.check_open()

    def judge(self, staged: Sequence[Staged], deadline_us: int | None) -> JudgedFiles:
        """Look the identities of files up: in the runs first, which may take long, then with nothing pending.

        The table is searched some identities at a time, and the lock is let go in between. What is appended meanwhile
        counts for nothing here: ``commit`` sees that it came, by its position.
        """
        staging.check(staged)
        identities = self._identities(staged)
        twice = list(staging.repeats(identities))
        while True:
            looked = [None if found is None else self._recall.look(found.keys) for found in identities]
            question = _Question(identities, looked, twice)
            judged = self._committer.locked(self._begin_to_judge, question, deadline_us)
            if judged is None:
                continue
            position, built, answer = judged
            known, conflicts = answer or self._known(question, position, self._committer.locked)
            if self._recall.view.built == built:  # else ids have left the table for a run that was not looked at
                return JudgedFiles(tuple(staged), identities, known, conflicts, position, built)

    def _begin_to_judge(
        self, question: _Question, deadline_us: int | None
    ) -> tuple[int, int, tuple[list[Flags], list[Flags]] | None] | None:
        """Return where the log ends with nothing pending, how many runs were built, and, where the window forgets, the
        answer; ``None`` if the runs are to be searched again. The committer's lock is held.
        """
        self._drain(deadline_us)
        if not all(map(self._recall.is_current, question.looked)):
            return None
        self._seen.evict(self._session.uptime_us)
        position, built = self._core.next_position, self._recall.view.built
        if isinstance(self._seen.window, Table):
            return position, built, None
        return position, built, self._known(question, position, _held)  # it forgets, and is small

    def commit(
        self, judged: JudgedFiles, wanted: Adoption, identities: Sequence[Identities | None], deadline_us: int | None
    ) -> list[Segment] | None:
        """Adopt files that were judged; ``None`` if an id of theirs was appended since.

        Files with many ids bring a run with them.
        """
        run = self._run_of(wanted, identities)
        return self._committer.locked(self._commit_unless_outdated, judged, wanted, run, identities, deadline_us)

    def _commit_unless_outdated(
        self,
        judged: JudgedFiles,
        wanted: Adoption,
        run: Run | None,
        identities: Sequence[Identities | None],
        deadline_us: int | None,
    ) -> list[Segment] | None:
        """Adopt what was judged, unless ids have come since that are among it. The committer's lock is held."""
        try:
            self._drain(deadline_us)
            outdated = self._is_outdated(judged, identities)
        except BaseException:
            outdated = True
            raise
        finally:
            if run is not None and outdated:
                delete_run(self._home, run)
        # From here on the run stays: a manifest whose answer was lost may name it.
        return None if outdated else self._commit(msgspec.structs.replace(wanted, run=run), identities)

    def _run_of(self, wanted: Adoption, identities: Sequence[Identities | None]) -> Run | None:
        """Store the ids of files that have many of them as a run, with positions from 0."""
        count = sum(len(found.high) for found in identities if found is not None)
        if self._seen.window is None or count < limits.MEMORY_RUN_IDS_MIN:
            return None
        parts, first = [], 0
        for file, found in zip(wanted.staged, identities, strict=True):
            if found is not None:
                parts.append(_as_entries(found, first))
            first += file.records
        return self._memory.store_entries(Entries.joined(parts), Commits.none(), 0, first, self._run.known)

    def _is_outdated(self, judged: JudgedFiles, identities: Sequence[Identities | None]) -> bool:
        """Tell whether ids may have come since that are among these. What came since is in the table, unless a run was
        built of it.
        """
        end = self._core.next_position
        if end == judged.position:
            return False
        table = self._seen.window
        if not isinstance(table, Table) or self._recall.view.built != judged.built:
            return True
        since = table.between(judged.position, end).keys
        return any((search(found, since) >= 0).any() for found in identities if found is not None)

    def _commit(self, wanted: Adoption, identities: Sequence[Identities | None]) -> list[Segment]:
        """Adopt what was judged to be new. The committer's lock is held, nothing is pending.

        It is one event of the core, from the manifest that adopts the files to the identities that the core notes: what
        is interrupted in between leaves the core torn, and the next writer reads the log.
        """
        self._check_adoptable((*wanted.staged, *wanted.conflicts))
        self._core.adopting()
        try:
            segments = self._adopted(wanted)
            self._remember(segments, identities, with_run=wanted.run is not None)
            records = sum(segment.entries for segment in segments)
            self._core.adopted(records, self._run.start, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)
        self._home.wake()
        return segments

    def _adopted(self, wanted: Adoption) -> list[Segment]:
        """Have the manifest adopt files; return their segments."""
        before = self._run.known
        try:
            return self._run.adopt(wanted, self._session.uptime_us)
        except Unavailable as error:
            # Whether the open segment was closed is not known, so nothing may be written to it.
            unknown = Unavailable(f"an adoption was not answered: {error}", outcome="unknown")
            self._committer.stop(unknown)
            raise unknown from error
        except OncelogError:
            if self._run.known is before:
                self._core.not_adopted()
            raise

    def _remember(
        self, segments: Sequence[Segment], identities: Sequence[Identities | None], *, with_run: bool
    ) -> None:
        """Note the identities of adopted files. If the run they brought cannot be opened now, the table has them."""
        window, adopted = self._seen
        if window is None:
            return
        brought = [(segment, found) for segment, found in zip(segments, identities, strict=True) if found is not None]
        shown = with_run and self._memory.show_adopted(self._run.known, segments)
        for segment, found in brought:
            if not isinstance(window, Table):
                adopted.add(segment, None if shown else found)
            elif not shown:
                window.fold(_in_order(segment, found))
        if shown:
            return
        self._memory.note_load()
        self._memory.ask_if_due()

    def _check_adoptable(self, staged: Sequence[Staged]) -> None:
        """Raise for a file that is not there, or is in the log: once adopted, it could not be read, or be lost."""
        if not staged:
            return
        taken = self._run.holds(staged)
        if taken is not None:
            message = f"{taken}: was adopted before, and a staged file can be adopted once: nothing was adopted"
            raise InvalidArgument(message)
        there = staging.at_once(self._home.exists, [file.key for file in staged], FILES_AT_ONCE, FILES_AT_ONCE)
        if not all(there):
            raise _gone(staged[there.index(False)].key)

    def _known(self, question: _Question, position: int, locked: Locked) -> tuple[list[Flags], list[Flags]]:
        """Return, for each file, which of its identities are known, or occur before, and which of those are conflicts.

        Only what lies before a position counts. The window is asked by ``locked``.
        """
        identities, looked, twice = question
        known = [np.zeros(0 if found is None else len(found.high), np.bool_) for found in identities]
        conflicts = [flags.copy() for flags in known]
        window = self._seen.window
        if window is None:
            return known, conflicts
        for number, found in enumerate(identities):
            recalled = looked[number]
            elsewhere = None if recalled is None else recalled.found
            if found is not None and (window.count or self._seen.adopted or elsewhere is not None):
                stored, fingerprints = self._stored(found.keys, elsewhere, position, locked)
                known[number] |= stored
                conflicts[number] |= stored & (fingerprints != found.fingerprints)
        for number, place, fingerprint in twice:
            found = identities[number]
            assert found is not None
            conflicts[number][place] |= ~known[number][place] & (found.fingerprints[place] != fingerprint)
            known[number][place] = True
        return known, conflicts

    def _stored(
        self, keys: NDArray[np.uint64], recalled: Found | None, position: int, locked: Locked
    ) -> tuple[Flags, NDArray[np.uint64]]:
        """Return which identities the log knows before a position, and the fingerprints that it has for them."""
        positions = np.full(len(keys), -1, np.int64)
        fingerprints = np.zeros(len(keys), np.uint64)
        for start in range(0, len(keys), LOCKED_KEYS):
            part = slice(start, start + LOCKED_KEYS)
            locked(self._in_window, keys[part], position, positions[part], fingerprints[part])
        known = positions >= 0
        recalled = self._seen.elsewhere(keys, recalled)
        if recalled is not None:
            if (recalled.failed & ~known).any():
                raise recalled.errors[0]
            chosen = recalled.positions > positions  # of records with one id the newest counts
            fingerprints[chosen] = recalled.fingerprints[chosen]
            known |= chosen
        return known, fingerprints

    def _in_window(
        self, keys: NDArray[np.uint64], position: int, positions: NDArray[np.int64], fingerprints: NDArray[np.uint64]
    ) -> None:
        """Note where the identities are that the window has before a position. The committer's lock is held."""
        window = self._seen.window
        assert window is not None
        self._committer.check()  # the table of a writer that has ended belongs to the next one
        if window.count:
            handles = window.find(keys)
            hits = np.flatnonzero(handles >= 0)
            hits = hits[window.positions(handles[hits]) < position]
            positions[hits] = window.positions(handles[hits])
            fingerprints[hits] = window.fingerprints(handles[hits])


def _as_entries(found: Identities, first_position: int) -> Entries:
    """Return identities as entries of a run. A staged file has no batches: each record is one."""
    alone = np.ones(len(found.high), np.bool_)
    return Entries.of(found.keys, found.fingerprints, first_position + found.rows.astype(np.int64), alone, alone)


def _in_order(segment: Segment, found: Identities) -> WindowState:
    """Return identities in the order of their positions, as the table takes them."""
    order = np.argsort(found.rows)
    count = len(order)
    return WindowState(
        keys=found.keys[order],
        positions=segment.first_position + found.rows[order].astype(np.int64),
        fingerprints=found.fingerprints[order],
        ticks=np.full(count, segment.last_uptime_us),
        times=np.full(count, segment.first_timestamp_us),
        starts=np.ones(count, np.bool_),
    )


def _gone(key: str) -> NotFound:
    return NotFound(f"{key} is not there, perhaps because it was staged too long ago: stage its records again")
