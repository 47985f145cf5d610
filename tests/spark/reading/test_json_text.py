"""The quick look at a line of JSON never accepts what the close look would not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.spark.reading.json_text import JsonParser
from oncelog.spark.reading.rows import Clean, Rejected, TextRow

SHAPE: dict[str, Any] = {"id": "string", "n": "long", "x": "double", "m": None}
SHAPE |= {"s": {"a": "long"}, "l": [{"b": "string"}], "d": "decimal(4,1)", "t": "timestamp", "day": "date"}
SHAPE |= {"f": "float", "w": "timestamp_ntz", "p": ("decimal(4,1)",), "q": {"a": ["decimal(4,1)"]}}
PLAIN = ['{"id":"a","n":1}', '{"s":{"a":1},"l":[{"b":"x"}],"m":{"k":[{"z":1}]}}', "{}", '{"id": "a", "n": 1}']
KEYS = st.sampled_from([*SHAPE, "a", "b", "new", '":', "\u00e4"])
SPACES = st.sampled_from(["", "", "", " ", "\t", "  "])
EXACT = ["1.25", '"1.25"', "1.20", '"1,5"', '"12:30"', '"2026-01-05"', '"2026-01-05T12:30:00.1234567"', "1e39"]
LEAVES = st.sampled_from(
    [*EXACT, '"x"', '"\\":"', '": "', "1", "7.5", "null", "true", "1e400", "9223372036854775808", '""']
)


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
    parser = JsonParser(SHAPE)
    if not parser._is_clean((line + behind).encode()):
        return
    (found,) = parser._line((line + behind).encode(), 1)
    assert isinstance(found, TextRow)
    assert found.rescued == {}


ENDS = st.sampled_from(["\n", "\n", "\r\n", "", "\n\n", "\n,", " \n", "{}\n"])


@given(
    lines=st.lists(st.tuples(st.one_of(objects(), st.sampled_from(PLAIN), st.just("{")), ENDS), min_size=1, max_size=5)
)
def test_lines_looked_at_together_are_what_each_is(lines: list[tuple[str, str]]) -> None:
    """What is found in clean lines is what a closer look finds in each, whatever its neighbours are."""
    parser = JsonParser(SHAPE)
    data = "".join(line + end for line, end in lines).encode()
    chunk = [line + b"\n" for line in data.split(b"\n")]
    found = parser._clean(chunk, 1)
    if found is None:
        return
    for at, line in enumerate(chunk):
        (row,) = parser._line(line, 1 + at)
        assert isinstance(row, TextRow)
        assert row.rescued == {}
        values = json.loads(line)
        assert [column[at] for column in found.columns[:2]] == [values.get(name) for name in list(SHAPE)[:2]]


@pytest.mark.parametrize(
    "lines",
    [
        ['{"id":"a"}{"id":"b"}', ""],
        ['{"id":"a"', '"n":1}', '{"id":"b"},{"id":"c"}'],
        ['{"id":"a","id":"b"}', "{}"],
        ['{"id":"a"}', '{"id":', '"b"}', '{"id":"c"}{"id":"d"}'],
        ['{"id":"a"}', '{"id" :"b"}'],
        ['{"id":"a"}', '["b"]'],
    ],
)
def test_faults_of_two_lines_do_not_make_up_for_each_other(lines: list[str]) -> None:
    """Counts over all lines would be even: each of these is looked at line by line."""
    assert JsonParser(SHAPE)._clean([f"{line}\n".encode() for line in lines], 1) is None


def test_plain_lines_are_looked_at_together() -> None:
    """Were they not, reading would be half as quick; missing fields and the end of the file are no obstacle."""
    lines = [line.encode() + b"\r\n" for line in PLAIN] + [PLAIN[0].encode()]
    found = JsonParser(SHAPE)._clean(lines, 7)
    assert found is not None
    assert (found.line, len(found.ends)) == (7, len(PLAIN) + 1)


@pytest.mark.parametrize("space", [" ", "\t", "  ", "\r"])
def test_key_twice_is_seen_beside_a_key_with_a_space_behind_it(space: str) -> None:
    """Such a key is not counted: without a closer look the count would be even."""
    assert not JsonParser(SHAPE)._is_clean(f'{{"id":"a","id":"b","n"{space}:1}}'.encode())


@pytest.mark.parametrize("line", PLAIN)
def test_quick_look_accepts_plain_lines(line: str) -> None:
    """Were nothing accepted, every line would be looked at closely, and reading would be five times slower."""
    assert JsonParser(SHAPE)._is_clean(line.encode())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_numbered_over_chunks(size: int) -> None:
    """However the bytes come in, each piece has the line that it is on."""
    lines = [b'{"id":"%d"}\n' % n if n % 3 else b"bad %d\n" % n for n in range(20)]
    chunks = iter([lines[at : at + size] for at in range(0, len(lines), size)])
    found: dict[int, bool] = {}
    for pieces in JsonParser(SHAPE).pieces(chunks):
        if isinstance(pieces, Clean):
            found |= dict.fromkeys(range(pieces.line, pieces.line + len(pieces.ends)), False)
        else:
            found |= {piece.line: isinstance(piece, Rejected) for piece in pieces}
    assert found == {n + 1: n % 3 == 0 for n in range(20)}
