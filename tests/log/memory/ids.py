"""Ids for runs, with all that a run keeps of them."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.runs.entries import Entries
from oncelog.format.runs.run import Run
from oncelog.format.runs.times import Commits
from oncelog.log.memory.building import store_run
from oncelog.storage.base import LogHome

COMMIT_IDS = 100
"""So many ids come in one commit."""


class Ids(msgspec.Struct, frozen=True):
    """Ids at the positions from ``first`` on, one after the other."""

    first: int
    keys: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    @classmethod
    def random(cls, seed: int, first: int, count: int) -> Ids:
        """Return ids as they come from a hasher, in batches of random lengths."""
        random = np.random.default_rng(seed)
        starts = random.random(count) < 0.3
        ends = np.append(starts[1:], True) if count else starts
        keys = random.integers(0, 2**64, (count, 2), np.uint64)
        return cls(first, keys, random.integers(0, 2**64, count, np.uint64), starts, ends)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Where the records are."""
        return np.arange(self.first, self.first + len(self))

    def entries(self) -> Entries:
        """Return the entries of a run of exactly these positions."""
        return Entries.of(self.keys, self.fingerprints, self.positions - self.first, self.starts, self.ends)

    def commits(self) -> Commits:
        """Return when they were committed: a second for each position before a commit."""
        begun = self.positions[::COMMIT_IDS]
        return Commits(begun - self.first, begun * 1_000_000)

    def stored(self, home: LogHome, key: str, log_id: str = "log") -> Run:
        """Store them as a run."""
        return store_run(home, log_id, key, self.entries(), self.first, self.first + len(self), self.commits())
