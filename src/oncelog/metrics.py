"""Metrics of logs for Prometheus, for programs that hold their logs themselves; a server exports the same.

Counters are read when Prometheus asks: an append pays nothing. ::

    import prometheus_client
    from oncelog.metrics import LogCollector

    prometheus_client.REGISTRY.register(LogCollector(db))

A log has metrics while it has, or had, a writer here. No label is an id, a tenant or a peer. The first 1,000 logs have
a label each; all others share ``log="other"``. Needs ``pip install "oncelog[server]"``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from oncelog.limits import METRIC_LOGS_MAX
from oncelog.log.append.counters import COMMIT_EDGES_US, Counts

if TYPE_CHECKING:
    from oncelog.connect import Database
    from oncelog.log.writer import Writer

OTHER = "other"
"""The label of logs beyond the first thousand."""

_COUNTERS = {
    "append_attempts": ("attempts", "Records that were given to be appended, retries too."),
    "records_stored": ("stored", "Records that were stored."),
    "duplicates": ("duplicates", "Records that were there already: answered with their first position."),
    "conflicts": ("conflicts", "Records whose id was taken by other content."),
    "refused": ("refused", "Records that were refused for another reason."),
    "commits": ("commits", "Blocks that were stored."),
    "written_bytes": ("bytes_written", "Bytes of blocks that were stored."),
    "storage_failures": ("storage_failures", "Attempts to store a block that failed."),
    "snapshots": ("snapshots", "Snapshots of the dedup window that were stored."),
    "snapshot_failures": ("snapshot_failures", "Snapshots that could not be stored."),
    "producers_expired": ("producers_expired", "Producers that were forgotten because they were inactive."),
    "producers_evicted": ("producers_evicted", "Producers that were forgotten because there were too many."),
}
_GAUGES = {
    "remembered_ids": ("keys", "Ids that the dedup window remembers."),
    "pending_records": ("pending", "Records that are being stored now."),
    "window_bytes": ("bytes", "Bytes of memory that the dedup window takes."),
}
_SUMMED = (*(field for field, _ in _COUNTERS.values()), "commit_s")


class _Sum(NamedTuple):
    """What all writers of a log, or of several logs, have counted so far."""

    counters: Mapping[str, float]
    by_time: tuple[int, ...]

    def plus(self, counts: Counts) -> _Sum:
        counters = {name: self.counters[name] + getattr(counts, name) for name in _SUMMED}
        found = counts.commits_by_time or _ZERO.by_time
        return _Sum(counters, tuple(map(sum, zip(self.by_time, found, strict=True))))

    def with_(self, other: _Sum) -> _Sum:
        counters = {name: self.counters[name] + other.counters[name] for name in _SUMMED}
        return _Sum(counters, tuple(map(sum, zip(self.by_time, other.by_time, strict=True))))


_ZERO = _Sum(dict.fromkeys(_SUMMED, 0.0), (0,) * (len(COMMIT_EDGES_US) + 1))


class LogCollector(Collector):
    """Reads the counters of all writers of a database when Prometheus asks. Safe to share between threads.

    A counter goes on where it was when a log gets another writer.
    """

    def __init__(self, source: Database | Callable[[], Iterable[tuple[str, Writer | None]]]) -> None:
        """Take a database, or a function that returns the names of logs with their writers."""
        self._writers = source if callable(source) else lambda: _writers(source)
        self._lock = threading.Lock()
        self._ended: dict[str, _Sum] = {}
        self._seen: dict[str, Writer] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        with self._lock:
            sums, windows = self._read()
        for name, (field, help) in _COUNTERS.items():
            counter = CounterMetricFamily(f"oncelog_{name}", help, labels=["log"])
            for log, total in sums.items():
                counter.add_metric([log], total.counters[field])
            yield counter
        for name, (field, help) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"oncelog_{name}", help, labels=["log"])
            for log, window in windows.items():
                gauge.add_metric([log], window.get(field, 0))
            yield gauge
        commits = HistogramMetricFamily("oncelog_commit_seconds", "How long storing a block took.", labels=["log"])
        for log, total in sums.items():
            commits.add_metric([log], _buckets(total.by_time), total.counters["commit_s"])
        yield commits

    def _read(self) -> tuple[dict[str, _Sum], dict[str, dict[str, float]]]:
        """Return the sums of each log, by label, and the state of their windows."""
        sums: dict[str, _Sum] = {}
        windows: dict[str, dict[str, float]] = {}
        open_now = {name: writer for name, writer in self._writers() if writer is not None and not writer.closed}
        for name, seen in list(self._seen.items()):
            if open_now.get(name) is not seen:  # it was closed: what it counted last is final
                self._ended[name] = self._ended.get(name, _ZERO).plus(seen.counts())
                del self._seen[name]
        self._seen.update(open_now)
        for number, name in enumerate(sorted({*self._ended, *self._seen})):
            label = name if number < METRIC_LOGS_MAX else OTHER
            total = self._ended.get(name, _ZERO)
            writer = self._seen.get(name)
            if writer is not None:
                total = total.plus(writer.counts())
                window = windows.setdefault(label, {})
                for field, value in writer.window_state.items():
                    window[field] = window.get(field, 0) + (value or 0)
            sums[label] = sums[label].with_(total) if label in sums else total
        return sums, windows


def _writers(database: Database) -> list[tuple[str, Writer | None]]:
    return [(log.name, log._writer) for log in list(database._logs.values())]  # noqa: SLF001 (read, not used)


def _buckets(by_time: tuple[int, ...]) -> list[tuple[str, float]]:
    """Return counts up to each edge, as Prometheus wants them."""
    edges = [*(f"{edge / 1e6:g}" for edge in COMMIT_EDGES_US), "+Inf"]
    total, found = 0, []
    for edge, count in zip(edges, by_time, strict=True):
        total += count
        found.append((edge, float(total)))
    return found
