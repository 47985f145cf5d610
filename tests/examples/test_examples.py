"""The examples do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from examples import backfill, daily, late, orders
from tests.spark.cluster import PYTHON_PATH, ROOT, cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


@pytest.mark.soak
def test_daily_table_has_each_order_once(tmp_path: Path, spark: SparkSession) -> None:
    """Whatever the producers sent again, and however often the pipeline ran."""
    found = daily.run(tmp_path, spark)
    logical = len({attempt.order_id for attempt in orders.day(900, 1)})
    assert (found["rows"], found["orders"]) == (logical, logical)
    assert {path.name for path in (tmp_path / "table").glob("batch=*/*/")} == {"placed_on=2026-03-14"}


def test_backfill_and_live_meet_in_one_log(tmp_path: Path, spark: SparkSession) -> None:
    """Twenty orders are in both: they are stored once, and counted as duplicates by the second."""
    live, archive, ids = backfill.run(tmp_path, spark)
    assert (live.stored, archive.stored, archive.duplicates) == (40, 60, 20)
    assert sorted(ids) == sorted(f"o-{number}" for number in range(100))


def test_late_duplicates_are_purged(tmp_path: Path) -> None:
    """They leave their places behind, at which a retry is still met."""
    came, purged, left, met = late.run(tmp_path)
    assert (came, purged, met) == (4, 4, 1003)
    assert left == list(range(1000))


@pytest.mark.soak
def test_the_same_on_a_bucket_and_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks on two workers stage into a real S3 server, the driver adopts: each order is there once."""
    server = SeaweedFS(tmp_path / "seaweedfs")
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)  # the cluster's processes have it from here
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        with cluster(tmp_path) as master:
            command = [sys.executable, "-m", "examples.cluster", f"s3://{BUCKET}/shop", master, str(tmp_path / "run")]
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        server.end()
    logical = len({attempt.order_id for attempt in orders.day(1000, 3)})
    assert f"{logical} stored, {logical} rows, {logical} orders" in done.stdout, done.stdout + done.stderr
