"""Who reads what: ranges that cover every position once, are not too large, and begin where storage does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNull, LessThanOrEqual, Not

from oncelog.format.sealed import ROW_GROUP_ROWS
from oncelog.log.info import Extent
from oncelog.spark.connector.filters import Narrowed, narrowed
from oncelog.spark.connector.planning import BYTES_MAX, RECORDS_MAX, cut, within_bytes


def extents(*records: int, record_bytes: int = 100) -> list[Extent]:
    """Return extents of so many records, one behind the other."""
    found, position = [], 0
    for count in records:
        found.append(Extent(first_position=position, records=count, bytes=count * record_bytes))
        position += count
    return found


@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=30),
    st.data(),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 300_000),
)
def test_every_position_once(
    records: list[int], data: st.DataObject, partitions_min: int | None, records_max: int | None
) -> None:
    """Whatever the segments and the wishes: no gap, no overlap, no task that is too large, as many as asked for."""
    start = data.draw(st.integers(0, sum(records)))
    end = data.draw(st.integers(start, sum(records)))
    if records_max is not None and records_max * 5_000 < end - start:
        records_max = None
    found = cut(extents(*records), start, end, partitions_min=partitions_min, records_max=records_max)
    assert [low for low, _ in found] + [end] == [start] + [high for _, high in found]
    assert all(0 < high - low <= (records_max or RECORDS_MAX) for low, high in found)
    assert len(found) >= min(partitions_min or 1, end - start)


def test_small_segments_share_a_task() -> None:
    """A thousand of them are not a thousand tasks."""
    assert cut(extents(*[1] * 1000), 0, 1000, partitions_min=None, records_max=None) == [(0, 1000)]
    assert cut(extents(*[1] * 1000), 0, 1000, partitions_min=5, records_max=None) == [
        (low, low + 200) for low in range(0, 1000, 200)
    ]


def test_files_are_not_cut_without_need() -> None:
    """A range ends where a file does, or between its row groups: nobody reads what another one reads, too."""
    found = cut(extents(300_000, 450_000, 1_000_000), 0, 1_750_000, partitions_min=None, records_max=None)
    assert found[:2] == [(0, 300_000), (300_000, 750_000)]
    assert all((high - 750_000) % ROW_GROUP_ROWS == 0 for _, high in found[1:-1])


def test_large_records_make_small_tasks() -> None:
    """A task's worth is counted in bytes, too."""
    found = cut(extents(1000, record_bytes=1 << 20), 0, 1000, partitions_min=None, records_max=None)
    assert len(found) == -(-1000 // (BYTES_MAX >> 20))


@pytest.mark.parametrize(("millions", "tasks"), [(1, 2), (4, 8), (10, 10), (100, 100)])
def test_tasks_are_larger_where_there_are_many(millions: int, tasks: int) -> None:
    """A small log is shared out among a few, and a large one does not begin a task for every half second's work."""
    count = millions * 1_000_000
    found = cut(extents(count, record_bytes=140), 0, count, partitions_min=None, records_max=None)
    assert tasks <= len(found) <= tasks + max(2, tasks // 8)  # they end between row groups


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([GreaterThan(("position",), 4), LessThanOrEqual(("position",), 9)], Narrowed(start=5, end=10)),
        ([EqualTo(("position",), 4), EqualTo(("position",), 5)], Narrowed(start=5, end=5)),
        ([GreaterThan(("timestamp",), NOON)], Narrowed(since=NOON + TICK)),
        ([EqualTo(("timestamp",), NOON)], Narrowed(since=NOON, until=NOON + TICK)),
        ([LessThanOrEqual(("timestamp",), datetime.max.replace(tzinfo=UTC))], Narrowed()),
        ([GreaterThan(("timestamp",), datetime.max.replace(tzinfo=UTC))], Narrowed()),
        ([In(("id",), cast("tuple[object, ...]", ["a", "b"]))], Narrowed(values=(("id", ("a", "b")),))),
        ([EqualTo(("stream",), "s")], Narrowed(values=(("stream", ("s",)),))),
        ([Not(EqualTo(("position",), 4)), IsNull(("id",)), EqualTo(("value",), b"x")], Narrowed()),
        ([EqualTo(("headers", "a"), "x"), GreaterThanOrEqual(("id",), "x"), EqualTo(("id",), None)], Narrowed()),
    ],
)
def test_filters_are_hints(filters: list[Filter], left: Narrowed) -> None:
    """What is understood narrows; what is not changes nothing."""
    assert narrowed(filters) == left


def test_bytes_bound_how_far_a_batch_goes() -> None:
    """By the sizes of extents; one record at least, and what is not sealed counts as the rest does."""
    extents = [
        Extent(first_position=0, records=10, bytes=1000),
        Extent(first_position=10, records=10, bytes=100),
        Extent(first_position=20, records=10),
    ]
    assert within_bytes(extents, 0, 30, 500) == 5
    assert within_bytes(extents, 5, 30, 550) == 10 + 5
    assert within_bytes(extents, 0, 30, 1) == 1
    assert within_bytes(extents, 0, 30, 1100 + 55 * 2) == 22
    assert within_bytes(extents, 0, 30, 10_000) == 30
    assert within_bytes(extents, 12, 12, 10) == 12
    assert within_bytes([], 0, 0, 10) == 0
