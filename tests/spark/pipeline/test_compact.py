"""A pipeline's sink is compacted between its runs, and each row is there once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, LogBusy
from oncelog.spark.pipeline import lease
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.compact import _columns, compact
from oncelog.spark.pipeline.spec import SinkSpec
from oncelog.storage.bucket.paths import bucket_of
from tests.spark.pipeline.shop import Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


def test_batches_become_one_file_and_the_pipeline_goes_on(shop: Shop, spark: SparkSession) -> None:
    """Spark puts the Parquet files together; a replayed batch and a later one find the table as it must be."""
    shop.send(*orders(0, 9))
    shop.run(spark)
    shop.send(*orders(9, 12))
    shop.run(spark)
    before = shop.sent_on()
    given, _ = check.check(shop.spec)
    assert given is not None
    with lease.held(given, SYSTEM), pytest.raises(LogBusy, match="is being run by"):
        compact(given, SYSTEM, spark)
    done = compact(given, SYSTEM, spark)
    assert done.files_after == 1 < done.files_before
    assert shop.sent_on() == before
    assert [row["position"] for row in before] == list(range(12))
    shop.forget("out-of-log")
    shop.send(*orders(12, 14))
    shop.run(spark)
    assert [row["position"] for row in shop.sent_on()] == list(range(14))


def test_files_of_other_columns_stay_apart(tmp_path: Path) -> None:
    """Spark takes the columns of one file, and drops those that others have more."""
    tables = [pa.table({"n": [1]}), pa.table({"n": [2], "m": ["x"]}), pa.table({"n": [3]})]
    for kind, write in (("parquet", pq.write_table), ("orc", orc.write_table)):
        paths = [tmp_path / f"{number}.{kind}" for number in range(3)]
        for table, path in zip(tables, paths, strict=True):
            write(table, path)
        first, other, again = map(_columns(SinkSpec(format=kind)), paths)
        assert first == again != other


KILLED = """\
import os, sys
from oncelog.cli import main
from oncelog.storage.bucket.bucket import Bucket
left = [int(sys.argv.pop(1))]
for name in ("delete", "copy"):
    def stepped(self, *given, whole=getattr(Bucket, name)):
        left[0] -= 1
        if left[0] == 0:
            os._exit(77)
        return whole(self, *given)
    setattr(Bucket, name, stepped)
sys.exit(main())
"""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_compaction_in_a_bucket_by_the_shell_is_killed(
    shop: Shop, spark: SparkSession, bucket_url: str, kind: str
) -> None:
    """On a real store, killed before the first and amid the files that go, and before the first that comes: no row is
    there twice; the next compaction finishes the plan, and each row is there once.
    """
    shop.change(('path = "out"', f'path = "{bucket_url}/out"'), ('format = "parquet"', f'format = "{kind}"'))
    for number in range(4):
        shop.send(*orders(number * 3, number * 3 + 3))
    shop.run(spark)
    environment = os.environ | {"PYTHONPATH": "src"}
    for kill in (1, 3, 5, 0):
        command = [sys.executable, "-c", KILLED, str(kill), "pipeline", "compact", str(shop.spec)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode in {0, 77}, done.stderr
        found = _positions(bucket_url, kind)
        assert len(found) == len(set(found)), f"doubled, killed at {kill}"
    assert done.returncode == 0
    assert sorted(found) == list(range(12))
    assert len(_files(bucket_url)) == 1


def _files(url: str) -> list[bytes]:
    place = bucket_of(url)
    assert place is not None
    bucket, prefix = place
    return [bucket.get(path).to_pybytes() for path, _ in bucket.below(f"{prefix}/out/")]


def _positions(url: str, kind: str) -> list[int]:
    """Return the positions that a reader of the bucket finds."""
    files = _files(url)
    if kind == "json":
        return [json.loads(line)["position"] for file in files for line in file.splitlines()]
    if kind == "csv":
        return [int(line.split(b",")[0]) for file in files for line in file.splitlines()]
    read = pq.read_table if kind == "parquet" else orc.read_table
    return [each for file in files for each in read(pa.BufferReader(file)).column("position").to_pylist()]


def test_pipeline_without_files_is_refused(shop: Shop) -> None:
    """A table that has a log of its own is compacted by its own means."""
    shop.change(('format = "parquet"', 'format = "delta"'))
    given, _ = check.check(shop.spec)
    assert given is not None
    with pytest.raises(InvalidArgument, match="only a sink of files"):
        compact(given, SYSTEM)
