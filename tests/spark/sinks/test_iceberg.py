"""A batch is in an Iceberg table once, whichever run writes it, and is read by every library that reads Iceberg."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument
from oncelog.spark.sinks import iceberg
from oncelog.spark.sinks.iceberg import Iceberg
from oncelog.storage.bucket.paths import bucket_of

QUERY = "query-1"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a table in a new catalog."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    (tmp_path / "warehouse").mkdir()
    return {
        "table": "shop.orders",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }


def writing(table: pa.Table) -> Callable[[str], None]:
    """Return what writes a table as Spark does."""

    def write(path: str) -> None:
        Path(path).mkdir(parents=True)
        Path(path, "_SUCCESS").touch()
        pq.write_table(table, Path(path, f"part-{SYSTEM.token(4).hex()}.parquet"))

    return write


def done(options: dict[str, str], batch: int, *numbers: int, query: str = QUERY) -> None:
    """Write a batch as a run does that nothing befalls."""
    table = pa.table({"n": numbers})
    Iceberg(options, SYSTEM).write(query, batch, table.schema, writing(table))


def rows(options: dict[str, str]) -> list[int]:
    """Return the numbers in the table, as pyiceberg and polars find them."""
    table = Iceberg(options, SYSTEM)._catalog.load_table("shop.orders")
    found = sorted(table.scan().to_arrow().column("n").to_pylist())
    assert sorted(pl.scan_iceberg(table).collect()["n"].to_list()) == found
    assert sorted(row[0] for row in table.scan().to_duckdb("t").execute("SELECT n FROM t").fetchall()) == found
    return found


def test_batch_written_again_is_there_once(options: dict[str, str]) -> None:
    """A replayed batch is known by the table's property; the first batch has number 0."""
    done(options, 0, 1, 2)
    done(options, 0, 1, 2)
    done(options, 1, 3)
    done(options, 0, 1, 2)
    assert rows(options) == [1, 2, 3]


def test_no_connection_is_held_between_two_batches(options: dict[str, str]) -> None:
    """A query that runs for weeks keeps nobody else from the catalog, and no connection that may break."""
    sink: Any = Iceberg(options, SYSTEM)
    table = pa.table({"n": [1]})
    for batch in (0, 1):
        sink.write(QUERY, batch, table.schema, writing(table))
        assert sink._catalog.engine.pool.checkedin() == 0
    assert rows(options) == [1, 1]


def test_two_runs_write_a_batch_at_once(options: dict[str, str]) -> None:
    """The other run does the whole batch while this one writes its files."""
    done(options, 0, 0)

    def both(path: str) -> None:
        writing(pa.table({"n": [1, 2]}))(path)
        done(options, 1, 1, 2)

    Iceberg(options, SYSTEM).write(QUERY, 1, pa.schema([("n", pa.int64())]), both)
    assert rows(options) == [0, 1, 2]


def test_run_that_looked_before_another_committed(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look-up and the commit another run commits the same batch: pyiceberg must not retry by itself."""
    done(options, 0, 0)
    prepared = iceberg._prepared
    raced: list[int] = []

    def race(table: Table, schema: pa.Schema) -> bool:
        if not raced:
            raced.append(1)
            done(options, 1, 1, 2)
        return prepared(table, schema)

    monkeypatch.setattr(iceberg, "_prepared", race)
    done(options, 1, 1, 2)
    assert raced
    assert rows(options) == [0, 1, 2]


def test_two_threads_at_once(options: dict[str, str]) -> None:
    """Of two threads with the same batch, one adds it."""
    done(options, 0, 0)
    begin = threading.Barrier(2)

    def one() -> None:
        begin.wait()
        done(options, 1, 1, 2)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(options) == [0, 1, 2]


def test_table_in_a_bucket(options: dict[str, str], bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real store: a batch that comes again, two runs at once, a kill before the commit, a query that lost its
    checkpoint. What was staged and not committed by a run that lost is removed.
    """
    options = options | {"warehouse": f"{bucket_url}/warehouse"}
    done(options, 0, 0)
    done(options, 0, 0)

    def both(path: str) -> None:
        writing(pa.table({"n": [1, 2]}))(path)
        done(options, 1, 1, 2)

    Iceberg(options, SYSTEM).write(QUERY, 1, pa.schema([("n", pa.int64())]), both)
    with monkeypatch.context() as killing:
        killing.setattr(Iceberg, "_commit", _killed)
        with pytest.raises(KeyboardInterrupt):
            done(options, 2, 3)
    begin = threading.Barrier(2)

    def one() -> None:
        begin.wait()
        done(options, 2, 3)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = Iceberg(options, SYSTEM)._catalog.load_table("shop.orders")
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == [0, 1, 2, 3]
    place = bucket_of(bucket_url)
    assert place is not None
    files = [path for path, _ in place[0].below(f"{place[1]}/warehouse/") if path.endswith(".parquet")]
    assert len(files) == 4  # one of them of the run that was killed
    with pytest.raises(InvalidArgument, match="twice"):
        done(options, 0, 1, query="another")


def _killed(*_: object) -> bool:
    raise KeyboardInterrupt


def test_columns_may_be_added(options: dict[str, str]) -> None:
    """A batch with a column more makes the table wider; one of another type is refused."""
    done(options, 0, 7)
    wider = pa.table({"n": [8], "note": ["x"]})
    Iceberg(options, SYSTEM).write(QUERY, 1, wider.schema, writing(wider))
    assert rows(options) == [7, 8]
    other = pa.table({"n": ["x"]})
    with pytest.raises(InvalidArgument, match=r"shop\.orders: "):
        Iceberg(options, SYSTEM).write(QUERY, 2, other.schema, writing(other))
    assert rows(options) == [7, 8]


def test_table_of_another_query_is_refused(options: dict[str, str]) -> None:
    """A checkpoint that is lost makes another query, whose batches would be there again."""
    done(options, 0, 1)
    with pytest.raises(InvalidArgument, match="twice"):
        done(options, 0, 1, query="another")
    assert rows(options) == [1]
