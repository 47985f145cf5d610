"""A log in Spark's SQL: temporary views are read and written; tables of a catalogue say what works instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException

from tests.spark.jobs import Shop

pytestmark = pytest.mark.xdist_group("spark")

NO_TABLE = "of CREATE TABLE Spark hands no options on: CREATE TEMPORARY VIEW does"


@pytest.fixture(autouse=True)
def _leave_nothing(shop: Shop) -> Iterator[None]:
    """Drop what a test has made: all tests have one Spark."""
    shop.spark.sql(f"CREATE DATABASE tables LOCATION '{shop.folder}/tables'")
    yield
    for statement in ("VIEW IF EXISTS seen", "VIEW IF EXISTS written", "DATABASE tables CASCADE"):
        shop.spark.sql(f"DROP {statement}")


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expect an error of Spark's that passes ours on."""
    with pytest.raises(PySparkException) as found:
        yield
    assert words in str(found.value)


def options(shop: Shop) -> str:
    """Return the options that name the log, as SQL writes them."""
    return f"USING oncelog OPTIONS (url '{shop.url}', log 'orders')"


def ids(shop: Shop) -> list[str]:
    """Return the ids in the log, as a reader without Spark sees them."""
    return sorted(entry.id or "" for entry in shop.log().read())


def test_views_and_tables(shop: Shop) -> None:
    """A view is read and written. Of a table, Spark hands the options to no source in Python: that is an error."""
    check_tables(shop)
    assert ids(shop) == ["id-1"]
    check_views(shop)


def check_views(shop: Shop) -> None:
    """Check that a view is read with all columns. One with the columns of a record takes rows, each once."""
    sql = shop.spark.sql
    shop.write(shop.rows(range(2)))
    sql(f"CREATE TEMPORARY VIEW seen {options(shop)}")
    sql(f"CREATE TEMPORARY VIEW written (id STRING, value BINARY) {options(shop)}")
    found = sql("SELECT position, id, CAST(value AS STRING) FROM seen ORDER BY position").collect()
    assert [tuple(row) for row in found] == [(0, "id-1", "value 1"), (1, "id-0", "value 0")]
    for _ in range(2):
        sql("INSERT INTO written VALUES ('id-1', CAST('value 1' AS BINARY)), ('id-2', CAST('x' AS BINARY))")
    assert ids(shop) == ["id-0", "id-1", "id-2"]
    assert sql("SELECT count(*) FROM seen WHERE CAST(value AS STRING) LIKE 'value%'").first() == (2,)
    with refused("position is assigned by the log: select the other columns"):
        sql("INSERT INTO seen (id, value) VALUES ('id-3', CAST('x' AS BINARY))")
    with refused("a log is only ever appended to"):
        sql("INSERT OVERWRITE written VALUES ('id-3', CAST('x' AS BINARY))")
    assert ids(shop) == ["id-0", "id-1", "id-2"]


def check_tables(shop: Shop) -> None:
    """Check that reading and inserting say what works instead, and store nothing; ``saveAsTable`` stores."""
    sql = shop.spark.sql
    with refused(NO_TABLE):
        sql(f"CREATE TABLE tables.kept {options(shop)} AS SELECT 'id-0' AS id, CAST('x' AS BINARY) AS value")
    sql(f"CREATE TABLE tables.kept (id STRING, value BINARY) {options(shop)}")
    with refused(NO_TABLE):
        sql("SELECT * FROM tables.kept").collect()
    with refused(NO_TABLE):
        sql("INSERT INTO tables.kept VALUES ('id-0', CAST('x' AS BINARY))")
    assert ids(shop) == []
    sql("DROP TABLE tables.kept")
    shop.rows([1]).write.format("oncelog").options(**shop.options("orders", {})).mode("append").saveAsTable(
        "tables.kept"
    )
    assert ids(shop) == ["id-1"]
    with refused(NO_TABLE):
        sql("SELECT * FROM tables.kept").collect()
