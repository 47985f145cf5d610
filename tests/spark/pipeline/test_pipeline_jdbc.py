"""From a table of a real PostgreSQL into a log, and from there into another one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from oncelog.spark.pipeline.checks import check, check_with_spark
from oncelog.spark.report import page, report
from tests.servers import postgresql
from tests.spark.jobs import JDBC_DRIVER, event_log
from tests.spark.pipeline.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.xdist_group("pipeline"),
    pytest.mark.skipif(
        not JDBC_DRIVER.exists(), reason="PostgreSQL's driver for Java is missing: scripts/debian postgresql.jar"
    ),
]

SECRET = "hunter2-marked"
"""A password, which this server does not look at: it lets everybody in."""

SOURCE = """\
format = "jdbc"
options = {{ url = "{url}", dbtable = "orders", user = "queue", password = "{hid}", driver = "org.postgresql.Driver" }}
"""
SINK = """\
format = "jdbc"
options = {{ url = "{url}", dbtable = "copied", user = "queue", password = "{hid}", driver = "org.postgresql.Driver" }}
"""
FILES = """\
format = "json"
path = "incoming"
schema = "order_id STRING, amount LONG, attempt LONG"
options = { maxFilesPerTrigger = 1 }
"""


@pytest.fixture
def database(shop: Shop) -> Iterator[psycopg.Connection]:
    """Return a database with a table of orders, which the shop's spec reads from and writes to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with postgresql(port) as server, psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (order_id text, amount numeric(10, 2), placed timestamptz)")
        connection.execute(
            "INSERT INTO orders SELECT 'o' || n, n * 1.5, '2026-03-14T12:00Z' FROM generate_series(1, 5) n"
        )
        given = {"url": f"jdbc:postgresql://127.0.0.1:{port}/postgres?sslpassword={SECRET}", "hid": SECRET}
        shop.change((FILES, SOURCE.format(**given)), ('format = "parquet"\npath = "out"\n', SINK.format(**given)))
        yield connection


def test_table_goes_through_once_and_on_into_another(
    shop: Shop, spark: SparkSession, database: psycopg.Connection
) -> None:
    """Each run reads the whole table, what the log has is recognised, and only what is new goes on; a row that was
    changed since is a conflict, not a second order. The passwords are in the spec, and in nothing that a run leaves.
    """
    with event_log(spark, shop.folder / "events"):
        first = shop.run(spark)
    page.write(shop.folder / "report.html", report.of_run(first, []))
    assert (first.rows, first.stored, first.exported) == (5, 5, 5)
    database.execute("INSERT INTO orders VALUES ('o6', 9, now())")
    database.execute("UPDATE orders SET amount = 1 WHERE order_id = 'o2'")
    again = shop.run(spark)
    assert (again.rows, again.stored, again.duplicates, again.conflicts) == (6, 6, 4, 1)
    assert shop.ids() == [f"o{number}" for number in range(1, 7)]
    copied = database.execute("SELECT position, order_id, amount FROM copied ORDER BY position").fetchall()
    assert [row[0] for row in copied] == list(range(6))
    assert {row[1] for row in copied} == set(shop.ids())
    assert float({row[1]: row[2] for row in copied}["o2"]) == 3.0
    left = {path.relative_to(shop.folder): path.read_bytes() for path in shop.folder.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in left} >= {".oncelog", "data", "events", "report.html"}
    shown = {f"{path}" for path, data in left.items() if SECRET.encode() in data}
    assert shown == {shop.spec.name}
    assert SECRET not in f"{first}{again}"


WRONG = [
    ('dbtable = "orders"', 'dbtable = "ordrs"', '"ordrs" does not exist'),
    ('user = "queue"', 'user = "nobody"', 'role "nobody" does not exist'),
    ('driver = "org.postgresql.Driver"', 'driver = "com.mysql.cj.jdbc.Driver"', "no class com.mysql.cj.jdbc.Driver"),
]


@pytest.mark.usefixtures("database")
def test_what_the_database_refuses_is_told_before_anything_runs(shop: Shop, spark: SparkSession) -> None:
    """``check`` asks the database, and says what it said, or what it lacks to ask, in one line."""
    right = shop.spec.read_text()
    for good, bad, words in WRONG:
        shop.spec.write_text(right.replace(good, bad, 1))
        given, found = check.check(shop.spec)
        assert given is not None
        assert [one for one in found if one.severity == "error"] == []
        _, (mistake,) = check_with_spark.check(shop.spec, given, spark)
        assert words in mistake.what
        assert SECRET not in f"{mistake}"
        assert (mistake.line, "\n" in mistake.what) == (2, False)
        assert mistake.suggestion
