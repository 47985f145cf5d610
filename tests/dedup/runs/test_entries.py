"""Entries are sorted right, and their digest tells every change."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.dedup.runs.entries import Entries
from oncelog.errors import InvalidArgument

NEAR = st.integers(0, 3) | st.integers(2**63, 2**63 + 3) | st.integers(0, 2**64 - 1)
ROW = st.tuples(NEAR, NEAR, st.integers(0, 2**64 - 1), st.integers(0, 2**40 - 1))
ROWS = st.lists(ROW, max_size=60)


def entries_of(rows: list[tuple[int, int, int, int]]) -> Entries:
    """Return entries with these columns."""
    columns = np.array(rows, np.uint64).reshape(len(rows), 4).T
    return Entries(*(column.copy() for column in columns))


def rows_of(entries: Entries) -> list[tuple[int, ...]]:
    """Return the entries row by row."""
    return list(zip(*(getattr(entries, name).tolist() for name in entries.__struct_fields__), strict=True))


@given(rows=ROWS)
def test_order_is_by_key_and_then_the_newest_first(rows: list[tuple[int, int, int, int]]) -> None:
    """Keys whose leading bits are the same, keys that are the same: a search relies on the order of all."""
    found = entries_of(rows).sorted()
    assert found.are_sorted()
    expected = sorted(rows, key=lambda row: (row[0], row[1], -row[3]))
    assert [(row[0], row[1], row[3]) for row in rows_of(found)] == [(row[0], row[1], row[3]) for row in expected]
    assert sorted(rows_of(found)) == sorted(rows)


@given(rows=ROWS, other=ROWS, by=st.integers(0, 2**37))
def test_digest_is_a_sum(
    rows: list[tuple[int, int, int, int]], other: list[tuple[int, int, int, int]], by: int
) -> None:
    """It does not depend on the order, adds up, and moves with the positions."""
    one, two = entries_of(rows), entries_of(other)
    assert one.sorted().digest() == one.digest()
    assert Entries.joined([one, two]).digest() == one.digest() + two.digest()
    assert one.moved(by).digest() == one.digest().moved(by)
    assert one.moved(by).moved(-by).digest() == one.digest()


@given(rows=st.lists(ROW, min_size=1, max_size=20), bit=st.integers(0, 63), column=st.integers(0, 3), data=st.data())
def test_digest_tells_every_changed_bit(
    rows: list[tuple[int, int, int, int]], bit: int, column: int, data: st.DataObject
) -> None:
    """Key, fingerprint, position, start and end: a merge that changes one of them is not published."""
    entries = entries_of(rows)
    name = entries.__struct_fields__[column]
    changed = getattr(entries, name).copy()
    changed[data.draw(st.integers(0, len(rows) - 1))] ^= np.uint64(1 << (bit % 40 if name == "places" else bit))
    assert msgspec.structs.replace(entries, **{name: changed}).digest() != entries.digest()


def test_a_position_that_does_not_fit_is_refused() -> None:
    """A run covers 2**38 positions; one that is cut off would be another record's."""
    one = np.ones(1, np.uint64), np.ones(1, np.bool_)
    for position in (-1, 1 << 38):
        with pytest.raises(InvalidArgument, match="a run covers"):
            Entries.of(np.ones((1, 2), np.uint64), one[0], np.array([position]), one[1], one[1])
    entries = Entries.of(np.ones((1, 2), np.uint64), one[0], np.array([(1 << 38) - 1]), one[1], one[1])
    assert entries.positions.tolist() == [(1 << 38) - 1]
