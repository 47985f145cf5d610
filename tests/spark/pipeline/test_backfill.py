"""A backfill brings each part of the past in once, goes on where it was killed, and leaves the pipeline as it is."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.spark.pipeline import backfill
from oncelog.spark.pipeline.backfill import Backfill, Filled
from oncelog.spark.pipeline.checks import check
from oncelog.storage.bucket.paths import bucket_of
from tests.spark.pipeline.shop import Shop, orders
from tests.spark.pipeline.test_pipeline_kill import finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelog.spark.pipeline.spec import Spec

pytestmark = pytest.mark.xdist_group("pipeline")


def spec(shop: Shop) -> Spec:
    """Return the pipeline's spec."""
    given, _ = check.check(shop.spec)
    assert given is not None
    return given


def put(shop: Shop, folder: str, first: int, last: int, day: str | None = None) -> None:
    """Let a file of orders be in a folder of the source, last changed on a day."""
    path = shop.folder / "incoming" / folder / f"{first}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [msgspec.json.encode({"order_id": id, "amount": amount}) for id, amount in orders(first, last)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    if day is not None:
        when = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
        os.utime(path, (when, when))


def names(parts: list[backfill.BackfillPart]) -> list[str]:
    """Return the names of parts."""
    return [part.name for part in parts]


def test_partitions_in_a_range(shop: Shop) -> None:
    """Dates compare as text, numbers as numbers; the bounds are included, and folders at any depth are found."""
    for folder in ("day=2026-01-01", "day=2026-01-02", "day=2026-02-01", "shop=a/hour=9", "shop=b/hour=10"):
        put(shop, folder, 0, 1)
    given = spec(shop)
    found = backfill.partitions(given, "day", "2026-01-02", "2026-02-01")
    assert names(found) == ["day=2026-01-02", "day=2026-02-01"]
    assert Path(found[0].path) == shop.folder / "incoming" / "day=2026-01-02"
    assert names(backfill.partitions(given, "hour", "9", "10")) == ["shop=a/hour=9", "shop=b/hour=10"]
    with pytest.raises(InvalidArgument, match="there is no folder week="):
        backfill.partitions(given, "week", "1", "2")


def test_partitions_of_one_value_in_several_folders(shop: Shop) -> None:
    """All of them are the part: none may be left out because another has its name."""
    put(shop, "shop=a/day=1", 0, 1)
    put(shop, "shop=b/day=1", 1, 2)
    assert names(backfill.partitions(spec(shop), "day", "1", "1")) == ["shop=a/day=1", "shop=b/day=1"]


def test_days_in_a_range(shop: Shop) -> None:
    """The last day is included; a range that is none, or too long, is refused."""
    put(shop, ".", 0, 1)
    given = spec(shop)
    assert names(backfill.days(given, "2026-02-27", "2026-03-01")) == ["2026-02-27", "2026-02-28", "2026-03-01"]
    for first, last in (("2026-01-02", "2026-01-01"), ("1900-01-01", "2026-01-01"), ("January", "2026-01-01")):
        with pytest.raises(InvalidArgument):
            backfill.days(given, first, last)


def test_what_cannot_be_backfilled(shop: Shop) -> None:
    """A source that is no folder here; columns that nobody knows yet."""
    put(shop, ".", 0, 1)
    given = spec(shop)
    for change in ({"path": "hdfs://x/y"}, {"path": "s3://x/y", "format": "orc"}):
        elsewhere = msgspec.structs.replace(given, source=msgspec.structs.replace(given.source, **change))
        with pytest.raises(Unsupported, match="folder of this machine"):
            backfill.days(elsewhere, "2026-01-01", "2026-01-01")
    unknown = msgspec.structs.replace(given, source=msgspec.structs.replace(given.source, schema=None))
    with pytest.raises(InvalidArgument, match=r"write source\.schema, or run the pipeline"):
        Backfill(unknown, shop.folder, SYSTEM).run([], lambda _: None, spark=None)


@pytest.mark.soak
def test_backfill_from_a_bucket(shop: Shop, bucket_url: str) -> None:
    """Partitions and days of a real store come in once; no jar of Spark's is needed, and rows have their places."""
    place = bucket_of(bucket_url)
    assert place is not None
    bucket, prefix = place
    for day, first in (("2026-01-01", 0), ("2026-01-02", 4), ("2026-02-01", 8)):
        lines = [msgspec.json.encode({"order_id": id, "amount": n}) for id, n in orders(first, first + 4)]
        bucket.create(f"{prefix}/in/day={day}/{first}.json", [b"\n".join(lines) + b"\nbroken\n"])
        bucket.create(f"{prefix}/in/day={day}/_hidden.json", [b"hidden"])
    shop.change(('path = "incoming"', f'path = "{bucket_url.replace("s3:", "s3a:")}/in"\nlineage = true'))
    given = spec(shop)
    parts = backfill.partitions(given, "day", "2026-01-02", "2026-02-01")
    assert names(parts) == ["day=2026-01-02", "day=2026-02-01"]
    command = ("pipeline", "backfill", str(shop.spec))
    finish(*command, "--partition", "day", "--from", "2026-01-02", "--to", "2026-02-01")
    done = Backfill(given, shop.folder, SYSTEM).done()
    assert [(done[name].rows, done[name].stored, done[name].rejected) for name in names(parts)] == [(5, 4, 1)] * 2
    today = datetime.now(tz=UTC).date()
    days = backfill.days(given, str(today - timedelta(1)), str(today + timedelta(1)))
    finish(*command, "--from", days[0].name, "--to", days[-1].name)
    assert days[-1].name not in Backfill(given, shop.folder, SYSTEM).done()
    assert shop.ids() == sorted(id for id, _ in orders(0, 12))


def test_bounds_of_a_day_are_those_of_utc(shop: Shop) -> None:
    """Spark takes a time without a zone for one of the session's, and so another day."""
    put(shop, ".", 0, 1)
    (day,) = backfill.days(spec(shop), "2026-03-29", "2026-03-29")
    assert day.options == {
        "modifiedAfter": "2026-03-28T23:59:59.999999+00:00",
        "modifiedBefore": "2026-03-30T00:00:00+00:00",
    }


def test_a_day_that_is_not_over_is_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noted as done, and a file that changed later on that day was passed over."""
    put(shop, ".", 0, 1)
    nothing = dict.fromkeys(
        ("rows", "stored", "duplicates", "conflicts", "rejected", "left_out", "missing", "at_us"), 0
    )
    monkeypatch.setattr(Backfill, "_fill", lambda _, part, __: Filled(part=part.name, **nothing))
    given = spec(shop)
    parts = [*backfill.days(given, "2026-01-01", "2026-01-01"), *backfill.days(given, "2999-01-01", "2999-01-01")]
    spark: Any = object()
    for done in (["2026-01-01", "2999-01-01"], ["2999-01-01"]):
        filled = Backfill(given, shop.folder, SYSTEM).run(parts, lambda _: None, spark=spark)
        assert [one.part for one in filled] == done


@pytest.mark.soak
def test_days_come_in_once_and_a_killed_backfill_goes_on(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a part was stored and before it was noted: that part is read again, and nothing is there twice."""
    put(shop, ".", 0, 3, "2026-01-01T00:00:00")
    put(shop, ".", 3, 5, "2026-01-01T23:59:59")
    put(shop, ".", 4, 8, "2026-01-02T00:00:00")
    put(shop, ".", 8, 9, "2026-01-04T12:00:00")
    given = spec(shop)
    parts = backfill.days(given, "2026-01-01", "2026-01-03")
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "_note", _killed)
        with pytest.raises(KeyboardInterrupt):
            Backfill(given, shop.folder, SYSTEM).run(parts, lambda _: None, spark=spark)
    told: list[Filled] = []
    done = Backfill(given, shop.folder, SYSTEM).run(parts, told.append, spark=spark)
    assert done == told
    assert [(one.part, one.rows, one.stored, one.duplicates) for one in done] == [
        ("2026-01-01", 5, 0, 5),
        ("2026-01-02", 4, 3, 1),
        ("2026-01-03", 0, 0, 0),
    ]
    assert shop.ids() == sorted(f"o{number}" for number in range(8))
    assert Backfill(given, shop.folder, SYSTEM).run(parts, lambda _: None, spark=spark) == []
    outcome = shop.run(spark)
    assert (outcome.stored, outcome.duplicates, outcome.exported) == (1, 9, 9)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
