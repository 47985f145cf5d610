"""Runs that are stored elsewhere are read in few requests, many at once, and not after they were closed."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from oncelog.errors import Closed
from oncelog.log.memory import building
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.quest import grouped
from oncelog.log.memory.run_set import RunSet
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectHome, ObjectStorage
from tests.log.memory.ids import Ids


def test_a_real_bucket_is_searched_in_few_requests(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fronts at opening, nothing for new ids, one request for a known one, and a scan in large ones for all."""
    home = ObjectStorage(bucket).home("shop")
    objects = RunObjects(home)
    monkeypatch.setattr(building, "PART_IDS", 10_000)
    many = [Ids.random(seed, 20_000 * seed, 20_000) for seed in range(4)]
    runs = [ids.stored(home, f"sealed/{number}") for number, ids in enumerate(many)]
    made = merge_runs(objects, "log", "sealed/merged", runs)
    before = bucket.requests["get"]
    known = RunSet.open(objects, [made])
    assert bucket.requests["get"] - before == len(made.parts) == 8
    before = bucket.requests["get"]
    strangers = known.find_many(Ids.random(9, 0, 1000).keys)
    assert not strangers.found.any()
    assert bucket.requests["get"] - before <= 3  # 0.027 % of a thousand
    before = bucket.requests["get"]
    assert known.find_many(many[2].keys[77:78]).positions.tolist() == [40_077]
    assert bucket.requests["get"] - before <= 2
    before = bucket.requests["get"]
    assert (known.find_many(many[1].keys).positions == many[1].positions).all()
    assert bucket.requests["get"] - before <= 2 * 8
    assert (known.timestamps_of(many[3].positions) == many[3].positions // 100 * 100_000_000).all()
    objects.close()


def test_pages_come_many_at_once(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight reads wait for each other: one after the other they would wait for ever."""
    home = ObjectStorage(memory_bucket).home("shop")
    ids = Ids.random(1, 0, 140 * 500)
    run = ids.stored(home, "sealed/1")
    known = RunSet.open(RunObjects(home), [run])
    order = np.argsort(ids.entries().high)
    far_apart = ids.keys[order[70 :: 140 * 62][:8]]  # in pages that lie 62 apart
    together = threading.Barrier(8, timeout=60)
    real = ObjectHome.read

    def read(self: ObjectHome, key: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        together.wait()
        return real(self, key, start, length)

    monkeypatch.setattr(ObjectHome, "read", read)
    assert known.find_many(far_apart).found.all()


def test_closed_objects_are_not_read(memory_bucket: Bucket) -> None:
    """A look-up after the end says so; it does not start threads again."""
    home = ObjectStorage(memory_bucket).home("shop")
    ids = Ids.random(1, 0, 140 * 500)
    objects = RunObjects(home)
    known = RunSet.open(objects, [ids.stored(home, "sealed/1")])
    assert known.find_many(ids.keys[::7000]).found.all()
    objects.close()
    objects.close()
    with pytest.raises(Closed):
        known.find_many(ids.keys[::7000])


@pytest.mark.parametrize(
    ("pages", "total", "expected"),
    [
        ([], 100, []),
        ([0], 1, [(0, 1)]),
        ([3, 19, 35, 90], 1000, [(3, 33), (90, 1)]),
        ([0, 500, 999], 24, [(0, 1), (500, 1), (999, 1)]),
        (list(range(0, 600, 4)), 600, [(0, 253), (256, 253), (512, 85)]),
    ],
)
def test_neighbours_are_read_together(pages: list[int], total: int, expected: list[tuple[int, int]]) -> None:
    """Within 64 KiB; everything, a mebibyte at a time, where more than an eighth is needed."""
    assert grouped(np.array(pages, np.int64), total) == expected
