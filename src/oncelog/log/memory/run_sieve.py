"""The sieve in front of a log's runs, and which runs stand behind it: all their ids are in the sieve.

A look-up asks the sieve once, and only ids that pass are looked for in those runs. A run comes behind the sieve when
it is built, of ids in memory; when it is merged, of runs that stand there or while its entries pass by; or when its
pages are read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.runs.sieve import Sieve
from oncelog.format.runs.run import Run
from oncelog.log.memory.merging import pieces_of
from oncelog.log.memory.objects import OpenPart

_SLICE_IDS = 65_536
"""So many ids are added at once: what is computed for them stays small."""


class RunSieve:
    """One sieve for many sets of runs, one after the other. Safe to share between threads.

    Invariant: all ids of a run in ``keys`` are in the sieve. Both only grow. Runs are known by their keys, which no
    other run ever has. ``count`` is the number of ids that were added.
    """

    def __init__(self, ids: int) -> None:
        """Make an empty sieve for so many ids."""
        self.ids = ids
        self._sieve = sieve = Sieve(ids)
        self.passing, self.sifted, self.may_have = sieve.passing, sieve.sifted, sieve.may_have
        self.ids_max, self.nbytes = sieve.ids_max, sieve.nbytes
        self.keys: frozenset[str] = frozenset()
        self.count = 0
        self._adding = threading.Lock()

    def add(self, key: str, entries: Entries) -> None:
        """Put the entries of a run into the sieve: all that it has."""
        for start in range(0, len(entries), _SLICE_IDS):
            self.add_some(entries[start : start + _SLICE_IDS])
        self.note(key)

    def add_some(self, entries: Entries) -> None:
        """Put entries into the sieve. ``note`` follows when those of a run are complete."""
        with self._adding:
            self._sieve.add(entries.high, entries.low)
            self.count += len(entries)

    def note(self, key: str) -> None:
        """Note that all entries of a run are in the sieve."""
        with self._adding:
            self.keys |= {key}

    def has_all(self, runs: Iterable[Run]) -> bool:
        """Tell whether all these runs are behind the sieve."""
        return all(run.key in self.keys for run in runs)

    def read(self, key: str, parts: Sequence[OpenPart], check: Callable[[], None]) -> None:
        """Put the ids of a stored run into the sieve; ``check`` is called now and then, and may end this by an error.

        Every page is checked: ``CorruptionError`` for a damaged one, and the run stays before the sieve.
        """
        for part in parts:
            for _, entries in pieces_of(part):
                check()
                self.add_some(entries)
        self.note(key)
