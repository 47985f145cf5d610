"""Records that are only values, as a payload."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import limits
from oncelog.format.payload import plain
from oncelog.types import Record


@given(values=st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_values_become_what_records_become(values: list[bytes]) -> None:
    """That no record was made of each is not to be seen in what is stored."""
    found, expected = plain.payload_of_values(values), plain.payload([Record(value) for value in values])
    assert found is not None
    assert found.equals(expected)


@pytest.mark.parametrize(
    "values",
    [[], [b"a", bytearray(b"b")], ["a"], [b"a", bytes(limits.VALUE_BYTES_MAX + 1)]],
    ids=["none", "it may change", "text", "too large"],
)
def test_what_has_to_be_looked_at_is_no_payload(values: list[Any]) -> None:
    """Then each value is looked at, and the one that cannot be stored is named."""
    assert plain.payload_of_values(values) is None
