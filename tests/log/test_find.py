"""Finding an id: the place, the time and the fingerprint of its record, from memory, with a writer and without."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import CorruptionError, InvalidArgument, WriterFenced
from oncelog.limits import KIB
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.takeover import recovery
from oncelog.log.upkeep.background import Housekeeper
from oncelog.settings import LogSettings, Window
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.types import Ack, Record
from tests.log.shop import Shop, in_memory, on_disk

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Return a shop in memory, and one on a disk."""
    return in_memory() if request.param == "memory" else on_disk()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after eight ids, and make a run of every four."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 4)


def check(log: Log, acks: list[Ack]) -> None:
    """See that every id is found where its ack says."""
    for number, ack in enumerate(acks):
        found = log.find(f"o-{number}")
        assert found is not None
        told = (found.position, found.segment, found.entry, found.timestamp)
        assert told == (ack.position, ack.segment, ack.entry, ack.timestamp)
    assert log.find("o-none") is None
    same, other = log.find("o-0"), log.find("o-1")
    assert same is not None
    assert other is not None
    assert same.fingerprint == other.fingerprint, "their content is the same"


def test_an_id_is_found_in_table_run_and_open_segment(shop: Shop) -> None:
    """With a writer open here, without one, and by another process while the writer is at work."""
    log = shop.log(SETTINGS)
    acks = []
    with log.writer() as writer:
        for number in range(60):
            acks.append(writer.append(b"paid", id=f"o-{number}"))
            shop.clock.advance(0.5)
        writer._keeper._housekeeper.stop()
        writer._keeper._memory.work()
        acks += [writer.append(b"paid", id=f"o-{number}") for number in range(60, 63)]
        check(log, acks)
        check(shop.log(), acks)
    check(log, acks)
    check(shop.log(), acks)


def test_a_table_is_compared_with_table_run_and_open_segment(shop: Shop) -> None:
    """Every row whose id is in the log is known, a row of other content is a conflict, and nothing is written."""
    log = shop.log(SETTINGS)
    rows = pa.table(
        {"id": ["o-3", "o-none", "o-59", "o-61", "o-2", None], "value": [b"paid"] * 4 + [b"other", b"paid"]}
    )
    with log.writer() as writer:
        for number in range(60):
            writer.append(b"paid", id=f"o-{number}")
        writer._keeper._housekeeper.stop()
        writer._keeper._memory.work()
        for number in range(60, 63):
            writer.append(b"paid", id=f"o-{number}")
        found = [shop.log()._compare(rows)]
    found.append(log._compare(rows))
    for known, conflicts in found:
        assert known.tolist() == [True, False, True, True, True, False]
        assert conflicts.tolist() == [False, False, False, False, True, False]
    assert log.end_position() == 63


def test_what_is_forgotten_is_not_found(shop: Shop) -> None:
    """A bounded window knows its newest ids; a truncated record is gone with its id."""
    log = shop.log(LogSettings(window=Window(max_keys=2)))
    with log.writer() as writer:
        for number in range(4):
            writer.append(b"paid", id=f"o-{number}")
        assert log.find("o-3") is not None
    assert log.find("o-0") is None
    assert log.find("o-3") is not None


def test_a_purged_record_is_found_where_its_survivor_is(shop: Shop) -> None:
    """A purge empties the newest record of an id, which a retry is answered with: find tells where the content is.

    With a writer and without, in a copy of the manifest that another handle has, bounded and after a switch.
    """
    log = shop.log(LogSettings(window=Window(max_keys=2), seal="off"))
    with log.writer() as writer:
        acks = [writer.append(b"paid", id=id) for id in ("a", "b", "c", "a", "b", "d")]
    log.seal()
    before = log.find("b")
    assert before is not None
    assert before.position == 4
    assert log.purge(remove=True).purged == 2

    def check_all() -> None:
        found, stays = log.find("b"), log.find("d")
        assert found is not None
        assert stays is not None
        told = (found.position, found.segment, found.entry, found.timestamp, found.fingerprint)
        assert told == (1, acks[1].segment, acks[1].entry, acks[1].timestamp, before.fingerprint)
        assert stays.position == 5

    check_all()
    with log.writer():
        check_all()
    log.configure(LogSettings(seal="off"))
    check_all()
    with log.writer() as writer:
        assert writer.append(b"paid", id="b").position == 4, "a retry gets the position that it always got"
        check_all()


def test_a_purged_record_whose_survivor_is_truncated_away_is_found_at_its_own_place(shop: Shop) -> None:
    """The survivor is gone for good; the id is known all the same, at the place that a retry is answered with."""
    log = shop.log(LogSettings(window=Window(max_keys=2), segment_bytes=64 * KIB, block_bytes=64 * KIB, seal="off"))
    for ids in (("a", "b", "c"), ("a", "d")):
        with log.writer() as writer:
            for id in ids:
                writer.append(b"paid" * 10_000, id=id)
        log.seal()
    assert log.purge(remove=True).purged == 1
    with log.writer():
        assert log.truncate(before=3).first_position == 3
    found = log.find("a")
    assert found is not None
    assert found.position == 3


def test_an_id_of_a_stream_is_found_in_its_stream(shop: Shop) -> None:
    """In a log whose ids are of their stream, the stream is a part of the question."""
    log = shop.log(LogSettings(id_scope="stream"))
    with log.writer() as writer:
        writer.append_many([Record(b"x", id="1", stream="a"), Record(b"y", id="1", stream="b")])
    places = [log.find("1", stream=stream) for stream in ("a", "b", "c")]
    assert [None if place is None else place.position for place in places] == [0, 1, None]


def test_a_log_without_ids_says_so(shop: Shop) -> None:
    """Nothing is remembered there, and None would be a lie."""
    log = shop.log(LogSettings(idempotence="off"))
    with pytest.raises(InvalidArgument, match="remembers no ids"):
        log.find("o-1")


@pytest.mark.parametrize("bad", [None, 5, b"o-1", "", "x" * 256])
def test_a_bad_id_is_refused(shop: Shop, bad: object) -> None:
    """What can be no id is an error that names the argument."""
    log = shop.log(SETTINGS)
    with pytest.raises(InvalidArgument, match="id"):
        log.find(bad)  # type: ignore[arg-type]


def test_a_writer_that_lost_its_log_does_not_say_that_an_id_is_not_there(memory_bucket: Bucket) -> None:
    """Its memory ends where another took the log: what that one stored is found all the same."""
    with Database(ObjectStorage(memory_bucket)) as mine, Database(ObjectStorage(memory_bucket)) as theirs:
        log = mine.log("orders", create=True)
        log.writer().append(b"v", id="early")
        with theirs.log("orders").writer(takeover="force") as thief:
            ack = thief.append(b"v", id="late")
            found = log.find("late")
            assert found is not None
            assert found.position == ack.position
            assert log.find("early") is not None
            assert log.find("never") is None


@pytest.mark.parametrize("bounded", [False, True])
def test_an_id_is_found_when_the_writer_here_has_let_the_log_go(memory_bucket: Bucket, *, bounded: bool) -> None:
    """Nobody may have taken the log yet, and the writer's memory is no longer its own: the log itself is read."""
    with Database(ObjectStorage(memory_bucket)) as db:
        window = Window(max_keys=10) if bounded else Window()
        log = db.log("orders", LogSettings(window=window), create=True)
        writer = log.writer()
        ack = writer.append(b"v", id="early")
        writer._ending._let_go()
        with pytest.raises(WriterFenced):
            inner.find(writer, "early")
        assert not writer.closed
        found = log.find("early")
        assert found is not None
        assert found.position == ack.position
        assert log.find("never") is None


def test_an_id_is_found_while_its_run_is_merged_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks ids up beside a writer that merges: the object that is gone says nothing of the id."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)  # runs are made when this test says so
    log = shop.log(SETTINGS)
    with log.writer() as writer:

        def remembered(numbers: range) -> list[Ack]:
            """Append orders, and make a run of every eight."""
            acks = []
            for number in numbers:
                acks.append(writer.append(b"paid", id=f"o-{number}"))
                shop.clock.advance(0.5)
                if number % 8 == 7:
                    writer._keeper._memory.work()
            return acks

        acks = remembered(range(24))
        reader, recover = shop.log(), recovery.recover
        before = log._manifest().memory

        def merge_then(*arguments: object, **options: object) -> object:
            """Let the writer merge what was just opened, once: its objects are deleted."""
            found = recover(*arguments, **options)  # type: ignore[arg-type]
            monkeypatch.setattr(recovery, "recover", recover)
            remembered(range(24, 200))
            assert not set(before) & set(log._manifest().memory), "they are all merged"
            return found

        monkeypatch.setattr(recovery, "recover", merge_then)
        check(reader, acks)


def test_a_run_that_is_lost_is_no_answer(shop: Shop) -> None:
    """An id whose run is gone under a handle that has it open is not said to be absent, nor its log."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for number in range(24):
            writer.append(b"paid", id=f"o-{number}")
            shop.clock.advance(0.5)
        writer._keeper._housekeeper.stop()
        writer._keeper._memory.work()
    for run in log._manifest().memory:
        shop.home.delete(run.times_key(0))
    with pytest.raises(CorruptionError, match="oncelog rebuild"):
        shop.log().find("o-0")
