"""Every sink, on disk and in a bucket, on this machine and on a cluster: killed, scheduled twice, resumed, overlapping.

Each row is in the table once, as a program finds it that knows nothing of Oncelog.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import oncelog
from oncelog.storage.bucket.paths import bucket_of
from tests.spark.cluster import PYTHON_PATH, cluster
from tests.spark.pipeline.shop import Shop, orders
from tests.spark.pipeline.test_pipeline_kill import kill_when, started

pytestmark = pytest.mark.soak

SINKS = ("parquet", "orc", "json", "csv", "delta", "iceberg", "oncelog")


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a standalone cluster."""
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


class Table:
    """The table of a sink, as other programs read it."""

    def __init__(self, kind: str, place: str, folder: Path) -> None:
        self._kind = kind
        self._place = place
        self._catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{place}/warehouse"}
        if os.environ.get("AWS_ENDPOINT_URL"):
            self._catalog["s3.endpoint"] = os.environ["AWS_ENDPOINT_URL"]

    def spec(self) -> str:
        """Return the sink in the words of a spec."""
        if self._kind == "iceberg":
            options = ", ".join(f'"{name}" = "{value}"' for name, value in self._catalog.items())
            return f'format = "iceberg"\noptions = {{ table = "shop.orders", {options} }}'
        if self._kind == "oncelog":
            return f'format = "oncelog"\noptions = {{ url = "{self._place}/copies", log = "copy", create = true }}'
        return f'format = "{self._kind}"\npath = "{self._place}/out"'

    def ids(self) -> list[str]:
        """Return the ids of all rows, sorted."""
        return sorted(self._ids())

    def _ids(self) -> list[str]:
        if self._kind == "delta":
            options = {"allow_http": "true"} if self._place.startswith("s3:") else None
            table = DeltaTable(f"{self._place}/out", storage_options=options)
            return list(table.to_pyarrow_table()["order_id"].to_pylist())
        if self._kind == "iceberg":
            kept = load_catalog("default", type="sql", **self._catalog).load_table("shop.orders")
            return list(kept.scan().to_arrow()["order_id"].to_pylist())
        if self._kind == "oncelog":
            with oncelog.connect(f"{self._place}/copies") as db:
                return [str(entry.id) for entry in db.log("copy").read()]
        return self._of_files()

    def _of_files(self) -> list[str]:
        files = self._files()
        if self._kind == "csv":
            return [line.split(b",")[2].decode() for file in files for line in file.splitlines()]
        with tempfile.TemporaryDirectory() as folder:
            for number, file in enumerate(files):
                Path(folder, f"{number}.{self._kind}").write_bytes(file)
            return list(ds.dataset(folder, format=self._kind).to_table()["order_id"].to_pylist()) if files else []

    def _files(self) -> list[bytes]:
        found = bucket_of(self._place)
        if found is None:
            top = Path(self._place.removeprefix("file://"), "out")
            return [path.read_bytes() for path in top.rglob("*") if path.is_file()]
        return [found[0].get(path).to_pybytes() for path, _ in found[0].below(f"{found[1]}/out/")]


@pytest.mark.parametrize(
    ("kind", "place", "master"), list(itertools.product(SINKS, ("disk", "bucket"), ("local", "cluster")))
)
def test_each_row_is_there_once(kind: str, place: str, master: str, shop: Shop, request: pytest.FixtureRequest) -> None:
    """Killed when the log has its rows; run by two at once, one of which is refused or waits; run again over more."""
    folder = request.getfixturevalue("bucket_url") if place == "bucket" else shop.folder.as_uri()
    table = Table(kind, folder, shop.folder)
    (shop.folder / "warehouse").mkdir()
    url = request.getfixturevalue("spark_cluster") if master == "cluster" else "local[2]"
    more = (
        f'"spark.executorEnv.PYTHONPATH" = "{PYTHON_PATH}", "spark.executor.memory" = "512m", "spark.cores.max" = "2"'
    )
    conf = f'conf = {{ {more}, "spark.sql.shuffle.partitions" = "2" }}\n' if master == "cluster" else ""
    shop.change(
        ('format = "parquet"\npath = "out"', table.spec()), ("[sink]", f'[run]\nmaster = "{url}"\n{conf}[sink]')
    )
    run = ("pipeline", "run", str(shop.spec), "--json")
    for first in range(0, 30, 10):
        shop.send(*orders(first, first + 12))
    assert kill_when(started(*run), lambda: len(shop.ids()) > 0)
    both = [started(*run, "--wait", "200"), started(*run, "--wait", "200")]
    for process in both:
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
    assert table.ids() == shop.ids() == sorted(id for id, _ in orders(0, 32))
    shop.send(*orders(30, 35))
    again = [started(*run), started(*run)]
    codes = [(process.communicate(timeout=400), process.returncode)[1] for process in again]
    assert 0 in codes
    assert set(codes) <= {0, 3}
    assert table.ids() == shop.ids() == sorted(id for id, _ in orders(0, 35))
