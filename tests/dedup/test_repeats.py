"""Keys that occur more than once among many keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.dedup import kernels
from oncelog.dedup.repeats import distinct, repeated


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=60))
def test_repeated_is_what_a_dictionary_says(numbers: list[int]) -> None:
    """Sorting and comparing halves of keys gives what looking each up would."""
    keys = np.array([(number % 3, number) for number in numbers], np.uint64).reshape(-1, 2)
    places = np.arange(len(numbers))[::-1].copy()
    first: dict[int, int] = {}
    expected = {}
    for place, number in sorted(zip(places.tolist(), numbers, strict=True)):
        if number in first:
            expected[place] = first[number]
        first.setdefault(number, place)
    again, positions, firsts = repeated(keys, places)
    assert again[:, 1].tolist() == [numbers[len(numbers) - 1 - place] for place in positions]
    assert dict(zip(positions.tolist(), firsts.tolist(), strict=True)) == expected


@pytest.fixture
def _by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let numpy do the work, whatever is installed."""
    monkeypatch.setattr(kernels._Choice, "allowed", False)


@pytest.mark.usefixtures("_by_numpy")
@pytest.mark.parametrize("count", [2, 1023, 1024, 5000, 40_000])
@pytest.mark.parametrize("spread", [1 << 64, 1 << 9, 1])
def test_one_repeated_key_among_many_is_seen(count: int, spread: int) -> None:
    """Wherever the two stand, and however many other keys share a half, or a place in the table, with them."""
    random = np.random.default_rng(count)
    keys = random.integers(0, 2**64, (count, 2), np.uint64)
    keys[:, 0] %= np.uint64(spread - 1) + np.uint64(1) if spread < 1 << 64 else np.uint64((1 << 64) - 1)
    assert distinct(keys)
    for first, second in ((0, count - 1), (0, 1), (count // 2, count - 1)):
        again = keys.copy()
        again[second] = again[first]
        assert distinct(again) == (first == second)


@pytest.mark.usefixtures("_by_numpy")
def test_keys_that_repeat_only_among_those_left_are_seen() -> None:
    """Of three keys in one place the last is in the table: the other two are compared with it, and with each other."""
    keys = np.random.default_rng(1).integers(0, 2**64, (2000, 2), np.uint64)
    keys[:3, 0] = keys[1999, 0]
    assert distinct(keys)
    keys[1] = keys[0]
    assert not distinct(keys)
