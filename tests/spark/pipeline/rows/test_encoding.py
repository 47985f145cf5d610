"""Every type of Spark's goes into a record and comes out of it as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline.rows import encoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")

CELLS = {
    "boolean": ("true", "false"),
    "tinyint": ("CAST(-128 AS TINYINT)", "CAST(127 AS TINYINT)"),
    "smallint": ("CAST(-32768 AS SMALLINT)", "CAST(32767 AS SMALLINT)"),
    "int": ("CAST(-2147483648 AS INT)", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807L", "9007199254740993L"),
    "float": ("float('NaN')", "float('-Infinity')", "float('-0.0')", "float('1.4E-45')", "float('3.4028235E38')"),
    "double": ("double('NaN')", "double('Infinity')", "double('-0.0')", "double('4.9E-324')", "0.1D"),
    "decimal": ("CAST('1.10' AS DECIMAL(10,2))",),
    "decimal of 38 digits": (
        "CAST('99999999999999999999999999999999999999' AS DECIMAL(38,0))",
        "CAST('-1' AS DECIMAL(38,0))",
    ),
    "decimal of 38 places": ("CAST('0.00000000000000000000000000000000000001' AS DECIMAL(38,38))",),
    "string": ("''", "'a\\u0000b'", "'\"quoted\" \\\\ \\n\\r\\t'", "'\U0001f600 \u00e4'"),
    "collated string": ("'A' COLLATE UTF8_LCASE",),
    "binary": ("X''", "X'00FF10'"),
    "date": ("DATE'0001-01-01'", "DATE'9999-12-31'", "DATE'1582-10-15'"),
    "timestamp": (
        "TIMESTAMP'2026-01-01 00:00:00.123456Z'",
        "TIMESTAMP'0001-01-01 00:00:00.000001Z'",
        "TIMESTAMP'1887-06-01 12:00:00.5Z'",
        "TIMESTAMP'9999-12-31 23:59:59.999999Z'",
    ),
    "timestamp_ntz": ("TIMESTAMP_NTZ'2026-01-01 00:00:00.123456'", "TIMESTAMP_NTZ'0001-01-01 00:00:00.000001'"),
    "time": ("TIME'23:59:59.999999'", "TIME'00:00:00'"),
    "interval day to second": ("INTERVAL '-1 02:03:04.000005' DAY TO SECOND",),
    "interval year to month": ("INTERVAL '-1-2' YEAR TO MONTH",),
    "array": ("array(1, NULL, 3)", "array()"),
    "array of timestamps": ("array(TIMESTAMP'2026-01-01 00:00:00.000001Z')",),
    "struct": ("named_struct('a.b', 1, 'c`d', 'x')",),
    "struct of nothing": ("named_struct('a', CAST(NULL AS INT))",),
    "map of strings": ("map('a', 1, 'b', NULL)", "map()"),
    "map of numbers": ("map(1, 'a', 2, NULL)",),
    "map of timestamps": ("map(TIMESTAMP'2026-01-01 00:00:00.000001Z', 1)",),
    "map of structs": ("map(named_struct('k', 1), named_struct('v', map(2, 3)))",),
    "map in an array in a struct": ("named_struct('l', array(map(1.5D, array(X'00'))))",),
    "variant": ('parse_json(\'{"a":[1,"x",null,true]}\')', "parse_json('12345678901234567890123456789012345678')"),
    "variant in an array": ("array(parse_json('{\"a\":1}'), NULL)",),
    "void": ("NULL",),
}


def test_every_cell_comes_out_as_it_went_in(spark: SparkSession) -> None:
    """One row a cell, one table for all of them: each is compared as text of its own type, and so is a null."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.timeType.enabled", "true")
    for kind, cells in CELLS.items():
        table = " UNION ALL ".join(f"SELECT {at} AS n, {cell} AS `the ``cell`" for at, cell in enumerate(cells))
        rows = spark.sql(f"{table} UNION ALL SELECT {len(cells)}, NULL")
        made = rows.select("n", encoding.encoded(rows, encoding.NEWEST).alias("value"), "`the ``cell`")
        back = encoding.decoded(f.col("value"), rows.schema, encoding.NEWEST)
        found = made.select("n", f.col("`the ``cell`").alias("before"), back.alias("r")).select(
            "n", "before", f.col("r").getField("the `cell").alias("after")
        )
        shown = {"variant": "to_json({})", "map": "CAST({} AS STRING)"}.get(kind.partition(" ")[0], "{}")
        if kind in {"variant in an array", "map in an array in a struct", "void"}:
            shown = "CAST({} AS STRING)"
        differing = found.where(f"NOT ({shown.format('before')} <=> {shown.format('after')})")
        assert [row.asDict() for row in differing.collect()] == [], kind
        signs = found.where("CAST(before AS STRING) <> CAST(after AS STRING)") if kind in {"float", "double"} else None
        assert signs is None or signs.count() == 0, kind  # -0.0 equals 0.0, and is not the same


def test_rows_that_differ_in_microseconds_are_two(spark: SparkSession) -> None:
    """The first encoding cut them off, so that the second row was a duplicate; pipelines that began with it stay."""
    moments = ("TIMESTAMP'2026-01-01 00:00:00.123456Z'", "TIMESTAMP'2026-01-01 00:00:00.123457Z'")
    rows = spark.sql(f"SELECT explode(array({', '.join(moments)})) AS t")
    values = {version: {row[0] for row in rows.select(encoding.encoded(rows, version)).collect()} for version in (1, 2)}
    assert len(values[1]) == 1
    assert len(values[2]) == 2


def test_geometry_is_refused_by_name(spark: SparkSession) -> None:
    """What JSON cannot hold is told before a row is read."""
    from pyspark.sql.types import StructField, StructType

    class Geometry:
        def simpleString(self) -> str:  # noqa: N802
            return "geometry(4326)"

    made = StructType()
    made.fields = [StructField("a", StructType())]
    made.fields[0].dataType = Geometry()  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match="a: geometry"):
        encoding.check(made)
