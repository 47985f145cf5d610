"""The sieve in front of a log's runs, and which runs stand behind it: all their ids are in the sieve.

A look-up asks the sieve once, and only ids that pass are looked for in those runs. A run comes behind the sieve in
three ways: it was built here, of ids in memory; it was merged of runs that stand there; or its pages were read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.runs.sieve import Sieve
from oncelog.format.runs.run import Run
from oncelog.log.memory.merging import pieces_of
from oncelog.log.memory.objects import OpenPart


class RunSieve:
    """One sieve for many sets of runs, one after the other. Safe to share between threads.

    Invariant: all ids of a run in ``keys`` are in the sieve. Both only grow. Runs are known by their keys, which no
    other run ever has. ``count`` is the number of ids that were added.
    """

    def __init__(self, ids: int) -> None:
        """Make an empty sieve for so many ids."""
        self._sieve = sieve = Sieve(ids)
        self.passing, self.may_have = sieve.passing, sieve.may_have
        self.ids_max, self.nbytes = sieve.ids_max, sieve.nbytes
        self.keys: frozenset[str] = frozenset()
        self.count = 0
        self._adding = threading.Lock()

    def add(self, key: str, entries: Entries) -> None:
        """Put the entries of a run into the sieve: all that it has."""
        with self._adding:
            self._add(entries)
            self.keys |= {key}

    def _add(self, entries: Entries) -> None:
        self._sieve.add(entries.high, entries.low)
        self.count += len(entries)

    def add_merged(self, key: str, inputs: Iterable[Run]) -> None:
        """Note a run that was merged of others: it has no ids but theirs."""
        with self._adding:
            if all(run.key in self.keys for run in inputs):
                self.keys |= {key}

    def read(self, key: str, parts: Sequence[OpenPart], check: Callable[[], None]) -> None:
        """Put the ids of a stored run into the sieve; ``check`` is called now and then, and may end this by an error.

        Every page is checked: ``CorruptionError`` for a damaged one, and the run stays before the sieve.
        """
        for part in parts:
            for _, entries in pieces_of(part):
                check()
                with self._adding:
                    self._add(entries)
        with self._adding:
            self.keys |= {key}
