"""The status of a pipeline says what its runs did, who runs it, and which files wait or were replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from oncelog.clock import SYSTEM
from oncelog.spark.pipeline import history, lease, progress
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.history import Started
from oncelog.spark.pipeline.progress import Status
from oncelog.spark.pipeline.rows import taken_files
from oncelog.testing.clock import SimulatedClock
from tests.spark.pipeline.shop import BEGAN_S, Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelog.spark.pipeline.spec import Spec

pytestmark = pytest.mark.xdist_group("pipeline")


def spec(shop: Shop) -> Spec:
    """Return the pipeline's spec."""
    given, _ = check.check(shop.spec)
    assert given is not None
    return given


def status(shop: Shop) -> Status:
    """Return the pipeline's status."""
    return progress.status(spec(shop), shop.folder)


def take(shop: Shop, batch: str, *names: str) -> None:
    """Note files as Spark does when it takes them."""
    notes = shop.folder / ".oncelog" / "orders" / "into-log" / "sources" / "0"
    notes.mkdir(parents=True, exist_ok=True)
    (notes / f".{batch}.crc").write_bytes(b"crc")
    lines = [
        {"path": f"file://{path}".replace(" ", "%20"), "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": 0}
        for path in (shop.folder / "incoming" / name for name in names)
    ]
    (notes / batch).write_bytes(b"\n".join([b"v1", *map(msgspec.json.encode, lines)]))


def test_files_that_wait_and_files_that_were_replaced(shop: Shop) -> None:
    """By what Spark has noted: in notes of a batch, and in one that holds those of many batches."""
    for _ in range(4):
        shop.send(*orders(0, 1))
    spaced = shop.folder / "incoming" / "with space.json"
    spaced.write_text("{}")
    (shop.folder / "incoming" / "_hidden.json").write_text("{}")
    assert len(taken_files.files(spec(shop)).waiting) == 5  # type: ignore[union-attr]
    take(shop, "9.compact", "0000.json", "0001.json")
    take(shop, "10", "0002.json", "with space.json")
    replaced = shop.folder / "incoming" / "0001.json"
    os.utime(replaced, (BEGAN_S + 99,) * 2)
    waiting = str(replaced.with_name("0003.json"))
    assert taken_files.files(spec(shop)) == taken_files.TakenFiles(4, (waiting,), (str(replaced),))


@pytest.mark.parametrize("option", ["false", "true", '"True"'])
def test_files_that_spark_does_not_list_are_named(shop: Shop, option: str) -> None:
    """In a folder inside of the source, which is read when it is a partition, or if asked for; or under a name that is
    not UTF-8, which can be shown. Such files wait for ever, and nobody was told.
    """
    everywhere = option != "false"
    shop.change(("maxFilesPerTrigger = 1", f"maxFilesPerTrigger = 1, recursiveFileLookup = {option}"))
    top = shop.folder / "incoming"
    for folder in ("2026/11", "day=1", "_hidden"):
        (top / folder).mkdir(parents=True)
        (top / folder / "a.json").write_text("{}")
    (top / os.fsdecode(b"\xff.json")).write_text("{}")
    found = taken_files.files(spec(shop))
    assert found is not None
    nested = str(top / "2026/11/a.json")
    assert found.waiting == tuple(sorted([*([nested] if everywhere else []), str(top / "day=1/a.json")]))
    assert found.passed_over == tuple(sorted([*([] if everywhere else [nested]), f"{top}/\\xff.json"]))


@pytest.mark.soak
def test_status_before_and_after_a_run(shop: Shop, spark: SparkSession) -> None:
    """Spark's own notes are understood; a file that was replaced after it was taken is named by the run as well."""
    shop.send(*orders(0, 3))
    shop.send(*orders(2, 5))
    before = status(shop)
    assert (before.runs, before.last_started_us, before.killed, before.behind) == (0, None, False, 0)
    shop.run(spark)
    shop.send(*orders(5, 6))
    first = shop.folder / "incoming" / "0000.json"
    first.write_text('{"order_id": "o9", "amount": 90}\n')
    os.utime(first, (BEGAN_S + 99,) * 2)
    after = status(shop)
    assert (after.runs, after.attempts, after.stored, after.duplicates, after.killed) == (1, 6, 5, 1, False)
    assert (after.exported, after.behind, after.running) == (5, 0, None)
    assert after.files == taken_files.TakenFiles(2, (str(first.with_name("0002.json")),), (str(first),))
    done = shop.run(spark)
    assert done.replaced == (str(first),)
    assert (done.rows, done.stored) == (1, 6)


def test_who_runs_and_who_was_killed(shop: Shop) -> None:
    """A run that holds the lease is named; one that began, did not end, and holds no lease was killed."""
    given = spec(shop)
    assert not status(shop).killed
    with lease.held(given, SYSTEM):
        history.of(given, shop.folder).add(Started(at_us=1, stored=0, conflicts=0))
        held = status(shop)
        assert held.running is not None
        assert (held.running.pid, held.killed) == (os.getpid(), False)
    assert (status(shop).running, status(shop).killed) == (None, True)


def test_looking_does_not_keep_a_run_from_starting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who looks has the lock for a moment; a run that begins in that moment tries once more."""
    given = spec(shop)
    with lease.held(given, SYSTEM):
        pass
    looking = (shop.folder / ".oncelog" / "orders" / "run.lock").open("rb")
    assert lease._lock(looking.fileno())
    monkeypatch.setattr(lease, "_pause", lambda *_: looking.close())
    with lease.held(given, SimulatedClock()):
        assert looking.closed


def test_bucket_lease_names_its_holder(bucket_url: str, shop: Shop) -> None:
    """In a bucket, too, as long as the run has not ended."""
    shop.change(("[sink]", f'[run]\ncheckpoint = "{bucket_url}/state"\n[sink]'))
    given = spec(shop)
    assert lease.holder(given) is None
    with lease.held(given, SYSTEM):
        found = lease.holder(given)
        assert found is not None
        assert found.pid == os.getpid()
    assert lease.holder(given) is None
