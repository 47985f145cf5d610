"""A set of runs knows every id that its runs were made of, and where its newest record is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable, Unsupported
from oncelog.format.runs import parts
from oncelog.format.runs.run import Run
from oncelog.log.memory import building, run_set
from oncelog.log.memory.building import store_run
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet, readable
from oncelog.storage.base import LogHome, Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.storage import FaultyStorage
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


@pytest.fixture(params=["memory", "disk", "bucket"])
def home(request: pytest.FixtureRequest, tmp_path: Path, memory_bucket: Bucket) -> Iterator[LogHome]:
    """Return a home of each kind: one in memory, one that is mapped, one that is read in ranges."""
    storages: dict[str, Callable[[], Storage]] = {
        "memory": MemoryStorage,
        "disk": lambda: LocalStorage(tmp_path),
        "bucket": lambda: ObjectStorage(memory_bucket),
    }
    storage = storages[request.param]()
    yield storage.home("shop")
    storage.close()


def opened(home: LogHome, runs: list[Run]) -> RunSet:
    """Return the set of runs, opened without anything that was known before."""
    return RunSet.open(RunObjects(home), runs)


def test_every_home_is_searched(home: LogHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped or by ranges, few keys or all of them, in one part or eight."""
    for part_ids in (4_000_000, 400):
        monkeypatch.setattr(building, "PART_IDS", part_ids)
        many = [Ids.random(seed, 3000 * seed, 3000) for seed in range(3)]
        runs = [ids.stored(home, f"sealed/{part_ids}-{number}") for number, ids in enumerate(many)]
        for ids in many:
            check(opened(home, runs), ids)
        few = many[1].keys[[5, 700, 2999]]
        assert opened(home, runs).find_many(few).positions.tolist() == [3005, 3700, 5999]
        assert not opened(home, runs).find_many(np.empty((0, 2), np.uint64)).found.any()


def test_an_empty_run_has_nothing(home: LogHome) -> None:
    """A range without ids, and a set without runs."""
    runs = [Ids.random(1, 0, 0).stored(home, "sealed/none")]
    for known in (opened(home, runs), opened(home, [])):
        assert not known.find_many(Ids.random(2, 0, 100).keys).found.any()
        assert known.find_one(1, 2) is None


@pytest.mark.parametrize("repeats", [2, 140, 141, 300, 1000])
def test_the_newest_of_many_repeats_is_found(home: LogHome, repeats: int) -> None:
    """Equal keys lie across pages: the search begins in the page before the first index that equals the key."""
    ids = Ids.random(repeats, 0, 5000)
    rows = np.sort(np.random.default_rng(1).permutation(5000)[:repeats])
    ids.keys[rows] = ids.keys[rows[0]]
    runs = [ids.stored(home, "sealed/repeats")]
    known = opened(home, runs)
    assert known.find_many(ids.keys[rows[:1]]).positions.tolist() == [rows[-1]]
    hit = known.find_one(*ids.keys[rows[0]].tolist())
    assert hit is not None
    assert (hit.position, hit.fingerprint) == (rows[-1], ids.fingerprints[rows[-1]])
    others = np.setdiff1d(np.arange(5000), rows)
    assert known.find_many(ids.keys[others]).positions.tolist() == others.tolist()


def test_first_halves_that_repeat_are_told_apart(home: LogHome) -> None:
    """Keys of one first half and many second ones: they fill pages, and each is found."""
    count = 500
    high = np.full(count, 1 << 63, np.uint64)
    low = np.random.default_rng(1).permutation(count).astype(np.uint64)
    places = np.arange(count, dtype=np.uint64) << np.uint64(2)
    run = store_run(home, "log", "sealed/halves", Entries(high, low, low, places), 0, count)
    found = RunSet.open(RunObjects(home), [run])
    with pytest.MonkeyPatch.context() as patch:  # such identities cannot be found by trying
        patch.setattr(run_set, "mixed_keys", lambda keys: (keys[:, 0].copy(), keys[:, 1].copy()))
        patch.setattr(run_set, "mixed_key", lambda high, low: (high, low))
        assert found.find_many(np.stack([high, low], axis=1)).positions.tolist() == list(range(count))
        assert not found.find_many(np.stack([high, low + np.uint64(count)], axis=1)).found.any()
        hits = [found.find_one(1 << 63, each) for each in low[:50].tolist()]
    assert [hit.position for hit in hits if hit is not None] == list(range(50))


def test_a_later_run_beats_an_earlier_one_and_truncated_records_do_not_count(home: LogHome) -> None:
    """An id that was forgotten once is stored twice: the newest counts, as long as it is there."""
    first, second = Ids.random(1, 0, 300), Ids.random(2, 300, 300)
    second.keys[7] = first.keys[9]
    known = opened(home, [first.stored(home, "sealed/1"), second.stored(home, "sealed/2")])
    key = first.keys[9:10]
    assert known.find_many(key).positions.tolist() == [307]
    assert known.find_many(key, first_position=307).positions.tolist() == [307]
    assert known.find_many(key, first_position=308).positions.tolist() == [-1]
    assert known.find_many(first.keys[:20], first_position=10).positions.tolist() == [
        -1 if row < 9 else 307 if row == 9 else row for row in range(10)
    ] + list(range(10, 20))
    high, low = key[0].tolist()
    assert known.find_one(high, low, first_position=308) is None
    assert known.find_many(first.keys[:9], first_position=300).positions.tolist() == [-1] * 9
    assert known.find_many(second.keys[:9], first_position=300).positions.tolist() == list(range(300, 309))
    high, low = first.keys[0].tolist()
    assert known.find_one(high, low, first_position=300) is None


def test_a_set_shares_what_is_open() -> None:
    """A new set opens new runs alone."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("shop")
    runs = [Ids.random(seed, 100 * seed, 100).stored(home, f"sealed/{seed}") for seed in range(3)]
    before = RunSet.open(RunObjects(home), runs[:2])
    calls = storage.faults.calls
    after = RunSet.open(RunObjects(home), runs, before)
    assert storage.faults.calls == calls + 1
    assert after.number == before.number + 1


def test_a_run_that_cannot_be_opened_is_named_not_forgotten(home: LogHome) -> None:
    """Recovery learns which ranges it has to read from the log."""
    runs = [Ids.random(seed, 100 * seed, 100).stored(home, f"sealed/{seed}") for seed in range(4)]
    home.delete("sealed/1.0.ids")
    data = home.read("sealed/2.0.ids").to_pybytes()
    home.delete("sealed/2.0.ids")
    home.create("sealed/2.0.ids", [b"x" + data[1:]])
    with pytest.raises(NotFound):
        opened(home, runs)
    known, bad = readable(RunObjects(home), runs)
    assert known.runs == (runs[0], runs[3])
    assert [(run, type(error)) for run, error in bad] == [(runs[1], NotFound), (runs[2], CorruptionError)]


@pytest.mark.parametrize(("exclusive", "step"), [(True, 1), (False, 7)])
def test_no_byte_of_a_part_changes_an_answer(step: int, *, exclusive: bool) -> None:
    """Every byte of a part is changed: each time there is an error, or the right answer for every id."""
    home = MemoryStorage().home("shop")
    home.exclusive = exclusive
    ids = Ids.random(5, 0, 50)
    run = ids.stored(home, "sealed/1")
    key = run.part_key(0)
    whole = bytearray(home.read(key).to_pybytes())
    assert len(whole) == 2 * 4096
    used = len(bytes(whole[:4096]).rstrip(b"\0"))
    padding = range(used + 8, 4096, 97)
    silent = 0
    for at in [*range(0, used + 8, step), *padding, *range(4096, 8192, step)]:
        whole[at] ^= 1 << at % 8
        home.delete(key)
        home.create(key, [bytes(whole)])
        silent += _answers(home, run, ids)
        whole[at] ^= 1 << at % 8
    assert silent <= len(padding) + 64 + 8  # padding of the front, and nothing else


def _answers(home: LogHome, run: Run, ids: Ids) -> bool:
    """Look all ids up; tell whether nothing was noticed. An id that is not found, or elsewhere, fails the test."""
    try:
        known = opened(home, [run])
    except OncelogError:
        return False
    found = known.find_many(ids.keys)
    right = (found.positions == ids.positions) & (found.fingerprints == ids.fingerprints) & (found.ends == ids.ends)
    assert (right | found.failed).all()
    row = int(np.argmax(found.failed))
    try:
        hit = opened(home, [run]).find_one(*ids.keys[row].tolist())
        assert hit is not None
        assert hit.position == row
    except CorruptionError:
        assert found.failed[row]
    if found.failed.any():
        assert found.errors
        assert known.damaged == {run.key}
    return not known.damaged


def test_a_damaged_page_fails_its_own_ids_alone(home: LogHome) -> None:
    """All others are answered; and where a newer run has the id, the older one's page does not matter."""
    old, new = Ids.random(1, 0, 1000), Ids.random(2, 1000, 1000)
    new.keys[:500] = old.keys[:500]
    runs = [old.stored(home, "sealed/1"), new.stored(home, "sealed/2")]
    data = bytearray(home.read("sealed/1.0.ids").to_pybytes())
    data[-3 * 4096 + 100] ^= 1
    home.delete("sealed/1.0.ids")
    home.create("sealed/1.0.ids", [bytes(data)])
    found = opened(home, runs).find_many(old.keys)
    assert found.positions[:500].tolist() == list(range(1000, 1500))
    assert not found.failed[:500].any()
    assert 20 < found.failed[500:].sum() < 140
    answered = ~found.failed[500:]
    assert (found.positions[500:][answered] == old.positions[500:][answered]).all()
    with pytest.raises(CorruptionError, match="page 5"):
        found.check()
    known = opened(home, runs)
    few = [known.find_many(old.keys[row : row + 10]) for row in range(0, 1000, 10)]  # key by key, where mapped
    for name in ("positions", "failed", "starts", "ends", "fingerprints"):
        there = slice(None) if name in {"positions", "failed"} else found.found
        assert (np.concatenate([getattr(each, name) for each in few])[there] == getattr(found, name)[there]).all()


def test_a_page_that_is_cut_off_is_an_error() -> None:
    """An object in a bucket that is too short: its last pages are missing, not empty."""
    home = MemoryStorage().home("shop")
    home.exclusive = False
    ids = Ids.random(1, 0, 1000)
    run = ids.stored(home, "sealed/1")
    data = home.read("sealed/1.0.ids").to_pybytes()
    home.delete("sealed/1.0.ids")
    home.create("sealed/1.0.ids", [data[:-4096]])
    known = opened(home, [run])
    found = known.find_many(ids.keys)
    assert found.failed.any()
    assert (found.failed | (found.positions == ids.positions)).all()
    last = ids.keys[int(np.flatnonzero(found.failed)[-1])]
    home.delete("sealed/1.0.ids")
    with pytest.raises(NotFound):
        known.find_many(ids.keys)
    with pytest.raises(NotFound):
        known.find_one(*last.tolist())


def test_storage_that_does_not_answer_is_no_answer() -> None:
    """Every read of a look-up may fail: ``Unavailable``, never an id that is not there."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("shop")
    home.exclusive = False
    ids = Ids.random(1, 0, 1000)
    run = ids.stored(home, "sealed/1")
    failures = 0
    while True:
        storage.fail_at(failures + 1)
        try:
            found = opened(home, [run]).find_many(ids.keys)
            break
        except Unavailable:
            failures += 1
            storage.faults.heal()
    assert failures >= 2
    assert (found.positions == ids.positions).all()


def test_a_filter_of_a_kind_to_come_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as another kind, it would let stored ids pass for new ones."""
    home = MemoryStorage().home("shop")
    monkeypatch.setattr(parts, "BLOCKED", 2)
    run = Ids.random(1, 0, 100).stored(home, "sealed/1")
    monkeypatch.undo()
    with pytest.raises(Unsupported, match="upgrade"):
        opened(home, [run])
    assert [error for _, error in readable(RunObjects(home), [run])[1]]


def test_a_whole_part_of_another_run_is_not_taken_for_this_one(home: LogHome) -> None:
    """A copy that was put back in the wrong place: every byte of it is right, and it has other ids."""
    ids, others = Ids.random(1, 0, 100), Ids.random(2, 0, 100)
    run, other = ids.stored(home, "sealed/1"), others.stored(home, "sealed/2")
    assert run.parts[0].size_bytes == other.parts[0].size_bytes
    home.delete(run.part_key(0))
    home.create(run.part_key(0), [home.read(other.part_key(0))])
    with pytest.raises(CorruptionError, match="not the one that the manifest names"):
        opened(home, [run])
