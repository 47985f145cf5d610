"""The metrics of a real server are those that the dashboard draws and the page tells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

import oncelog.server.watch
from tests.servers import Serving

DASHBOARD = json.loads((Path(oncelog.server.watch.__path__[0]) / "dashboard.json").read_text())
PAGE = (Path(__file__).parents[4] / "docs" / "monitoring.md").read_text()
NAME = re.compile(r"oncelog_[a-z_]+")


def _exported(server: Serving) -> set[str]:
    """Return the names of all samples of a server that has done a little of everything."""
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        client.post("/v1/logs", json={"name": "orders"})
        client.post("/v1/logs/orders/records", content=b"v", headers={"idempotency-key": "a"})
        client.post("/v1/queues", json={"name": "emails"})
        client.post("/v1/queues/emails/messages", content=b"m")
        client.post("/v1/queues/emails/receive")
        client.post("/v1/hooks/plain", content=b"{}")
        with client.stream("GET", "/v1/logs/orders/tail?start=earliest") as tail:  # somebody who can be behind
            lines = tail.iter_lines()
            while "id: 0" not in next(lines):
                pass
            text = client.get("/metrics").text
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_all_that_is_drawn_and_told_is_exported(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """A panel over a name that does not exist shows nothing, for ever; so does an alert. And nothing is untold."""
    (tmp_path / "serve.toml").write_text('[hooks.plain]\nlog = "orders"\nid = "json:/id"\n')
    exported = _exported(serve("memory://", f"--config={tmp_path / 'serve.toml'}"))
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries.append(DASHBOARD["templating"]["list"][1]["query"])
    drawn = {name for query in queries for name in NAME.findall(query)}
    assert drawn
    assert drawn <= exported, drawn - exported
    told = {name for name in NAME.findall(PAGE) if not name.endswith("_")}
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported}
    assert told <= families | exported, told - families - exported
    assert families <= told, families - told


def test_every_panel_asks_the_chosen_source() -> None:
    """A dashboard that is imported elsewhere has no data source of ours."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in DASHBOARD["panels"])
