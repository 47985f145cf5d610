"""The sieve of a writer: which runs come behind it, and when. Whatever stands there, no id is new twice."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.format.runs.run import Run
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.run_set import RunSet
from oncelog.log.memory.run_sieve import RunSieve
from oncelog.log.upkeep import memory_keeper, retention, sifting
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from tests.log.memory.conftest import shop, tiny
from tests.log.memory.orders import SETTINGS, append, check, many, record, remember, retried, table
from tests.log.shop import Shop, in_memory

__all__ = ["shop", "tiny"]

pytestmark = pytest.mark.usefixtures("tiny", "_quiet")


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs be built and merged only when a test says so, on a machine with little memory."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    monkeypatch.setattr(sifting, "memory_bytes", lambda: 0)


def shown(writer: Writer) -> RunSet:
    """Return the runs that look-ups use."""
    return writer._admitter._recall.view.runs


def sieved(writer: Writer) -> set[str]:
    """Return the keys of the shown runs that are behind the sieve."""
    runs = shown(writer)
    return set() if runs.sieve is None else {run.key for run in runs.runs} & runs.sieve.keys


def keys(writer: Writer) -> set[str]:
    """Return the keys of the shown runs."""
    return {run.key for run in shown(writer).runs}


def test_runs_that_are_built_and_merged_are_behind_the_sieve(shop: Shop) -> None:
    """Nothing is read for that."""
    with shop.log(SETTINGS).writer() as writer:
        acks = []
        for first in range(0, 160, 8):
            acks += many(writer, range(first, first + 8))
            remember(writer)
            assert sieved(writer) == keys(writer)
        assert len(keys(writer)) < 8
        assert many(writer, range(160)) == retried(acks)
    check(shop.log(), 160)


def test_runs_of_another_process_are_read_once_enough_ids_are_looked_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that looks up a few ids does not read the memory of a hundred millions for it."""
    monkeypatch.setattr(sifting, "READ_PER_LOOK", 2)
    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    with shop.log().writer() as writer:
        assert shown(writer).sieve is None
        append(writer, range(100, 120))
        remember(writer)
        assert keys(writer) > sieved(writer)
        assert append(writer, range(40)) == retried(acks[:40])
        remember(writer)
        assert sieved(writer) == keys(writer)
        assert many(writer, range(100)) == retried(acks)
    check(shop.log(), 120)


def test_the_next_writer_of_a_process_has_the_sieve(shop: Shop) -> None:
    """As it has the runs that the writer before opened."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(40))
        remember(writer)
        before = shown(writer).sieve
    with log.writer() as writer:
        assert before is not None
        assert shown(writer).sieve is before
        assert sieved(writer) == keys(writer)
        assert many(writer, range(40)) == retried(acks)
    check(log, 40)


def test_a_sieve_that_is_too_small_makes_room_for_a_larger_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs are read into the larger one, and those that are built meanwhile too."""
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    with shop.log(SETTINGS).writer() as writer:
        sizes, acks = [], many(writer, range(8))
        for first in range(8, 320, 8):
            acks += many(writer, range(first, first + 8))
            remember(writer)
            sieve = shown(writer).sieve
            assert sieve is not None
            assert sieve.count <= sieve.ids_max
            assert sieved(writer) == keys(writer)
            sizes.append(sieve.nbytes)
        assert len(set(sizes)) >= 3
        assert sizes == sorted(sizes)
        assert many(writer, range(320)) == retried(acks)
    check(shop.log(), 320)


def test_a_sieve_that_may_not_grow_has_the_newest_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand million ids the sieve would take gigabytes. Large old runs are asked for every id instead."""
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    monkeypatch.setattr(limits, "MEMORY_SIEVE_IDS", 64)
    with shop.log(SETTINGS).writer() as writer:
        acks, renewed, behind = many(writer, range(8)), 0, 0
        sieve: RunSieve | None = None
        for first in range(8, 640, 8):
            acks += many(writer, range(first, first + 8))
            remember(writer)
            before, sieve = sieve, shown(writer).sieve
            assert sieve is not None
            assert sieve.nbytes <= 32 * 7
            assert sieve.count <= sieve.ids_max
            behind += bool(sieved(writer))
            renewed += before is not None and before is not sieve
        assert sieved(writer) < keys(writer)
        assert renewed < 40 < behind
        assert many(writer, range(640)) == retried(acks)
    check(shop.log(), 640)


def test_a_sieve_grows_on_where_there_is_memory(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a share of it, and no further: then the newest runs are behind it alone. A large sieve is not made for ids
    that nobody has brought yet.
    """
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    monkeypatch.setattr(limits, "MEMORY_SIEVE_IDS", 64)
    monkeypatch.setattr(sifting, "memory_bytes", lambda: 20 * 32 * limits.MEMORY_SIEVE_SHARE)
    with shop.log(SETTINGS).writer() as writer:
        acks, has_all = many(writer, range(8)), list[bool]()
        for first in range(8, 480, 8):
            acks += many(writer, range(first, first + 8))
            remember(writer)
            sieve = shown(writer).sieve
            assert sieve is not None
            assert sieve.ids <= max(128, min(first, 200))
            has_all.append(sieved(writer) == keys(writer))
        assert has_all == sorted(has_all, reverse=True)
        assert 300 <= 8 * sum(has_all) <= 360
        assert many(writer, range(480)) == retried(acks)
    check(shop.log(), 480)


def test_runs_in_a_bucket_are_not_read_for_a_sieve(memory_bucket: Bucket) -> None:
    """What this writer builds comes behind it all the same."""
    with Database(ObjectStorage(memory_bucket)) as db, db.log("shop", SETTINGS, create=True).writer() as writer:
        many(writer, range(40))
        remember(writer)
        old = keys(writer)
    with Database(ObjectStorage(memory_bucket)) as db:
        log = db.log("shop")
        with log.writer() as writer:
            acks = many(writer, range(120))
            assert sum(ack.duplicate for ack in acks) == 40
            remember(writer)
            assert sieved(writer)
            assert not sieved(writer) & old
            assert many(writer, range(120)) == retried(acks)
        check(log, 120)


def test_a_full_sieve_of_a_bucket_makes_room_for_an_empty_one(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one lets everything pass. Merges fill the new one with what passes by."""
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    with Database(ObjectStorage(memory_bucket)) as db:
        log = db.log("shop", SETTINGS, create=True)
        with log.writer() as writer:
            sieves, acks = [], many(writer, range(8))
            for first in range(8, 240, 8):
                acks += many(writer, range(first, first + 8))
                remember(writer)
                sieve = shown(writer).sieve
                assert sieve is not None
                assert sieve.count <= sieve.ids_max
                sieves.append(sieve.nbytes)
            assert len(set(sieves)) >= 3
            assert sieved(writer)
            assert many(writer, range(240)) == retried(acks)
        check(log, 240)


def test_a_run_that_would_fill_the_sieve_stays_before_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adoption of millions brings a run as large: the sieve would let everything pass, or take gigabytes."""
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    monkeypatch.setattr(limits, "MEMORY_SIEVE_IDS", 16)
    with shop.log(SETTINGS).writer() as writer:
        acks = writer.append_many([record(number) for number in range(400)])
        acks += many(writer, range(400, 404))
        remember(writer)
        assert len(keys(writer)) == 1
        assert not sieved(writer)
        sieve = shown(writer).sieve
        assert sieve is None or sieve.nbytes <= 32 * 2
        assert many(writer, range(404)) == retried(acks)
    check(shop.log(), 404)


def test_a_writer_that_leaves_does_not_read_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for a piece of a run at most."""
    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    with shop.log().writer() as writer:
        many(writer, range(100))
        memory = writer._keeper._memory
        monkeypatch.setattr(type(writer._committer), "is_leaving", True)
        memory.work()
        assert not sieved(writer)
        monkeypatch.undo()
    with shop.log().writer() as writer:
        assert many(writer, range(100)) == retried(acks)


def test_a_long_merge_makes_way_for_ids_that_wait(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends do not wait until a merge of millions is over: what they bring becomes runs between its slices."""
    monkeypatch.setattr("oncelog.log.memory.merging.SLICE_IDS", 4)
    with shop.log(SETTINGS).writer() as writer:
        memory = writer._keeper._memory
        for first in range(0, 32, 8):
            many(writer, range(first, first + 8))
            remember(writer)
        many(writer, range(32, 40))  # the next run will be the fourth
        assert len(keys(writer)) == 3
        left = iter(range(40, 96, 8))
        waiting = []
        make_way = memory._make_way

        def busy() -> None:
            first = next(left, None)
            if first is not None:
                many(writer, range(first, first + 8))
            make_way()
            waiting.append(memory._table.count if memory._table is not None else 0)

        monkeypatch.setattr(memory, "_make_way", busy)
        memory.work()
        assert next(left, None) is None
        assert max(waiting) <= 2 * limits.MEMORY_RUN_IDS
        monkeypatch.undo()
        assert all(ack.duplicate for ack in many(writer, range(96)))
    check(shop.log(), 96)


def test_a_merge_inside_a_merge_takes_newer_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is being merged already would be merged twice, and one of the two thrown away."""
    monkeypatch.setattr("oncelog.log.memory.merging.SLICE_IDS", 4)
    merging: list[int] = []
    depths: list[int] = []
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 8)
    with shop.log(SETTINGS).writer() as writer:
        memory, more = writer._keeper._memory, iter(range(32, 320, 8))

        def noted(*given: object) -> object:
            inputs = given[3]
            assert isinstance(inputs, list)
            assert all(inputs[0].first_position >= end for end in merging)
            merging.append(inputs[-1].next_position)
            depths.append(len(merging))
            made = merge_runs(*given)  # type: ignore[arg-type]
            merging.pop()
            return made

        make_way = memory._make_way

        def busy() -> None:
            for first in (next(more, None), next(more, None)):
                if first is not None:
                    many(writer, range(first, first + 8))
            make_way()

        monkeypatch.setattr(memory_keeper, "merge_runs", noted)
        monkeypatch.setattr(memory, "_make_way", busy)
        for first in range(0, 40, 8):
            many(writer, range(first, first + 8))
            remember(writer)
        assert max(depths) >= 2
        monkeypatch.undo()
        assert all(ack.duplicate for ack in many(writer, range(320)))
    check(shop.log(), 320)


def test_a_writer_that_never_rests_has_few_runs_and_writes_an_id_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs come while others are merged. With a bound that was too low for that, neighbours of different sizes were
    merged again and again: at 100 million ids there were 23 runs, and the background took four times as long.
    """
    monkeypatch.setattr("oncelog.log.memory.merging.SLICE_IDS", 32)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 8)
    count, merged_ids, most = 5_000, 0, 0
    with in_memory().log(SETTINGS).writer() as writer:
        memory, more = writer._keeper._memory, iter(range(0, count, 8))
        make_way = memory._make_way

        def busy() -> None:
            """Bring a run's ids with each slice: they come four times as slowly as they are merged."""
            nonlocal most
            first = None if writer._committer.core.behind else next(more, None)
            if first is not None:
                many(writer, range(first, first + 8))
            most = max(most, len(keys(writer)))
            make_way()

        def noted(*given: Any) -> Run:
            nonlocal merged_ids
            merged_ids += sum(run.ids for run in given[3])
            return merge_runs(*given)

        monkeypatch.setattr(memory_keeper, "merge_runs", noted)
        monkeypatch.setattr(memory, "_make_way", busy)
        for first in more:
            many(writer, range(first, first + 8))
            remember(writer)
        assert most < limits.MEMORY_RUNS_MAX * 2 // 3
        assert 1.5 < merged_ids / count < 3
        monkeypatch.undo()
        assert all(ack.duplicate for ack in many(writer, range(0, count, 50)))


def test_sealing_lets_ids_go_first_that_appends_would_wait_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """No append waits for sealing, and all wait for a table that is full."""
    settings = SETTINGS.__class__(segment_bytes=64 << 10, seal="auto")
    asked: list[str] = []
    monkeypatch.setattr(Housekeeper, "ask", lambda _, name, __: asked.append(name))
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    with shop.log(settings).writer() as writer:
        for first in range(0, 4000, 500):
            writer.append_arrow(table(range(first, first + 500)))
        asked.clear()
        monkeypatch.setattr("oncelog.log.upkeep.sealing.seal_worthwhile", lambda *_: iter([None, None]))
        writer._keeper._tidy()
        assert asked == ["memory", "tidy"]
        remember(writer)
        asked.clear()
        writer._keeper._tidy()
        assert asked == []


def test_retention_is_not_put_off_by_a_loader_that_is_never_done(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing stops after each file while ids come quickly. The disk would fill if retention waited for its end."""
    settings = LogSettings(segment_bytes=64 << 10, seal="auto", retention_bytes=64 << 10, snapshot_interval_s=1e6)
    truncated: list[object] = []
    truncate = retention.truncate

    def noted(*given: Any, **named: Any) -> retention.Truncation:
        done = truncate(*given, **named)
        truncated.append(done)
        return done

    monkeypatch.setattr(retention, "truncate", noted)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    with shop.log(settings).writer() as writer:
        for first in range(0, 80, 20):
            writer.append_arrow(table(range(first, first + 20)))
        assert writer._keeper._memory.is_urgent
        monkeypatch.setattr("oncelog.log.upkeep.sealing.seal_worthwhile", lambda *_: iter([None, None]))
        writer._keeper._tidy()
        assert truncated


def test_runs_that_were_merged_are_deleted_before_a_long_merge_is_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the disk would have all that was merged since, many times what is remembered, and the manifest its names."""
    monkeypatch.setattr("oncelog.log.memory.merging.SLICE_IDS", 4)
    with shop.log(SETTINGS).writer() as writer:
        memory, more, doomed = writer._keeper._memory, iter(range(40, 640, 8)), list[int]()
        make_way = memory._make_way

        def busy() -> None:
            first = None if writer._committer.core.behind else next(more, None)
            if first is not None:
                many(writer, range(first, first + 8))
            doomed.append(len(memory._newest().manifest.doomed))
            make_way()

        monkeypatch.setattr(memory, "_make_way", busy)
        for first in range(0, 40, 8):
            many(writer, range(first, first + 8))
            remember(writer)
        assert len(doomed) > 40
        assert max(doomed) <= 16
