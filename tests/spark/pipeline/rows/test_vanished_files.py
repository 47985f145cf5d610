"""Files that Spark took for a batch, and that were gone when the batch was read: named, not lost, read when back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oncelog.errors import CorruptionError, Unavailable
from oncelog.spark.pipeline import spec as specs
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.pipeline import Pipeline
from oncelog.spark.pipeline.rows import taken_files, vanished_files
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.pipeline.storing import Storing
from tests.spark.pipeline.shop import BEGAN_S, Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")

STORE = Storing.store
REJECT = Storing._reject
EMPTY_OR_NOT = ("empty.json", "0000.json", "away.json")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop without a sink, all of whose files are one batch."""
    made = Shop(tmp_path)
    made.change(('[sink]\nformat = "parquet"\npath = "out"\n', ""), ("options = { maxFilesPerTrigger = 1 }\n", ""))
    return made


def spec(shop: Shop) -> Spec:
    """Return the shop's pipeline."""
    given, _ = check.check(shop.spec)
    assert given is not None
    return given


def before_store(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Have something happen between the moment at which Spark has listed the files of a batch, and their reading."""

    def store(self: Storing, *arguments: Any) -> set[str]:
        monkeypatch.setattr(Storing, "store", STORE)
        act()
        return STORE(self, *arguments)

    monkeypatch.setattr(Storing, "store", store)


def stop() -> None:
    """Fail, as a run that is killed."""
    message = "killed"
    raise InterruptedError(message)


def test_file_that_vanishes_is_named_and_read_when_it_is_back(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed behind Spark's listing, or between two attempts at a batch: Spark leaves it out, and never looks again.

    The other files go in. Nothing is rejected. Back, also changed, a file is read; its name may look like a pattern.
    """
    for first in (0, 2, 4):
        shop.send(*orders(first, first + 2))
    folder = shop.folder / "incoming"
    second, fourth = (folder / "0001.json").rename(folder / "a[1] {b}.json"), folder / "0003.json"
    text = second.read_bytes()
    before_store(monkeypatch, second.unlink)
    assert shop.run(spark).vanished == (str(second),)
    assert (shop.ids(), shop.ids("rejected.orders")) == (["o0", "o1", "o4", "o5"], [])
    shop.send(*orders(6, 8))
    before_store(monkeypatch, stop)
    with pytest.raises(InterruptedError):
        shop.run(spark)
    fourth.rename(shop.folder / "kept")
    done = shop.run(spark)
    assert (done.vanished, done.missing, done.stored) == ((str(fourth), str(second)), 0, 4)
    second.write_bytes(text)
    fourth.touch()  # gone for good
    os.utime(second, (BEGAN_S + 99,) * 2)
    files = taken_files.files(spec(shop))
    assert files is not None
    assert (files.waiting, files.replaced, files.vanished) == ((str(fourth), str(second)), (), ())
    done = shop.run(spark)
    assert (done.vanished, done.replaced, done.missing, done.rows, done.stored) == ((), (), 0, 2, 6)
    assert (shop.ids(), shop.ids("rejected.orders")) == ([f"o{n}" for n in range(6)], [])


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("on_bad_row", ["quarantine", "fail"])
def test_files_beside_partitions_are_read_by_the_same_run(
    shop: Shop, spark: SparkSession, format: str, on_bad_row: str
) -> None:
    """Spark takes them, and does not read them: they waited for the next run, and files of text for ever."""
    shop.change(
        ('format = "json"', f'format = "{format}"\non_bad_row = "{on_bad_row}"'),
        *((("SELECT order_id, amount FROM", "SELECT value AS order_id FROM"),) if format == "text" else ()),
        *((('schema = "order_id STRING, amount LONG, attempt LONG"\n', ""),) if format == "text" else ()),
    )
    folder = shop.folder / "incoming"
    for number, place in enumerate(("", "day=1", "", "day=2")):
        (folder / place).mkdir(exist_ok=True)
        (folder / place / f"{number}.json").write_text(f'{{"order_id":"o{number}","amount":1}}\n')
        if number:
            done = shop.run(spark)
            assert (done.rows, done.stored, done.missing, done.vanished) == (1 + (number == 1), number + 1, 0, ())
    files = taken_files.files(spec(shop))
    assert files is not None
    assert (files.taken, files.waiting) == (4, ())
    assert shop.run(spark).rows == 0


@pytest.mark.soak
def test_disk_that_is_away_leaves_an_empty_folder(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails, and is read by the run that finds the disk again. Nothing is rejected or noted."""
    shop.send(*orders(0, 2))
    before_store(monkeypatch, stop)
    with pytest.raises(InterruptedError):
        shop.run(spark)
    folder, elsewhere = shop.folder / "incoming", shop.folder / "elsewhere"
    folder.rename(elsewhere)
    folder.mkdir()
    with pytest.raises(Unavailable, match=r"0000\.json.*has no files at all: is its disk mounted"):
        shop.run(spark)
    folder.rmdir()
    elsewhere.rename(folder)
    done = shop.run(spark)
    assert (done.stored, done.rejected, done.missing, done.vanished) == (2, 0, 0, ())


def test_file_that_is_replaced_between_rows_and_rejected_rows(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without an id are read by a second job. Of a file that another was renamed over, all is read again: the
    account and the rejected rows are of one file.
    """
    path = shop.folder / "incoming" / "a.json"
    path.write_text('{"order_id": "o1", "amount": 1}\n{"amount": 1}\n')
    os.utime(path, (BEGAN_S,) * 2)

    def reject(self: Storing, *arguments: Any) -> None:
        monkeypatch.setattr(Storing, "_reject", REJECT)
        (shop.folder / "new").write_text('{"order_id": "o2", "amount": 2}\n{"amount": 2}\n{"amount": 3}\n')
        os.utime(shop.folder / "new", (BEGAN_S,) * 2)
        (shop.folder / "new").rename(path)
        REJECT(self, *arguments)

    monkeypatch.setattr(Storing, "_reject", reject)
    done = shop.run(spark)
    assert (done.stored, done.rejected, done.missing) == (2, 2, 0)
    assert sorted(value["amount"] for _, value in shop.stored("rejected.orders")) == [2, 3]


def noted(shop: Shop, offsets: dict[int, int], notes: dict[str, list[tuple[str, int]]]) -> None:
    """Write Spark's notes: up to which of its notes of files each batch went, and those notes."""
    top = shop.folder / ".oncelog" / "orders" / "into-log"
    for folder in ("offsets", "sources/0"):
        (top / folder).mkdir(parents=True)
    for batch, last in offsets.items():
        (top / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{last}}}')
    for name, files in notes.items():
        lines = [
            msgspec.json.encode({"path": f"file://{shop.folder}/incoming/{file}", "timestamp": 1, "batchId": number})
            for file, number in files
        ]
        (top / "sources" / "0" / name).write_bytes(b"\n".join([b"v1", *lines]))


def test_files_of_a_batch(shop: Shop) -> None:
    """A batch may have files of several notes; a note may hold those of all batches before; names are escaped."""
    early = [("a.json", 8), ("b%20c.json", 9)]
    noted(shop, {3: 7, 4: 9, 5: 11}, {"9.compact": [("0.json", 7), *early], "10": [("d.json", 10)], "11": []})
    given, spark = spec(shop), cast("SparkSession", None)
    top = shop.folder / "incoming"
    assert taken_files.of_batch(given, 4, spark) == {f"{top}/a.json", f"{top}/b c.json"}
    assert taken_files.of_batch(given, 5, spark) == {f"{top}/d.json"}
    (shop.folder / ".oncelog" / "orders" / "into-log" / "offsets" / "5").write_text("v9\n")
    with pytest.raises(CorruptionError, match="not known which files batch 5 has"):
        taken_files.of_batch(given, 5, spark)


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("text", "SELECT trim(value) AS order_id, 1 AS amount FROM source"),
        ("json", "SELECT order_id, amount FROM source LIMIT 9"),
    ],
)
def test_file_that_is_back_behind_the_listing_of_spark(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str, sql: str
) -> None:
    """Away when Spark lists the files of a batch that comes again, and back before they are read. What Spark itself
    reads, and what some SQL reads, cannot be compared: the plan tells which files are in it. Such a file was lost. It
    is read by the same run.
    """
    shop.change(("SELECT order_id, amount FROM source", sql), ('format = "json"', f'format = "{kind}"'))
    if kind == "text":
        shop.change(('schema = "order_id STRING, amount LONG, attempt LONG"\n', ""))
    folder = shop.folder / "incoming"
    for name in ("a b%.json", "é#+.json"):
        (folder / name).write_text('{"order_id": "' + name + '", "amount": 1}\n')
    before_store(monkeypatch, stop)
    with pytest.raises(InterruptedError):
        shop.run(spark)
    file, kept = folder / "é#+.json", shop.folder / "kept"
    file.rename(kept)
    before_store(monkeypatch, lambda: kept.rename(file))
    done = shop.run(spark)
    assert (done.vanished, done.stored, done.duplicates, done.missing) == ((), 2, 0, 0)
    assert vanished_files.away(spec(shop)) == ()
    assert shop.run(spark).rows == 0


def test_an_empty_file_is_not_gone(shop: Shop, spark: SparkSession) -> None:
    """Spark takes a file without bytes, and never reads it: the run goes on also where a file that is gone ends it."""
    shop.change(
        ('[transform]\nsql = "SELECT order_id, amount FROM source"\n', ""),
        ('path = "incoming"', 'path = "incoming"\non_bad_row = "fail"'),
    )
    shop.send(*orders(0, 1))
    empty = shop.folder / "incoming" / "empty.json"
    empty.touch()
    done = shop.run(spark)
    assert (done.stored, done.missing, done.vanished) == (1, 0, ())
    asked = [taken_files._is_empty_elsewhere(f"file://{empty.with_name(name)}", spark) for name in EMPTY_OR_NOT]
    assert asked == [True, False, False]


def test_what_is_noted_is_checked(shop: Shop, tmp_path: Path) -> None:
    """Damage is named, by ``pipeline status``, too. No other file of the machine is read as one of the source's."""
    checkpoint, incoming = shop.folder / ".oncelog" / "orders", shop.folder / "incoming"
    (checkpoint / "into-log").mkdir(parents=True)
    notes, query, given = checkpoint / vanished_files.FILE, checkpoint / "into-log" / "metadata", spec(shop)
    for damaged in (b"{", b"[]", b'{"a": "b"}', b'{"\xff": null}'):
        notes.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=r"vanished\.json: cannot be understood"):
            taken_files.files(given)
    with pytest.raises(CorruptionError, match="metadata: Spark's note on its query"):
        taken_files.query_of(given)
    query.write_bytes(b"{")
    with pytest.raises(CorruptionError, match="metadata: Spark's note on its query"):
        taken_files.query_of(given)
    inside = incoming / "day=1" / "a.json"
    inside.parent.mkdir()
    outside = tmp_path / "secret"
    for path in (inside, outside):
        path.touch()
    named = [str(inside), str(outside), f"{incoming}/../secret", str(incoming / "away.json")]
    notes.write_bytes(msgspec.json.encode(dict.fromkeys(named)))
    assert vanished_files.back(given) == [str(inside)]


@pytest.mark.soak
def test_file_of_spark_that_is_back_has_the_columns_of_its_folder(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ORC, by its own schema and with a partition. The file is read with the columns of the stream. A kill before its
    rows are noted in the history makes duplicates: they are counted, and so are the rows.
    """
    shop.change(
        ('[transform]\nsql = "SELECT order_id, amount FROM source"\n', ""),
        ('format = "json"', 'format = "orc"'),
        ('schema = "order_id STRING, amount LONG, attempt LONG"\n', ""),
    )
    folder = shop.folder / "incoming"
    for day in (1, 2):
        rows = spark.createDataFrame([(f"o{day}", day)], "order_id string, amount long").coalesce(1)
        rows.write.orc(str(folder / f"day={day}"))
    (gone,) = (folder / "day=2").glob("*.orc")
    before_store(monkeypatch, stop)
    with pytest.raises(InterruptedError):
        shop.run(spark)
    gone.rename(shop.folder / "kept")
    assert shop.run(spark).vanished == (str(gone),)
    (shop.folder / "kept").rename(gone)
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_note", lambda *_, **__: stop())
        with pytest.raises(InterruptedError):
            shop.run(spark)
    done = shop.run(spark)
    assert (done.vanished, done.stored, done.duplicates, done.missing, done.attempts) == ((), 2, 1, 0, 3)
    assert shop.run(spark).rows == 0
    found = {id: (value["amount"], value["day"]) for id, value in shop.stored()}
    assert found == {"o1": (1, 1), "o2": (2, 2)}


@pytest.mark.soak
def test_files_of_a_batch_by_a_checkpoint_elsewhere(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads its notes where this process cannot. A file that vanishes there ends the run, by its name."""
    local = specs.local_path
    monkeypatch.setattr(specs, "local_path", lambda path: None if ".oncelog" in path else local(path))
    for first in (0, 2):
        shop.send(*orders(first, first + 2))
    gone = shop.folder / "incoming" / "0001.json"
    before_store(monkeypatch, lambda: gone.rename(shop.folder / "kept"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"gone when the batch was read: .*0001\.json\. Nothing is rejected"):
            shop.run(spark)
    (shop.folder / "kept").rename(gone)
    assert shop.run(spark).missing == 0
    assert shop.ids() == [f"o{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[transform]", 'on_bad_row = "fail"\n[transform]'), "an empty file says that it is gone for good"),
        (('path = "incoming"', 'path = "s3a://shop/in"'), "an empty file says that it is gone for good"),
        (("[log]", '[run]\ncheckpoint = "s3a://shop/checkpoint"\n[log]'), "an empty file says"),
        (("[log]", "[log]"), "has no files at all: is its disk mounted.*put an empty file"),
    ],
    ids=["fail", "a source elsewhere", "a checkpoint elsewhere", "no files"],
)
def test_where_a_file_that_vanished_is_an_error(shop: Shop, change: tuple[str, str], message: str) -> None:
    """The run fails, and its batch comes again: strict, or where the file could not be read later."""
    shop.change(change)
    with pytest.raises(Unavailable, match=rf"a\.json, b, c and 1 more\. Nothing is rejected.*{message}"):
        vanished_files.note(spec(shop), ["d", "b", "c", "a.json"])
    assert vanished_files.known(spec(shop)) == {}
