"""The archive and what comes now go into one log, by two pipelines that take turns: what is in both is there once.

``python -m examples.backfill``
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import oncelog
from oncelog.clock import SYSTEM
from oncelog.spark.pipeline import mistakes, spec
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The window is thirty days: as long as the backfill may take.
SPEC = """\
name = "{name}"
[source]
format = "{format}"
path = "{name}"
schema = "order_id STRING, amount LONG"
[identity]
column = "order_id"
[log]
url = "data"
name = "orders"
settings = {{ window = {{ duration_s = 2592000, max_keys = 1000000 }} }}
"""


def run(folder: Path, spark: SparkSession | None = None) -> tuple[Outcome, Outcome, list[str]]:
    """Run the pipeline over what comes, then the one over the archive, which overlaps; return both, and the ids."""
    for name in ("live", "archive"):
        (folder / name).mkdir()
    rows = [{"order_id": f"o-{number}", "amount": number * 10} for number in range(100)]
    (folder / "live" / "today.json").write_bytes(b"\n".join(map(msgspec.json.encode, rows[60:])))
    pq.write_table(pa.Table.from_pylist(rows[:80]), folder / "archive" / "year.parquet")
    live, archive = (_run(folder, name, kind, spark) for name, kind in (("live", "json"), ("archive", "parquet")))
    with oncelog.connect((folder / "data").as_uri()) as db:
        ids = [entry.id or "" for entry in db.log("orders").read()]
    return live, archive, ids


def _run(folder: Path, name: str, format: str, spark: SparkSession | None) -> Outcome:
    (folder / f"{name}.toml").write_text(SPEC.format(name=name, format=format))
    given = spec.placed(mistakes.load(folder / f"{name}.toml"), folder)
    return Pipeline(given, folder, SYSTEM).run(lambda _: None, spark=spark)
