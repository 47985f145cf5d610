"""Ids that come in pieces make the same run as ids that come at once."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oncelog.dedup.window import WindowState
from oncelog.log.memory.building import commits_of, entries_of, gathered

FIRST = 1000


def state_of(batches: list[int], times: list[int]) -> WindowState:
    """Return ids in batches of these sizes, each batch at a time of its own, with a gap behind each third batch."""
    sizes = np.array(batches)
    count = int(sizes.sum())
    starts = np.zeros(count, np.bool_)
    starts[np.cumsum(sizes) - sizes] = True
    positions = FIRST + np.arange(count) + 5 * (np.repeat(np.arange(len(sizes)), sizes) // 3)
    keys = np.random.default_rng(3).integers(0, 2**64, (count, 2), np.uint64)
    each = np.repeat(np.array(times), sizes)
    return WindowState(keys, positions, keys[:, 0] + keys[:, 1], each, each, starts)


@given(
    batches=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 180), max_size=12),
)
def test_ids_in_pieces_are_the_same_entries_and_commits(batches: list[tuple[int, int]], cuts: list[int]) -> None:
    """Also where a batch, or the ids of one commit, lie in several pieces: the last of a batch tells its end."""
    state = state_of([size for size, _ in batches], list(itertools.accumulate(step for _, step in batches)))
    count = len(state.positions)
    ends = [0, *sorted(min(cut, count) for cut in cuts), count]
    pieces = [
        WindowState(*(getattr(state, name)[low:high] for name in WindowState.__slots__))
        for low, high in itertools.pairwise(ends)
    ]
    entries, commits = gathered(pieces, FIRST, count + 3)
    wanted, told = entries_of(state, FIRST), commits_of(state, FIRST)
    assert [column.tolist() for column in entries.columns] == [column.tolist() for column in wanted.columns]
    assert (commits.positions.tolist(), commits.timestamps_us.tolist()) == (
        told.positions.tolist(),
        told.timestamps_us.tolist(),
    )


def test_nothing_is_gathered_of_nothing() -> None:
    """A stretch whose ids were truncated meanwhile."""
    entries, commits = gathered([], FIRST, 7)
    assert (len(entries), len(commits)) == (0, 0)
