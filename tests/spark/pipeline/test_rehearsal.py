"""A dry run tells what the next run will do, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import oncelog
from oncelog import LogSettings
from oncelog.clock import SYSTEM
from oncelog.errors import Unsupported
from oncelog.spark.pipeline import rehearsal
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.rehearsal import Rehearsal
from tests.servers import Serving
from tests.spark.pipeline.shop import Shop, orders
from tests.spark.pipeline.test_pipeline_kill import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


def rehearse(shop: Shop, spark: SparkSession | None) -> Rehearsal:
    """Run dry."""
    given, _ = check.check(shop.spec)
    assert given is not None
    return rehearsal.rehearse(given, shop.folder, SYSTEM, lambda _: None, spark)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_are_looked_up_in_the_log_and_among_themselves(shop: Shop, spark: SparkSession) -> None:
    """Of what is in the source, so many rows are new, duplicates, conflicts or not readable; nothing is written."""
    with oncelog.connect((shop.folder / "data").as_uri()) as db, db.log("orders", create=True).writer() as writer:
        for number in range(3):
            writer.append(f'{{"order_id":"o{number}","amount":{number * 10}}}'.encode(), id=f"o{number}")
    shop.send(*orders(2, 5), ("o4", 40), ("o1", 999), ("o4", 41))
    with (shop.folder / "incoming" / "0000.json").open("a") as file:
        file.write("no json\n")
    before = contents(shop.folder)
    told = rehearse(shop, spark)
    assert contents(shop.folder) == before
    figures = (told.rows, told.stored, told.duplicates, told.conflicts, told.rejected, told.missing)
    assert figures == (7, 2, 2, 2, 1, 0)
    assert [sample.id for sample in told.samples["stored"]] == ["o3", "o4"]
    assert sorted(str(sample.id) for sample in told.samples["conflicts"]) == ["o1", "o4"]
    assert "0000.json, line 7: is not JSON" in told.samples["rejected"][0].reason


def test_no_file_of_the_source_goes(shop: Shop, spark: SparkSession) -> None:
    """With ``cleanSource``, Spark removes files once it has read them: a dry run removed files that no run had read."""
    cleaner = "spark.sql.streaming.fileSource.cleaner.numThreads"
    shop.change(("maxFilesPerTrigger = 1", 'maxFilesPerTrigger = 1, CleanSource = "delete"'))
    for number in range(3):
        shop.send(*orders(number, number + 1))
    before = contents(shop.folder)
    spark.conf.set(cleaner, "0")  # they go at once, and not a little later
    try:
        assert rehearse(shop, spark).stored == 3
        assert contents(shop.folder) == before
        assert shop.run(spark).stored == 3
    finally:
        spark.conf.unset(cleaner)


@pytest.mark.parametrize("idempotence", ["explicit", "content"])
def test_log_of_a_server_is_asked(serve: Callable[..., Serving], idempotence: Any) -> None:
    """Rows that the log has, has with another value, type or stream, or has not: as a log at hand tells."""
    value = pa.array([b"a", b"b", b"c", b"d"], pa.binary())
    ids = pa.array(["1", "2", "3", None])
    labels = {name: pa.array([None, "x", None, None], pa.string()) for name in ("stream", "type", "tenant")}
    table = pa.record_batch({"value": value, "id": ids, **labels})
    with oncelog.connect(f"oncelog://{serve().grpc}") as db, oncelog.connect("memory://") as here:
        for database in (db, here):
            log = database.log("orders", LogSettings(idempotence=idempotence), create=True)
            with log.writer() as writer:
                explicit = idempotence == "explicit"
                writer.append(b"a", id="1" if explicit else None)
                writer.append(b"b", id="2" if explicit else None, stream="x", type="y", tenant="x")
                writer.append(b"d")
        asked, compared = (rehearsal._compared(table, database.log("orders")) for database in (db, here))
    assert [list(flags) for flags in asked] == [list(flags) for flags in compared]
    assert list(asked.known) == ([True, True, False, False] if explicit else [True, False, False, True])
    assert list(asked.conflicts) == [False, explicit, False, False]


@pytest.mark.soak
@pytest.mark.parametrize("place", ["server", "bucket"])
def test_log_elsewhere(place: str, shop: Shop, bucket_url: str, serve: Callable[..., Serving]) -> None:
    """Through a server, and in a bucket: a dry run tells the figures of the run that follows."""
    url = f"oncelog://{serve().grpc}" if place == "server" else f"{bucket_url}/data"
    shop.change(('url = "data"', f'url = "{url}"'))
    shop.send(*orders(0, 5))
    figures(shop)
    shop.send(*orders(3, 7), ("o1", 999))
    told = figures(shop, "--dry-run")
    assert (told["rows"], told["stored"], told["duplicates"], told["conflicts"], told["resumed"]) == (5, 2, 2, 1, True)
    done = figures(shop)
    assert (done["rows"], done["stored"], done["duplicates"], done["conflicts"]) == (5, 7, 2, 1)


def figures(shop: Shop, *more: str) -> dict[str, Any]:
    """Run the pipeline from a shell; return what it tells at its end."""
    process = started("pipeline", "run", str(shop.spec), "--json", *more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    found: dict[str, Any] = msgspec.json.decode(out.splitlines()[-1])
    return found


@pytest.mark.soak
def test_it_tells_what_the_next_run_does_and_changes_nothing(shop: Shop, spark: SparkSession) -> None:
    """Rows that are new since the last run: unknown, duplicates or conflicts of log or input, not readable."""
    shop.send(*orders(0, 5))
    shop.run(spark)
    shop.send(*orders(3, 7), ("o6", 60), ("o1", 999))
    shop.send(("o6", 61), ("o2", 20))
    with (shop.folder / "incoming" / "0002.json").open("a") as file:
        file.write("no json\n")
    before = contents(shop.folder)
    told = rehearse(shop, spark)
    assert contents(shop.folder) == before
    assert told.resumed
    figures = (told.rows, told.stored, told.duplicates, told.conflicts, told.rejected, told.missing)
    assert figures == (9, 2, 4, 2, 1, 0)
    assert [sample.id for sample in told.samples["stored"]] == ["o5", "o6"]
    assert sorted(str(sample.id) for sample in told.samples["conflicts"]) == ["o1", "o6"]
    assert "0002.json, line 3: is not JSON" in told.samples["rejected"][0].reason
    done = shop.run(spark)
    assert (done.rows, done.stored - 5, done.duplicates, done.conflicts, done.rejected) == (9, 2, 4, 2, 1)


@pytest.mark.soak
def test_first_run_and_spec_that_is_to_stop(shop: Shop, spark: SparkSession) -> None:
    """Without a log or a checkpoint everything is new; what a run would stop at is told, and counted."""
    shop.change(
        ('path = "incoming"', 'path = "incoming"\non_bad_row = "fail"'), ('column = "order_id"', "content = true")
    )
    shop.send(*orders(0, 2), ("o1", 10))
    with (shop.folder / "incoming" / "0000.json").open("a") as file:
        file.write("no json\n")
    told = rehearse(shop, spark)
    assert (told.rows, told.stored, told.duplicates, told.rejected, told.resumed) == (4, 2, 1, 1, False)
    assert told.fails == 'source.on_bad_row is "fail", and 1 rows cannot be records'
    assert not (shop.folder / "data").exists()
    assert not (shop.folder / ".oncelog").exists()


@pytest.mark.soak
def test_content_is_compared_where_it_is_the_identity(shop: Shop, spark: SparkSession) -> None:
    """A log's ids of content are its own; equal rows are found all the same."""
    shop.change(('column = "order_id"', "content = true"))
    shop.send(*orders(0, 3))
    shop.run(spark)
    shop.send(*orders(1, 4))
    told = rehearse(shop, spark)
    assert (told.rows, told.stored, told.duplicates, told.conflicts) == (3, 1, 2, 0)


def test_spark_elsewhere_is_refused(shop: Shop) -> None:
    """Its tasks could not reach the folder of this machine."""
    shop.change(("[sink]", '[run]\nmaster = "spark://127.0.0.1:7077"\n[sink]'))
    with pytest.raises(Unsupported, match=r"say --master 'local\[\*\]'"):
        rehearse(shop, None)
