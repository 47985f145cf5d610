"""A standalone cluster with two workers: twins of tasks, and executors that die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.connect import connect
from tests.servers import Serving
from tests.spark.cluster import cluster, run

pytestmark = pytest.mark.xdist_group("spark-2")


@pytest.mark.soak
def test_a_speculative_twin_and_a_dead_executor(tmp_path: Path) -> None:
    """Both attempts at a task stage its rows, and an executor dies with a task half done: each row is there once. Jobs
    over a whole log are done by the cluster, too.
    """
    with cluster(tmp_path) as url:
        run(url, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"stalled", "twin", "killed"}
    with connect((tmp_path / "db").as_uri()) as db:
        for name in ("twins", "killed"):
            values = [entry.value for entry in db.log(name).read()]
            assert len(values) == len(set(values)) == 400, name
            assert db.log(name).verify().ok


@pytest.mark.soak
def test_a_twin_and_a_dead_executor_through_a_server(tmp_path: Path, serve: Callable[..., Serving]) -> None:
    """Executors that share no disk with the driver stage through a server, two of them the same rows, one half of
    them: each row is there once.
    """
    server = serve()
    with cluster(tmp_path) as url:
        run(url, tmp_path, f"oncelog://{server.grpc}")
    assert {path.name for path in tmp_path.iterdir()} >= {"stalled", "twin", "killed"}
    with connect(f"oncelog://{server.grpc}") as db:
        for name in ("twins", "killed"):
            values = [entry.value for entry in db.log(name).read()]
            assert len(values) == len(set(values)) == 400, name
            assert db.log(name).verify().ok
