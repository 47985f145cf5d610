"""A feed of orders becomes a daily table: each order once, in the folder of the day on which it was placed.

``python -m examples.daily``. Files of attempts come in while the pipeline runs again and again, as from cron.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from examples import orders
from oncelog.clock import SYSTEM
from oncelog.spark.pipeline import mistakes, spec
from oncelog.spark.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """\
name = "daily"

[source]
format = "json"
path = "incoming"

[transform]
sql = "SELECT order_id, producer, amount_cents, to_date(placed_at) AS placed_on FROM source"

[identity]
column = "order_id"

[log]
url = "data"
name = "orders"
settings = { window = { duration_s = 604800, max_keys = 1000000 } }

[sink]
format = "parquet"
path = "table"
sql = "SELECT record.order_id, record.amount_cents, record.placed_on FROM log"
partition_by = ["placed_on"]
"""


def run(folder: Path, spark: SparkSession | None = None) -> dict[str, int]:
    """Let a day come in two parts, run the pipeline after each, and return what the table says."""
    (folder / "pipeline.toml").write_text(SPEC)
    (folder / "incoming").mkdir()
    orders.write(folder / "all", 900, seed=1)
    files = sorted((folder / "all").iterdir())
    for begin in range(0, len(files), 24):
        for path in files[begin : begin + 24]:
            shutil.copy2(path, folder / "incoming")
        given = spec.placed(mistakes.load(folder / "pipeline.toml"), folder)
        Pipeline(given, folder, SYSTEM).run(lambda _: None, spark=spark)
    table = ds.dataset(folder / "table", format="parquet", partitioning="hive").to_table()
    ids = table.column("order_id").to_pylist()
    return {"rows": len(ids), "orders": len(set(ids)), "cents": sum(table.column("amount_cents").to_pylist())}
