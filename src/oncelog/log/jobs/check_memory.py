"""Holding a log's runs against its records: they say the same, and no id is there twice that should be there once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.window import WindowState
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format.manifest import Manifest
from oncelog.format.runs.run import Digest, Run
from oncelog.log.jobs.window_rules import Finding
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.merging import merged
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.log.takeover.recovery import Remembered

_SHOWN = 3


class MemoryCheck:
    """Sums up what the log says of the ranges of its runs, in one pass and little memory.

    Whether a record is the last of its batch is known from the next one: the last is held back until that comes.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._runs = manifest.memory
        self._since = manifest.window_since
        self._first_position = manifest.first_position
        self._digests = [Digest() for _ in self._runs]
        self._held: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]] = []

    def covers(self, position: int) -> bool:
        """Tell whether a run covers a position."""
        return any(run.first_position <= position < run.next_position for run in self._runs)

    def add(self, given: Remembered) -> None:
        """Add neighbouring records, in order."""
        if self._runs and len(given.keys):
            self._held.append((given.keys, given.fingerprints, given.positions, given.starts))
            self._sum(complete=False)

    def _sum(self, *, complete: bool) -> None:
        if not self._held:
            return
        keys, prints, positions, starts = (np.concatenate(column) for column in zip(*self._held, strict=True))
        ends = np.ones(len(starts), np.bool_)
        ends[:-1] = starts[1:]
        done = len(starts) if complete else len(starts) - 1
        self._held = [(keys[done:], prints[done:], positions[done:], starts[done:])]
        for number, run in enumerate(self._runs):
            low, high = np.searchsorted(positions[:done], (run.first_position, run.next_position))
            if low < high:
                some = slice(int(low), int(high))
                relative = positions[some] - run.first_position
                entries = Entries.of(keys[some], prints[some], relative, starts[some], ends[some])
                self._digests[number] += entries.digest().moved(run.first_position)

    def findings(self, objects: RunObjects, newest: Manifest, tail: WindowState | None) -> Iterator[Finding]:
        """Yield what is wrong with the runs that are still there; ``tail`` are the ids that none of them covers."""
        self._sum(complete=True)
        sound: list[Run] = []
        for run, told in zip(self._runs, self._digests, strict=True):
            if run not in newest.memory:
                continue  # merged meanwhile
            try:
                if check_run(objects, run, self._first_position) == told:
                    sound.append(run)
                else:
                    what = "does not say what the log says: `oncelog rebuild` makes it again"
                    yield Finding("error", run.key, what)
            except (CorruptionError, NotFound, Unsupported) as error:
                yield Finding("warning", run.key, f"a run that cannot be read (the log makes up for it): {error}")
        if tail is not None and sound:
            yield from self._repeated(objects, sound, tail)

    def _repeated(self, objects: RunObjects, runs: list[Run], tail: WindowState) -> Iterator[Finding]:
        """Yield ids that are there twice although the first was remembered when the second came."""
        shown = 0
        try:
            found = RunSet.open(objects, runs).find_many(tail.keys, self._first_position)
            wrong = np.flatnonzero(found.found & (tail.positions >= self._since))
            for row in wrong[:_SHOWN].tolist():
                yield _again(int(tail.positions[row]), int(found.positions[row]))
            for entries in merged(objects, runs):
                again = (entries.high[1:] == entries.high[:-1]) & (entries.low[1:] == entries.low[:-1])
                newer = entries.positions[:-1][again] + runs[0].first_position
                older = entries.positions[1:][again] + runs[0].first_position
                wrong = np.flatnonzero((newer >= self._since) & (older >= self._first_position))
                for row in wrong[: _SHOWN - shown].tolist():
                    shown += 1
                    yield _again(int(newer[row]), int(older[row]))
        except OncelogError as error:
            yield Finding("warning", "memory", f"the runs could not be compared with each other: {error}")


def _again(newer: int, older: int) -> Finding:
    what = f"the id at position {newer} is also at {older}, where the log still remembers it"
    return Finding("error", "memory", what)
