"""A set of runs with a sieve says of every id what it says without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oncelog.dedup.runs.mix import mixed_keys
from oncelog.errors import CorruptionError
from oncelog.format.runs.run import Run
from oncelog.log.memory import run_set
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import RunSet
from oncelog.log.memory.run_sieve import RunSieve
from oncelog.log.upkeep.sifting import Sifter
from oncelog.storage.base import LogHome
from oncelog.storage.memory import MemoryStorage
from tests.log.memory.ids import Ids

MANY = [Ids.random(seed, 400 * seed, 400) for seed in range(4)]
STRANGERS = np.random.default_rng(99).integers(0, 2**64, (2000, 2), np.uint64)


@pytest.fixture
def home() -> LogHome:
    """Return a home in memory."""
    return MemoryStorage().home("shop")


@pytest.fixture
def runs(home: LogHome) -> list[Run]:
    """Return four runs."""
    return [ids.stored(home, f"sealed/{number}") for number, ids in enumerate(MANY)]


def check(known: RunSet, many: list[Ids]) -> None:
    """See that a set knows ids, in large batches, in small ones and one by one, and no strangers."""
    for ids in many:
        mixed = np.concatenate([STRANGERS, ids.keys])
        assert known.find_many(mixed).positions.tolist() == [-1] * len(STRANGERS) + ids.positions.tolist()
        assert known.find_many(ids.keys[:9]).positions.tolist() == ids.positions[:9].tolist()
        few = np.concatenate([STRANGERS, ids.keys[7:9]])
        assert known.find_many(few).positions.tolist()[-2:] == ids.positions[7:9].tolist()
        hit = known.find_one(*ids.keys[-1].tolist())
        assert hit is not None
        assert hit.position == ids.positions[-1]
    assert not known.find_many(STRANGERS).found.any()
    assert all(known.find_one(*key) is None for key in STRANGERS[:100].tolist())


@pytest.mark.parametrize("behind", [[], [0], [3], [1, 2], [0, 1, 2, 3]])
def test_runs_before_and_behind_a_sieve_are_searched(home: LogHome, runs: list[Run], behind: list[int]) -> None:
    """Ids are found in a run that the sieve knows nothing of, too."""
    sieve = RunSieve(2000)
    for number in behind:
        sieve.add(runs[number].key, MANY[number].entries())
    check(RunSet.open(RunObjects(home), runs, sieve=sieve), MANY)


@pytest.mark.parametrize("together", [1, 1000])
def test_keys_that_pass_are_asked_of_the_filters_together_or_not(
    home: LogHome, runs: list[Run], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways find what is there, also in a run of several parts, and nothing that was truncated away."""
    monkeypatch.setattr(run_set, "FILTERED", together)
    monkeypatch.setattr("oncelog.log.memory.building.PART_IDS", 300)
    parted = Ids.random(77, 100_000, 1000)
    runs = [*runs, parted.stored(home, "sealed/parted")]
    assert len(runs[-1].parts) > 1
    sieve = RunSieve(1)
    for run, ids in zip(runs, [*MANY, parted], strict=True):
        sieve.add(run.key, ids.entries())
    known = RunSet.open(RunObjects(home), runs, sieve=sieve)
    few = np.concatenate([STRANGERS, parted.keys[::30], MANY[0].keys[:30]])
    wanted = [-1] * len(STRANGERS) + parted.positions[::30].tolist()
    assert known.find_many(few).positions.tolist() == wanted + MANY[0].positions[:30].tolist()
    first = runs[0].next_position
    assert known.find_many(few, first).positions.tolist() == wanted + [-1] * 30


def test_what_does_not_pass_is_looked_for_in_no_run(
    home: LogHome, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what a sieve is for."""
    sieve = RunSieve(2000)
    for run, ids in zip(runs, MANY, strict=True):
        sieve.add(run.key, ids.entries())
    known = RunSet.open(RunObjects(home), runs, sieve=sieve)
    absent = np.delete(STRANGERS, sieve.passing(*mixed_keys(STRANGERS)), axis=0)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("oncelog.log.memory.objects.OpenPart.may_have_one", refuse)
    monkeypatch.setattr(run_set, "may_have", refuse)
    assert not known.find_many(absent).found.any()
    assert known.find_one(*absent[0].tolist()) is None


def test_a_set_made_of_another_keeps_its_sieve(home: LogHome, runs: list[Run]) -> None:
    """The next writer of a process goes on with it."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    sieve.add(runs[0].key, MANY[0].entries())
    first = RunSet.open(objects, runs[:1], sieve=sieve)
    check(RunSet.open(objects, runs, first), MANY)
    assert RunSet.open(objects, runs, first).sieve is sieve


@pytest.mark.parametrize("known", [3, 4])
def test_a_merged_run_is_behind_the_sieve_if_all_its_inputs_are(home: LogHome, runs: list[Run], known: int) -> None:
    """Else ids of the input that the sieve lacks would be new again."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    for run, ids in list(zip(runs, MANY, strict=True))[:known]:
        sieve.add(run.key, ids.entries())
    sifter = Sifter(Recall(RunSet.open(objects, runs, sieve=sieve), 0), objects)
    merged = merge_runs(objects, "log", "sealed/merged", runs)
    sifter.add_merged(merged, runs, None)
    assert (merged.key in sieve.keys) == (known == 4)
    check(RunSet.open(objects, [merged], sieve=sieve), MANY)


def test_a_merge_fills_the_sieve_with_what_passes_by(home: LogHome, runs: list[Run]) -> None:
    """So runs in a bucket, which are not read for it, come behind the sieve as they are merged."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    sifter = Sifter(Recall(RunSet.open(objects, runs, sieve=sieve), 0), objects)
    assert sifter.filling(runs) is None
    objects.is_here = False
    filled = sifter.filling(runs)
    assert filled is sieve
    merged = merge_runs(objects, "log", "sealed/merged", runs, passing=filled.add_some)
    sifter.add_merged(merged, runs, filled)
    assert sieve.keys == {merged.key}
    assert sieve.count == merged.ids
    check(RunSet.open(objects, [merged], sieve=sieve), MANY)
    assert sifter.filling([merged]) is None


def test_a_sieve_that_is_full_is_not_filled_further(home: LogHome, runs: list[Run]) -> None:
    """It would let everything pass."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    sieve.count = sieve.ids_max - 1000
    objects.is_here = False
    sifter = Sifter(Recall(RunSet.open(objects, runs, sieve=sieve), 0), objects)
    assert sifter.filling(runs) is None
    assert sifter.filling(runs[:2]) is sieve


def test_a_stored_run_is_read_into_a_sieve(home: LogHome, runs: list[Run]) -> None:
    """All its pages; ``check`` may end it on the way, and then the run is not behind the sieve."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    with pytest.raises(KeyError):
        sieve.read(runs[0].key, objects.open(runs[0]), _raising(KeyError))
    assert not sieve.keys
    for run in runs:
        sieve.read(run.key, objects.open(run), lambda: None)
    assert sieve.keys == {run.key for run in runs}
    check(RunSet.open(objects, runs, sieve=sieve), MANY)


def test_a_damaged_run_does_not_come_behind_a_sieve(
    home: LogHome, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of a page that cannot be read are not in the sieve: to take them for new would store them twice."""
    objects, sieve = RunObjects(home), RunSieve(2000)
    parts = objects.open(runs[0])
    monkeypatch.setattr("oncelog.format.runs.pages.bad_ones", lambda _, __, numbers, *___: list(numbers)[-1:])
    with pytest.raises(CorruptionError):
        sieve.read(runs[0].key, parts, lambda: None)
    assert not sieve.keys
    assert parts[0].is_damaged


def _raising(error: type[Exception]) -> Callable[[], None]:
    def check() -> None:
        raise error

    return check
