"""Keeping the sieve in front of a log's runs: which of them stand behind it, and when a larger one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oncelog import limits
from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError
from oncelog.format.runs.run import Run
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import OpenRun, RunSet
from oncelog.log.memory.run_sieve import RunSieve

IDS_MIN = 1 << 22
"""A sieve is made for so many ids at least: 8 MiB."""

READ_PER_LOOK = 16
"""So many ids are read into a sieve for each that was looked up: a look without it costs far more than a read."""


class Sifter:
    """Keeps the sieve of one writer's runs. It begins with that of the writer before, in the same process."""

    def __init__(self, recall: Recall, objects: RunObjects) -> None:
        self.sieve = recall.view.runs.sieve
        self._recall = recall
        self._objects = objects

    def add(self, run: Run, entries: Entries) -> None:
        """Put a run behind the sieve that was just made of these entries, before anybody sees the run."""
        if self.sieve is None:
            self.sieve = RunSieve(max(len(entries), IDS_MIN))
        self.sieve.add(run.key, entries)

    def add_merged(self, run: Run, inputs: Iterable[Run]) -> None:
        """Put a run behind the sieve that was just made of others, if these stand there."""
        if self.sieve is not None:
            self.sieve.add_merged(run.key, inputs)

    def read_rest(self, check: Callable[[], None]) -> tuple[bool, dict[str, CorruptionError]]:
        """Read runs into the sieve that are not behind it, where many ids are looked up: those of a writer before this
        one; all of them, if the sieve is full and another one takes its place.

        Only on this machine: reading all runs of a bucket would cost more than the sieve saves. ``check`` is called
        again and again meanwhile. Returns whether anything was read, and which runs could not be, by their keys.
        """
        runs, sieve = self._recall.view.runs, self.sieve
        if sieve is None or sieve.count > sieve.ids_max:
            sieve = RunSieve(min(max(runs.ids, IDS_MIN), limits.MEMORY_SIEVE_IDS))
        unread = _unread(runs, sieve)
        ids = sum(each.run.ids for each in unread)
        if not unread or ids > READ_PER_LOOK * self._recall.looked or not self._objects.is_here:
            return False, {}
        damage: dict[str, CorruptionError] = {}
        for each in unread:
            try:
                sieve.read(each.run.key, each.parts, check)
            except CorruptionError as error:  # from now on the run counts as damaged
                damage[each.run.key] = error
        self.sieve = sieve
        return True, damage


def _unread(runs: RunSet, sieve: RunSieve) -> list[OpenRun]:
    """Return the runs to be read into a sieve, newest first, as far as they fit.

    Newer runs are smaller: more of them stand behind the sieve. If not all runs fit, half of the sieve is left to
    those that will be built; otherwise the next one would fill it, and all would be read again.
    """
    room = (sieve.ids_max if runs.ids <= sieve.ids_max else sieve.ids_max // 2) - sieve.count
    unread = []
    for each in reversed(runs.opened):
        if each.run.key not in sieve.keys and not each.is_damaged and each.run.ids <= room:
            unread.append(each)
            room -= each.run.ids
    return unread
