"""A pipeline takes each record through once, whatever is sent again, and whenever it is cut short."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import oncelog
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, LogBusy, OncelogError
from oncelog.spark.pipeline import history, jobs, lease, spec
from oncelog.spark.pipeline.checks import check, check_with_spark
from oncelog.spark.pipeline.history import History
from oncelog.spark.report import report
from oncelog.spark.sinks.folder import BatchManifest, Folder
from oncelog.storage.bucket.paths import bucket_of
from tests.spark.pipeline.shop import Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OVERWRITING = "spark.sql.sources.partitionOverwriteMode"

pytestmark = pytest.mark.xdist_group("pipeline")


def test_each_record_goes_through_once(shop: Shop, spark: SparkSession) -> None:
    """Retries within a file and across files and runs are recognised; what is new goes through; the figures say so."""
    shop.send(*orders(0, 5), ("o1", 10))
    shop.send(*orders(3, 8))
    first = shop.run(spark)
    assert (first.attempts, first.stored, first.duplicates, first.conflicts, first.exported) == (11, 8, 3, 0, 8)
    again = shop.run(spark)
    assert (again.rows, again.stored, again.exported) == (0, 8, 8)
    shop.send(*orders(6, 10))
    more = shop.run(spark)
    assert (more.rows, more.attempts, more.stored, more.duplicates, more.exported) == (4, 15, 10, 5, 10)
    assert shop.ids() == sorted(f"o{number}" for number in range(10))
    assert sorted(row["order_id"] for row in shop.sent_on()) == shop.ids()
    assert [row["position"] for row in shop.sent_on()] == list(range(10))
    assert all(row["amount"] == int(row["order_id"][1:]) * 10 for row in shop.sent_on())


def test_conflict_is_put_aside_and_the_rest_goes_on(shop: Shop, spark: SparkSession) -> None:
    """One id for two orders stops nothing: the first stands, the other can be looked at."""
    shop.send(*orders(0, 3))
    shop.send(("o1", 999), ("o3", 30))
    outcome = shop.run(spark)
    assert (outcome.stored, outcome.duplicates, outcome.conflicts) == (4, 0, 1)
    assert dict(shop.stored())["o1"] == {"order_id": "o1", "amount": 10}
    assert shop.stored("conflicts.orders") == [("o1", {"order_id": "o1", "amount": 999})]


def test_conflict_may_stop_the_pipeline(shop: Shop, spark: SparkSession) -> None:
    """With ``on_conflict = "error"`` the batch is refused whole, and who runs it reads why in one line."""
    shop.change(('name = "orders"\n[sink]', 'name = "orders"\non_conflict = "error"\n[sink]'))
    shop.send(*orders(0, 3))
    shop.send(("o1", 999), ("o3", 30))
    with pytest.raises(InvalidArgument, match="taken by other content") as caught:
        shop.run(spark)
    assert "\n" not in str(caught.value)
    assert shop.ids() == ["o0", "o1", "o2"]


def test_source_that_breaks_is_told_in_one_line(shop: Shop, spark: SparkSession) -> None:
    """What Spark says in a page of stack traces is one error of Oncelog's, which says where the rest is."""
    shop.send(*orders(0, 3))
    shop.change(("SELECT order_id, amount", "SELECT raise_error('broken') AS order_id, amount"))
    with pytest.raises(OncelogError, match="broken"):
        shop.run(spark)


def test_a_password_is_kept_nowhere(shop: Shop, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """Options of a source and of a sink have passwords: no file of a run, and no line that it logs, has one of them."""
    caplog.set_level(logging.DEBUG, "oncelog")
    secret = "hunter2-marked"
    options = f'password = "{secret}", "fs.s3a.secret.key" = "{secret}"'
    shop.change(
        ("maxFilesPerTrigger = 1", f"maxFilesPerTrigger = 1, {options}"),
        ('path = "out"', f'path = "out"\noptions = {{ {options} }}'),
    )
    shop.send(*orders(0, 3))
    shop.run(spark)
    assert shop.ids() == ["o0", "o1", "o2"]
    files = [path for path in shop.spec.parent.rglob("*") if path.is_file() and path != shop.spec]
    assert any(".oncelog" in path.parts for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in caplog.text


def test_batches_done_but_not_noted_are_done_again_without_effect(shop: Shop, spark: SparkSession) -> None:
    """Killed between the end of a batch and Spark's note of it, in both legs: the same result of each."""
    shop.send(*orders(0, 4))
    shop.send(*orders(4, 7), ("o0", 1))
    shop.run(spark)
    before, out = shop.stored(), shop.sent_on()
    aside = shop.stored("conflicts.orders")
    assert len(aside) == 1
    shop.forget("into-log")
    shop.forget("out-of-log")
    shop.run(spark)
    assert shop.stored() == before
    assert shop.sent_on() == out
    assert shop.stored("conflicts.orders") == aside


def test_lost_checkpoint_costs_time_not_records(shop: Shop, spark: SparkSession) -> None:
    """With all of Spark's notes gone, everything is read again, and recognised by its ids."""
    shop.send(*orders(0, 4))
    shop.send(*orders(2, 6))
    shop.run(spark)
    before = shop.stored()
    shop.lose(".oncelog", "out")
    outcome = shop.run(spark)
    assert shop.stored() == before
    assert (outcome.rows, outcome.stored, outcome.duplicates) == (8, 0, 8)
    assert [row["position"] for row in shop.sent_on()] == list(range(6))


@pytest.mark.parametrize("kind", ["parquet", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("json", "csv"))])
def test_two_runs_write_a_batch_at_once(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Both stage the batch, as two drivers do that no lease kept apart: one of them is the batch."""
    shop.change(('format = "parquet"', f'format = "{kind}"'))
    write = Folder.write

    def twice(self: Folder, query: str, batch: int, save: Callable[[str], None]) -> BatchManifest:
        def both(path: str) -> None:
            save(path)
            write(self, query, batch, save)

        return write(self, query, batch, both)

    monkeypatch.setattr(Folder, "write", twice)
    shop.send(*orders(0, 4))
    shop.run(spark)
    shop.forget("out-of-log")
    shop.send(*orders(4, 6))
    shop.run(spark)
    assert sorted(row["position"] for row in shop.sent_on(kind)) == list(range(6))
    assert not any(path.name.startswith((".", "_")) for path in (shop.folder / "out").rglob("*"))


def test_sink_may_be_a_delta_table(shop: Shop, spark: SparkSession) -> None:
    """Each batch is a commit of the table, once, also when it is done again; times are whole microseconds."""
    shop.change(('format = "parquet"', 'format = "delta"'))
    shop.send(*orders(0, 4))
    shop.run(spark)
    shop.forget("out-of-log")
    shop.send(*orders(2, 6))
    shop.run(spark)
    found = DeltaTable(shop.folder / "out").to_pyarrow_table()
    assert sorted(found.column("order_id").to_pylist()) == shop.ids()
    assert len(shop.ids()) == 6
    assert found.schema.field("stored_at").type == pa.timestamp("us", "UTC")


def test_sink_may_be_an_iceberg_table(shop: Shop, spark: SparkSession) -> None:
    """Each batch is a commit of the table, once, also when it is done again."""
    folder = shop.folder / "warehouse"
    folder.mkdir()
    catalog = f'uri = "sqlite:///{folder}/catalog.db", warehouse = "{folder.as_uri()}"'
    shop.change(
        ('format = "parquet"\npath = "out"', f'format = "iceberg"\noptions = {{ table = "shop.orders", {catalog} }}')
    )
    shop.send(*orders(0, 4))
    shop.run(spark)
    shop.forget("out-of-log")
    shop.send(*orders(2, 6))
    shop.run(spark)
    opened = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    found = opened.load_table("shop.orders").scan().to_arrow()
    assert sorted(found.column("order_id").to_pylist()) == shop.ids()
    assert len(shop.ids()) == 6


def test_second_run_is_refused_while_the_first_runs(shop: Shop, spark: SparkSession) -> None:
    """Two runs of cron that overlap: the second one says who runs, and does nothing."""
    shop.send(*orders(0, 4))
    given, _ = check.check(shop.spec)
    assert given is not None
    with lease.held(given, SYSTEM), pytest.raises(LogBusy, match="is being run by process"):
        shop.run(spark)
    assert shop.run(spark).stored == 4


def test_sink_in_a_bucket(shop: Shop, spark: SparkSession, bucket_url: str) -> None:
    """Files go to a bucket by way of a folder on this machine, and each batch is there once."""
    shop.change(('path = "out"', f'path = "{bucket_url}/out"'))
    shop.send(*orders(0, 4))
    shop.run(spark)
    shop.forget("out-of-log")
    shop.send(*orders(2, 6))
    shop.run(spark)
    found = bucket_of(bucket_url)
    assert found is not None
    bucket, prefix = found
    tables = [pq.read_table(pa.BufferReader(bucket.get(path))) for path, _ in bucket.below(f"{prefix}/out/")]
    assert sorted(id for table in tables for id in table.column("order_id").to_pylist()) == shop.ids()
    assert len(shop.ids()) == 6


def test_error_of_a_batch_is_told_in_full(shop: Shop, spark: SparkSession) -> None:
    """What fails in a batch out of the log is told as it is, not as the first line of a trace."""
    shop.send(*orders(0, 4))
    shop.run(spark)
    shop.lose(".oncelog/orders/out-of-log")
    (shop.folder / ".oncelog" / "orders" / "out-of-log").mkdir()
    with pytest.raises(InvalidArgument, match="has batches that pipeline 'orders', query"):
        shop.run(spark)


def test_columns_named_as_those_of_the_log(shop: Shop, spark: SparkSession) -> None:
    """A record's own column keeps its name on the way out; the log's place gets another."""
    shop.change(("SELECT order_id, amount", "SELECT order_id, amount AS Position, 'x' AS `a``b`"))
    shop.send(*orders(0, 3))
    shop.run(spark)
    found = ds.dataset(str(shop.folder / "out"), format="parquet").to_table().sort_by("log_position")
    assert found.column("Position").to_pylist() == [0, 10, 20]
    assert found.column("log_position").to_pylist() == [0, 1, 2]
    assert set(found.column("a`b").to_pylist()) == {"x"}


def test_identity_by_expression(shop: Shop, spark: SparkSession) -> None:
    """An id may be computed from several columns."""
    shop.change(('column = "order_id"', "expression = \"concat(order_id, '/', amount)\""))
    shop.send(("a", 1), ("a", 2), ("a", 1))
    assert shop.run(spark).stored == 2
    assert shop.ids() == ["a/1", "a/2"]


def test_identity_by_content(shop: Shop, spark: SparkSession) -> None:
    """Equal rows are one, also without any id, also in a later batch."""
    shop.change(('column = "order_id"', "content = true"))
    shop.send(("a", 1), ("a", 2), ("a", 1))
    shop.send(("a", 2), ("b", 1))
    assert shop.run(spark).stored == 3
    assert sorted(str(value) for _, value in shop.stored()) == [
        "{'order_id': 'a', 'amount': 1}",
        "{'order_id': 'a', 'amount': 2}",
        "{'order_id': 'b', 'amount': 1}",
    ]


def test_batch_replaces_itself_whatever_folders_its_rows_go_to(shop: Shop, spark: SparkSession) -> None:
    """Done again after midnight, a batch by the day of writing leaves nothing behind, however Spark is set."""
    shop.change(('path = "out"', 'path = "out"\nsql = "SELECT position, uuid() AS d FROM log"\npartition_by = ["d"]'))
    shop.send(*orders(0, 4))
    spark.conf.set(OVERWRITING, "dynamic")
    try:
        shop.run(spark)
        shop.forget("out-of-log")
        shop.run(spark)
    finally:
        spark.conf.unset(OVERWRITING)
    assert [row["position"] for row in shop.sent_on()] == list(range(4))


def test_sink_may_be_another_log(shop: Shop, spark: SparkSession) -> None:
    """From log to log, records keep their ids; a batch that is copied again is recognised."""
    shop.change(
        (
            'format = "parquet"\npath = "out"',
            'format = "oncelog"\noptions = { url = "data", log = "copy", create = true }',
        )
    )
    shop.send(*orders(0, 4))
    shop.run(spark)
    assert shop.ids("copy") == shop.ids()
    shop.forget("out-of-log")
    shop.send(*orders(2, 6))
    shop.run(spark)
    assert shop.ids("copy") == shop.ids() == sorted(f"o{number}" for number in range(6))


def test_sink_takes_what_sql_makes_of_the_log(shop: Shop, spark: SparkSession) -> None:
    """What goes on may be other columns, in folders by one of them."""
    shop.change(('path = "out"', 'path = "out"\nsql = "SELECT position, record.amount * 2 AS twice, id FROM log"'))
    shop.change(('path = "out"', 'path = "out"\npartition_by = ["id"]'))
    shop.send(*orders(0, 3))
    shop.run(spark)
    assert [row["twice"] for row in shop.sent_on()] == [0, 20, 40]
    assert (shop.folder / "out" / "batch=0000000000" / "id=o1").is_dir()


def test_schema_that_was_taken_from_files_stays(shop: Shop, spark: SparkSession) -> None:
    """Were it taken again from later files, an amount could become text, and every retry a conflict."""
    shop.change(('schema = "order_id STRING, amount LONG, attempt LONG"\n', ""))
    shop.send(*orders(0, 3))
    shop.run(spark)
    (shop.folder / "incoming" / "later.json").write_text('{"order_id": "x", "amount": 1.5, "attempt": 1}\n')
    shop.send(*orders(1, 3))
    outcome = shop.run(spark)
    assert (outcome.duplicates, outcome.conflicts) == (2, 0)


def test_history_tells_what_became_of_each_batch(shop: Shop, spark: SparkSession) -> None:
    """The report of a pipeline that was killed and went on counts each batch once."""
    shop.send(*orders(0, 4))
    shop.send(*orders(2, 6))
    outcome = shop.run(spark)
    kept = shop.folder / ".oncelog" / "orders" / "history.jsonl"
    events = list(History(kept))
    cut = [event for event in events if not isinstance(event, history.Ended)]
    assert history.kills([*cut, history.Started(at_us=1, stored=6, conflicts=0)]) == [cut[-1].at_us]
    assert history.kills(events) == []
    assert [(one.stored, one.duplicates) for one in history.settled(events)] == [(4, 0), (2, 2)]
    with kept.open("ab") as file:
        file.write(b'{"type":"batch","leg"')  # a kill in the middle of a line
    assert list(History(kept)) == events
    page = report.of_run(outcome, events)
    assert "What came in" in page
    assert "stored: 4" in page
    assert history.recent([*cut, *events]) == [*cut, *events]  # a run that was cut short, and the one that went on
    assert history.recent([*events, *cut]) == cut


WRONG = [
    ("amount LONG,", "amount LNG,", "source.schema", 5, ""),
    ("SELECT order_id, amount", "SELECT order_id, amont", "transform.sql", 8, "amount"),
    (
        'sql = "SELECT order_id, amount FROM source"',
        'sql = "SELECT order_id amount, FROM source"',
        "transform.sql",
        8,
        "",
    ),
    ('column = "order_id"', 'column = "oder_id"', "identity.column", 10, "order_id"),
    ('column = "order_id"', 'expression = "concat(order_id, amont)"', "identity.expression", 10, "amount"),
    ('url = "data"', 'url = "data"\nvalue = "vaule"', "log.value", 13, "order_id, amount"),
    ('url = "data"', 'url = "data"\ncolumns = { type = "kind" }', "log.columns.type", 13, "order_id, amount"),
    ('path = "out"', 'path = "out"\nsql = "SELECT record.amout FROM log"', "sink.sql", 17, ""),
    ('path = "out"', 'path = "out"\npartition_by = ["amont"]', "sink.partition_by", 17, "amount"),
    ('path = "out"', 'path = "out"\nsql = "SELECT record.amount AS Batch FROM log"', "sink.sql", 17, ""),
]


@pytest.mark.parametrize(("good", "bad", "key", "line", "hint"), WRONG, ids=[f"{w[2]}:{w[1][:40]}" for w in WRONG])
def test_spark_finds_the_rest_of_the_mistakes(  # noqa: PLR0917
    shop: Shop, spark: SparkSession, good: str, bad: str, key: str, line: int, hint: str
) -> None:
    """Columns that are not there, and SQL that is wrong, are found on their line before anything runs."""
    shop.change((good, bad))
    given, mistakes = check.check(shop.spec)
    assert given is not None
    assert mistakes == [] or given.source.path is not None
    _, found = check_with_spark.check(shop.spec, given, spark)
    assert [(one.key, one.line) for one in found] == [(key, line)]
    assert hint in (found[0].suggestion or "")


@pytest.mark.parametrize(
    "sql", ["CREATE DATABASE planted", "WITH a AS (SELECT 1) INSERT INTO source SELECT * FROM a", "SET spark.x=1;"]
)
def test_a_check_runs_no_command(shop: Shop, spark: SparkSession, sql: str) -> None:
    """Spark runs a command when it is asked what its columns are: a check refuses what is no query."""
    shop.change(('path = "out"', f'path = "out"\nsql = "{sql}"'))
    given, _ = check.check(shop.spec)
    assert given is not None
    _, found = check_with_spark.check(shop.spec, given, spark)
    assert [(one.key, one.what) for one in found] == [("sink.sql", "is a command, and not a query")]
    assert "planted" not in [database.name for database in spark.catalog.listDatabases()]


def test_right_spec_has_no_mistakes_for_spark(shop: Shop, spark: SparkSession) -> None:
    """And tells the columns of the records."""
    given, _ = check.check(shop.spec)
    assert given is not None
    assert check_with_spark.check(shop.spec, given, spark) == ("struct<order_id:string,amount:bigint>", [])


# Jobs of one line.


def test_ingest_and_export(shop: Shop, spark: SparkSession) -> None:
    """Files in, once, however often; the log out, as often as wanted, into a folder that is free."""
    shop.send(*orders(0, 5), ("o1", 10))
    url, out = (shop.folder / "data").as_uri(), shop.folder / "exported"
    incoming = jobs.SparkFiles(str(shop.folder / "incoming"))
    first = jobs.ingest(incoming, url, "orders", id="order_id", create=True, spark=spark)
    assert (first.rows, first.stored, first.conflicts) == (6, 5, 1)  # another attempt is other content
    shop.send(*orders(3, 8))
    again = jobs.ingest(incoming, url, "orders", id="order_id", spark=spark)
    assert (again.rows, again.stored) == (11, 3)
    (out / "_temporary").mkdir(parents=True)  # as an export leaves it that was killed
    files = jobs.SparkFiles(str(out), "parquet")
    assert jobs.export(url, "orders", files, schema="order_id STRING, amount LONG", spark=spark).records == 8
    rows = ds.dataset(str(out), format="parquet").to_table().to_pylist()
    assert sorted((row["position"], row["order_id"]) for row in rows) == sorted(
        (number, id) for number, (id, _) in enumerate(shop.stored())
    )
    with pytest.raises(InvalidArgument, match="is there already"):
        jobs.export(url, "orders", files, spark=spark)
    assert jobs.export(url, "orders", jobs.SparkFiles(str(out), "json"), overwrite=True, spark=spark) == jobs.Exported(
        8
    )


def test_export_to_elsewhere_replaces_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in a bucket was replaced, without a question."""
    url = (tmp_path / "db").as_uri()
    with oncelog.connect(url) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"paid")
    out = tmp_path / "out"
    monkeypatch.setattr(spec, "local_path", lambda _: None)  # as if the folder were in a bucket
    files = jobs.SparkFiles(str(out), "parquet")
    assert jobs.export(url, "orders", files, spark=spark).records == 1
    before = sorted(out.iterdir())
    with pytest.raises(InvalidArgument, match="already exists"):
        jobs.export(url, "orders", files, spark=spark)
    assert sorted(out.iterdir()) == before
    assert jobs.export(url, "orders", files, overwrite=True, spark=spark).records == 1
    assert sorted(out.iterdir()) != before


def test_export_of_what_does_not_fit_its_schema(tmp_path: Path, spark: SparkSession) -> None:
    """Such values were null without a word. A column that the log has, too, keeps its name, as in a sink."""
    values = [b'{"id":"a","n":1}', b'{"id":"b","n":1.5}', b'{"id":"c"}', b"no JSON", b'{"id":"e","n":null,"more":1}']
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        writer.append_many([oncelog.Record(value) for value in values])
    files = jobs.SparkFiles(str(tmp_path / "out"), "parquet")
    done = jobs.export(tmp_path.as_uri(), "orders", files, schema="id STRING, n LONG", spark=spark)
    assert done == jobs.Exported(5, unfit=2, first_unfit=1)
    rows = ds.dataset(files.path, format="parquet").to_table().sort_by("position").to_pylist()
    assert [(row["log_id"], row["id"], row["n"]) for row in rows] == [
        *((None, "a", 1), (None, "b", None), (None, "c", None), (None, None, None), (None, "e", None))
    ]
    assert "_oncelog_unfit" not in rows[0]
    with pytest.raises(InvalidArgument, match="must be columns"):
        jobs.export(
            tmp_path.as_uri(), "orders", jobs.SparkFiles(str(tmp_path / "no"), "parquet"), schema="INT", spark=spark
        )


def test_ingest_without_ids_goes_by_content(shop: Shop, spark: SparkSession) -> None:
    """Equal rows are one; the log is made for that."""
    (shop.folder / "day.csv").write_text("a,b\n1,2\n1,2\n3,4\n")
    url = (shop.folder / "data").as_uri()
    done = jobs.ingest(jobs.SparkFiles(str(shop.folder / "day.csv")), url, "plain", id=None, create=True, spark=spark)
    assert (done.rows, done.stored) == (3, 2)
