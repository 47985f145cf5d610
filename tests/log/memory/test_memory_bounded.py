"""Adopted files under a bounded window: their ids are in runs too, and count as long as the window's duration says."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.errors import CorruptionError, IdConflict, PartialOverlap, Unavailable
from oncelog.limits import KIB
from oncelog.log.ingest.ingester import Ingested
from oncelog.log.log import Log
from oncelog.log.memory import coverage
from oncelog.log.memory.run_set import RunSet
from oncelog.log.stored import object_keys
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, Record
from tests.log.shop import Shop, in_memory

HOUR_S = 3600.0
SETTINGS = LogSettings(
    window=Window(duration_s=HOUR_S, max_keys=8), segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6
)
pytestmark = pytest.mark.usefixtures("tiny", "by_hand")


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be done in the background: tests say when."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)


def record(number: int) -> Record:
    """Return the record of a number."""
    return Record(f"order {number}".encode(), id=f"o-{number}")


def brought(log: Log, writer: Writer, numbers: Iterable[int]) -> Ingested:
    """Bring records in as a staged file."""
    chosen = [record(number) for number in numbers]
    table = pa.table({"id": [one.id for one in chosen], "value": pa.array([one.value for one in chosen], pa.binary())})
    return writer.ingest([log.stage([table])])


def again(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records, some at once and some alone; return the acks."""
    acks = writer.append_many([record(number) for number in numbers])
    assert [writer.append(record(n).value, id=record(n).id).position for n in numbers] == [a.position for a in acks]
    return acks


def remember(writer: Writer) -> None:
    """Have runs built and merged now."""
    writer._keeper._memory.work()


def beside(shop: Shop, log: Log) -> set[str]:
    """Return the identities beside adopted files that are stored."""
    of_runs = {key for run in log._manifest().memory for key in run.keys()}  # noqa: SIM118
    return {key for key in shop.home.list("sealed/") if key.endswith(".ids")} - of_runs


def ranges(log: Log) -> list[tuple[int, int]]:
    """Return the ranges of the runs."""
    return [(run.first_position, run.next_position) for run in log._manifest().memory]


def check(log: Log) -> None:
    """See that each id is there once, and that the log finds nothing wrong with itself."""
    with log.read() as entries:
        ids = [entry.id for entry in entries]
    assert len(ids) == len(set(ids))
    assert [finding for finding in log.verify().findings if finding.severity != "note"] == []


def test_many_ids_bring_a_run_and_few_become_one(shop: Shop) -> None:
    """Nothing of adopted files is in memory or beside them once a run has it, and retries meet them all the same."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        brought(log, writer, range(20))
        assert ranges(log) == [(0, 20)]
        assert writer._core.seen.adopted.ids == 0
        for start in range(20, 29, 3):
            brought(log, writer, range(start, start + 3))
        remember(writer)
        assert ranges(log)[-1][1] == 29
        assert writer._core.seen.adopted.ids == 0
        assert beside(shop, log) == set()
        first = again(writer, range(29))
        assert [ack.position for ack in first] == list(range(29))
        assert all(ack.duplicate for ack in first)
        assert brought(log, writer, range(30)).duplicates == 29
    with shop.log().writer() as writer:
        assert writer._core.seen.adopted.ids == 1
        assert again(writer, range(29)) == first
        with pytest.raises(PartialOverlap):
            writer.append_batch([record(3), record(4)])
        assert writer.append_batch([record(3)]) == [first[3]]
    check(shop.log())
    found = shop.log().find("o-7")
    assert found is not None
    assert (found.position, found.timestamp) == (7, first[7].timestamp)


def test_ids_in_runs_are_forgotten_in_time(shop: Shop) -> None:
    """A hit in a run counts while its file is within the duration, and a run that has no such file is not opened."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        brought(log, writer, range(10))
        shop.clock.advance(HOUR_S / 2)
        brought(log, writer, range(10, 20))
        shop.clock.advance(HOUR_S / 2 + 1)
        acks = writer.append_many([record(5), record(15)])
        assert [(ack.position, ack.duplicate) for ack in acks] == [(20, False), (15, True)]
        alone = writer.append(record(6).value, id="o-6")
        assert (alone.position, alone.duplicate) == (21, False)
        shop.clock.advance(HOUR_S)
        assert not writer.append(record(16).value, id="o-16").duplicate
        remember(writer)
        assert writer._admitter._recall.view.runs.runs == ()
    with shop.log().writer() as writer:
        assert writer._admitter._recall.view.runs.runs == ()
        assert not writer.append(record(17).value, id="o-17").duplicate


def test_appended_ids_in_a_run_count_as_the_window_says(shop: Shop) -> None:
    """A run has the ids of appended records between files too; of those the window alone decides."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        brought(log, writer, range(3))
        writer.append_many([record(number) for number in range(3, 20)])  # the window keeps eight of them
        brought(log, writer, range(20, 23))
        remember(writer)
        assert ranges(log) == [(0, 23)]
        acks = writer.append_many([record(2), record(3), record(21)])
        assert [ack.duplicate for ack in acks] == [True, False, True]


@pytest.mark.parametrize("large", [False, True])
def test_gaps_between_many_runs_are_filled(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, large: bool) -> None:
    """Files and appends that alternate leave few runs, because only neighbours can be merged; large gaps stay."""
    monkeypatch.setattr(coverage, "RUNS_APART", 3)
    monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 2 if large else 100)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for start in range(0, 100, 10):
            brought(log, writer, range(start, start + 5))
            writer.append_many([record(number) for number in range(start + 5, start + 10)])
        remember(writer)
        assert (len(ranges(log)) <= 4) != large
        acks = [ack for start in range(0, 100, 10) for ack in again(writer, range(start, start + 5))]
        assert all(ack.duplicate for ack in acks)
    check(log)


def test_a_run_that_is_lost_is_made_up_for_from_the_records(shop: Shop) -> None:
    """Run and identities are both gone: the ids come from the log, and become a run again."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        brought(log, writer, range(20))
        remember(writer)
    assert beside(shop, log) == set()
    for run in log._manifest().memory:
        for key in run.keys():  # noqa: SIM118  (these are keys of objects)
            shop.home.delete(key)
    with shop.log().writer() as writer:
        assert writer._core.seen.adopted.ids == 20
        assert all(ack.duplicate for ack in again(writer, range(20)))
        remember(writer)
        assert writer._core.seen.adopted.ids == 0
        assert all(ack.duplicate for ack in again(writer, range(20)))
    check(shop.log())


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "never made"])
def test_a_writer_does_not_load_more_ids_than_it_may(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """Ids of adopted files in no run would all be in memory: beyond a limit the writer says what to do, which helps."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.append(b"before", id="before")
        for start in range(0, 24, 12 if lost else 3):
            brought(log, writer, range(start, start + (12 if lost else 3)))
        writer.append(b"between", id="between")
        brought(log, writer, range(24, 26))
    for run in log._manifest().memory:
        shop.home.delete(next(iter(run.keys())))
    monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 20)
    with pytest.raises(
        CorruptionError if lost else Unavailable, match=r"26 records .* `oncelog rebuild` makes the runs"
    ):
        shop.log().writer()
    made = shop.log().rebuild()
    assert (made.runs, made.snapshot != "") == (3 if lost else 1, True)
    with shop.log().writer() as writer:
        assert writer._core.seen.adopted.ids == 0
        assert all(ack.duplicate for ack in again(writer, range(26)))
        assert all(writer.append(name.encode(), id=name).duplicate for name in ("before", "between"))
    assert shop.log().rebuild().runs == 0
    check(shop.log())


def test_many_records_with_few_ids_do_not_keep_a_writer_out(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ids bring no run, however many records there are: what counts is how many ids would be in memory."""
    log = shop.log(SETTINGS)
    ids = pa.array(["o-0", *[None] * 25])
    with log.writer() as writer:
        writer.ingest([log.stage([pa.table({"id": ids, "value": pa.array([b"order 0"] * 26, pa.binary())})])])
    assert not log._manifest().memory
    monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 20)
    with shop.log().writer() as writer:
        assert again(writer, range(1))[0].duplicate


def test_a_run_of_adopted_files_that_is_damaged_is_made_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be opened when files are adopted leaves their ids in memory: nothing is stored twice."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        with monkeypatch.context() as patch:
            patch.setattr(RunSet, "open", _unreadable)
            brought(log, writer, range(20))
        assert writer._core.seen.adopted.ids == 20
        assert all(ack.duplicate for ack in again(writer, range(20)))
    check(shop.log())


def _unreadable(*_: object) -> None:
    from oncelog.errors import Unavailable

    message = "this disk does not answer"
    raise Unavailable(message)


def test_the_same_staged_file_again_is_known_by_its_records(shop: Shop) -> None:
    """The answer of an adoption was lost, and its caller brings the same files: what is beside them is gone by now."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        chosen = [record(number) for number in range(20)]
        table = pa.table({"id": [one.id for one in chosen], "value": pa.array([one.value for one in chosen])})
        staged = log.stage([table])
        assert writer.ingest([staged]).records == 20
        remember(writer)
        assert beside(shop, log) == set()
        retried = writer.ingest([staged])
        assert (retried.records, retried.duplicates) == (0, 20)
    check(log)


def test_a_copy_and_a_switch_need_no_identities_beside_files(shop: Shop) -> None:
    """A copy remembers by its runs alone; so does the log when it is switched to no bounds, and back."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        brought(log, writer, range(20))
        brought(log, writer, range(20, 22))
        remember(writer)
    other = in_memory()
    shop.process().copy("orders", other.process())
    with other.log().writer() as writer:
        assert all(ack.duplicate for ack in again(writer, range(22)))
    check(other.log())
    for window in (Window(), Window(duration_s=HOUR_S, max_keys=8)):
        log = shop.log()
        log.configure(msgspec.structs.replace(SETTINGS, window=window))
        with log.writer() as writer:
            assert all(ack.duplicate for ack in again(writer, range(22)))
            assert brought(log, writer, range(22)).duplicates == 22
            remember(writer)
        check(shop.log())


def test_what_an_earlier_version_left_beside_files_is_swept(shop: Shop) -> None:
    """Identities of files that a run covers, which no version has doomed, go by age like what nothing refers to."""
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window()))
    with log.writer() as writer:
        brought(log, writer, range(20))
        remember(writer)
        uncovered = brought(log, writer, [20])
    key = next(one.identities for one in log._manifest().segments if one.identities is not None)
    assert not shop.home.exists(key)
    shop.home.create(key, [b"left behind"])
    shop.clock.advance(2 * object_keys.STAGED_S)
    assert log.sweep() == [key]
    assert uncovered.records == 1
    assert len(beside(shop, log)) == 1
    with log.writer() as writer:
        assert all(ack.duplicate for ack in again(writer, range(21)))


def test_of_an_id_before_a_run_and_in_it_the_newest_record_answers(shop: Shop) -> None:
    """A log with bounds stored ids again, in a file that brought a run. Without bounds, what lies before the run is in
    the table first: answers are the same then and when it is in a run, and the newest record's in both.
    """
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        again(writer, range(3))
        writer.append(b"other content", id="o-3")
        for number in range(100, 112):  # the window forgets the first ones
            writer.append(record(number).value, id=record(number).id)
        assert brought(log, writer, range(8)).records == 8
        assert ranges(log) == [(16, 24)]
    log.configure(msgspec.structs.replace(SETTINGS, window=Window()))
    with log.writer() as writer:

        def answers() -> list[int | None]:
            """Ask in every way."""
            acks = [*again(writer, range(8)), *again(writer, [0]), writer.submit(record(1).value, id="o-1").result()]
            assert all(ack.duplicate for ack in acks)
            assert writer.append_batch([record(3)])[0].position == 19
            with pytest.raises(IdConflict) as conflict:
                writer.append(b"other content", id="o-3")
            found = [log.find(f"o-{number}") for number in range(8)] + [shop.log().find("o-0")]
            assert brought(log, writer, [3]).conflicts == 0
            return [conflict.value.position, *(ack.position for ack in acks), *(one.position for one in found if one)]

        newest = list(range(16, 24))
        assert answers() == [19, *newest, 16, 17, *newest, 16]
        remember(writer)
        assert ranges(log)[0][0] == 0
        assert answers() == [19, *newest, 16, 17, *newest, 16]
    assert log.verify().ok
