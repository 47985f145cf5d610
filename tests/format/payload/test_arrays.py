"""Columns of Python's lists: whatever the lengths, each part comes out as it went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.format.payload import arrays

_LENGTHS = st.lists(st.sampled_from([0, 1, 100, 254, 255, 256, 257, 70_000]), max_size=12)


@given(lengths=_LENGTHS)
def test_values_of_any_length_stay_apart(lengths: list[int]) -> None:
    """Lengths up to 255 are taken as bytes, all others as numbers: one long value among short ones is no exception."""
    values = [bytes([number]) * length for number, length in enumerate(lengths)]
    assert arrays.binaries(values).to_pylist() == values


@given(texts=st.lists(st.none() | st.sampled_from(["", "a", "a" * 255, "b" * 256, "ü" * 127, "ü" * 128]), max_size=12))
def test_texts_of_any_length_stay_apart(texts: list[str | None]) -> None:
    """What counts is the length of the encoded text, and a missing text has none."""
    column = arrays.texts(texts)
    column.validate(full=True)
    assert column.to_pylist() == texts
