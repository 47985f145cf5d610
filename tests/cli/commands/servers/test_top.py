"""``oncelog top``: on a server, and on a plain database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import oncelog
from oncelog.cli.commands.servers import top
from oncelog.cli.commands.servers.top import LogSample, TopSample
from oncelog.errors import Unavailable
from tests.cli.shell import shell, terminal
from tests.servers import Serving


def test_a_database_shows_where_its_logs_end(tmp_path: Path) -> None:
    """What only the writer knows is said to be unknown, not zero."""
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        writer.append_many([oncelog.Record(b"a"), oncelog.Record(b"b")])
    shown = shell("top", tmp_path.as_uri(), "--json", "--count", "1", "--every", "10ms").json
    assert shown["logs"]["orders"]["records"] == 2
    assert shown["logs"]["orders"]["duplicates/s"] is None
    seen = terminal("top", "--count", "1", "--every", "10ms", url=tmp_path.as_uri()).seen
    assert "orders" in seen
    assert "records/s" in seen


def test_a_server_shows_what_it_counts(serve: Callable[..., Serving]) -> None:
    """Duplicates and queues, by its metrics."""
    server = serve("memory://")
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        client.post("/v1/logs", json={"name": "orders"})
        for _ in range(3):
            client.post("/v1/logs/orders/records", content=b"v", headers={"idempotency-key": "a"})
        client.post("/v1/queues", json={"name": "emails"})
        client.post("/v1/queues/emails/receive")
    look = top.source(f"http://{server.http}")
    found = look()
    assert (found.logs["orders"].records, found.logs["orders"].duplicates) == (1, 2)
    assert found.queues["emails · default"]["new"] == 0
    server.stop()
    with pytest.raises(Unavailable):
        look()


def test_rates_are_differences_over_time() -> None:
    """A log that was not there before has no rate yet; a counter that fell back shows none, not a negative one."""
    before = TopSample(source="s", at_us=0, logs={"a": LogSample(records=10, duplicates=5), "b": LogSample(records=9)})
    now = TopSample(
        source="s",
        at_us=2_000_000,
        logs={"a": LogSample(records=30, duplicates=6), "b": LogSample(records=1), "c": LogSample(records=100)},
    )
    shown = top.rates(before, now).logs
    assert (shown["a"]["records/s"], shown["a"]["duplicates/s"]) == (10, 0.5)
    assert shown["b"]["records/s"] == 0
    assert shown["c"]["records/s"] == 0
