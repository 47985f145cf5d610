"""A batch in which a file was changed while it was read is tried again, for a while; then that is an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.errors import Unavailable
from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.storing import Storing
from oncelog.spark.reading import bytes_of
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
    stores._spec = SimpleNamespace(transform=None)  # type: ignore[assignment]
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
    stores.store(rows, 5, "query")
    assert (stores.accounts[5].rows, stores.accounts[5].missing) == (3, 0)


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
