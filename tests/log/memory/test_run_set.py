"""A set of runs knows every id that its runs were made of, and where its newest record is."""

from __future__ import annotations

import numpy as np

from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.storage.memory import MemoryStorage
from tests.log.memory.ids import COMMIT_IDS, Ids


def check(runs: RunSet, ids: Ids) -> None:
    """See that the set knows ids exactly as they were stored, many at once and one by one."""
    found = runs.find_many(ids.keys)
    assert found.positions.tolist() == ids.positions.tolist()
    assert found.fingerprints.tolist() == ids.fingerprints.tolist()
    assert (found.starts == ids.starts).all()
    assert (found.ends == ids.ends).all()
    assert not found.failed.any()
    for row in range(0, len(ids), 37):
        hit = runs.find_one(*ids.keys[row].tolist())
        assert hit == (ids.first + row, ids.fingerprints[row], ids.starts[row], ids.ends[row])
    assert (runs.timestamps_of(ids.positions) == (ids.positions - (ids.positions % COMMIT_IDS)) * 1_000_000).all()


def test_a_set_knows_what_was_stored_before_and_after_a_merge() -> None:
    """Position, fingerprint, marks of the batch and timestamp stay the same; ids that are not there are not found."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    many = [Ids.random(seed, 1000 + 400 * seed, 400) for seed in range(4)]
    runs = [ids.stored(home, f"sealed/{number}") for number, ids in enumerate(many)]
    before = RunSet.open(objects, runs)
    after = RunSet.open(objects, [merge_runs(objects, "log", "sealed/merged", runs)], before)
    strangers = np.random.default_rng(99).integers(0, 2**64, (5000, 2), np.uint64)
    for each in (before, after):
        for ids in many:
            check(each, ids)
        assert not each.find_many(strangers).found.any()
        assert all(each.find_one(*key) is None for key in strangers[:200].tolist())
    assert (before.number, after.number) == (0, 1)
    assert (before.ids, after.ids) == (1600, 1600)
