"""Metrics of an embedded program: read when Prometheus asks, true across writers."""

from __future__ import annotations

import contextlib

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import oncelog
from oncelog.metrics import LogCollector


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_counters_go_on_when_a_log_gets_another_writer() -> None:
    """A counter that fell back to zero would look like a restart; what was counted last must not be lost."""
    with oncelog.connect("memory://") as db:
        registry = CollectorRegistry()
        registry.register(LogCollector(db))
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"a", id="1")
            writer.append(b"a", id="1")
            assert _value(registry, "oncelog_records_stored_total", log="orders") == 1
            assert _value(registry, "oncelog_duplicates_total", log="orders") == 1
            assert _value(registry, "oncelog_remembered_ids", log="orders") == 1
            writer.append(b"b", id="2")  # counted after the last look, before the end
        with log.writer() as writer:
            writer.append(b"c", id="3")
            assert _value(registry, "oncelog_records_stored_total", log="orders") == 3
            assert _value(registry, "oncelog_commit_seconds_count", log="orders") == 3
            assert _value(registry, "oncelog_commit_seconds_bucket", log="orders", le="+Inf") == 3
        assert _value(registry, "oncelog_records_stored_total", log="orders") == 3


def test_no_id_and_no_value_is_a_label() -> None:
    """Ids can be people: they are never in metrics."""
    with oncelog.connect("memory://") as db:
        registry = CollectorRegistry()
        registry.register(LogCollector(db))
        with db.log("orders", create=True).writer() as writer:
            writer.append(b"secret-value", id="secret-id", tenant="secret-tenant", stream="secret-stream")
            assert b"secret" not in generate_latest(registry)


def test_logs_beyond_the_limit_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus bears a thousand labels; of the logs behind them nothing is lost."""
    monkeypatch.setattr("oncelog.metrics.METRIC_LOGS_MAX", 2)
    with oncelog.connect("memory://") as db, contextlib.ExitStack() as open_writers:
        registry = CollectorRegistry()
        registry.register(LogCollector(db))
        for name in ("a", "b", "c", "d"):
            open_writers.enter_context(db.log(name, create=True).writer()).append(b"v", id="1")
        found = {name: _value(registry, "oncelog_records_stored_total", log=name) for name in ("a", "b", "c", "other")}
        assert found == {"a": 1, "b": 1, "c": None, "other": 2}
        assert _value(registry, "oncelog_remembered_ids", log="other") == 2
