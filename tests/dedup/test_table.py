"""The table: a window without bounds, in which the newest of an id counts, and whose old end is dropped at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import limits
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow, WindowState


def state(names: list[int], first_position: int) -> WindowState:
    """Return stored keys, of small numbers, at positions that follow each other."""
    count = len(names)
    positions = np.arange(first_position, first_position + count)
    keys = np.array([(name * 7919 + 1, name) for name in names], np.uint64).reshape(count, 2)
    prints, times = positions.astype(np.uint64), positions * 10
    return WindowState(keys, positions, prints, times, times, np.ones(count, np.bool_))


def newest(table: Table, name: int) -> int | None:
    """Return the position of a key, if it is there."""
    handle = table.find_one(name * 7919 + 1, name)
    return None if handle < 0 else table.at(handle)[0]


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=60), max_size=8),
    st.integers(0, 300),
)
def test_a_table_says_what_a_dictionary_says(parts: list[list[int]], cut: int) -> None:
    """Folded in any pieces, each key has its newest position; dropped up to a position, the rest is as it was."""
    table, everything = Table(), [name for part in parts for name in part]
    position = 0
    for part in parts:
        table.fold(state(part, position))
        position += len(part)
    last = {name: at for at, name in enumerate(everything)}
    assert {name: newest(table, name) for name in range(31)} == {name: last.get(name) for name in range(31)}
    assert table.count == len(last)
    assert table.has_repeats == (len(last) < len(everything))
    assert table.between(0, position).positions.tolist() == list(range(position)), "a run is made of all of them"
    table.drop_before(cut)
    kept = {name: at for name, at in last.items() if at >= cut}
    assert {name: newest(table, name) for name in range(31)} == {name: kept.get(name) for name in range(31)}
    assert table.between(0, position).positions.tolist() == list(range(min(cut, position), position))


def test_what_is_pending_is_neither_dropped_nor_handed_out() -> None:
    """A key whose record is not durable yet is in no run, so it stays."""
    table = Table()
    table.fold(state([1, 2, 3], 0))
    table.find_or_add_one(4 * 7919 + 1, 4, 3, 9)
    assert table.between(0, 10).positions.tolist() == [0, 1, 2]
    table.drop_before(10)
    assert (table.count, newest(table, 4), newest(table, 3)) == (1, 3, None)
    table.commit(4, 50, 60)
    assert table.between(0, 10).times.tolist() == [60]


def test_what_is_handed_out_stays_as_it_was() -> None:
    """A run is made of it without the lock, while the places of keys that were dropped are used again."""
    table = Table()
    table.fold(state(list(range(900)), 0))
    handed_out = table.between(0, 900)
    table.drop_before(900)
    table.fold(state(list(range(2000, 2900)), 900))
    assert handed_out.keys.tolist() == state(list(range(900)), 0).keys.tolist()
    assert handed_out.fingerprints.tolist() == state(list(range(900)), 0).fingerprints.tolist()
    assert table.between(0, 1800).keys.tolist() == state(list(range(2000, 2900)), 900).keys.tolist(), "around the end"


def test_nothing_is_evicted() -> None:
    """Neither time nor number makes a table forget."""
    table = Table()
    table.fold(state(list(range(3000)), 0))
    assert table.evict(1 << 60) == 0
    assert table.count == 3000


def test_a_table_gets_the_room_for_a_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step up puts all keys in again, so that doubling cost a third of all that was put in."""
    put_in_again: list[int] = []

    def resized(table: Table, capacity: int) -> None:
        put_in_again.append(table.count)
        DedupWindow._resize(table, capacity)

    monkeypatch.setattr(Table, "_resize", resized)
    table = Table()
    for first in range(0, limits.MEMORY_RUN_IDS, 4096):
        table.fold(state(list(range(first, first + 4096)), first))
    assert table.count == limits.MEMORY_RUN_IDS
    assert sum(put_in_again) < limits.MEMORY_RUN_IDS // 4


def test_a_table_drops_nothing_by_itself() -> None:
    """However old an id is, and however many there are: what a run does not hold is nowhere else."""
    table = Table()
    for position in range(100):
        assert table.find_or_add_one(position * 7919 + 1, position, position, 5) == -1
    table.commit(100, 0, 0)
    assert table.evict(1 << 61) == 0
    assert table.count == 100
