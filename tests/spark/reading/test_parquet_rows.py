"""Values of Parquet files that the schema has no place for are kept as text, and none of them is altered."""

from __future__ import annotations

import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.spark.reading import parquet_rows

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (NAN, pa.float64(), '"NaN"'),
        ([1.5, -INFINITE], pa.list_(pa.float64()), '[1.5,"-Infinity"]'),
        ({"a": NAN}, pa.struct([("a", pa.float64())]), '{"a":"NaN"}'),
        ([("a", NAN), ("b", INFINITE)], pa.map_(pa.string(), pa.float64()), '[["a","NaN"],["b","Infinity"]]'),
        ([("a", [("b", NAN)])], pa.map_(pa.string(), pa.map_(pa.string(), pa.float64())), '[["a",[["b","NaN"]]]]'),
    ],
    ids=["number", "list", "struct", "map", "map of maps"],
)
def test_numbers_that_are_not_finite_are_kept_wherever_they_are(
    value: object, kind: pa.DataType, expected: str
) -> None:
    """JSON has none, and would have null in their place."""
    written = io.BytesIO()
    pq.write_table(pa.table({"id": ["a"], "more": pa.array([value], kind)}), written)
    [(_, table, extra)] = parquet_rows.tables(io.BytesIO(written.getvalue()), pa.schema([("id", pa.string())]))
    assert table.column("id").to_pylist() == ["a"]
    assert extra == [[("more", expected)]]


MORE = pa.struct([("a", pa.int64()), ("z", pa.int64())])
LESS = pa.struct([("a", pa.int64())])
MAP = pa.map_(pa.string(), MORE)
PRICE = pa.struct([("a", pa.decimal128(10, 2))])
PRICES = pa.map_(pa.string(), pa.decimal128(10, 2))
LARGE = Decimal("9007199254740993.0")


@pytest.mark.parametrize(
    ("found", "kind", "expected"),
    [
        (pa.array([1.239, 1.5, 0.1]), pa.decimal128(10, 2), ["1.239", None, None]),
        (pa.array([LARGE, Decimal("12.34")], pa.decimal128(38, 18)), pa.float64(), [None, None]),
        (pa.array([1e39, 0.1]), pa.float32(), ["1e39", None]),
        (pa.array([[{"a": 1, "z": 2}]], pa.large_list(MORE)), pa.list_(LESS), ['[{"a":1,"z":2}]']),
        (pa.array([[{"a": 1}]], pa.large_list(LESS)), pa.list_(LESS), [None]),
        (pa.array([[("k", {"z": 2})]], MAP), pa.map_(pa.string(), LESS), ['[["k",{"a":null,"z":2}]]']),
        (pa.array([["5"], None]), pa.list_(pa.int64()), ['["5"]', None]),
        (pa.array([[5]]), pa.list_(pa.string()), ["[5]"]),
        (pa.array([[86400]], pa.list_(pa.timestamp("s"))), pa.list_(pa.date32()), ['["1970-01-02T00:00:00"]']),
        (pa.array([[1.239], [1.5, None], None]), pa.list_(pa.decimal128(10, 2)), ["[1.239]", None, None]),
        (pa.array([[1.5]], pa.large_list(pa.float64())), pa.list_(pa.decimal128(10, 2)), [None]),
        (pa.array([{"a": 19.99}, {"a": 0.125}]), PRICE, [None, '{"a":0.125}']),
        (pa.array([[("k", 19.99)]], pa.map_(pa.string(), pa.float64())), PRICES, [None]),
    ],
    ids=["decimal", "double", "float", "large list", "same", "map", "text", "number", "day", "decimals",
         "large decimals", "struct", "decimals by name"],
)  # fmt: skip
def test_values_that_a_cast_would_change_are_kept(
    found: pa.Array, kind: pa.DataType, expected: list[str | None]
) -> None:
    """Arrow rounds, turns texts into numbers inside of lists, and leaves fields out inside of the lists of polars."""
    written = io.BytesIO()
    pq.write_table(pa.table({"c": found}), written)
    [(_, table, extra)] = parquet_rows.tables(io.BytesIO(written.getvalue()), pa.schema([("c", kind)]))
    assert [each[0][1] if each else None for each in extra] == expected
    missing = [text is not None or not value.is_valid for text, value in zip(expected, found, strict=True)]
    assert [value is None for value in table.column("c").to_pylist()] == missing
