"""A driver to be killed: copies a log into another, batch by batch, from its checkpoint on.

``python driver.py FOLDER BATCH STEP WHEN`` dies there; without the last three it lives, and says what Spark reported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oncelog.spark.session import session
from tests.spark.dying import DyingSource
from tests.spark.jobs import CONF, Shop


def main(folder: str, *where: str) -> None:
    """Run the query to its end, or to ours."""
    spark = session.start("driver", "local[2]", CONF, log_file=Path(folder) / "driver.log")
    spark.dataSource.register(DyingSource)
    shop = Shop(spark, Path(folder))
    jvm = spark._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    stream = shop.stream(maxOffsetsPerTrigger=5).select("value").repartition(2)
    writing = shop.copying(stream).format("dying")
    if where:
        batch, step, when = where
        dying = {"dies.batch": batch, "dies.step": step, "dies.when": when, "dies.victims": f"{pid},{os.getpid()}"}
        writing = writing.options(**dying)
    writing.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
