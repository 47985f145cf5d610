"""What every event store must do, wherever its log lives: one suite that each kind of database runs.

Derive a class from ``StreamsContract`` in a test file and give it a fixture ``database`` that yields an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.connect import Database
from oncelog.errors import Closed, IdConflict, InvalidArgument, NotFound, PartialOverlap, WrongExpectedVersion
from oncelog.streams.events import CaughtUp, StreamEvent
from oncelog.streams.streams import Streams
from oncelog.types import Record

LONG_S = 60.0
"""Longer than anything here takes: what waits so long has failed."""


class StreamsContract:
    """The public surface of streams, as programs are written against it."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a new, empty database: override this."""
        raise NotImplementedError

    @pytest.fixture
    def streams(self, database: Database) -> Streams:
        """Return the streams of a new log."""
        return database.streams("events", create=True)

    def test_events_come_back_as_they_were_given(self, streams: Streams) -> None:
        """Every field that a user gave is there again, at the version and position that the ack told."""
        given = Record(b"paid", id="1", type="Paid", headers={"trace": b"\x00\xff"})
        (ack,) = streams.append("order-1", given)
        (event,) = streams.read("order-1")
        assert (event.stream, event.version, event.position) == ("order-1", ack.version, ack.position)
        assert (event.value, event.id, event.type, event.headers) == (b"paid", "1", "Paid", {"trace": b"\x00\xff"})
        assert event.timestamp == ack.timestamp

    def test_versions_are_expected(self, streams: Streams) -> None:
        """An append whose expectation does not hold writes nothing, and says what is there."""
        streams.append("a", [Record(b"0"), Record(b"1")], expected="no stream")
        streams.append("a", Record(b"2"), expected=1)
        streams.append("a", Record(b"3"), expected="exists")
        with pytest.raises(WrongExpectedVersion) as wrong:
            streams.append("a", Record(b"x"), expected=7)
        assert (wrong.value.expected, wrong.value.actual) == (7, 3)
        with pytest.raises(WrongExpectedVersion) as absent:
            streams.append("b", Record(b"x"), expected="exists")
        assert (absent.value.expected, absent.value.actual) == ("exists", None)
        assert [event.value for event in streams.read("a")] == [b"0", b"1", b"2", b"3"]
        assert (streams.version("a"), streams.version("b")) == (3, None)

    def test_a_retry_is_answered_by_the_first(self, streams: Streams) -> None:
        """By its ids, or under an exact version by its place: the original acks, and nothing is stored."""
        batch = [Record(b"0", id="x"), Record(b"1", id="y")]
        first = streams.append("a", batch)
        again = streams.append("a", batch)
        assert [(ack.version, ack.position) for ack in again] == [(ack.version, ack.position) for ack in first]
        assert all(ack.duplicate for ack in again)
        (exact,) = streams.append("b", Record(b"2", id="x"), expected="no stream")
        assert streams.append("b", Record(b"2", id="x"), expected="no stream")[0].position == exact.position
        with pytest.raises(IdConflict):
            streams.append("a", [Record(b"other", id="x"), Record(b"1", id="y")])
        with pytest.raises(PartialOverlap):
            streams.append("a", [Record(b"0", id="x"), Record(b"new", id="z")])
        assert [event.value for event in streams.read_all()] == [b"0", b"1", b"2"]

    def test_reads_go_both_ways(self, streams: Streams) -> None:
        """Of one stream by version, of all by position, with limits and filters."""
        for number in range(10):
            streams.append(f"s-{number % 2}", Record(b"%d" % number, type="even" if number % 2 == 0 else "odd"))
        assert [event.value for event in streams.read("s-0", 1, limit=2)] == [b"2", b"4"]
        assert [event.value for event in streams.read("s-1", direction="backward", limit=2)] == [b"9", b"7"]
        assert [event.value for event in streams.read_all(7)] == [b"7", b"8", b"9"]
        assert [event.value for event in streams.read_all(2, direction="backward")] == [b"2", b"1", b"0"]
        assert [event.value for event in streams.read_all(types=["odd"], limit=2)] == [b"1", b"3"]
        assert [event.value for event in streams.read_all(prefix="s-0", start=5)] == [b"6", b"8"]
        assert [(info.stream, info.version, info.count) for info in streams.list()] == [("s-0", 4, 5), ("s-1", 4, 5)]
        assert [info.stream for info in streams.list("s-1")] == ["s-1"]

    def test_what_is_not_there_is_said_at_the_call(self, streams: Streams) -> None:
        """No stream is ``NotFound``, and a bad argument ``InvalidArgument``, before anything is iterated."""
        with pytest.raises(NotFound):
            streams.read("nothing")
        with pytest.raises(InvalidArgument):
            streams.append("", Record(b"x"))
        with pytest.raises(InvalidArgument):
            streams.append("a", Record(b"x"), expected=-2)
        with pytest.raises(InvalidArgument):
            streams.read_all(direction="sideways")  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            streams.subscribe_all(99)
        assert streams.append("a", []) == []

    def test_a_subscription_catches_up_and_goes_live(self, streams: Streams) -> None:
        """All that was there, ``CaughtUp`` once, then what comes: no gap, no repeat."""
        streams.append("a", [Record(b"%d" % number) for number in range(3)])
        with streams.subscribe("a", 1) as one, streams.subscribe_all("latest") as live:
            assert _values(one, 3) == [b"1", b"2", "caught up"]
            assert _values(live, 1) == ["caught up"]
            streams.append("b", Record(b"other"))
            streams.append("a", Record(b"3"))
            assert _values(one, 1) == [b"3"]
            assert _values(live, 2) == [b"other", b"3"]
            assert live.position == len(list(streams.read_all()))

    def test_closing_ends_a_subscription(self, streams: Streams) -> None:
        """Iterating ends, and polling says so."""
        subscription = streams.subscribe_all()
        assert _values(subscription, 1) == ["caught up"]
        subscription.close()
        assert list(subscription) == []
        with pytest.raises(Closed):
            subscription.poll()

    def test_submitted_events_are_decided_in_order(self, streams: Streams) -> None:
        """Many on their way at once: each stream has its own in the order in which they were submitted."""
        pendings = [streams.submit(f"s-{number % 4}", Record(b"%d" % number)) for number in range(40)]
        versions = [pending.result(LONG_S)[0].version for pending in pendings]
        assert versions == [number // 4 for number in range(40)]
        assert [event.value for event in streams.read("s-1")] == [b"%d" % number for number in range(1, 40, 4)]
        with pytest.raises(WrongExpectedVersion):
            streams.submit("s-1", Record(b"x"), expected=99).result(LONG_S)


def _values(subscription: object, count: int) -> list[bytes | str]:
    """Return what a subscription yields next."""
    found: list[bytes | str] = []
    while len(found) < count:
        item = subscription.poll(LONG_S)  # type: ignore[attr-defined]
        assert isinstance(item, StreamEvent | CaughtUp), "nothing came"
        found.append(item.value if isinstance(item, StreamEvent) else "caught up")
    return found
