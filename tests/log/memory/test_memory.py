"""Remembered as long as the record lives: retries meet the original in the table, in a run, in a merged run."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from oncelog import limits
from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    IdConflict,
    PartialOverlap,
    Unavailable,
    Unsupported,
    WriterFenced,
)
from oncelog.format import frame
from oncelog.format import manifest as manifest_format
from oncelog.limits import KIB
from oncelog.log.ingest import adopter
from oncelog.log.log import Log
from oncelog.log.memory import merging
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import RunSet
from oncelog.log.upkeep import memory_keeper as upkeep_memory
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, Record
from tests.log.shop import Shop, in_memory, on_disk

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Return a shop in memory, and one on a disk."""
    return in_memory() if request.param == "memory" else on_disk()


def record(number: int) -> Record:
    """Return the record of a number."""
    return Record(f"order {number}".encode(), id=f"o-{number}")


def append(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records one by one."""
    return [writer.append(record(number).value, id=record(number).id) for number in numbers]


def many(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records, four at a time."""
    chosen = [record(number) for number in numbers]
    return [ack for at in range(0, len(chosen), 4) for ack in writer.append_many(chosen[at : at + 4])]


def submit(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records without waiting for each."""
    return [future.result() for future in [writer.submit(record(n).value, id=record(n).id) for n in numbers]]


def labelled(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records one by one, on the way of those that are not plain."""
    return [writer.append(bytearray(record(n).value), id=record(n).id) for n in numbers]  # type: ignore[arg-type]


WAYS: list[Callable[[Writer, Iterable[int]], list[Ack]]] = [append, many, submit]


def retried(acks: Sequence[Ack]) -> list[Ack]:
    """Return what retries are answered, given the acks of the first attempts."""
    return [msgspec.structs.replace(ack, duplicate=True) for ack in acks]


def remember(writer: Writer) -> None:
    """Have runs built and merged now."""
    writer._keeper._housekeeper.stop()
    writer._keeper._memory.work()


def runs(log: Log) -> list[tuple[int, int]]:
    """Return the ranges of the runs."""
    return [(run.first_position, run.next_position) for run in log._manifest().memory]


def ids(log: Log) -> list[str | None]:
    """Return all ids that can be read."""
    with log.read() as entries:
        return [entry.id for entry in entries]


def check(log: Log, count: int) -> None:
    """See that each id is there once, and that the log finds nothing wrong with itself."""
    assert ids(log) == [f"o-{number}" for number in range(count)]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


@pytest.mark.parametrize("way", WAYS)
def test_acks_are_the_same_from_table_run_merged_run_and_after_reopening(
    shop: Shop, way: Callable[[Writer, Iterable[int]], list[Ack]]
) -> None:
    """Position, segment, entry and timestamp of a retry are those of the first attempt, wherever the id is by now."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = []
        for number in range(80):
            acks += append(writer, [number])
            shop.clock.advance(0.5)
        assert way(writer, range(80)) == retried(acks)
        remember(writer)
        assert runs(log), "ids are in runs"
        assert writer._seen.window is not None
        assert writer._seen.window.count <= 8, "and the table forgot them"
        assert way(writer, range(80)) == retried(acks)
    log = shop.log()
    with log.writer() as writer:
        assert way(writer, range(80)) == retried(acks)
        assert labelled(writer, range(80)) == retried(acks)
    check(log, 80)


def test_runs_are_merged_and_cover_the_log_without_a_gap(shop: Shop) -> None:
    """Neighbours of one size become one run; what they replace is deleted, and nothing is left over."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for start in range(0, 400, 8):
            many(writer, range(start, start + 8))
        remember(writer)
    found = runs(log)
    assert [first for first, _ in found[1:]] == [end for _, end in found[:-1]], "they tile"
    assert found[0][0] == 0
    assert len(found) < 20, "fifty segments are in fewer runs"
    manifest = log._manifest()
    assert not manifest.doomed
    stored = {key for key in shop.home.list("sealed/") if ".ids" in key or ".times" in key}
    assert stored == {key for run in manifest.memory for key in run.keys()}  # noqa: SIM118
    check(log, 400)


def test_a_conflict_is_a_conflict_in_a_run(shop: Shop) -> None:
    """The same id with other content is refused with the position of the first, however long ago that was."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(40))
        remember(writer)
        with pytest.raises(IdConflict) as refused:
            writer.append(b"other", id="o-3")
        assert refused.value.position == acks[3].position
        with pytest.raises(AppendErrors) as errors:
            writer.append_many([record(2), Record(b"other", id="o-3"), record(40)])
        assert isinstance(errors.value.results[1], IdConflict)
    check(log, 41)


def test_batches_are_told_from_runs(shop: Shop) -> None:
    """Exactly a stored batch is answered from a run; a part of it, more, another order or two of them is refused."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        batches = [[record(n) for n in range(start, start + 3)] for start in range(0, 60, 3)]
        acks = [writer.append_batch(batch) for batch in batches]
        single = writer.append(record(60).value, id=record(60).id)
        many(writer, range(61, 80))
        remember(writer)
        assert runs(log)
        for batch, told in zip(batches, acks, strict=True):
            assert writer.append_batch(batch) == retried(told)
        assert writer.append_batch([record(60)]) == retried([single])
        first, second = batches[0], batches[1]
        for wrong in (first[:2], first[1:], first[::-1], [*first, *second], [*first, record(99)], [first[0]]):
            with pytest.raises(PartialOverlap):
                writer.append_batch(wrong)
        with pytest.raises(IdConflict):
            writer.append_batch([Record(b"other", id="o-0"), *first[1:]])
    check(log, 80)


def test_three_hundred_repeats_of_one_id_and_a_switch(shop: Shop) -> None:
    """What a bounded window stored again and again is known by its newest record once the memory is without bounds."""
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=1)))
    with log.writer() as writer:
        for number in itertools.islice(itertools.cycle([0, 1]), 600):
            assert not append(writer, [number])[0].duplicate
    log.configure(SETTINGS)
    with log.writer() as writer:
        assert [ack.position for ack in append(writer, [0, 1])] == [598, 599]
        remember(writer)
        assert [ack.position for ack in append(writer, [0, 1])] == [598, 599]
        many(writer, range(2, 40))
        remember(writer)
    with log.writer() as writer:
        assert [ack.position for ack in append(writer, [0, 1, 2])] == [598, 599, 600]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
    assert sum(run.ids for run in log._manifest().memory) >= 600, "runs hold the repeats too"


def test_truncation_takes_ids_with_their_records(shop: Shop) -> None:
    """An id is known up to the truncation of its record, and new behind it; runs go with what they cover."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(64))
        remember(writer)
        shop.clock.advance(601)
        many(writer, range(64, 80))
        assert log.truncate(before=64).first_position == 64
        assert [ack.duplicate for ack in many(writer, [63, 64, 70])] == [False, True, True]
        remember(writer)
    assert runs(log)[0][1] > 64
    with log.writer() as writer:
        assert [ack.duplicate for ack in many(writer, [5, 63, 64, 70])] == [False, True, True, True]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_truncation_is_held_back_by_the_floor(shop: Shop) -> None:
    """Send, consume, trim, retry within ten minutes: nothing is forgotten sooner than a default window would."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(30))
        remember(writer)
        held = log.truncate(before=30)
        assert (held.first_position, held.held_by) == (0, "window")
        assert many(writer, range(30)) == retried(acks)
        shop.clock.advance(599)
        assert log.truncate(before=30).first_position == 0
        shop.clock.advance(2)
        assert log.truncate(before=24).first_position == 24


def test_the_floor_lets_go_beyond_a_hundred_thousand_ids(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within ten minutes, what lies before so many newer ids may go: as a default window would have it."""
    monkeypatch.setattr("oncelog.log.upkeep.retention.MAX_KEYS", 20)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(64))
        remember(writer)
    assert log.truncate(before=64).first_position == 44


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_is_lost_or_damaged_is_made_up_for(shop: Shop, *, gone: bool) -> None:
    """Its ids come from the log when a writer opens, and a new run takes its place; never is an id taken for new."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    key = log._manifest().memory[0].part_key(0)
    content = bytearray(shop.home.read(key).to_pybytes())
    shop.home.delete(key)
    if not gone:
        content[40] ^= 1
        shop.home.create(key, [content])
    assert any(key.split(".")[0] in finding.where for finding in log.verify().findings)
    log = shop.log()
    with log.writer() as writer:
        assert many(writer, range(100)) == retried(acks)
        remember(writer)
        assert key not in [run.part_key(0) for run in log._manifest().memory]
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_a_large_run_that_is_lost_is_an_error_that_says_rebuild(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer does not read millions of records by itself: the error names the command, and that mends it."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    shop.home.delete(log._manifest().memory[0].part_key(0))
    monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 10)
    log = shop.log()
    with pytest.raises(CorruptionError, match="oncelog rebuild"):
        log.writer()
    done = log.rebuild()
    assert done.runs > 0
    with log.writer() as writer:
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_a_page_that_is_damaged_under_a_writer_refuses_its_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that need the page are a CorruptionError; others go on; nothing is written for those that failed."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(200))
        remember(writer)
        run = log._manifest().memory[0]
        key = run.part_key(0)
        content = bytearray(shop.home.read(key).to_pybytes())
    part = run.parts[0]
    content[part.front_bytes + 100] ^= 1
    shop.home.delete(key)
    shop.home.create(key, [content])
    log = shop.log()
    with log.writer() as writer:
        monkeypatch.setattr(writer._keeper._memory, "ask", lambda: None)  # it would be made again at once
        writer._keeper._housekeeper.stop()
        before = writer.last_position
        with pytest.raises(CorruptionError):
            writer.append(record(run.first_position).value, id=f"o-{run.first_position}")
        with pytest.raises(AppendErrors) as refused:
            writer.append_many([record(run.first_position), record(1000)])
        assert isinstance(refused.value.results[0], CorruptionError)
        assert refused.value.results[1].position == before + 1
        assert any(finding.where == run.key for finding in log.verify().findings)
        remember(writer)
        assert run.key not in [run.key for run in log._manifest().memory], "it was made again, from the log"
        assert all(ack.duplicate for ack in many(writer, range(200)))
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_run_that_verify_finds_damaged_is_rebuilt(shop: Shop) -> None:
    """Sound runs stay, the damaged one is made again, and its writer need not stop."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
        before = log._manifest().memory
        key = before[0].part_key(0)
        content = bytearray(shop.home.read(key).to_pybytes())
        content[before[0].parts[0].front_bytes + 100] ^= 1
        shop.home.delete(key)
        shop.home.create(key, [content])
        done = shop.log().rebuild()
        after = log._manifest().memory
        assert done.runs >= 1
        assert before[0] not in after
        assert set(before[1:]) <= set(after)
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_runs_are_never_read_with_the_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk, or a bucket, must not stop those whose ids are in memory: no look-up is made under the lock."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = []
        for number in range(60):
            acks += append(writer, [number])
            shop.clock.advance(1)
        remember(writer)
        looked: list[str] = []
        for name in ("find_many", "find_one", "timestamps_of"):
            ask = getattr(RunSet, name)

            def noted(self: RunSet, *given: object, ask: Any = ask, name: str = name) -> object:
                assert not writer._committer._lock.locked(), name
                looked.append(name)
                return ask(self, *given)

            monkeypatch.setattr(RunSet, name, noted)
        for way in (append, many, submit, labelled):
            assert way(writer, range(60)) == retried(acks)
        writer.append_batch([record(100), record(101)])
        staged = log.stage([_table(range(58, 70))])
        assert writer.ingest([staged]).duplicates == 2
        assert set(looked) == {"find_many", "find_one", "timestamps_of"}


def test_many_small_adoptions_leave_few_runs(shop: Shop) -> None:
    """A writer that opens, adopts ten rows and leaves, as Spark's sink does: runs stay few, and all ids are known."""
    log = shop.log(SETTINGS)
    for number in range(0, 600, 10):
        with log.writer() as writer:
            assert writer.ingest([log.stage([_table(range(number, number + 10))])]).records == 10
    assert len(runs(log)) < limits.MEMORY_RUNS_MAX
    with log.writer() as writer:
        assert all(ack.duplicate for ack in many(writer, range(600)))
    check(log, 600)


def test_an_old_writer_that_publishes_late_changes_nothing_for_the_new_one() -> None:
    """Taken over in the midst of a build or a merge: what the old writer publishes is true, or refused."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    old = log.writer()
    acks = many(old, range(60))
    old._keeper._housekeeper.stop()
    late = shop.log()
    new = late.writer(takeover="force")
    acks += many(new, range(60, 70))
    with contextlib.suppress(WriterFenced):
        old._keeper._memory.work()
    assert many(new, range(70)) == retried(acks)
    remember(new)
    assert many(new, range(70)) == retried(acks)
    new.close()
    with contextlib.suppress(WriterFenced):
        old.close()
    check(shop.log(), 70)


def test_a_writer_that_is_closed_does_not_wait_for_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of many ids takes long: it ends with the slice it is at, leaves nothing, and the next writer makes it."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    monkeypatch.setattr(merging, "SLICE_IDS", 4)
    writer = log.writer()
    keeper = writer._keeper._memory
    table = keeper._table
    assert table is not None
    with monkeypatch.context() as patch:
        patch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
        acks = many(writer, range(12))
        keeper._build(table)
        acks += many(writer, range(12, 60))
        keeper._build(table)
    monkeypatch.setattr(upkeep_memory, "_to_merge", lambda memory: list(memory) if len(memory) > 1 else None)
    taken: list[int] = []
    begun = threading.Event()
    take = merging._Stream.take

    def closed_meanwhile(stream: Any, bound: int) -> Any:
        if not taken:
            closing.start()
            with writer._committer._changed:
                writer._committer._changed.wait_for(lambda: writer._committer.is_leaving, 60)
            begun.set()
        taken.append(bound)
        return take(stream, bound)

    closing = threading.Thread(target=writer.close)
    monkeypatch.setattr(merging._Stream, "take", closed_meanwhile)
    before = log._manifest().memory
    assert len(before) > 1
    writer._keeper._ask_memory()
    assert begun.wait(60)
    closing.join()
    assert len(taken) == 1, "the merge went on"
    assert log._manifest().memory == before
    used = {key for run in before for key in run.keys()}  # noqa: SIM118
    assert {key for key in shop.home.list("sealed/") if key.endswith(".ids")} == {
        key for key in used if key.endswith(".ids")
    }
    monkeypatch.setattr(merging._Stream, "take", take)
    with shop.log().writer() as writer:
        assert many(writer, range(60)) == retried(acks)
        remember(writer)
        assert len(log._manifest().memory) == 1
        assert many(writer, range(60)) == retried(acks)
    check(log, 60)


def test_an_id_that_moves_into_a_run_between_two_looks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up in the runs before it was there, and in the table when it was there no more: looked up again."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    for way in (append, many, submit, labelled):
        with log.writer() as writer:
            writer._keeper._housekeeper.stop()
            start = writer.last_position + 1
            acks = many(writer, range(start, start + 20))
            waiting = [writer]

            def then_build(looked: object, waiting: list[Writer] = waiting) -> object:
                if waiting:
                    remember(waiting.pop())
                return looked

            with monkeypatch.context() as patch:
                for name in ("look", "look_one"):
                    asked = getattr(Recall, name)
                    patch.setattr(Recall, name, lambda self, *keys, asked=asked: then_build(asked(self, *keys)))
                assert way(writer, range(start, start + 20)) == retried(acks), way.__name__
    check(log, 80)


def test_storage_that_does_not_answer_a_look_up_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id of which the runs cannot be asked is not taken for new: Unavailable, not written."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(40))
        remember(writer)
        end = writer.last_position

        def away(*_: object) -> None:
            message = "storage is away"
            raise Unavailable(message)

        with monkeypatch.context() as patch:
            patch.setattr(type(writer._recall.view.runs), "find_many", away)
            patch.setattr(type(writer._recall.view.runs), "find_one", away)
            for way in (append, many, submit, labelled):
                with pytest.raises(Unavailable):
                    way(writer, [0])
        assert writer.last_position == end
        assert all(ack.duplicate for ack in many(writer, range(40)))


def test_too_many_ids_that_wait_for_runs_hold_appends_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that takes blocks and no runs does not let the table grow for ever: Unavailable, not written; then on."""
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 32)
    shop = in_memory(auto_advance=True)
    log = shop.log(SETTINGS)

    def full(*_: object, **__: object) -> None:
        message = "no room for runs"
        raise Unavailable(message)

    with log.writer() as writer:
        with monkeypatch.context() as patch:
            patch.setattr("oncelog.log.upkeep.memory_keeper.store_run", full)
            with pytest.raises(Unavailable, match="faster than storage"):
                append(writer, range(200))
            assert 32 <= writer.last_position < 60
        count = writer.last_position + 1
        assert all(not ack.duplicate for ack in many(writer, range(count, 100)))
    check(log, 100)


def test_an_older_version_is_told_to_upgrade(shop: Shop) -> None:
    """A body that names runs has a number that an older Oncelog refuses: it would drop them and store ids twice."""
    log = shop.log(SETTINGS)
    data = manifest_format.encode_body(log._manifest())
    with pytest.raises(Unsupported, match="upgrade"):
        frame.unwrap(manifest_format.BODY_KIND, 1, data, "body")


def test_adopted_ids_are_in_the_table_or_bring_a_run(shop: Shop) -> None:
    """Few ids of a staged file go into the table, many bring a run; retries meet both, and so do other files."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        few = log.stage([_table(range(3))])
        writer.ingest([few])
        assert not runs(log)
        writer.ingest([log.stage([_table(range(3, 20))]), log.stage([_table(range(20, 40))])])
        assert (3, 40) in runs(log)
        found = many(writer, range(40))
        assert [ack.position for ack in found] == list(range(40))
        assert all(ack.duplicate for ack in found)
        again = writer.ingest([log.stage([_table(range(41))])])
        assert (again.records, again.duplicates) == (1, 40)
        remember(writer)
        assert all(ack.duplicate for ack in many(writer, range(41)))
    log = shop.log()
    with log.writer() as writer:
        assert many(writer, range(41))[:40] == found
    check(log, 41)


def _table(numbers: Iterable[int]) -> object:
    import pyarrow as pa

    chosen = [record(number) for number in numbers]
    return pa.table({"id": [one.id for one in chosen], "value": pa.array([one.value for one in chosen], pa.binary())})


@pytest.mark.parametrize("what", ["append", "build", "fail"])
def test_what_happens_while_a_file_is_looked_up_in_the_table(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is let go between parts of a large file. An id that is appended then is there once; one that leaves the
    table for a run then is known; one that is pending then, and is never stored, comes in with the file.
    """
    monkeypatch.setattr(adopter, "LOCKED_KEYS", 4)
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        monkeypatch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
        many(writer, range(20))
        staged = log.stage([_table(range(40))])
        look = adopter.Adopter._in_window
        calls: list[int] = []

        def meanwhile(self: adopter.Adopter, keys: Any, *rest: Any) -> None:
            calls.append(len(keys))
            if what == "fail":
                window = self._seen.window
                assert window is not None
                for high, low in keys.tolist():
                    if window.find_one(high, low) < 0:
                        window.add_one(high, low, self._committer.core.next_position, 0)
                look(self, keys, *rest)
                window.forget_pending()
                return
            look(self, keys, *rest)
            if len(calls) == 1:
                self._committer._lock.release()
                try:
                    many(writer, range(36, 40)) if what == "append" else remember(writer)
                finally:
                    self._committer._lock.acquire()

        monkeypatch.setattr(adopter.Adopter, "_in_window", meanwhile)
        done = writer.ingest([staged])
        assert (done.records, done.duplicates) == ((16, 24) if what == "append" else (20, 20))
        assert max(calls) == 4
        assert len(calls) == (10 if what == "fail" else 20), "looked up again, as the log had moved on"
        assert all(ack.duplicate for ack in many(writer, range(40)))
    assert sorted(map(str, ids(log))) == sorted(f"o-{number}" for number in range(40))
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_sweep_leaves_runs_alone(shop: Shop) -> None:
    """Files that nothing refers to go after a day; runs are referred to, and what a killed build left is not."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(60))
        remember(writer)
    left = "sealed/00000000000000000001-0011223344556677.0.ids"
    shop.home.create(left, [b"of a build that was killed"])
    shop.clock.jump(3 * 86_400)
    assert log.sweep() == [left]
    with shop.log().writer() as writer:
        assert many(writer, range(60)) == retried(acks)
    check(log, 60)


def test_a_copy_remembers_what_its_log_remembers(shop: Shop) -> None:
    """Runs go with the log: the copy's first writer knows every id, and reads no record for it."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    other = in_memory()
    with shop.process() as here, other.process() as there:
        here.copy("orders", there)
        copied = there.log("orders")
        assert runs(copied) == runs(log)
        with copied.writer() as writer:
            assert writer._seen.window is not None
            assert writer._seen.window.count < 20, "only the tail was read"
            found = many(writer, range(100))
        assert [(ack.position, ack.segment, ack.entry) for ack in found] == [
            (ack.position, ack.segment, ack.entry) for ack in acks
        ]
        assert all(ack.duplicate for ack in found)
        check(copied, 100)
        here.copy("orders", in_memory().process())  # into another place, as often as one likes


def test_what_was_written_under_a_bounded_window_is_known_after_the_switch_and_back(shop: Shop) -> None:
    """Runs stay while the memory is bounded; what came meanwhile is known, too, when it is without bounds again."""
    bounded = msgspec.structs.replace(SETTINGS, window=Window(max_keys=4))
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(40))
        remember(writer)
    log.configure(bounded)
    with log.writer() as writer:
        assert not append(writer, [0])[0].duplicate, "a bounded window forgets"
        many(writer, range(40, 60))
    log.configure(SETTINGS)
    with log.writer() as writer:
        found = many(writer, range(60))
        assert all(ack.duplicate for ack in found)
        assert found[0].position == 40, "the newest record of an id counts"
        remember(writer)
        assert many(writer, range(60)) == found
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_purge_makes_no_id_unknown(shop: Shop) -> None:
    """Rows that were purged keep identity and position: retries meet them, from the runs and from the log."""
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=4)))
    with log.writer() as writer:
        many(writer, range(40))
        many(writer, range(60))
    log.configure(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(60))
        remember(writer)
    log.seal()
    assert log.purge(remove=True).purged == 40
    for lost in (False, True):
        for run in log._manifest().memory if lost else ():
            shop.home.delete(run.part_key(0))
        with shop.log().writer() as writer:
            assert [ack.position for ack in many(writer, range(60))] == [ack.position for ack in acks]
            remember(writer)
            assert [ack.position for ack in many(writer, range(60))] == [ack.position for ack in acks]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
