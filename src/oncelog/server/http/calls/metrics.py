"""The metrics of a server: those of its logs, its calls, its limits, its hooks and its queues."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from oncelog import __version__
from oncelog.errors import OncelogError
from oncelog.limits import METRIC_LOGS_MAX
from oncelog.metrics import OTHER, LogCollector

if TYPE_CHECKING:
    from oncelog.server.http.app import App
    from oncelog.server.server import Server

QUEUES_MAX = 100
"""Queues whose messages are counted; each costs a look into the state."""


class ServerMetrics(Collector):
    """Everything that ``/metrics`` shows."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: App | None = None
        self._registry = CollectorRegistry()
        self._registry.register(LogCollector(lambda: [(seat.name, seat.writer) for seat in server.seats.all()]))
        self._registry.register(self)

    def watch(self, app: App) -> None:
        """Show what the HTTP face counts, too."""
        self._app = app

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and its media type. For a thread: it looks at queues."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def describe(self) -> list[Metric]:
        """Return nothing: the registry need not collect to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the server itself."""
        server = self._server
        yield InfoMetricFamily(
            "oncelog_build", "What runs here.", {"version": __version__, "python": platform.python_version()}
        )
        yield _gauge("server_ready", "1 while calls are taken.", server.ready and not server.is_cut_off)
        yield _gauge("server_received_bytes", "Bytes that were received and are not stored.", server.budget.used_bytes)
        yield _gauge("server_open_logs", "Logs whose writer is open here.", server.seats.open_count())
        yield _gauge("server_followed_logs", "Logs that somebody follows.", server.tails.hubs)
        waiting = GaugeMetricFamily("oncelog_desk_waiting", "Calls that wait for a log's writer.")
        waiting.add_metric([], sum(seat.desk.waiting for seat in server.seats.all()))
        yield waiting
        yield self._lags()
        yield server.calls.collect()
        if self._app is not None:
            yield from self._of_app(self._app)
        yield self._queues()

    def _lags(self) -> Metric:
        """Return how far the followers of each log are behind; logs beyond the first thousand share a label."""
        found = GaugeMetricFamily(
            "oncelog_reader_lag_records", "Records that the slowest follower of a log is behind.", labels=["log"]
        )
        lags: dict[str, int] = {}
        for number, (log, lag) in enumerate(sorted(self._server.tails.lags().items())):
            label = log if number < METRIC_LOGS_MAX else OTHER
            lags[label] = max(lags.get(label, 0), lag)
        for label, lag in lags.items():
            found.add_metric([label], lag)
        return found

    def _of_app(self, app: App) -> Iterator[Metric]:
        yield _gauge("http_body_bytes", "Bytes of HTTP bodies that are held.", app.bodies.used_bytes)
        yield _gauge("tokens_damaged", "1 while the token file cannot be read.", app.authorizer.trouble is not None)
        failed = CounterMetricFamily("oncelog_failed_logins", "Calls with an unknown token.")
        failed.add_metric([], app.authorizer.failed_logins)
        yield failed
        hooks = CounterMetricFamily("oncelog_hooks", "Webhooks by how they ended.", labels=["hook", "outcome"])
        for (name, outcome), count in list(app.hooks.counts.items()):
            hooks.add_metric([name, outcome], count)
        yield hooks

    def _queues(self) -> Metric:
        """Return how many messages of each queue and group are in which state."""
        found = GaugeMetricFamily("oncelog_queue_messages", "Messages by state.", labels=["queue", "group", "state"])
        database, state = self._server.database, self._server.settings.queue_state
        try:
            for name in database.queues(state=state)[:QUEUES_MAX]:
                for group, stats in database.queue(name, state=state).stats().groups.items():
                    for word in ("new", "waiting", "leased", "dying"):
                        found.add_metric([name, group, word], getattr(stats, word))
        except OncelogError:
            return found  # the state is away: the other metrics matter the more
        return found


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"oncelog_{name}", help, value=float(value))
