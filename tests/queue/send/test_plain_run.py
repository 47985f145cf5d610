"""Plain messages as they are read: what is made of them when it is asked for is what would have been read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from oncelog import CorruptionError, Entry
from oncelog.format.payload import arrays
from oncelog.format.payload.schema import ID, VALUE, schema_of
from oncelog.format.sealed import Purged
from oncelog.log.stored.rows import Micros, Rows
from oncelog.queue.send.plain_run import PlainRun, entries_of, joined

VALUES = [b"%d" % number for number in range(6)]
TIMES = np.array([5, 5, 5, 8, 8, 9], np.int64)


def rows_of(values: Sequence[bytes] = VALUES, times_us: Micros = TIMES, ids: Sequence[str] | None = None) -> Rows:
    """Return rows that stand at position 100, as entry 40 of segment 2."""
    columns, mask = [arrays.binaries(values)], VALUE
    if ids is not None:
        columns, mask = [*columns, arrays.texts(ids)], VALUE | ID
    payload = pa.RecordBatch.from_arrays(columns, schema=schema_of(mask))
    return Rows(payload, 2, 100, 40, times_us, times_us)


@pytest.mark.parametrize("times_us", [7, TIMES, np.full(6, 7, np.int64)])
def test_a_run_is_its_entries(times_us: Micros) -> None:
    """One by one, all, or a part: as a reader has them."""
    rows = rows_of(times_us=times_us)
    run, entries = entries_of(rows), rows.entries()
    assert isinstance(run, PlainRun)
    assert len(run) == 6
    assert [*run] == entries
    assert [run[0], run[-1]] == [entries[0], entries[-1]]
    assert [*run[2:5]] == entries[2:5]
    assert [*run[2:][1:]] == entries[3:]
    assert [*run[::2]] == entries[::2]
    assert not [*run[6:]]
    with pytest.raises(IndexError):
        run[6]


@pytest.mark.parametrize("times_us", [7, TIMES])
def test_runs_that_follow_each_other_are_one(times_us: Micros) -> None:
    """What is left of one read, and the next read: no entry is made of either. Others are entries, in order."""
    rows = rows_of(times_us=times_us)
    run = entries_of(rows)
    for before, after in ((run[:4], run[4:]), (run[1:3], run[3:5]), (run[2:4], entries_of(rows.cut(4)))):
        both = joined(before, after)
        assert isinstance(both, PlainRun)
        assert [*both] == [*before, *after]
        assert both[-1] == after[-1]
    assert joined([], run) is run
    assert joined(run[:2], run[3:]) == [*run[:2], *run[3:]]
    assert joined(rows.entries()[:2], run[2:]) == [*run]
    elsewhere = entries_of(Rows(rows.cut(4).payload, 3, 104, 0, 7, 7))
    assert joined(run[:4], elsewhere) == [*run[:4], *elsewhere]


def test_a_place_keeps_neither_values_nor_what_was_read() -> None:
    """A worker that has one message of many in its hands holds no memory of the others."""
    rows = rows_of()
    run = entries_of(rows)
    assert isinstance(run, PlainRun)
    kept = msgspec.structs.astuple(run.place)
    assert not any(isinstance(one, list | pa.Buffer) for one in kept)
    assert not np.shares_memory(kept[-1], TIMES)


def test_rows_with_more_than_values_are_entries() -> None:
    """An id, and a gap where a row was purged, are as they were read."""
    labelled = rows_of(ids=list("abcdef"))
    none = np.zeros(0, np.uint64)
    purged = msgspec.structs.replace(Purged(np.array([1]), np.array([0]), none, none))
    plain = rows_of()
    with_gap = Rows(plain.payload, 2, 100, 40, TIMES, TIMES, purged)
    assert entries_of(labelled) == labelled.entries()
    assert [entry.position for entry in entries_of(with_gap)] == [100, 102, 103, 104, 105]


def test_no_rows_are_no_entries() -> None:
    """A part that is empty is no error."""
    empty: list[Entry] = []
    assert [*entries_of(rows_of().cut(6))] == empty


@pytest.mark.parametrize("times_us", [1 << 62, np.array([5, 5, 5, 8, 8, 1 << 62], np.int64)])
def test_a_time_that_is_on_no_calendar_is_damage(times_us: Micros) -> None:
    """It is found when the messages are read, and not by the worker that asks when its message was sent."""
    with pytest.raises(CorruptionError, match="calendar"):
        entries_of(rows_of(times_us=times_us))
