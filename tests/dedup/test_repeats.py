"""Keys that occur more than once among many keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.dedup.repeats import repeated


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
