"""A batch in which a file was changed while it was read is tried again, for a while; then that is an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.errors import Unavailable
from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.storing import Storing
from oncelog.spark.reading import bytes_of
from oncelog.spark.reading.reader import FileRows
from oncelog.testing.clock import SimulatedClock


class Counted:
    """What Spark's accumulator has."""

    def __init__(self) -> None:
        self.value: dict[Any, Any] = {}


class Writes:
    """Fails so many times, with an error."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left = failures
        self.tried = 0
        self._error = error

    def __call__(self) -> Any:
        """Write, or fail."""
        self.tried += 1
        if self.tried <= self.left:
            raise self._error
        return {"rows": 1}, {}


class Rows:
    """What a frame knows of its session: the properties of its jobs."""

    def __init__(self) -> None:
        self.properties: list[tuple[str, str | None]] = []
        self.sparkSession = self.sparkContext = self
        self.setLocalProperty = lambda name, value: self.properties.append((name, value))


def storing(clock: SimulatedClock) -> Storing:
    """Return what stores batches."""
    given: Any = None
    found: Any = Counted()
    return Storing(given, given, found, 1, clock)


def test_batch_is_tried_again_when_a_file_has_changed() -> None:
    """The writer of that file is given time; a file that never comes to rest is an error, and so is any other."""
    clock = SimulatedClock(auto_advance=True)
    changed = Unavailable(f"Spark: x.json {bytes_of.CHANGED}: run again")
    began_us = clock.elapsed_us()
    writes = Writes(3, changed)
    rows: Any = Rows()
    assert storing(clock)._settled(rows, writes) == ({"rows": 1}, {})
    assert rows.properties == [*[(bytes_of.UNDIVIDED, "true")] * 3, (bytes_of.UNDIVIDED, None)]
    assert (writes.tried, clock.elapsed_us() - began_us) == (4, 3_500_000)
    for failures, error, tried in ((99, changed, 6), (99, Unavailable("the disk is full"), 1)):
        writes = Writes(failures, error)
        with pytest.raises(Unavailable, match=str(error)):
            storing(clock)._settled(rows, writes)
        assert (writes.tried, rows.properties[-1]) == (tried, (bytes_of.UNDIVIDED, None))


def test_batch_that_was_stored_before_a_file_changed_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are no records are read once more behind a batch that is stored. If their file has changed then, the
    batch comes again, with other rows: the account is that of the last attempt, and no row is missing.
    """
    stores = storing(SimulatedClock(auto_advance=True))
    source = SimpleNamespace(path=None, format="kafka")
    stores._spec = SimpleNamespace(transform=None, source=source)  # type: ignore[assignment]
    marks = [SimpleNamespace(last=4, records=0, duplicates=0, conflicts=0)]

    def write(*_: Any) -> Any:
        before = marks[-1]
        marks.append(SimpleNamespace(last=5, records=3, duplicates=before.records, conflicts=0))
        if len(marks) == 2:
            raise Unavailable(bytes_of.CHANGED)
        return {"rows": 3, "bad": 0, "rescued": 0}, {}

    monkeypatch.setattr(stores, "_write", write)
    monkeypatch.setattr(stores, "_mark", lambda _: marks[-1])
    rows: Any = Rows()
    assert stores.store(rows, 5, "query", (), ()) == set()
    assert (stores.accounts["query", 5].rows, stores.accounts["query", 5].missing) == (3, 0)


def test_rows_that_are_no_records_are_read_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that Spark does not follow: rows that are no records are read once more. If their file has changed then,
    all of it comes again. The run failed, with rows stored and none of the others kept.
    """
    stores = storing(SimulatedClock(auto_advance=True))
    rejected: list[int] = []

    def reject(*_: Any) -> None:
        rejected.append(1)
        if len(rejected) == 1:
            raise Unavailable(bytes_of.CHANGED)

    monkeypatch.setattr(stores, "_observed", lambda *_: {"rows": 3, "bad": 1, "rescued": 0})
    monkeypatch.setattr(stores, "_reject", reject)
    monkeypatch.setattr(frames, "records", lambda *_: None)
    rows: Any = Rows()
    account = stores.store_all(rows, lambda _: None)
    assert (len(rejected), account.rows, account.rejected) == (2, 3, 1)


def gone(
    folder: Path, sql: str | None, *read: str, vanished: str = "", kind: str = "json", listed: str = "abc"
) -> set[str]:
    """Return which of the files a, b, c and d, which Spark took, a batch finds to be gone, by those that Spark listed
    and those that were read.
    """
    stores = storing(SimulatedClock())
    transform = None if sql is None else SimpleNamespace(sql=sql)
    source = SimpleNamespace(path=str(folder), format=kind)
    stores._spec = SimpleNamespace(transform=transform, source=source)  # type: ignore[assignment]
    found = {
        (f"file:{folder}/{name}", 0, at): FileRows(1, 0, 0, (), "1/1", name == vanished) for at, name in enumerate(read)
    }
    spark: Any = None
    taken, there = ({f"{folder}/{name}" for name in names} for names in ("abcd", listed))
    return {Path(file).name for file in stores._gone(found, taken, there, spark)}


@pytest.mark.parametrize(
    "sql", [None, "SELECT * FROM source", "select a, b from `source` where a > 0;"], ids=["none", "all", "some"]
)
def test_a_file_that_was_not_read_was_gone_unless_it_is_empty(tmp_path: Path, sql: str | None) -> None:
    """Where all files are read, a file that was away at Spark's listing is gone, also if it is back a moment later: its
    rows were lost. An empty file is none of those: Spark takes it, and never reads it, and the run failed for ever.
    """
    for name, text in {"a": "x", "b": "x", "c": ""}.items():
        (tmp_path / name).write_text(text)
    assert gone(tmp_path, sql, "a") == {"b", "d"}
    assert gone(tmp_path, sql, "a", "b", "c") == {"d"}
    assert gone(tmp_path, sql, "a", "c", vanished="c") == {"b", "c", "d"}


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("SELECT * FROM source WHERE false", ()),
        ("SELECT * FROM source LIMIT 1", ("a",)),
        ("SELECT * FROM source WHERE a > 0 LIMIT 1", ("a",)),
        ("SELECT a FROM source JOIN other USING (a)", ("a",)),
    ],
    ids=["nothing", "limit", "where and limit", "join"],
)
def test_a_file_that_sql_does_not_need_is_not_gone(tmp_path: Path, sql: str, read: tuple[str, ...]) -> None:
    """Spark reads as many files as the SQL needs: a file that is there is not reported, in this run and all others."""
    for name, text in {"a": "x", "b": "x", "c": ""}.items():
        (tmp_path / name).write_text(text)
    assert gone(tmp_path, sql, *read) == {"d"}
    assert gone(tmp_path, "SELECT * FROM source LIMIT 1", "b", vanished="b") == {"b", "d"}
    assert gone(tmp_path, sql, kind="orc") == {"d"}


@pytest.mark.parametrize(("sql", "kind"), [("SELECT * FROM source LIMIT 1", "json"), (None, "orc")])
def test_a_file_that_spark_did_not_list_was_gone(tmp_path: Path, sql: str | None, kind: str) -> None:
    """Also where it is not known which files are read, and where the file is back: its rows were lost. An empty file is
    gone for good.
    """
    for name, text in {"a": "x", "b": "x", "c": ""}.items():
        (tmp_path / name).write_text(text)
    assert gone(tmp_path, sql, kind=kind, listed="a") == {"b", "d"}
