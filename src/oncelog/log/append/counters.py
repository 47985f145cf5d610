"""What a writer counts, for ``info()`` and for metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from oncelog.log.append.groups import Group

_LATENCIES_KEPT = 1024

COMMIT_EDGES_US = (
    *(250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 1_000_000, 5_000_000, 30_000_000),
)
"""Commits are counted by how long they took: up to each of these, and longer."""
_SOON_US = COMMIT_EDGES_US[0]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What one writer has done since it was opened. Percentiles are of the last commits; ``commit_s`` is the time of
    all commits together, ``commits_by_time`` counts them between ``COMMIT_EDGES_US``.
    """

    attempts: int = 0
    stored: int = 0
    duplicates: int = 0
    conflicts: int = 0
    refused: int = 0
    commits: int = 0
    bytes_written: int = 0
    storage_failures: int = 0
    last_failure: str = ""
    snapshots: int = 0
    snapshot_failures: int = 0
    producers: int = 0
    producers_expired: int = 0
    producers_evicted: int = 0
    forgotten: int = 0
    commit_ms_p50: float = 0.0
    commit_ms_p99: float = 0.0
    commit_s: float = 0.0
    commits_by_time: tuple[int, ...] = ()


class Counters:
    """Counts as they grow. Guarded by the committer's lock."""

    def __init__(self) -> None:
        self.attempts = self.duplicates = self.conflicts = self.refused = 0
        self.stored = self.commits = self.bytes_written = 0
        self.storage_failures = self.snapshots = self.snapshot_failures = 0
        self.producers = self.producers_expired = self.producers_evicted = 0
        self.last_failure = ""
        self._latencies_us = [0] * _LATENCIES_KEPT
        self._all_us = 0
        self._by_time = [0] * (len(COMMIT_EDGES_US) + 1)

    def committed(self, group: Group, latency_us: int) -> None:
        """Count a block that was stored."""
        assert group.block is not None
        commits = self.commits
        self._latencies_us[commits % _LATENCIES_KEPT] = latency_us
        self._all_us += latency_us
        self._by_time[0 if latency_us <= _SOON_US else bisect_left(COMMIT_EDGES_US, latency_us)] += 1
        self.commits = commits + 1
        self.stored += group.count
        self.bytes_written += group.block.size_bytes

    def failed(self, why: str) -> None:
        """Count a failure of storage."""
        self.storage_failures += 1
        self.last_failure = why

    def counts(self) -> Counts:
        """Return the counts as they are now."""
        latencies = sorted(self._latencies_us[: self.commits])
        values = {name: getattr(self, name) for name in Counts.__struct_fields__ if hasattr(self, name)}
        return Counts(
            **values,
            commit_ms_p50=_percentile_ms(latencies, 0.50),
            commit_ms_p99=_percentile_ms(latencies, 0.99),
            commit_s=self._all_us / 1e6,
            commits_by_time=tuple(self._by_time),
        )


def _percentile_ms(latencies_us: list[int], share: float) -> float:
    return latencies_us[min(len(latencies_us) - 1, int(len(latencies_us) * share))] / 1000 if latencies_us else 0.0
