"""Keeping the memory of a log: ids of closed segments become runs, small runs become larger ones.

Without bounds, all ids do. Where a window is bounded, those of adopted files do, and those of what lies between them.

All of it is off the append path, and may be killed at any moment. A run is stored, then the manifest names it, then the
writer's look-ups see it, and only then the table forgets what it holds. Killed before the manifest: objects that
nothing refers to, which are swept by age. Killed after: the next writer opens with the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from oncelog import limits
from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.table import Table
from oncelog.dedup.window import WindowState
from oncelog.errors import Closed, CorruptionError, NotFound, OncelogError, Unsupported, WriterFenced
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run, covers
from oncelog.format.runs.times import Commits
from oncelog.log.append.session import WriterSession
from oncelog.log.memory import coverage
from oncelog.log.memory.building import commits_of, delete_run, entries_of, gathered, store_run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.coverage import Stretch
from oncelog.log.memory.merging import cheapest_merge, merge_runs, to_merge
from oncelog.log.memory.run_set import RunSet
from oncelog.log.stored import object_keys
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.files import SealedFiles, rows_of
from oncelog.log.stored.manifests import Change, Known
from oncelog.log.takeover.recovery import Remembered, ids_of, needed_runs, remembered_of
from oncelog.log.upkeep import sealing
from oncelog.log.upkeep.sifting import Sifter

_PIECE_RECORDS = 32_768
"""The ids of so many records are taken from the table at once: appends wait meanwhile."""


class UncoveredSegments(NamedTuple):
    """The closed segments whose ids are in the table, each with its last entry, and their first position."""

    first_position: int
    segments: list[tuple[int, int]]


class MemoryKeeper:
    """Builds and merges the runs of one writer's log. ``work`` is called by one thread at a time."""

    def __init__(self, session: WriterSession, unreadable: Sequence[Run]) -> None:
        self._home = session.home
        self._manifests = session.manifests
        self._run = session.run
        self._committer = session.committer
        seen = session.core.seen
        self._table = seen.window if isinstance(seen.window, Table) else None
        self._adopted = seen.adopted if seen.window is not None and self._table is None else None
        self._recall = recall = session.recall
        self._objects = session.objects
        self._hasher = session.hasher
        self._clock = session.clock
        self._unreadable = frozenset(unreadable)  # named by the manifest, and their ids are in the table
        self._damage: dict[str, OncelogError] = {}  # by the keys of runs that could not be merged
        self._sifter = Sifter(recall, session.objects)
        self._merged_until = 0  # the end of what is being merged: a merge inside of that one takes newer runs
        self._merged_ids = 0  # how many ids these are
        self.ask: Callable[[], None] = lambda: None
        """Has ``work`` called soon, by a thread that does such things."""
        recall.renew = self.renew
        recall.repair = self._ask_soon

    def _ask_soon(self) -> None:
        self.ask()

    def begin(self) -> None:
        """Have done what the writer before left undone. A long merge waits until this one closes a segment: a writer
        that is closed after each batch would begin it each time, and never end it.
        """
        merge = self._to_merge(self._readable(self._run.known.manifest)) or []
        is_short = 0 < sum(run.ids for run in merge) <= limits.MEMORY_TABLE_IDS_MAX
        if self._table is not None and (is_short or self._worthwhile(self._table)):
            self.ask()
        self.ask_if_due()
        self._committer.locked(self.note_load)  # else one that stores a single block never waits, and leaves more

    def _worthwhile(self, table: Table) -> bool:
        _, found = self._stretches(self._run.known)
        return bool(found) and (len(found) > 1 or is_worth_a_run(table.count, found[0].records))

    def work(self) -> None:
        """Build a run of closed segments if they have enough ids; merge runs where it pays; delete runs that were
        merged.
        """
        if self._table is None and self._adopted is None:
            return
        try:
            self._work()
        except NotFound:
            self._newest()  # the writer that took the log has merged, and deleted what this one reads
            raise

    def _work(self) -> None:
        self.renew(self._recall.view.runs)
        while not self._committer.is_leaving and self._build():
            continue
        self._sift()
        self._merge_all()
        if self._repair():
            self._merge_all()
        sealing.collect(self._home, self._manifests)
        self._tell_damage()

    def _sift(self) -> None:
        """Put runs behind the sieve that are not, where that pays, and let look-ups use it."""
        if self._committer.is_leaving:
            return
        runs = self._recall.view.runs  # what is merged meanwhile would be read again
        self._merged_until, self._merged_ids = runs.next_position, runs.ids
        try:
            has_read, damage = self._sifter.read_rest(self._make_way)
        finally:
            self._merged_until = self._merged_ids = 0
        self._damage |= damage
        if has_read:
            self.show(built=False)

    @property
    def is_urgent(self) -> bool:
        """Whether closed segments have ids for a whole run: some more, and appends wait."""
        return self._table is not None and self._closed_ids(self._table) >= limits.MEMORY_RUN_IDS

    @property
    def _is_full(self) -> bool:
        """Whether one run more, and appends wait. A long merge is not begun then. With a lower bound, a busy writer
        would begin none at all (decision 63).
        """
        return self._table is not None and len(self._recall.view.runs.runs) >= limits.MEMORY_RUNS_MAX - 1

    def _closed_ids(self, table: Table) -> int:
        """Return how many ids of the table can become runs: not those of the open segment, which appends close."""
        return table.count - self._committer.core.tail.ids

    def _make_way(self) -> None:
        """Do what is urgent before the next slice of a long merge: appends would wait for that until its end.

        ``Closed`` when the writer is leaving: it does not wait for a merge, which the next writer makes.
        """
        self._check_staying()
        if self.is_urgent:
            while not self._committer.is_leaving and self._build():
                continue
            while not self._committer.is_leaving and self._merge():
                continue
        short_ids = self._merged_ids // limits.MEMORY_MERGED_RUNS
        while self._is_full and not self._committer.is_leaving and self._merge(short_ids):
            continue

    def note_load(self) -> None:
        """Let appends wait while too much waits to be put into runs. The committer's lock is held."""
        core, before = self._committer.core, self._committer.core.behind
        if self._table is not None:
            crowded = self._closed_ids(self._table) >= limits.MEMORY_TABLE_IDS_MAX
            core.behind = crowded or len(self._recall.view.runs.runs) >= limits.MEMORY_RUNS_MAX
        elif self._adopted is not None:
            core.behind = self._adopted.ids >= limits.MEMORY_TABLE_IDS_MAX
        if core.behind != before:
            # Appends that wait ask for this often: if it woke them each time, they would not rest.
            self._committer.tell()

    def begin_at(self, first_position: int) -> None:
        """Forget the ids of records that were truncated away."""
        self._committer.locked(self._begin_at, first_position)

    def _begin_at(self, first_position: int) -> None:
        self._recall.begin_at(first_position)
        if self._table is not None and self._committer.error is None:  # else it belongs to the next writer
            self._table.drop_before(first_position)
            self.note_load()

    @property
    def has_runs(self) -> bool:
        """Whether look-ups go to runs."""
        return self._recall.view.any

    def covers_from(self, position: int) -> bool:
        """Tell whether a run covers anything from a position on. The committer's lock is held."""
        return self._recall.view.runs.next_position > position

    def tail(self) -> UncoveredSegments | None:
        """Return which segments the table remembers, for a snapshot; ``None`` where a snapshot would not do.

        The committer's lock is held. A table with repeats is not stored: a snapshot has no place for them.
        """
        if self._table is None or self._table.has_repeats:
            return None
        manifest = self._run.known.manifest
        found = coverage.stretches(self._manifests, manifest, self._recall.view.runs.runs)
        first = found[0].first_position if found else manifest.next_position
        return UncoveredSegments(
            first, [(each.number, each.entries - 1) for stretch in found for each in stretch.segments]
        )

    # The newest runs.

    def renew(self, before: RunSet) -> None:
        """Show the runs that the newest manifest names, if look-ups still use the runs before.

        Whatever it names holds all that was in the runs before it, but for what was truncated: runs are replaced by
        others that cover the same segments. What another process truncated away is forgotten, in the table too.
        """
        known, runs = self._opened(before)

        def show() -> None:
            self._committer.check()  # the table of a writer that has ended belongs to the next one
            if runs.runs != before.runs:
                self._replace(before, runs, built=False)
            self._begin_at(known.manifest.first_position)

        self._committer.locked(show)

    def _readable(self, manifest: Manifest) -> list[Run]:
        return [run for run in manifest.memory if run not in self._unreadable]

    def _opened(self, before: RunSet) -> tuple[Known, RunSet]:
        """Return the newest manifest and the runs that it shows; ``WriterFenced`` also if they are gone by then."""
        return self._manifests.look(
            self._newest(),
            lambda manifest: RunSet.open(self._objects, self._shown(self._own(manifest)), before, self._sifter.sieve),
        )

    def _shown(self, manifest: Manifest, files: Sequence[Segment] = ()) -> list[Run]:
        """Return the runs that look-ups need; ``files`` are being adopted, and not yet noted."""
        if self._adopted is None:
            return self._readable(manifest)
        return needed_runs(self._readable(manifest), [*self._adopted.files, *files])

    def _stretches(self, known: Known) -> tuple[Known, list[Stretch]]:
        """Return what no run covers of the closed segments, oldest first."""
        runs = self._recall.view.runs.runs
        return self._manifests.look(known, lambda manifest: coverage.stretches(self._manifests, manifest, runs))

    def _newest(self) -> Known:
        """Return the newest manifest; ``WriterFenced`` if it is another writer's, whose ids are not in the table."""
        known = self._manifests.newest(self._run.known) or self._run.known
        self._own(known.manifest)
        return known

    def _own(self, manifest: Manifest) -> Manifest:
        """Return a manifest of this writer; ``WriterFenced`` if it is another's."""
        if manifest.epoch != self._run.epoch:
            message = f"log {manifest.name!r} was taken by another writer"
            raise WriterFenced(message)
        return manifest

    # Building.

    def _build(self) -> bool:
        """Make a run of closed segments that none covers, if they are worth one; tell whether it was."""
        if self._table is not None:
            return self._build_of(self._table)
        assert self._adopted is not None
        known, stretch = self._manifests.look(self._newest(), partial(self._between, self._adopted))
        if stretch is None:
            return False
        _, run = self._manifests.look(known, lambda manifest: self._made(known, stretch, manifest))
        return self._publish_built(known, run, stretch)

    def _between(self, adopted: Adopted, manifest: Manifest) -> Stretch | None:
        """Return what to make a run of where a window is bounded: see ``adopted_stretch``."""
        held, ids = self._committer.locked(lambda: (list(adopted.held), adopted.ids))
        shown = self._recall.view.runs.runs
        return coverage.adopted_stretch(
            self._manifests, manifest, self._readable(manifest), shown, held if is_worth_a_run(ids, 0) else []
        )

    def _made(self, known: Known, stretch: Stretch, manifest: Manifest) -> Run:
        """Store the ids of closed segments, as the log has them, as a run that nothing refers to yet."""
        first, files = stretch.first_position, SealedFiles(self._home)
        closed = self._manifests.closed_from(manifest, first)
        segments = itertools.takewhile(lambda segment: segment.first_position < stretch.next_position, closed)
        parts = (ids_of(self._home, files, self._hasher, segment, first) for segment in segments)
        ids = Remembered.joined([some for part in parts for some in part]).state()
        return self.store(ids, first, stretch.next_position, known)

    def _publish_built(self, known: Known, run: Run, stretch: Stretch) -> bool:
        unreadable = [old for old in known.manifest.memory if old in self._unreadable and stretch.holds(old)]
        return self._publish(run, coverage.built(self._manifests, run, stretch, unreadable), built=True)

    def _build_of(self, table: Table) -> bool:
        """Make a run of the oldest closed segments that none covers, from the table."""
        known, found = self._stretches(self._newest())
        stretch = next(iter(found), None)
        if stretch is None:
            return False
        first, end = stretch.first_position, stretch.next_position
        ids = self._committer.locked(table.count_between, first, end)
        followed = len(found) > 1  # a run lies behind it: the gap never grows
        if not followed and not is_worth_a_run(ids, stretch.records):
            return False
        pieces = (
            self._committer.locked(table.between, at, min(at + _PIECE_RECORDS, end))
            for at in range(first, end, _PIECE_RECORDS)
        )
        run = self.store_entries(*gathered(pieces, first, ids), first, end, known)
        return self._publish_built(known, run, stretch)

    def store(self, ids: WindowState, first_position: int, next_position: int, known: Known) -> Run:
        """Store ids, in the order of their positions, as a run that nothing refers to yet."""
        entries, commits = entries_of(ids, first_position), commits_of(ids, first_position)
        return self.store_entries(entries, commits, first_position, next_position, known)

    def store_entries(
        self, entries: Entries, commits: Commits, first_position: int, next_position: int, known: Known
    ) -> Run:
        """Store entries, in any order, as a run that nothing refers to yet."""
        manifest = known.manifest
        key = object_keys.new_key(self._clock, manifest.staging_floor_us).removesuffix(".parquet")
        ordered = entries.sorted()  # the sieve, too, takes them several times as fast in their order
        run = store_run(self._home, manifest.log_id, key, ordered, first_position, next_position, commits)
        self._sifter.add(run, ordered)
        return run

    def _publish(self, run: Run, change: Change, *, built: bool) -> bool:
        """Have the manifest name a run, then show the run to look-ups, then drop its ids from the table.

        Returns whether the manifest took the run. If that is not known (``Unavailable``), the objects of the run stay.
        """
        known = self._manifests.update(change, self._run.known)
        if run not in known.manifest.memory:
            delete_run(self._home, run)
            return False
        if known.manifest.epoch != self._run.epoch:
            return False
        self.show(built=built)
        return True

    def show(self, *, built: bool) -> None:
        """Let look-ups see the runs of the newest manifest, and memory let go of what they have.

        An adoption may show a run of a newer manifest than this one has read. Then this begins again.
        """
        while True:
            before = self._recall.view.runs  # first: the manifest is at least as new as what look-ups see
            _, runs = self._opened(before)
            if self._committer.locked(self._replace, before, runs, built):
                return

    def _replace(self, before: RunSet, runs: RunSet, built: bool) -> bool:  # noqa: FBT001
        """Show runs in place of those before, unless others are shown by now. The lock is held.

        What they cover leaves memory, also where another process built the run, or the answer to it was lost.
        """
        if self._recall.view.runs is not before:
            return False
        first = self._recall.view.first_position
        until = _covered_until(runs.runs, first)

        def covered(one: Segment) -> bool:
            return covers(runs.runs, max(one.first_position, first), one.next_position)

        if self._table is not None:
            built |= self._table.has_before(until)
        elif self._adopted is not None:
            built |= any(map(covered, self._adopted.held))
        self._recall.show(runs, built=built)  # first: an interrupt must not leave ids where nobody looks
        if self._table is not None:
            self._table.drop_before(until)
        elif self._adopted is not None:
            self._adopted.drop(covered)
        self.note_load()
        return True

    def show_adopted(self, known: Known, files: Sequence[Segment]) -> bool:
        """Let look-ups see a run that came with an adoption; tell whether it could be opened. The lock is held."""
        try:
            shown = self._shown(known.manifest, files)
            runs = RunSet.open(self._objects, shown, self._recall.view.runs, self._sifter.sieve)
        except OncelogError:
            return False
        self._recall.show(runs, built=True)
        self.note_load()
        self.ask()
        return True

    def ask_if_due(self) -> None:
        """Have work done if there is enough of it. The committer's lock is held."""
        held = self._table.count if self._table is not None else self._adopted.ids if self._adopted is not None else 0
        if held >= limits.MEMORY_RUN_IDS_MIN:
            self.ask()

    # Repairing.

    def _repair(self) -> bool:
        """Make runs again in which damage was seen, from the log; large ones are left to ``oncelog rebuild``. Tell
        whether any was made.
        """
        damaged, made_any = self._damaged(), False
        for run in self._readable(self._newest().manifest) if damaged else ():
            small = run.next_position - run.first_position <= limits.MEMORY_FOLD_RECORDS_MAX
            if run.key in damaged and small and not self._committer.is_leaving:
                known = self._newest()
                known, made = self._manifests.look(known, partial(self._made_again, known, run))
                again, stretch = made
                made_any |= self._publish(again, coverage.built(self._manifests, again, stretch, [run]), built=False)
        return made_any

    def _damaged(self) -> frozenset[str]:
        """Return the keys of runs in which a look-up or a merge met damage."""
        return self._recall.view.runs.damaged | self._damage.keys()

    def _tell_damage(self) -> None:
        """Raise what kept a run from being merged that is still there: it is too large to be made again here."""
        if self._damage and not self._committer.is_leaving:
            memory = self._newest().manifest.memory
            self._damage = {run.key: self._damage[run.key] for run in memory if run.key in self._damage}
            for error in self._damage.values():
                raise error

    def _made_again(self, known: Known, run: Run, manifest: Manifest) -> tuple[Run, Stretch]:
        """Store the ids of a run's range once more, as the log has them."""
        first, files = max(run.first_position, manifest.first_position), SealedFiles(self._home)
        closed = self._manifests.closed_from(manifest, first)
        segments = tuple(itertools.takewhile(lambda segment: segment.first_position < run.next_position, closed))
        parts = (rows_of(self._home, files, segment, first) for segment in segments)
        found = [some for rows in parts for some in remembered_of(self._hasher, rows)]
        ids = Remembered.joined(found).state()
        return self.store(ids, first, run.next_position, known), Stretch(first, segments)

    # Merging.

    def _check_staying(self) -> None:
        """Raise ``Closed`` when the writer is leaving, unless the next one could not append without this merge."""
        is_awaited = self._committer.core.behind and self._committer.error is None
        if self._committer.is_leaving and not is_awaited:
            message = "the writer is being closed: its runs are merged by the next one"
            raise Closed(message)

    def _merge_all(self) -> None:
        """Merge while it pays, but not for ever: under load there is always more to merge, and other jobs wait."""
        for _ in range(max(1, len(self._recall.view.runs.runs))):
            if self._committer.is_leaving or not self._merge():
                return
        self.ask()

    def _to_merge(self, runs: Sequence[Run]) -> list[Run] | None:
        """Return the neighbours to merge next, if any. When appends wait for it, or soon will, that is what is merged
        soonest: a writer may be closed, or an append be out of time, before the end of a long merge.
        """
        return (cheapest_merge(runs) if self._is_full else None) or to_merge(runs)

    def _merge(self, ids_max: int | None = None) -> bool:
        """Merge runs that are worth it; tell whether there were any. Damaged ones do not keep others from it.

        ``ids_max``: only if that is soon done, compared to the merge that waits for it.
        """
        known, damaged, until = self._newest(), self._damaged(), self._merged_until
        free = [run for run in self._readable(known.manifest) if run.first_position >= until]
        inputs = self._to_merge([run for run in free if run.key not in damaged])
        ids = 0 if inputs is None else sum(run.ids for run in inputs)
        if inputs is None or (ids_max is not None and ids > ids_max):
            return False
        manifest = known.manifest
        key = object_keys.new_key(self._clock, manifest.staging_floor_us).removesuffix(".parquet")
        outer_ids = self._merged_ids
        self._merged_until, self._merged_ids = inputs[-1].next_position, ids
        filled = self._sifter.filling(inputs)
        passing = _let_pass if filled is None else filled.add_some
        try:
            run = merge_runs(
                self._objects, manifest.log_id, key, inputs, manifest.first_position, self._make_way, passing
            )
        except (CorruptionError, NotFound):
            if self._note_damage(inputs):
                return True
            raise
        finally:
            self._merged_until, self._merged_ids = until, outer_ids
        self._sifter.add_merged(run, inputs, filled)
        if not self._publish(run, coverage.merged(run, inputs), built=False):
            return False
        sealing.collect(self._home, self._manifests)  # the merge that this one made way for may take long
        return True

    def _note_damage(self, inputs: Sequence[Run]) -> bool:
        """Note which runs cannot be merged because they are damaged or lost; tell whether there are any.

        A look-up may never touch the page. Tried again and again, the merge would fail until there are too many runs.
        """
        memory, before = self._newest().manifest.memory, len(self._damage)
        for run in inputs:
            self._check_staying()
            try:
                check_run(self._objects, run)
            except (CorruptionError, NotFound, Unsupported) as error:
                if run in memory:  # not one that somebody else has replaced
                    self._damage[run.key] = error
        return len(self._damage) > before


def _let_pass(_entries: Entries) -> None:
    """Do nothing with the entries of a merge."""


def is_worth_a_run(ids: int, records: int) -> bool:
    """Tell whether so much is worth a run."""
    return ids >= limits.MEMORY_RUN_IDS_MIN or records >= limits.MEMORY_RUN_RECORDS_MIN


def _covered_until(runs: Sequence[Run], first_position: int) -> int:
    """Return the position up to which runs cover everything, from the log's first on."""
    position = first_position
    for run in runs:
        if run.first_position > position:
            break
        position = max(position, run.next_position)
    return position
