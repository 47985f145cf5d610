"""Frames of other libraries as tables of Arrow: what they cannot say is refused by name, and nothing is read twice."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncelog.errors import InvalidArgument, Unsupported
from oncelog.format.payload import intake, tables
from oncelog.format.payload.schema import READ_SCHEMA


class Speaker:
    """An object of an unknown library that hands its columns out as Arrow has them."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule of the columns."""
        return self._table.__arrow_c_stream__(requested_schema)


def test_the_index_of_a_frame_is_no_column() -> None:
    """A frame of which rows were dropped has an index that says so; a log has no place for it."""
    frame = pd.DataFrame({"value": [b"a", b"b", b"c"], "id": ["1", None, "3"]})
    payload = intake.normalise(frame[frame["value"] != b"a"])
    assert payload.to_pydict() == {"value": [b"b", b"c"], "id": [None, "3"]}


@pytest.mark.parametrize("headers", [[{"a": b"x"}, None], [[("a", b"x")], None], [{"a": b"x"}, float("nan")]])
def test_headers_in_pandas_are_dicts_or_pairs(headers: list[Any]) -> None:
    """A dict is a map of one row, not a struct with a field for every name of every row."""
    payload = intake.normalise(pd.DataFrame({"value": [b"a", b"b"], "headers": headers}))
    assert payload["headers"].to_pylist() == [[("a", b"x")], None]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"value": ["a", "é"], "type": pd.Categorical(["t", None])}),
        pd.DataFrame({"value": ["a", "é"], "type": ["t", None]}, dtype="string[pyarrow]"),
        pl.DataFrame({"value": ["a", "é"], "type": pl.Series(["t", None]).cast(pl.Categorical)}),
        pl.DataFrame({"value": ["a", "é"], "type": ["t", None]}),
        pa.table({"value": ["a", "é"], "type": ["t", None]}),
    ],
    ids=["pandas categorical", "pandas arrow", "polars categorical", "polars", "arrow"],
)
def test_texts_and_categories_are_texts(frame: Any) -> None:
    """However a library keeps texts, a log has them as they are."""
    assert intake.normalise(frame).to_pydict() == {"value": [b"a", "é".encode()], "type": ["t", None]}


def test_what_speaks_arrow_is_a_table() -> None:
    """A library need not be known by name."""
    views = pa.table({"value": pa.array([b"a", b"b" * 20], pa.binary_view())})
    assert intake.normalise(Speaker(views)).to_pydict() == {"value": [b"a", b"b" * 20]}


def test_a_stream_that_can_be_read_once_is_refused() -> None:
    """A retry would find it empty, append nothing, and be told that all is well."""
    reader = pa.table({"value": [b"a"]}).to_reader()
    with pytest.raises(InvalidArgument, match="read_all"):
        intake.normalise(reader)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({"value": [b"a", 5]}), "value: this column cannot become"),
        (pd.DataFrame({"value": [b"a"], "headers": ["x"]}), "headers: this column cannot become"),
        (pd.DataFrame({"value": [b"a"], 7: ["x"]}), "7: unknown column"),
        (pd.DataFrame({"value": [1.5]}), "value: is double, must be binary or string"),
        (pl.DataFrame({"value": [object()]}), "must be binary or string"),
        (Speaker(pa.table({})), "value: missing"),
        (Speaker(5), "cannot become an Arrow table"),
        (pl.LazyFrame({"value": [b"a"]}), "is LazyFrame, must be a pyarrow Table"),
    ],
)
def test_what_a_frame_cannot_say_is_refused_by_name(frame: Any, says: str) -> None:
    """A caller learns which column is wrong, in an error of Oncelog's tree."""
    with pytest.raises(InvalidArgument, match=says):
        intake.normalise(frame)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unsupported, match=f"pip install {library}"):
        getattr(tables, f"to_{library}")([], READ_SCHEMA)
