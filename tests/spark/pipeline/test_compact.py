"""A pipeline's sink is compacted between its runs, and each row is there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, LogBusy
from oncelog.spark.pipeline import lease
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.compact import compact
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


def test_pipeline_without_files_is_refused(shop: Shop) -> None:
    """A table that has a log of its own is compacted by its own means."""
    shop.change(('format = "parquet"', 'format = "delta"'))
    given, _ = check.check(shop.spec)
    assert given is not None
    with pytest.raises(InvalidArgument, match="only a sink of files"):
        compact(given, SYSTEM)
