"""The quick look at a line of JSON never accepts what the close look would not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.spark.reading.json_text import Parser
from oncelog.spark.reading.rows import Rejected, Row

SHAPE: dict[str, Any] = {"id": "string", "n": "long", "x": "double", "m": None}
SHAPE |= {"s": {"a": "long"}, "l": [{"b": "string"}]}
PLAIN = ['{"id":"a","n":1}', '{"s":{"a":1},"l":[{"b":"x"}],"m":{"k":[{"z":1}]}}', "{}", '{"id": "a", "n": 1}']
KEYS = st.sampled_from(["id", "n", "x", "s", "l", "m", "a", "b", "new", '":', "\u00e4"])
SPACES = st.sampled_from(["", "", "", " ", "\t", "  "])
LEAVES = st.sampled_from(['"x"', '"\\":"', '": "', "1", "7.5", "null", "true", "1e400", "9223372036854775808", '""'])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    """Return JSON, whose objects may have a key twice, with spaces where they may be."""
    kind = draw(st.sampled_from(["leaf", "leaf", "object", "list"])) if depth else "leaf"
    if kind == "leaf":
        return draw(LEAVES)
    if kind == "list":
        return "[" + ",".join(draw(st.lists(values(depth - 1), max_size=2))) + "]"
    return draw(objects(depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> str:
    """Return an object."""
    keys = draw(st.lists(KEYS, max_size=4))
    pairs = [
        f"{json.dumps(key, ensure_ascii=False)}{draw(SPACES)}:{draw(SPACES)}{draw(values(depth))}{draw(SPACES)}"
        for key in keys
    ]
    return "{" + draw(SPACES) + ",".join(pairs) + "}"


@given(line=objects(), behind=st.sampled_from(["", "", " ", "{}", " x", ",1"]))
def test_quick_look_accepts_no_more_than_the_close_one(line: str, behind: str) -> None:
    """A key twice, an unknown field, a value of another type and text behind the object are never passed over."""
    parser = Parser(SHAPE)
    if not parser._is_clean((line + behind).encode()):
        return
    (found,) = parser._line((line + behind).encode(), 1)
    assert isinstance(found, Row)
    assert found.rescued == {}


@pytest.mark.parametrize("space", [" ", "\t", "  ", "\r"])
def test_key_twice_is_seen_beside_a_key_with_a_space_behind_it(space: str) -> None:
    """Such a key is not counted: without a closer look the count would be even."""
    assert not Parser(SHAPE)._is_clean(f'{{"id":"a","id":"b","n"{space}:1}}'.encode())


@pytest.mark.parametrize("line", PLAIN)
def test_quick_look_accepts_plain_lines(line: str) -> None:
    """Were nothing accepted, every line would be looked at closely, and reading would be five times slower."""
    assert Parser(SHAPE)._is_clean(line.encode())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_numbered_over_chunks(size: int) -> None:
    """However the bytes come in, each piece has the line that it is on."""
    lines = [b'{"id":"%d"}\n' % n if n % 3 else b"bad %d\n" % n for n in range(20)]
    chunks = iter([lines[at : at + size] for at in range(0, len(lines), size)])
    found = [piece for pieces in Parser(SHAPE).pieces(chunks) for piece in pieces]
    assert [piece.line for piece in found] == list(range(1, 21))
    assert [isinstance(piece, Rejected) for piece in found] == [n % 3 == 0 for n in range(20)]
