"""A batch is in a Delta table once, whichever run writes it, and is read by every library that reads Delta."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument
from oncelog.spark.sinks.delta import Delta
from oncelog.storage.bucket.paths import bucket_of

QUERY = "query-1"


def writing(table: pa.Table, folder: str = "") -> Callable[[str], None]:
    """Return what writes a table as Spark does."""

    def write(path: str) -> None:
        target = Path(path, folder)
        target.mkdir(parents=True)
        Path(path, "_SUCCESS").touch()
        pq.write_table(table, target / f"part-{SYSTEM.token(4).hex()}.parquet")

    return write


def test_table_in_a_bucket(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real store: a batch that comes again, two runs at once, a kill before the commit, a query that lost its
    checkpoint; partitions are there as well. What was staged and not committed by a run that lost is removed.
    """
    url = f"{bucket_url}/table"
    options = {"allow_http": "true"}

    def found() -> list[int]:
        return sorted(DeltaTable(url, storage_options=options).to_pyarrow_table().column("n").to_pylist())

    def write(batch: int, *numbers: int) -> None:
        sink = Delta(url.replace("s3:", "s3a:"), ("day",), SYSTEM)
        sink.own(QUERY, "orders")
        sink.write(QUERY, batch, writing(pa.table({"n": numbers}), "day=a%20b"))

    write(0, 1, 2)
    write(0, 1, 2)

    def both(staged: str) -> None:
        writing(pa.table({"n": [3]}), "day=c")(staged)
        write(1, 3)

    Delta(url, ("day",), SYSTEM).write(QUERY, 1, both)
    assert found() == [1, 2, 3]
    with monkeypatch.context() as killing:
        killing.setattr(Delta, "_commit", _killed)
        with pytest.raises(KeyboardInterrupt):
            write(2, 4)
    begin = threading.Barrier(3)

    def one() -> None:
        begin.wait()
        write(2, 4)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found() == [1, 2, 3, 4]
    place = bucket_of(url)
    assert place is not None
    files = [path for path, _ in place[0].below(f"{place[1]}/") if path.endswith(".parquet")]
    table = DeltaTable(url, storage_options=options)
    assert set(table.to_pyarrow_table().column("day").to_pylist()) == {"a b"}
    assert len(files) == len(table.file_uris()) + 1 == 4  # one of them of the run that was killed
    with pytest.raises(InvalidArgument, match="twice"):
        Delta(url, (), SYSTEM).own("another", "orders")


def _killed(*_: object) -> bool:
    raise KeyboardInterrupt


def rows(path: Path, column: str = "n") -> list[int]:
    """Return a column, as three libraries find it."""
    table = DeltaTable(path)
    found = sorted(table.to_pyarrow_table().column(column).to_pylist())
    assert sorted(pl.scan_delta(str(path)).collect()[column].to_list()) == found
    listed = duckdb.execute(f"SELECT {column} FROM read_parquet({table.file_uris()!r})").fetchall()
    assert sorted(row[0] for row in listed) == found
    return found


def done(path: Path, batch: int, *numbers: int) -> None:
    """Write a batch as a run does that nothing befalls."""
    sink = Delta(path, (), SYSTEM)
    sink.own(QUERY, "orders")
    sink.write(QUERY, batch, writing(pa.table({"n": numbers})))


def test_batch_written_again_is_there_once(tmp_path: Path) -> None:
    """delta-rs itself stores the same transaction twice; the first batch has number 0."""
    path = tmp_path / "table"
    done(path, 0, 1, 2)
    done(path, 0, 1, 2)
    done(path, 1, 3)
    done(path, 0, 1, 2)
    assert rows(path) == [1, 2, 3]


def test_two_runs_write_a_batch_at_once(tmp_path: Path) -> None:
    """The other run commits after this one has looked: this one's commit fails, and it looks again."""
    path = tmp_path / "table"
    done(path, 0, 0)

    def both(staged: str) -> None:
        writing(pa.table({"n": [1, 2]}))(staged)
        done(path, 1, 1, 2)

    Delta(path, (), SYSTEM).write(QUERY, 1, both)
    assert rows(path) == [0, 1, 2]


def test_run_that_looked_before_another_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look-up and the commit another run commits the same batch: this one's table object is stale."""
    path = tmp_path / "table"
    done(path, 0, 0)
    actions = Delta._widened
    raced: list[int] = []

    def race(self: Delta, table: DeltaTable, schema: object) -> bool:
        if not raced:
            raced.append(1)
            done(path, 1, 1, 2)
        return actions(self, table, schema)  # type: ignore[arg-type]

    monkeypatch.setattr(Delta, "_widened", race)
    Delta(path, (), SYSTEM).write(QUERY, 1, writing(pa.table({"n": [1, 2]})))
    assert raced
    assert rows(path) == [0, 1, 2]


def test_four_runs_at_once(tmp_path: Path) -> None:
    """Of four threads with the same batch, one adds it; batches of others go in beside it."""
    path = tmp_path / "table"
    done(path, 0, 0)
    begin = threading.Barrier(4)

    def one() -> None:
        begin.wait()
        done(path, 1, 1, 2)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(path) == [0, 1, 2]


def test_columns_may_be_added_and_not_changed(tmp_path: Path) -> None:
    """A new column is added; a double for a whole number is refused, which delta-rs would cut."""
    path = tmp_path / "table"
    done(path, 0, 7)
    sink = Delta(path, (), SYSTEM)
    sink.write(QUERY, 1, writing(pa.table({"n": [8], "note": ["x"]})))
    with pytest.raises(InvalidArgument, match=r"n is .*double.* and the table has .*long"):
        sink.write(QUERY, 2, writing(pa.table({"n": [7.5]})))
    assert DeltaTable(path).to_pyarrow_table().sort_by("n").to_pylist() == [
        {"n": 7, "note": None},
        {"n": 8, "note": "x"},
    ]


def test_partitions(tmp_path: Path) -> None:
    """Values of folders are columns of the table, for libraries that go by paths as well."""
    path = tmp_path / "table"
    sink = Delta(path, ("day",), SYSTEM)
    sink.write(QUERY, 0, writing(pa.table({"n": [1]}), "day=a%20b"))
    sink.write(QUERY, 1, writing(pa.table({"n": [2]}), "day=__HIVE_DEFAULT_PARTITION__"))
    found = DeltaTable(path).to_pyarrow_table().sort_by("n").to_pylist()
    assert found == [{"n": 1, "day": "a b"}, {"n": 2, "day": None}]


def test_table_of_another_query_is_refused(tmp_path: Path) -> None:
    """A checkpoint that is lost makes another query, whose batches would be there again."""
    path = tmp_path / "table"
    done(path, 0, 1)
    with pytest.raises(InvalidArgument, match="twice"):
        Delta(path, (), SYSTEM).own("another", "orders")


def test_batch_without_rows(tmp_path: Path) -> None:
    """No files, no commit; the next batch makes the table."""
    path = tmp_path / "table"
    Delta(path, (), SYSTEM).write(QUERY, 0, lambda staged: Path(staged).mkdir(parents=True))
    done(path, 1, 1)
    assert rows(path) == [1]
