"""Spark's declarative pipelines find the format by themselves: as a source of tables, and as a sink of flows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.connect import connect
from oncelog.spark.session import spark_home
from oncelog.types import Record
from tests.spark.cluster import PYTHON_PATH

pytestmark = pytest.mark.xdist_group("spark-2")

SPEC = """
name: shop
storage: {storage}
libraries:
  - glob:
      include: flows.py
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("copies", "oncelog", {{"url": "{url}", "log": "copy", "create": "true"}})


@dp.append_flow(target="copies")
def copy():
    orders = spark.readStream.format("oncelog").option("url", "{url}").option("log", "orders").load()
    return orders.select("value")
"""


def run(folder: Path) -> None:
    """Run the pipeline to the end of what there is."""
    environment = os.environ | {
        "PYTHONPATH": PYTHON_PATH,
        "SPARK_HOME": str(spark_home.made()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # this JVM lives for one small query
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    confs = ["spark.ui.enabled=false", "spark.sql.shuffle.partitions=2"]
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]
    command += [part for conf in confs for part in ("--conf", conf)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_flow_between_logs(tmp_path: Path, runs: int) -> None:
    """However often it is run, with more records in between: each is copied once, under the mark of one query."""
    url = (tmp_path / "db").as_uri()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    (tmp_path / "flows.py").write_text(FLOWS.format(url=url))
    with connect(url) as db:
        for first in range(0, 10 * runs, 10):
            with db.log("orders", create=True).writer() as writer:
                writer.append_many([Record(b"%d" % number) for number in range(first, first + 10)])
            run(tmp_path)
        copied = sorted(entry.value for entry in db.log("copy").read())
        assert copied == sorted(b"%d" % number for number in range(10 * runs))
        assert len(db.log("copy").marks()) == 1
