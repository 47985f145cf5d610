"""What the model of the window does not reach: size, crowded tables, wide numbers, repeats within one batch of keys."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oncelog.dedup import slots
from oncelog.dedup.kernels import choose
from oncelog.dedup.refreshing import RefreshingWindow
from oncelog.dedup.window import DedupWindow

FOREVER_US = 10**15


def some_keys(count: int, seed: int) -> NDArray[np.uint64]:
    """Return so many keys that look like identities."""
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def store(window: DedupWindow, keys: NDArray[np.uint64], first: int, tick_us: int = 1) -> None:
    """Add, commit and evict, as a writer does; position and fingerprint are the key's number."""
    positions = np.arange(first, first + len(keys))
    window.add(keys, positions, positions.astype(np.uint64))
    window.commit(first + len(keys), tick_us, tick_us)
    window.evict(tick_us)


@pytest.mark.parametrize("batch", [10_000, 1_000])
def test_full_window_keeps_within_its_memory(batch: int) -> None:
    """100,000 keys take at most 5 MB, by its own account and by Python's, and each is found."""
    keys = some_keys(250_000, 1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    window = DedupWindow(FOREVER_US, 100_000)
    for first in range(0, len(keys), batch):
        store(window, keys[first : first + batch], first, tick_us=first)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert window.count == 100_000
    assert window.evicted == 150_000
    assert window.nbytes <= 5_000_000
    assert used <= 5_000_000
    handles = window.find(keys)
    assert (handles[:150_000] == -1).all()
    assert window.positions(handles[150_000:]).tolist() == list(range(150_000, 250_000))


def test_small_window_is_small() -> None:
    """Thousands of logs with few ids each cost little memory."""
    window = DedupWindow(FOREVER_US, 100_000_000)
    store(window, some_keys(10, 1), 0)
    assert window.nbytes < 4_000


def test_pending_beyond_the_limit_are_kept_and_their_memory_returned() -> None:
    """Pending keys are never evicted, however many; when they are committed and gone, so is most of their room."""
    window = DedupWindow(FOREVER_US, 1_000)
    keys = some_keys(20_000, 2)
    window.add(keys, np.arange(20_000), np.zeros(20_000, np.uint64))
    assert window.evict(FOREVER_US) == 0
    assert (window.find(keys) >= 0).all()
    grown = window.nbytes
    window.commit(20_000, 1, 1)
    assert window.evict(1) == 19_000
    assert window.nbytes < grown / 5
    assert (window.find(keys) >= 0).tolist() == [False] * 19_000 + [True] * 1_000


@pytest.mark.parametrize("buckets", [1, 3, 40])
def test_no_key_is_lost_in_a_crowded_table(buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When many keys of one call find their buckets full, those that move and those that wait are all found."""
    monkeypatch.setattr(DedupWindow, "_bucket_count", lambda _: buckets)
    window = DedupWindow(FOREVER_US, 300)
    for round_ in range(12):
        keys = some_keys(100, round_)
        store(window, keys, 100 * round_)
        live = np.concatenate([some_keys(100, seed) for seed in range(max(0, round_ - 2), round_ + 1)])
        assert window.positions(window.find(live)).tolist() == list(
            range(max(0, 100 * round_ - 200), 100 * round_ + 100)
        )
        assert [window.find_one(high, low) for high, low in live.tolist()] == window.find(live).tolist()


@pytest.mark.parametrize("wish", ["0", "1"])
@pytest.mark.parametrize("near", [0, 1])
def test_keys_that_are_alike_in_one_part_do_not_crowd(near: int, wish: str) -> None:
    """One sum over numbered ids may put them close together; the other then spreads them, and none is spilled."""
    parts = np.random.default_rng(5).integers(0, 2**32, (20_000, 2, 2), dtype=np.uint64)
    parts[:, :, near] >>= np.uint64(12)
    window = DedupWindow(FOREVER_US, 20_000)
    choose(wish)
    try:
        store(window, parts[:, :, 0] << np.uint64(32) | parts[:, :, 1], 0)
    finally:
        choose(os.environ.get("ONCELOG_FAST"))
    assert not window._slots.spill


def test_spilled_keys_do_not_pile_up() -> None:
    """Keys that always collide cost memory only while they live."""
    window = DedupWindow(FOREVER_US, 100)
    for number in range(5_000):
        store(window, np.array([[number, 7]], dtype=np.uint64), number)
    assert window.count == 100
    assert window.nbytes < 100_000
    assert window.find_one(4_999, 7) >= 0
    assert window.find_one(4_899, 7) == -1


def test_numbers_run_out_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renumbering the slots loses nothing, and handles stay good."""
    monkeypatch.setattr(slots, "_NUMBER_MAX", 400)
    window = DedupWindow(FOREVER_US, 200)
    kept = -1
    for round_ in range(40):
        store(window, some_keys(50, round_), 50 * round_)
        handle = window.find_one(*some_keys(50, round_)[-1].tolist())
        assert round_ == 0 or window.at(kept)[0] == 50 * round_ - 1
        kept = handle
    assert (window.find(np.concatenate([some_keys(50, seed) for seed in range(36, 40)])) >= 0).all()


@pytest.mark.parametrize("singly", [False, True])
def test_slots_pass_two_to_the_32(singly: bool) -> None:  # noqa: FBT001
    """The four billionth key of a long-lived writer is found, and so are those around it."""
    window = DedupWindow(FOREVER_US, 20, first_handle=2**32 - 65)
    for round_ in range(20):
        keys = some_keys(10, round_)
        if singly:
            for row, (high, low) in enumerate(keys.tolist()):
                window.find_or_add_one(high, low, 10 * round_ + row, row)
            window.commit(10 * round_ + 10, 1, 1)
            window.evict(1)
        else:
            store(window, keys, 10 * round_)
        live = np.concatenate([some_keys(10, max(0, round_ - 1)), keys])
        first = 10 * max(0, round_ - 1)
        assert window.positions(window.find(live)).tolist() == [
            *range(first, first + 10),
            *range(10 * round_, 10 * round_ + 10),
        ]
    assert window.find_one(*keys[0].tolist()) > 2**32


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=60), st.integers(0, 2**50))
def test_far_apart_positions_ticks_and_times(steps: list[int], origin: int) -> None:
    """Numbers that need more than 32 bits, at once or after a while, come back as they were."""
    window = DedupWindow(2**62, 20)
    keys = some_keys(len(steps), 3)
    moments = origin + np.cumsum(np.array(steps) + 1)
    for row, moment in enumerate(moments.tolist()):
        window.add(keys[row : row + 1], moments[row : row + 1], np.zeros(1, np.uint64))
        window.commit(moment + 1, moment // 3, moment * 2)
        window.evict(moment // 3)
    state = window.dump()
    assert state.positions.tolist() == moments[-20:].tolist()
    assert state.ticks.tolist() == (moments[-20:] // 3).tolist()
    assert state.times.tolist() == (moments[-20:] * 2).tolist()
    assert DedupWindow.load(state, 2**62, 20).dump().times.tolist() == state.times.tolist()


def test_base_follows_a_long_life() -> None:
    """A window whose positions and times move on for ever stays narrow as long as those within it are close."""
    window = DedupWindow(FOREVER_US, 64)
    for round_ in range(200):
        before, first = max(0, round_ - 1) << 26, round_ << 26
        keys = some_keys(32, round_)
        window.add(keys, np.arange(first, first + 32), np.zeros(32, np.uint64))
        window.commit(first + 32, first * 8, first * 8 + 5)
        window.evict(first)
        handles = window.find(np.concatenate([some_keys(32, max(0, round_ - 1)), keys]))
        assert window.positions(handles).tolist() == [*range(before, before + 32), *range(first, first + 32)]
        assert window.times(handles).tolist() == [before * 8 + 5] * 32 + [first * 8 + 5] * 32
    ring = window._ring
    assert {numbers.stored.dtype for numbers in (ring.marks, ring.ticks, ring.times)} == {np.dtype(np.uint32)}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_repeats_in_one_batch_of_keys(pairs: list[tuple[int, int]]) -> None:
    """A repeated id in one call is seen, and led to its first row, also when only half of the key repeats."""
    keys = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
    assert DedupWindow.first_occurrence(keys).tolist() == [pairs.index(pair) for pair in pairs]
    assert DedupWindow.distinct(keys) == (len(set(pairs)) == len(pairs))


def test_evict_through_takes_the_whole_batch() -> None:
    """Recovery may learn that a key was evicted: then all before it was, and the rest of its batch."""
    window = DedupWindow(FOREVER_US, 100)
    keys = some_keys(6, 4)
    starts = np.array([True, True, False, False, True, True])
    window.add(keys, np.arange(6), np.zeros(6, np.uint64), starts)
    window.commit(5, 1, 1)
    assert window.evict_through(window.find_one(*keys[2].tolist())) == 4
    assert (window.find(keys) >= 0).tolist() == [False] * 4 + [True] * 2
    assert window.evicted == 4


def test_hot_keys_do_not_fill_the_ring_with_ghosts() -> None:
    """Refreshing the same keys for ever costs little more memory than having them, and leaves pending ones pending."""
    window = RefreshingWindow(FOREVER_US, 1_100)
    keys = some_keys(1_100, 5)
    store(window, keys[:1_000], 0)
    window.add(keys[1_000:], np.arange(1_000, 1_100), np.zeros(100, np.uint64))
    before = window.nbytes
    for round_ in range(200):
        window.refresh(window.find(keys[round_ % 7 :: 7]), round_)
    assert window.count == 1_100
    assert window.nbytes <= before * 2
    window.commit(1_050, 300, 301)
    handles = window.find(keys)
    assert window.positions(handles).tolist() == list(range(1_100))
    assert window.pending(handles).tolist() == [False] * 1_050 + [True] * 50
    assert window.times(handles[:1_050]).tolist() == [1] * 1_000 + [301] * 50


def test_commits_find_their_keys_among_refreshed_ones() -> None:
    """Keys that were refreshed while others were pending stay committed, and those others are committed in turn."""
    window = RefreshingWindow(100, 1_000)
    keys = some_keys(30, 6)
    store(window, keys[:10], 0, tick_us=10)
    window.add(keys[10:20], np.arange(10, 20), np.zeros(10, np.uint64))
    window.refresh(window.find(keys[:5]), 50)
    window.add(keys[20:], np.arange(20, 30), np.zeros(10, np.uint64))
    window.commit(20, 60, 61)
    handles = window.find(keys)
    assert window.pending(handles).tolist() == [False] * 20 + [True] * 10
    assert window.times(handles[:20]).tolist() == [10] * 10 + [61] * 10
    assert window.positions(handles).tolist() == list(range(30))
    window.commit(30, 70, 71)
    assert window.pending_count == 0
    assert window.evict(110) == 5
    assert (window.find(keys) >= 0).tolist() == [True] * 5 + [False] * 5 + [True] * 20


def test_refreshed_keys_age_too() -> None:
    """A key that was refreshed with nothing pending is evicted when its second life is over."""
    window = RefreshingWindow(100, 1_000)
    keys = some_keys(10, 7)
    store(window, keys, 0, tick_us=10)
    window.refresh(window.find(keys[:3]), 50)
    assert window.evict(110) == 7
    assert window.oldest_tick_us == 50
    assert window.evict(150) == 3
    assert window.count == 0


def test_each_key_can_be_committed_at_a_time_of_its_own() -> None:
    """A window that is rebuilt from many small blocks ages as the one that was lost would have."""
    window = DedupWindow(10, 100)
    keys = np.arange(12, dtype=np.uint64).reshape(6, 2)
    window.add(keys, np.arange(6), np.arange(6, dtype=np.uint64), np.ones(6, np.bool_))
    window.commit_each(np.array([1, 1, 2, 3, 9, 9]), np.array([10, 10, 20, 30, 90, 2**40]))
    assert window.pending_count == 0
    assert window.times(window.find(keys)).tolist() == [10, 10, 20, 30, 90, 2**40]
    assert window.evict(12) == 3
    assert (window.find(keys) >= 0).tolist() == [False, False, False, True, True, True]
