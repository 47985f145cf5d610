"""Plain records, and records that are only values, as a payload."""

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


class _Text(str):
    """A text that says of itself that it is shorter than it is."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1


def _record(value: bytes, field: str, content: Any) -> Record:
    return Record(value, **{field: content})


@pytest.mark.parametrize("field", ["id", "stream", "type", "tenant"])
@pytest.mark.parametrize("text", [_Text("abc"), b"abc", 1], ids=["of a subclass", "bytes", "a number"])
def test_a_text_that_is_no_plain_text_is_looked_at(field: str, text: object) -> None:
    """Beside good texts and missing ones, too: a length that is not the text's own would move all that follow it."""
    good, missing, odd = _record(b"a", field, "good"), Record(b"b"), _record(b"c", field, text)
    for others in ([good], [missing], [good, missing], []):
        assert plain.payload([*others, odd]) is None
        assert plain.payload([odd, *others]) is None


@pytest.mark.parametrize("field", ["id", "stream", "type", "tenant"])
def test_texts_may_be_missing(field: str) -> None:
    """Then the column has nulls; where all are missing, there is no column."""
    found = plain.payload([_record(b"a", field, "good"), Record(b"b")])
    assert found is not None
    assert found.to_pydict() == {"value": [b"a", b"b"], field: ["good", None]}
    without = plain.payload([Record(b"a"), Record(b"b")])
    assert without is not None
    assert without.schema.names == ["value"]


def test_no_records_are_no_payload() -> None:
    """There is nothing to check in columns."""
    assert plain.payload([]) is None
