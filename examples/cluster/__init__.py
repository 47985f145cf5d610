"""The same on a cluster and a bucket: Spark's tasks run on other machines, and the log is where all of them reach it.

``python -m examples.cluster s3://bucket/shop spark://host:7077 FOLDER``, with the bucket's credentials in the
environment, of the workers too. FOLDER, with input, output and progress, must be one that all machines see.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds

from examples import orders
from oncelog.clock import SYSTEM
from oncelog.spark.pipeline import mistakes, spec
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline

SPEC = """\
name = "orders"
[source]
format = "json"
path = "incoming"
options = {{ maxFilesPerTrigger = 16 }}
[transform]
sql = "SELECT order_id, producer, customer, item, quantity, amount_cents, placed_at FROM source"
[identity]
column = "order_id"
[log]
url = "{url}"
name = "orders"
settings = {{ window = {{ duration_s = 604800, max_keys = 1000000 }} }}
[sink]
format = "parquet"
path = "out"
[run]
master = "{master}"
conf = {{ "spark.driver.host" = "127.0.0.1", "spark.executor.memory" = "800m", "spark.sql.shuffle.partitions" = 4 }}
"""


def run(url: str, master: str, folder: Path) -> tuple[Outcome, list[str]]:
    """Run the pipeline over a day of orders; return what it did, and the ids in the output."""
    orders.write(folder / "incoming", 1000, seed=3)
    (folder / "pipeline.toml").write_text(SPEC.format(url=url, master=master))
    given = spec.placed(mistakes.load(folder / "pipeline.toml"), folder)
    outcome = Pipeline(given, folder, SYSTEM).run(lambda _: None)
    table = ds.dataset(folder / "out", format="parquet", partitioning="hive").to_table(["order_id"])
    return outcome, table.column("order_id").to_pylist()
