"""Values of Parquet files that the schema has no place for are kept as text, and none of them is altered."""

from __future__ import annotations

import io

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
