"""The mix of keys is part of the format: it never changes, and loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.dedup.runs.mix import mix, mixed_key, mixed_keys

WORD = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1
FIRST, SECOND = (pow(factor, -1, 2**64) for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))


def unmixed(value: int) -> int:
    """Undo ``mix``."""
    value = (value ^ value >> 33) * SECOND & MASK
    value = (value ^ value >> 33) * FIRST & MASK
    return value ^ value >> 33


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((0, 0), (0, 0)),
        ((1, 0), (0xB456BCFC34C2CB2C, 0x7D6E4AC38B2B1BE2)),
        ((0xDFE4146651A01091, 0xFE61417E8F144C86), (0x168C934E4D3890A4, 0x5B5169DF98CFC6A7)),
    ],
)
def test_the_mix_never_changes(key: tuple[int, int], expected: tuple[int, int]) -> None:
    """A run that any version wrote is searched by the same keys."""
    assert mixed_key(*key) == expected


@given(high=WORD, low=WORD)
def test_no_two_identities_share_a_key(high: int, low: int) -> None:
    """The mix can be undone: a collision of keys would swallow a record."""
    mixed_high, mixed_low = mixed_key(high, low)
    found_low = unmixed(mixed_low) - mixed_high & MASK
    assert (unmixed(mixed_high) ^ mix(found_low), found_low) == (high, low)


@given(keys=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=20))
def test_many_are_mixed_as_one_is(keys: list[tuple[int, int]]) -> None:
    """A batch and a single append look for the same key."""
    high, low = mixed_keys(np.array(keys, np.uint64))
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [mixed_key(*key) for key in keys]
