"""The acceptance criteria of seed 001, and the scenarios of EventfoldDB and KurrentDB, each under its name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oncelog
from oncelog import Database, EventAck, LogBusy, LogSettings, Record, Streams, Window
from oncelog.errors import (
    IdConflict,
    InvalidArgument,
    NotFound,
    PartialOverlap,
    Unavailable,
    WriterFenced,
    WrongExpectedVersion,
)
from oncelog.limits import WINDOW_DURATION_S_MAX
from oncelog.storage.memory import MemoryStorage
from oncelog.streams import streams as module
from tests.log.watched import WatchedStorage

BATCH = [Record(b"a", id="1", type="Placed"), Record(b"b", id="2", type="Paid", headers={"trace": b"x"})]


def small(max_keys: int) -> LogSettings:
    """Return settings that remember so many ids."""
    return LogSettings(window=Window(duration_s=WINDOW_DURATION_S_MAX, max_keys=max_keys), id_scope="stream")


class Shop:
    """A database that can be left, and opened again by another process."""

    def __init__(self, connect: Callable[[], Database]) -> None:
        self._connect = connect
        self.db = connect()

    def streams(self, settings: LogSettings | None = None) -> Streams:
        """Return the streams of orders."""
        return self.db.streams("orders", settings, create=True)

    def before_and_after(self, streams: Streams) -> Iterator[Streams]:
        """Yield the streams, and after a restart the streams again."""
        yield streams
        yield self.restart()

    def restart(self) -> Streams:
        """Leave, and open the streams again."""
        self.db.close()
        self.db = self._connect()
        return self.db.streams("orders")


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Yield a shop in memory, or on a disk."""
    storage = MemoryStorage()
    made = Shop(
        (lambda: Database(storage)) if request.param == "memory" else lambda: oncelog.connect(tmp_path.as_uri())
    )
    yield made
    made.db.close()


def places(acks: list[EventAck]) -> list[tuple[int, int]]:
    """Return versions and positions."""
    return [(ack.version, ack.position) for ack in acks]


def values(streams: Streams) -> list[bytes]:
    """Return all events' values."""
    return [event.value for event in streams.read_all()]


def test_criterion_1_new_ids_are_appended_at_fresh_positions(shop: Shop) -> None:
    """A batch of new events gets the next versions and positions."""
    streams = shop.streams()
    assert places(streams.append("o-1", BATCH)) == [(0, 0), (1, 1)]
    assert places(streams.append("o-1", Record(b"c", id="3"))) == [(2, 2)]


def test_criteria_2_and_3_the_same_batch_again_returns_the_original_places_and_writes_nothing(shop: Shop) -> None:
    """A retry is answered, not stored: reads of the stream and of all have as many events as before."""
    streams = shop.streams()
    first = streams.append("o-1", BATCH)
    again = streams.append("o-1", BATCH)
    assert places(again) == places(first)
    assert [ack.timestamp for ack in again] == [ack.timestamp for ack in first]
    assert all(ack.duplicate for ack in again)
    assert len(list(streams.read_all())) == len(list(streams.read("o-1"))) == 2


def test_criterion_4_batches_with_other_ids_do_not_interfere(shop: Shop) -> None:
    """Neither is taken for the other."""
    streams = shop.streams()
    streams.append("o-1", Record(b"same", id="1"))
    assert not streams.append("o-1", Record(b"same", id="2"))[0].duplicate
    assert len(values(streams)) == 2


def test_criterion_5_an_id_twice_in_one_batch_is_refused_before_any_write(shop: Shop) -> None:
    """It is the caller's error, not a duplicate."""
    streams = shop.streams()
    with pytest.raises(InvalidArgument, match="more than once"):
        streams.append("o-1", [Record(b"a", id="1"), Record(b"b", id="1")])
    assert values(streams) == []
    assert streams.version("o-1") is None


@pytest.mark.parametrize("expected", ["any", "no stream"])
def test_criterion_6_a_batch_from_before_a_restart_returns_all_its_original_places(
    shop: Shop, expected: oncelog.streams.events.Expected
) -> None:
    """A multi-event batch, retried after a restart, is recognised as a whole."""
    first = shop.streams().append("o-1", BATCH)
    streams = shop.restart()
    again = streams.append("o-1", BATCH, expected=expected)
    assert places(again) == places(first)
    assert all(ack.duplicate for ack in again)


def test_criterion_7_beyond_its_capacity_the_window_forgets_the_oldest(shop: Shop) -> None:
    """With more events than keys, exactly the most recent are known after a restart; the others are new."""
    streams = shop.streams(small(10))
    for number in range(25):
        streams.append("o-1", Record(b"x", id=str(number)))
    streams = shop.restart()
    assert streams.append("o-1", Record(b"x", id="15"))[0].duplicate
    assert not streams.append("o-1", Record(b"x", id="14"))[0].duplicate
    assert len(values(streams)) == 26


def test_criterion_8_a_hit_publishes_nothing(shop: Shop) -> None:
    """Subscribers do not see a retry."""
    streams = shop.streams()
    streams.append("o-1", BATCH)
    with streams.subscribe_all("latest") as subscription:
        assert subscription.poll() == oncelog.CaughtUp(2)
        streams.append("o-1", BATCH)
        assert subscription.poll() is None
        streams.append("o-1", Record(b"new", id="3"))
        event = subscription.poll(60)
        assert isinstance(event, oncelog.StreamEvent)
        assert (event.version, event.position) == (2, 2)


def test_capacity_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ids by default, or as many as the variable says; what is no number is refused."""
    monkeypatch.delenv(module.CAPACITY_VARIABLE, raising=False)
    assert module.default_settings().window.unbounded
    monkeypatch.setenv(module.CAPACITY_VARIABLE, "7")
    db = Database(MemoryStorage())
    assert db.streams("orders", create=True)._log.settings.window.max_keys == 7
    for wrong in ("0", "many", "-1", ""):
        monkeypatch.setenv(module.CAPACITY_VARIABLE, wrong)
        with pytest.raises(InvalidArgument, match=module.CAPACITY_VARIABLE):
            db.streams("other", create=True)


def test_refresh_on_hit_keeps_what_is_retried(shop: Shop) -> None:
    """EventfoldDB's order is available: a duplicate makes its id young again."""
    settings = LogSettings(window=Window(duration_s=1e6, max_keys=2, refresh_on_hit=True))
    streams = shop.streams(settings)
    for id in ("1", "2", "1", "3"):
        streams.append("s", Record(b"x", id=id))
    assert streams.append("s", Record(b"x", id="1"))[0].duplicate
    assert not streams.append("s", Record(b"x", id="2"))[0].duplicate


# Batches that overlap.


@pytest.mark.parametrize("ids", [["2", "9"], ["9", "2"], ["1", "3"], ["2", "1"], ["1"], ["1", "2", "3"]], ids="-".join)
def test_overlapping_batches_are_refused_whole(shop: Shop, ids: list[str]) -> None:
    """[known, new], [new, known], two batches, another order, a part, more: nothing written, nothing lost."""
    streams = shop.streams()
    streams.append("o-1", [Record(b"x", id="1"), Record(b"x", id="2")])
    streams.append("o-1", Record(b"x", id="3"))
    for opened in shop.before_and_after(streams):
        with pytest.raises(PartialOverlap) as refused:
            opened.append("o-1", [Record(b"x", id=id) for id in ids])
        assert set(refused.value.known) | set(refused.value.new) == set(ids)
        assert len(values(opened)) == 3


def test_a_batch_whose_first_half_would_be_evicted_is_evicted_whole(shop: Shop) -> None:
    """Half of a batch is never known: that could only be refused."""
    streams = shop.streams(small(4))
    batch = [Record(b"x", id=id) for id in "abc"]
    streams.append("s", batch)
    streams.append("s", [Record(b"x", id="d"), Record(b"x", id="e")])
    assert not any(ack.duplicate for ack in streams.append("s", batch))


def test_the_same_id_in_another_stream_is_independent(shop: Shop) -> None:
    """Ids are those of their stream, in the window and after it was rebuilt."""
    streams = shop.streams()
    streams.append("o-1", Record(b"a", id="1"))
    assert not streams.append("o-2", Record(b"other", id="1"))[0].duplicate
    streams = shop.restart()
    for stream, value in (("o-1", b"a"), ("o-2", b"other")):
        assert streams.append(stream, Record(value, id="1"))[0].duplicate
    assert streams._log.verify().ok


@pytest.mark.parametrize(("expected", "cached"), [("any", True), ("no stream", True), ("no stream", False)])
def test_the_same_id_with_other_bytes_is_a_conflict_cached_or_not(
    shop: Shop, expected: oncelog.streams.events.Expected, *, cached: bool
) -> None:
    """Other content, type or headers are never taken for a retry: in the window, nor by the stream itself."""
    streams = shop.streams(small(2))
    streams.append("s", Record(b"a", id="1", type="T", headers={"h": b"1"}))
    if not cached:
        streams.append("other", [Record(b"x", id="8"), Record(b"x", id="9")])
    for record in (
        Record(b"b", id="1", type="T", headers={"h": b"1"}),
        Record(b"a", id="1", type="U", headers={"h": b"1"}),
        Record(b"a", id="1", type="T"),
    ):
        with pytest.raises(IdConflict) as conflict:
            streams.append("s", record, expected=expected)
        assert conflict.value.position == 0


@pytest.mark.parametrize(("expected", "cached"), [("any", True), ("no stream", True), ("no stream", False)])
def test_where_the_original_stands_a_conflict_is_told(
    shop: Shop, expected: oncelog.streams.events.Expected, *, cached: bool
) -> None:
    """With on_conflict="original" other content is answered with the first one's place, and never as a mere retry."""
    streams = shop.streams(msgspec.structs.replace(small(2), on_conflict="original"))
    streams.append("s", BATCH)
    if not cached:
        streams.append("other", [Record(b"x", id="8"), Record(b"x", id="9")])
    acks = streams.append("s", [BATCH[0], Record(b"c", id="2")], expected=expected)
    assert places(acks) == [(0, 0), (1, 1)]
    assert [(ack.duplicate, ack.conflict) for ack in acks] == [(True, False), (True, True)]
    assert [ack.conflict for ack in streams.append("s", BATCH, expected=expected)] == [False, False]


# Expected versions.


def test_expected_versions(shop: Shop) -> None:
    """Any, no stream, exists and exact are held against the stream, and say what it is at."""
    streams = shop.streams()
    for expected in ("exists", 0, 3):
        with pytest.raises(WrongExpectedVersion) as wrong:
            streams.append("s", Record(b"a"), expected=expected)
        assert (wrong.value.expected, wrong.value.actual) == (expected, None)
    streams.append("s", Record(b"a"), expected="no stream")
    streams.append("s", Record(b"b"), expected="exists")
    streams.append("s", [Record(b"c"), Record(b"d")], expected=1)
    for opened in shop.before_and_after(streams):
        for expected in ("no stream", 0, 2, 4):
            with pytest.raises(WrongExpectedVersion) as wrong:
                opened.append("s", Record(b"x"), expected=expected)  # type: ignore[arg-type]
            assert (wrong.value.expected, wrong.value.actual) == (expected, 3)
        assert len(values(opened)) == 4
    with pytest.raises(InvalidArgument, match="must be 'any'"):
        shop.streams().append("s", Record(b"x"), expected="sometimes")  # type: ignore[arg-type]


def test_an_exact_version_recognises_a_retry_without_a_window(shop: Shop) -> None:
    """However long ago: the stream itself is looked at; a part of the batch, or more, is still refused."""
    streams = shop.streams(small(2))
    streams.append("s", Record(b"0", id="0"))
    first = streams.append("s", BATCH, expected=0)
    for number in range(10):
        streams.append("s", Record(b"x", id=f"later-{number}"))
    for opened in shop.before_and_after(streams):
        again = opened.append("s", BATCH, expected=0)
        assert places(again) == places(first)
        assert all(ack.duplicate for ack in again)
        for part in (BATCH[:1], [*BATCH, Record(b"x", id="later-0")], [BATCH[0], Record(b"q", id="q")]):
            with pytest.raises((PartialOverlap, InvalidArgument)):
                opened.append("s", part, expected=0)
        with pytest.raises(WrongExpectedVersion):
            opened.append("s", [Record(b"a", id="q"), Record(b"b", id="r")], expected=0)
    assert len(values(shop.streams())) == 13


def test_the_same_id_at_the_current_version_is_not_a_retry(shop: Shop) -> None:
    """Who expects the version that its event made wants to append it again, and may not."""
    streams = shop.streams()
    streams.append("s", Record(b"a", id="1"))
    with pytest.raises(IdConflict, match="version 0"):
        streams.append("s", Record(b"a", id="1"), expected=0)
    assert streams.append("s", Record(b"a", id="1"), expected="no stream")[0].duplicate


def test_a_truncated_stream_keeps_its_version(shop: Shop) -> None:
    """Everything truncated, every snapshot gone, the index gone: the next event has the next version."""
    streams = shop.streams(LogSettings(idempotence="off"))
    for number in range(3):
        streams.append("s", [Record(b"%d" % number), Record(b"x")], expected=2 * number - 1)
    streams.append("gone", Record(b"x"))
    shop.restart()
    log = shop.db.log("orders")
    assert log.truncate(7).first_position == 7
    for folder in ("dedup_snapshot/", "streams/"):
        for key in log._home.list(folder):
            log._home.delete(key)
    streams = shop.restart()
    assert [(one.stream, one.version, one.count) for one in streams.list()] == [("s", 5, 6), ("gone", 0, 1)]
    assert list(streams.read("s")) == []
    assert places(streams.append("s", Record(b"new"), expected=5)) == [(6, 7)]
    assert [event.version for event in streams.read("s")] == [6]
    assert [event.version for event in streams.read("s", direction="backward")] == [6]


# Reading.


def test_reads_go_forward_and_backward(shop: Shop) -> None:
    """Of a stream by versions, of all by positions; from anywhere, so many, of wanted streams and types."""
    streams = shop.streams()
    for number in range(12):
        streams.append(f"s-{number % 3}", Record(b"%d" % number, id=str(number), type="even" if number % 2 else "odd"))
    for opened in shop.before_and_after(streams):
        assert [event.value for event in opened.read("s-1")] == [b"1", b"4", b"7", b"10"]
        assert [event.version for event in opened.read("s-1", 2)] == [2, 3]
        assert [event.version for event in opened.read("s-1", direction="backward")] == [3, 2, 1, 0]
        assert [event.version for event in opened.read("s-1", 2, direction="backward", limit=2)] == [2, 1]
        assert [event.version for event in opened.read("s-1", 99)] == []
        assert [event.position for event in opened.read_all(5, limit=3)] == [5, 6, 7]
        assert [event.position for event in opened.read_all(direction="backward", limit=3)] == [11, 10, 9]
        assert [event.position for event in opened.read_all(3, direction="backward")] == [3, 2, 1, 0]
        assert [event.position for event in opened.read_all(prefix="s-2", types=["even"])] == [5, 11]
        found = next(opened.read("s-0"))
        assert (found.stream, found.version, found.position, found.id, found.type) == ("s-0", 0, 0, "0", "odd")
    with pytest.raises(NotFound, match="no stream 's-9'"):
        list(shop.streams().read("s-9"))
    for wrong in ({"direction": "sideways"}, {"start": -1}, {"limit": -1}):
        with pytest.raises(InvalidArgument):
            list(shop.streams().read("s-0", **wrong))


@pytest.mark.parametrize("stream", ["", None, 5, "x" * 1025, "\ud800"])
def test_bad_stream_names_are_refused(shop: Shop, stream: str) -> None:
    """A name that cannot be stored, or is none, is an error before anything is written."""
    with pytest.raises(InvalidArgument):
        shop.streams().append(stream, Record(b"x"))


@pytest.mark.parametrize("text", [3, None, "a\ud800"])
def test_what_cannot_be_a_name_is_refused_wherever_one_is_asked_for(text: Any) -> None:
    """Reading tells bad names as appending does: by an error of the tree, that says what to do."""
    with Database(MemoryStorage()) as db:
        streams = db.streams("orders", create=True)
        for ask in (
            streams.read,
            streams.version,
            streams.subscribe,
            streams.list,
            lambda prefix: streams.read_all(prefix=prefix),
            lambda name: streams.subscribe_all(types=[name]),
        ):
            with pytest.raises(InvalidArgument):
                ask(text)
        with pytest.raises(InvalidArgument):
            streams.read_all(types=3)  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            streams.read("there is none")


def test_what_cannot_be_an_event_is_refused(shop: Shop) -> None:
    """Events say no other stream, and no producer; and all carry an id, or none."""
    streams = shop.streams()
    wrong = (Record(b"x", stream="other"), Record(b"x", producer="p"), Record(b"x", sequence=1))
    for record in wrong:
        with pytest.raises(InvalidArgument):
            streams.append("s", record)
    with pytest.raises(InvalidArgument, match="all must, or none"):
        streams.append("s", [Record(b"a", id="1"), Record(b"b")])
    assert streams.append("s", []) == []


def test_a_plain_log_is_not_taken_for_streams(shop: Shop) -> None:
    """Where ids are of the whole log, the same id in two streams would be one."""
    shop.db.log("plain", create=True)
    with pytest.raises(InvalidArgument, match="id_scope"):
        shop.db.streams("plain")
    with pytest.raises(InvalidArgument, match="never changes"):
        shop.db.log("plain").configure(LogSettings(id_scope="stream"))
    with pytest.raises(NotFound):
        shop.db.streams("nothing")


def test_streams_take_a_log_over_and_let_it_go(shop: Shop) -> None:
    """Closing the streams lets the log go; opened again, they go on where they were."""
    with shop.streams() as streams:
        streams.append("s", Record(b"a"))
        assert shop.db.streams("orders") is streams
    with shop.db.log("orders").writer() as writer:
        writer.append(b"between", stream="s")
        writer.append(b"not an event")
    streams = shop.db.streams("orders")
    assert places(streams.append("s", Record(b"c"), expected=1)) == [(2, 3)]
    streams.close()
    with pytest.raises(oncelog.Closed):
        streams.read("s")


def test_who_learns_late_of_a_lost_log_does_not_close_the_writer_that_came_after(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads lose the log; one has opened it again and appended before the other is told."""
    streams = shop.streams()
    streams.append("s", Record(b"a"))
    lost = streams._event_writer.writer
    assert lost is not None

    def fenced(*_: object, **__: object) -> None:
        closing = threading.Thread(target=lost.close)  # here, inside a call, it would go on beside this
        closing.start()
        closing.join()
        streams.append("s", Record(b"b"))
        message = "taken"
        raise WriterFenced(message, outcome="unknown")

    monkeypatch.setattr(lost, "append_batch", fenced)
    with pytest.raises(WriterFenced):
        streams.append("s", Record(b"c"))
    assert streams._event_writer.writer is not None
    assert not streams._event_writer.writer.closed
    assert places(streams.append("s", Record(b"d"), expected=1)) == [(2, 2)]


def test_a_stream_whose_first_event_is_on_its_way_is_there() -> None:
    """A writer that expects no stream loses the race, and learns so; a retry of that first event joins it."""
    storage = WatchedStorage()
    with Database(storage) as db:
        streams = db.streams("orders", create=True)
        streams.append("other", Record(b"x"))
        storage.otherwise = "refused"
        with pytest.raises(Unavailable) as lost:
            streams.append("s", Record(b"a", id="1"), expected="no stream", timeout_s=0.01)
        assert lost.value.outcome == "unknown"
        with pytest.raises(WrongExpectedVersion):
            streams.append("s", Record(b"b", id="2"), expected="no stream")
        storage.otherwise = "stored"
        [ack] = streams.append("s", Record(b"a", id="1"), expected="no stream")
        assert (ack.version, ack.position, ack.duplicate) == (0, 1, True)


def test_the_old_holder_does_not_refuse_a_version() -> None:
    """After a forced takeover it does not know the stream's version: its "no" was wrong."""
    storage = MemoryStorage()
    with Database(storage) as old_db, Database(storage) as new_db:
        old = old_db.streams("orders", create=True)
        old.append("a", [Record(b"0", id="0")], expected="no stream")
        new_db.log("orders").writer(takeover="force").close()
        new = new_db.streams("orders")
        new.append("a", [Record(b"1", id="1")], expected=0)
        with pytest.raises(WriterFenced):
            old.append("a", [Record(b"2", id="2")], expected=1)
        with pytest.raises((LogBusy, WriterFenced)):
            old.append("a", [Record(b"2", id="2")], expected=1, wait_s=0)
        new.close()
        assert old.append("a", [Record(b"2", id="2")], expected=1)[0].version == 2
        with pytest.raises(WrongExpectedVersion):
            old.append("a", [Record(b"3", id="3")], expected=5)
