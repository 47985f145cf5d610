"""Keeping the sieve in front of a log's runs: which of them stand behind it, and when a larger one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncelog import limits
from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.runs.sieve import BLOCK_BYTES, IDS_PER_BLOCK
from oncelog.errors import CorruptionError
from oncelog.format.runs.run import Run
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import OpenRun, RunSet
from oncelog.log.memory.run_sieve import RunSieve
from oncelog.log.upkeep.machine_memory import memory_bytes

IDS_MIN = 1 << 19
"""A sieve is made for so many ids at least: 1.6 MiB."""

GROWTH = 2
"""A sieve is made for so many times the ids there are: all runs are read again each time another takes its place. A
large one is made for those there are.
"""

READ_PER_LOOK = 16
"""So many ids are read into a sieve for each that was looked up: a look without it costs far more than a read."""


class Sifter:
    """Keeps the sieve of one writer's runs. It begins with that of the writer before, in the same process."""

    def __init__(self, recall: Recall, objects: RunObjects) -> None:
        self.sieve = recall.view.runs.sieve
        self._next: RunSieve | None = None  # the one into which runs are being read
        self._recall = recall
        self._objects = objects

    @property
    def _kept(self) -> list[RunSieve]:
        return [sieve for sieve in (self.sieve, self._next) if sieve is not None]

    def add(self, run: Run, entries: Entries) -> None:
        """Put a run behind the sieve that was just made of these entries, before anybody sees the run.

        One that does not fit stays before it, until another sieve takes its place.
        """
        if self.sieve is None:
            self.sieve = _sieve_for(len(entries))
        for sieve in self._kept:
            if sieve.count + len(entries) <= sieve.ids_max:
                sieve.add(run.key, entries)

    def filling(self, inputs: Sequence[Run]) -> RunSieve | None:
        """Return the sieve, if the entries of a merge are to be put into it as they pass by: inputs are not behind it
        and will not be read, and it has room.
        """
        sieve, ids = self.sieve, sum(run.ids for run in inputs)
        if self._objects.is_here or sieve is None or sieve.has_all(inputs) or sieve.count + ids > sieve.ids_max:
            return None
        return sieve

    def add_merged(self, run: Run, inputs: Sequence[Run], filled: RunSieve | None) -> None:
        """Put a run behind the sieve that was just made of others, if these stand there, or its entries passed by."""
        for sieve in self._kept:
            if sieve is filled or sieve.has_all(inputs):
                sieve.note(run.key)

    def read_rest(self, check: Callable[[], None]) -> tuple[bool, dict[str, CorruptionError]]:
        """Read runs into the sieve that are not behind it, where many ids are looked up: those of a writer before this
        one; all of them, if they do not fit and another sieve takes its place.

        Only on this machine: reading all runs of a bucket would cost more than the sieve saves. There an empty sieve
        takes the place of a full one, and merges fill it. ``check`` is called again and again meanwhile. It may build
        runs, and merge those that are newer than these. Returns whether look-ups may use another sieve, or more of
        it, and which runs could not be read, by their keys.
        """
        if not self._objects.is_here:
            return self._begin_anew(), {}
        runs, sieve = self._recall.view.runs, self.sieve
        unread = [] if sieve is None else _unread(runs, sieve)
        if sieve is None or not _fits(sieve, runs.ids, unread):
            sieve = _sieve_for(runs.ids)
            unread = _unread(runs, sieve)
        if not unread or _ids(unread) > READ_PER_LOOK * self._recall.looked:
            return False, {}
        self._recall.looked = 0
        self._next = None if sieve is self.sieve else sieve
        try:
            damage = {each.run.key: error for each in unread if (error := _read(sieve, each, check)) is not None}
        finally:
            self._next = None
        self.sieve = sieve
        return True, damage

    def _begin_anew(self) -> bool:
        """Replace a sieve that has no room for another run by an empty one; tell whether it was."""
        sieve = self.sieve
        if sieve is None or sieve.count + limits.MEMORY_RUN_IDS <= sieve.ids_max:
            return False
        self.sieve = _sieve_for(self._recall.view.runs.ids)
        return True


def _sieve_for(ids: int) -> RunSieve:
    """Return an empty sieve for a log of so many ids, within the bounds. The system gives it memory as it is filled."""
    wanted = min(max(GROWTH * ids, IDS_MIN), max(ids, limits.MEMORY_SIEVE_IDS))
    return RunSieve(min(wanted, _ids_most()))


def _ids_most() -> int:
    """Return for how many ids a sieve may be made here."""
    return max(limits.MEMORY_SIEVE_IDS, memory_bytes() // limits.MEMORY_SIEVE_SHARE * IDS_PER_BLOCK // BLOCK_BYTES)


def _ids(runs: Sequence[OpenRun]) -> int:
    return sum(each.run.ids for each in runs)


def _fits(sieve: RunSieve, ids: int, unread: Sequence[OpenRun]) -> bool:
    """Tell whether runs can be read into a sieve, which is made for all ids there are, or is as large as may be."""
    is_large_enough = ids <= sieve.ids_max or sieve.ids >= _ids_most()
    return is_large_enough and sieve.count + _ids(unread) <= sieve.ids_max


def _read(sieve: RunSieve, each: OpenRun, check: Callable[[], None]) -> CorruptionError | None:
    """Read a run into a sieve; return why it could not be read: from then on the run counts as damaged."""
    try:
        sieve.read(each.run.key, each.parts, check)
    except CorruptionError as error:
        return error
    return None


def _unread(runs: RunSet, sieve: RunSieve) -> list[OpenRun]:
    """Return the runs to be read into a sieve, newest first.

    If not all runs fit, these are the newest: they are smaller, so that more of them stand behind the sieve. Half of
    it is left to those that will be built; otherwise the next one would fill it, and all would be read again.
    """
    room = sieve.ids_max if runs.ids <= sieve.ids_max else sieve.ids_max // 2
    unread = []
    for each in reversed(runs.opened):
        room -= each.run.ids
        if room < 0:
            break
        if each.run.key not in sieve.keys and not each.is_damaged:
            unread.append(each)
    return unread
