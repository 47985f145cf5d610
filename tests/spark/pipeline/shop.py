"""A shop: files of orders that come in, a spec, and what is to be found in its log and in its output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.dataset as ds

import oncelog
from oncelog.clock import SYSTEM
from oncelog.errors import NotFound
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN_S = 1_700_000_000

SPEC = """\
name = "orders"
[source]
format = "json"
path = "incoming"
schema = "order_id STRING, amount LONG, attempt LONG"
options = { maxFilesPerTrigger = 1 }
[transform]
sql = "SELECT order_id, amount FROM source"
[identity]
column = "order_id"
[log]
url = "data"
name = "orders"
[sink]
format = "parquet"
path = "out"
"""


class Shop:
    """A folder with a pipeline in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "orders.toml"
        self.spec.write_text(SPEC)
        (folder / "incoming").mkdir()
        self._files = 0

    def send(self, *orders: tuple[str, int]) -> None:
        """Let a file of orders, each an id and an amount, come in."""
        lines = [
            msgspec.json.encode({"order_id": id, "amount": amount, "attempt": n})
            for n, (id, amount) in enumerate(orders)
        ]
        path = self.folder / "incoming" / f"{self._files:04d}.json"
        path.write_bytes(b"\n".join(lines) + b"\n")
        os.utime(path, (BEGAN_S + self._files,) * 2)  # Spark reads files in the order of their times
        self._files += 1

    def change(self, *changes: tuple[str, str]) -> None:
        """Change the spec."""
        text = self.spec.read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        self.spec.write_text(text)

    def run(self, spark: SparkSession) -> Outcome:
        """Run the pipeline until all there is has gone through."""
        given, mistakes = check.check(self.spec)
        assert given is not None
        assert [mistake for mistake in mistakes if mistake.severity == "error"] == []
        return Pipeline(given, self.folder, SYSTEM).run(lambda _: None, spark=spark)

    def stored(self, name: str = "orders") -> list[tuple[str | None, Any]]:
        """Return the ids and values of a log, in its order."""
        with oncelog.connect((self.folder / "data").as_uri()) as db:
            try:
                log = db.log(name)
            except NotFound:
                return []
            return [(entry.id, msgspec.json.decode(entry.value)) for entry in log.read()]

    def ids(self, name: str = "orders") -> list[str]:
        """Return the ids in a log, sorted."""
        return sorted(id or "" for id, _ in self.stored(name))

    def sent_on(self, kind: str = "parquet") -> list[dict[str, Any]]:
        """Return the rows of the output, as any program finds them that reads every file below the folder."""
        files = [str(path) for path in (self.folder / "out").rglob("*") if path.is_file()]
        if kind == "csv":
            return [
                {"position": int(line.split(",")[0])} for path in files for line in Path(path).read_text().splitlines()
            ]
        if not files:
            return []
        rows: list[dict[str, Any]] = ds.dataset(files, format=kind).to_table().sort_by("position").to_pylist()
        return rows

    def forget(self, leg: str, batches: int = 1) -> None:
        """Let Spark forget that it has done its last batches, as when it is killed before it has noted them."""
        commits = self.folder / ".oncelog" / "orders" / leg / "commits"
        for path in sorted((p for p in commits.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))[-batches:]:
            path.unlink()
            (commits / f".{path.name}.crc").unlink(missing_ok=True)

    def lose(self, *names: str) -> None:
        """Remove what is in the pipeline's folder under these names."""
        for name in names:
            shutil.rmtree(self.folder / name)


def orders(first: int, last: int) -> Sequence[tuple[str, int]]:
    """Return orders with these numbers."""
    return [(f"o{number}", number * 10) for number in range(first, last)]
