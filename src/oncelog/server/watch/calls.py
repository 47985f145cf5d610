"""How often each call was made, how it ended, how long it took: counted on the loop, read when Prometheus asks."""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client.core import HistogramMetricFamily, Metric

EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_KINDS_MAX = 2_000


class CallCounts:
    """Counts of calls by face (``grpc`` or ``http``), route or method, and code. Used on the loop; read anywhere."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[float]] = {}

    def observe(self, face: str, call: str, code: str, took_s: float) -> None:
        """Count one call. The call is a route or a method, never a path with names in it."""
        key = (face, call, code)
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _KINDS_MAX:
                return
            counts = self._counts[key] = [0.0] * (len(EDGES_S) + 2)
        counts[bisect_left(EDGES_S, took_s)] += 1
        counts[-1] += took_s

    def collect(self) -> Metric:
        """Return the histogram of all calls."""
        found = HistogramMetricFamily("oncelog_rpc_seconds", "How long calls took.", labels=["face", "call", "code"])
        for key, counts in list(self._counts.items()):
            total, buckets = 0.0, []
            for edge, count in zip((*map(str, EDGES_S), "+Inf"), counts[:-1], strict=True):
                total += count
                buckets.append((edge, total))
            found.add_metric(list(key), buckets, counts[-1])
        return found
