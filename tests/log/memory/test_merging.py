"""A merge has the entries of its inputs, all of them and no others, or is not there."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog import limits
from oncelog.dedup.runs.builder import PartBuilder, build_part
from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError, NotFound, Unavailable
from oncelog.format.runs.run import Digest, Run
from oncelog.log.memory import building, merging
from oncelog.log.memory.building import store_run
from oncelog.log.memory.merging import merge_runs, merged, worth_merging
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.storage import FaultyStorage
from tests.log.memory.ids import Ids

KEY = st.tuples(st.integers(0, 3), st.integers(0, 3)) | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


def entries_of(keys: list[tuple[int, int]]) -> Entries:
    """Return entries of these ids at positions from 0 on."""
    count = len(keys)
    fingerprints = np.arange(count, dtype=np.uint64) * np.uint64(77)
    starts, ends = np.arange(count) % 3 == 0, np.arange(count) % 3 == 2
    return Entries.of(np.array(keys, np.uint64).reshape(count, 2), fingerprints, np.arange(count), starts, ends)


def rows_of(entries: Entries) -> list[tuple[int, ...]]:
    """Return entries row by row."""
    return list(zip(*(getattr(entries, name).tolist() for name in entries.__struct_fields__), strict=True))


@given(
    inputs=st.lists(st.lists(KEY, max_size=60), min_size=1, max_size=5),
    part_ids=st.sampled_from([4_000_000, 20, 7]),
    slice_ids=st.sampled_from([32_000, 5, 1]),
    cut=st.integers(0, 120),
)
@settings(deadline=None)
def test_a_merge_is_the_sorted_concatenation(
    inputs: list[list[tuple[int, int]]], part_ids: int, slice_ids: int, cut: int
) -> None:
    """Whatever repeats, is empty, or is truncated; in one part or many, in few slices or many."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "PART_IDS", part_ids)
        patch.setattr(merging, "SLICE_IDS", slice_ids)
        runs, every, first = [], [], 50
        for number, keys in enumerate(inputs):
            entries = entries_of(keys)
            runs.append(store_run(home, "log", f"sealed/{number}", entries, first, first + len(keys) + 1))
            every.append(entries.moved(first))
            first += len(keys) + 1
        cut = min(cut, first)
        made = merge_runs(objects, "log", "sealed/m", runs, first_position=cut)
        found = Entries.joined([Entries.none(), *merged(objects, [made])])
    absolute = Entries.joined([Entries.none(), *every])
    expected = absolute[absolute.positions >= max(cut, 50)].sorted()
    assert rows_of(found.moved(made.first_position)) == rows_of(expected)
    assert (made.first_position, made.next_position, made.ids) == (max(cut, 50), first, len(expected))
    assert made.digest.moved(made.first_position) == expected.digest()


def test_timestamps_are_merged() -> None:
    """Every position keeps its timestamp, those behind a truncation too; objects with many commits are split."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    many = [Ids.random(seed, 1000 * seed, 1000) for seed in range(4)]
    runs = [ids.stored(home, f"sealed/{number}") for number, ids in enumerate(many)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "TIMES_COMMITS", 9)
        made = merge_runs(objects, "log", "sealed/m", runs, first_position=1230)
    assert [part.commits for part in made.times] == [9, 9, 9, 1]
    positions = np.arange(1230, 4000)
    assert (RunSet.open(objects, [made]).timestamps_of(positions) == positions // 100 * 100_000_000).all()


def test_what_was_lost_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that loses an entry, or changes one, is an error before anything refers to it; nothing stays behind."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    runs = [Ids.random(seed, 500 * seed, 500).stored(home, f"sealed/{seed}") for seed in range(4)]
    before = home.list("")
    real = merging._MergedEntries.take
    monkeypatch.setattr(merging._MergedEntries, "take", lambda self, bound: [some[1:] for some in real(self, bound)])
    with pytest.raises(CorruptionError, match="lost or changed"):
        merge_runs(objects, "log", "sealed/m", runs)
    assert home.list("") == before


def test_an_input_that_is_not_what_the_manifest_names_is_noticed() -> None:
    """The inputs' digests come from the manifest, not from the objects alone."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    runs = [Ids.random(seed, 500 * seed, 500).stored(home, f"sealed/{seed}") for seed in range(2)]
    runs[1] = msgspec.structs.replace(runs[1], digest=Digest(1, 2))
    with pytest.raises(CorruptionError):
        merge_runs(objects, "log", "sealed/m", runs)


def test_memory_is_bounded_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are never loaded whole: a merge of eight parts needs what one of them does, and some."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    monkeypatch.setattr(building, "PART_IDS", 100_000)
    runs = [Ids.random(seed, 200_000 * seed, 200_000).stored(home, f"sealed/{seed}") for seed in range(4)]
    tracemalloc.start()
    made = merge_runs(objects, "log", "sealed/m", runs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(made.parts) == 8
    assert peak < made.size_bytes / 2.5


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_io_may_fail(when: str) -> None:
    """The nth I/O fails: an error that says try again, inputs as they were, nothing left behind; then it succeeds."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("shop")
    objects = RunObjects(home)
    many = [Ids.random(seed, 300 * seed, 300) for seed in range(4)]
    runs = [ids.stored(home, f"sealed/{seed}") for seed, ids in enumerate(many)]
    before = home.list("")
    failures = 0
    while True:
        storage.fail_at(failures + 1, "before" if when == "before" else "after")
        try:
            made = merge_runs(objects, "log", f"sealed/m{failures}", runs)
            break
        except Unavailable:
            failures += 1
            storage.faults.heal()
            assert home.list("") == before
    storage.faults.heal()
    assert failures >= 6  # four inputs are read, their times too, a part and the times are created
    assert (RunSet.open(objects, [made]).find_many(many[2].keys).positions == many[2].positions).all()


def test_an_input_that_is_gone_or_damaged_is_named() -> None:
    """Never an empty run."""
    home = MemoryStorage().home("shop")
    objects = RunObjects(home)
    runs = [Ids.random(seed, 300 * seed, 300).stored(home, f"sealed/{seed}") for seed in range(4)]
    good = home.read("sealed/2.0.ids").to_pybytes()
    home.delete("sealed/2.0.ids")
    with pytest.raises(NotFound, match=r"sealed/2\.0\.ids"):
        merge_runs(objects, "log", "sealed/m", runs)
    home.create("sealed/2.0.ids", [good[:-5000] + b"!" + good[-4999:]])
    with pytest.raises(CorruptionError, match=r"sealed/2\.0\.ids: page"):
        merge_runs(objects, "log", "sealed/m", runs)
    assert not [key for key in home.list("") if key.startswith("sealed/m")]


@pytest.mark.parametrize("repeats", [0, 300])
def test_entries_of_pieces_are_merged(repeats: int) -> None:
    """Pieces that interleave, and ids that are in more than one: the newest comes first."""
    entries = Entries.joined([Ids.random(1, 0, 3000).entries(), Ids.random(1, 0, repeats).entries().moved(5000)])
    pieces = [entries[start::7].sorted() for start in range(7)]
    for merged_entries in (Entries.merged(pieces), Entries.merged([*pieces, Entries.none()])):
        for column, expected in zip(merged_entries.columns, entries.sorted().columns, strict=True):
            assert column.tolist() == expected.tolist()


def test_parts_of_several_pieces_of_memory_are_whole() -> None:
    """Slices end within pages, and pieces of memory, that held other pages before, within slices."""
    entries = Ids.random(1, 0, 300_000).entries().sorted()
    whole = b"".join(build_part("log", 0, 0, entries)[2])
    for step in (32_001, 140_000, 300_000):
        builder = PartBuilder("log", 0, 0)
        for start in range(0, len(entries), step):
            builder.add(entries[start : start + step])
        assert b"".join(builder.finish()[2]) == whole


def run_of(ids: int) -> Run:
    """Return a run of so many ids, of which only that matters."""
    return Run("k", (), 0, 1, ids, 0, Digest())


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], None),
        ([64] * 7, None),
        ([64] * 8, slice(0, 8)),
        ([512, *[64] * 7, 80], slice(1, 9)),
        ([*[512] * 8, 64, 64], slice(0, 8)),
        ([*[512] * 6, 511, 512], slice(0, 8)),
        ([*[512] * 7, 511], None),
        ([1, 2, 3, 4, 5, 6, 7, 0], slice(0, 8)),
        ([262_144] * 7, None),
        ([2_097_152, *[270_000] * 8], slice(1, 9)),
        ([270_000, *[2_097_152] * 7, 270_000], slice(0, 8)),
    ],
)
def test_neighbours_of_one_size_class_are_merged(ids: list[int], expected: slice | None) -> None:
    """Eight at a time, so that the number of runs grows with the logarithm, and each id is rewritten as often."""
    assert worth_merging([run_of(count) for count in ids]) == expected


def grown(first_runs: Iterable[int]) -> tuple[int, float]:
    """Return how many runs there are at most, and how often an id is written, when runs of these sizes are built."""
    runs: list[int] = []
    most = written = 0
    for ids in first_runs:
        runs.append(ids)
        written += ids
        while (found := worth_merging([run_of(count) for count in runs])) is not None:
            runs[found] = [sum(runs[found])]
            written += runs[found.start]
        most = max(most, len(runs))
    return most, written / sum(runs)


def test_runs_stay_few() -> None:
    """Of a thousand first runs two dozen or so are left at any time, whatever their sizes: far fewer than appends wait
    for, so that neighbours of different sizes are hardly ever merged.
    """
    random = np.random.default_rng(1)
    assert grown(random.integers(1, 5000, 1000).tolist())[0] < limits.MEMORY_RUNS_MAX // 2


def test_an_id_is_written_few_times() -> None:
    """A busy writer builds runs of one size. Merged by four, an id was written 5.7 times up to 300 million."""
    for millions, times in ((100, 2.9), (300, 3.9), (1000, 4.0)):
        most, written = grown([270_000] * (millions * 1_000_000 // 270_000))
        assert most < limits.MEMORY_RUNS_MAX // 2
        assert written < times
