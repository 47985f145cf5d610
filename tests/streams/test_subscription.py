"""Subscriptions: from the past into the present without a gap, without a repeat, and never at others' expense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oncelog
from oncelog import CaughtUp, Database, Record, StreamEvent, Streams, Subscription
from oncelog.errors import Closed, InvalidArgument, NotFound, TooSlow
from oncelog.storage.memory import MemoryStorage
from oncelog.streams import reading
from oncelog.streams import subscription as module

LONG_S = 60.0


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Streams]:
    """Yield streams in memory, or on a disk."""
    db = Database(MemoryStorage()) if request.param == "memory" else oncelog.connect(tmp_path.as_uri())
    with db:
        yield db.streams("orders", create=True)


def fill(streams: Streams, first: int, count: int, stream: str = "s") -> None:
    """Append so many events, one by one."""
    for number in range(first, first + count):
        streams.append(stream, Record(b"%d" % number, type=f"t{number % 2}"))


def taken(subscription: Subscription, count: int) -> list[int | str]:
    """Return the positions of the next events, and where it was said that it has caught up."""
    found: list[int | str] = []
    for _ in range(count):
        event = subscription.poll(LONG_S)
        assert event is not None
        found.append("caught up" if isinstance(event, CaughtUp) else event.position)
    return found


def test_it_catches_up_says_so_and_goes_on_live(streams: Streams) -> None:
    """What was there, CaughtUp once, and then what comes."""
    fill(streams, 0, 3)
    with streams.subscribe_all() as subscription:
        assert taken(subscription, 4) == [0, 1, 2, "caught up"]
        assert subscription.poll() is None
        fill(streams, 3, 3)
        assert taken(subscription, 3) == [3, 4, 5]
        assert subscription.position == 6
    with streams.subscribe_all(4) as subscription:
        assert taken(subscription, 3) == [4, 5, "caught up"]
    with streams.subscribe_all("latest") as subscription:
        assert taken(subscription, 1) == ["caught up"]


def test_of_one_stream_from_a_version(streams: Streams) -> None:
    """A stream that is there, or not yet: only its events, from the version asked for."""
    fill(streams, 0, 3, "a")
    fill(streams, 3, 3, "b")
    one, none, later = streams.subscribe("b", 1), streams.subscribe("c"), streams.subscribe("b", 5)
    assert taken(one, 3) == [4, 5, "caught up"]
    assert taken(none, 1) == ["caught up"]
    assert taken(later, 1) == ["caught up"]
    latest = streams.subscribe("b", "latest")
    assert taken(latest, 1) == ["caught up"]
    for stream in "abcabc":
        fill(streams, 6, 1, stream)
    assert taken(one, 2) == [7, 10]
    assert taken(none, 2) == [8, 11]
    assert taken(latest, 2) == [7, 10]
    fill(streams, 6, 1, "b")
    assert taken(later, 1) == [12]


def test_a_version_that_is_yet_to_come_is_waited_for_also_while_catching_up(streams: Streams) -> None:
    """Events below it that come before the subscription is live are left out as those that come after."""
    fill(streams, 0, 1)
    with streams.subscribe("s", 3) as subscription:
        fill(streams, 1, 4)
        assert taken(subscription, 3) == [3, 4, "caught up"]


def test_filters(streams: Streams) -> None:
    """By what the stream begins with, and by type: in the past and live."""
    subscription = streams.subscribe_all(prefix="ab", types=["t0"])
    assert taken(subscription, 1) == ["caught up"]
    for stream in ("abc", "b", "abd"):
        fill(streams, 0, 2, stream)
    assert taken(subscription, 2) == [0, 4]
    assert subscription.poll() is None
    with streams.subscribe_all(prefix="ab", types=["t0"]) as again:
        assert taken(again, 3) == [0, 4, "caught up"]
    with pytest.raises(InvalidArgument):
        streams.subscribe_all(types="t0")


def in_pieces(storage: MemoryStorage, count: int) -> Streams:
    """Append an event a segment, and return the streams: each segment is read by itself."""
    for number in range(count):
        with Database(storage) as db:
            db.streams("orders", create=True).append(f"s-{number}", Record(b"x"))
    return Database(storage).streams("orders")


def test_what_nobody_wants_is_passed_over_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that finds nothing for long is given back the word, goes on where it was, and comes to the end."""
    monkeypatch.setattr(module, "PIECES_MIN", 2)
    with in_pieces(MemoryStorage(), 7).subscribe_all(prefix="s-5") as subscription:
        assert subscription.poll() is None
        assert not subscription.caught_up
        found = [subscription.poll() for _ in range(7)]
        assert [type(one) for one in found if one is not None] == [StreamEvent, CaughtUp]
        assert subscription.caught_up


def test_closing_ends_a_subscription_that_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is to pass over, it ends with the piece at which it was closed."""
    subscription = in_pieces(MemoryStorage(), 7).subscribe_all(types=["none"])
    pieces = []

    def read(*arguments: Any) -> list[StreamEvent]:
        pieces.append(arguments)
        if len(pieces) == 3:
            subscription.close()
        return all_rows(*arguments)

    all_rows = reading.all_rows
    monkeypatch.setattr(reading, "all_rows", read)
    with pytest.raises(Closed):
        subscription.poll(LONG_S)
    assert len(pieces) == 3


@given(
    rows=st.lists(st.tuples(st.sampled_from([None, "a", "ab", "b"]), st.sampled_from([None, "t", "u"])), max_size=30),
    wanted=st.builds(
        reading.Filter,
        prefix=st.sampled_from(["", "a", "ab"]),
        types=st.sampled_from([None, frozenset[str](), frozenset({"t"})]),
        stream=st.sampled_from([None, "a", "c"]),
        version=st.integers(0, 3),
    ),
)
@settings(max_examples=60, deadline=None)
def test_columns_are_chosen_as_events_are(rows: list[tuple[str | None, str | None]], wanted: reading.Filter) -> None:
    """What is filtered without making events of it is what the events would tell."""
    with Database(MemoryStorage()) as db:
        streams = db.streams("orders", create=True)
        with db.log("orders").writer() as w:
            w.append_many([Record(b"x", stream=stream, type=type) for stream, type in rows])
        found = list(streams.read_all())
        scan = reading.forward(streams._index, db.log("orders")._scan(), 0, len(rows), wanted)
        assert [event for part in scan for event in part] == list(filter(wanted.wants, found))


def test_no_gap_and_no_repeat_under_concurrent_appends(streams: Streams) -> None:
    """Subscribers that join while others append see every event once, in order, whenever they came."""
    writers, subscribers, each = 4, 6, 40
    total = writers * each

    def write(number: int) -> None:
        fill(streams, 0, each, f"s-{number}")

    def follow(wait: threading.Event | None) -> tuple[list[int], int]:
        if wait is not None:
            assert wait.wait(LONG_S)
        seen: list[int] = []
        caught_up = 0
        with streams.subscribe_all() as subscription:
            while len(seen) < total:
                event = subscription.poll(LONG_S)
                assert event is not None
                if isinstance(event, StreamEvent):
                    seen.append(event.position)
                else:
                    caught_up += 1
        return seen, caught_up

    begun = threading.Event()
    with ThreadPoolExecutor(writers + subscribers) as pool:
        following = [pool.submit(follow, None if number % 2 else begun) for number in range(subscribers)]
        writing = [pool.submit(write, number) for number in range(writers)]
        writing[0].result(LONG_S)
        begun.set()
        for done in writing:
            done.result(LONG_S)
        for one in following:
            seen, caught_up = one.result(LONG_S)
            assert seen == list(range(total))
            assert caught_up <= 1


def test_a_slow_subscriber_is_ended_and_others_are_unharmed(streams: Streams) -> None:
    """A subscriber that falls too far behind learns so, and where to go on; the others do not notice."""
    slow, fast = streams.subscribe_all(max_behind=10), streams.subscribe_all(max_behind=10)
    assert taken(slow, 1) == taken(fast, 1) == ["caught up"]
    for number in range(30):
        fill(streams, number, 1)
        assert taken(fast, 1) == [number]
    with pytest.raises(TooSlow, match="subscribe again from position 0"):
        slow.poll()
    assert slow.position == 0
    assert slow.closed
    with pytest.raises(Closed):
        slow.poll()
    fill(streams, 30, 1)
    assert taken(fast, 1) == [30]
    with streams.subscribe_all(slow.position, max_behind=10) as again:
        assert taken(again, 31) == list(range(31)), "catching up is not being slow"


def test_a_slow_subscriber_is_ended_though_nobody_else_reads(streams: Streams) -> None:
    """It is the log's end that counts, not what others have read."""
    slow = streams.subscribe_all(max_behind=10)
    assert taken(slow, 1) == ["caught up"]
    fill(streams, 0, 11)
    with pytest.raises(TooSlow):
        slow.poll()


@pytest.mark.parametrize("limit", ["LIVE_EVENTS", "LIVE_BYTES"])
def test_what_is_no_longer_kept_is_read_from_the_log(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A subscriber within its bounds misses nothing, whatever others have made go."""
    monkeypatch.setattr(module, limit, 4)
    slow, fast = streams.subscribe_all(), streams.subscribe_all()
    assert taken(slow, 1) == taken(fast, 1) == ["caught up"]
    for number in range(40):
        fill(streams, number, 1)
        assert taken(fast, 1) == [number]
    assert len(streams._live._events) <= 8
    assert taken(slow, 40) == list(range(40))
    fill(streams, 40, 2)
    assert taken(slow, 2) == taken(fast, 2) == [40, 41]


def test_a_thousand_subscriptions_get_every_event(tmp_path: Path) -> None:
    """Each event is read from the log once, and handed to each of them."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        streams = db.streams("orders", create=True)
        subscriptions = [streams.subscribe_all("latest") for _ in range(1000)]
        assert all(isinstance(subscription.poll(), CaughtUp) for subscription in subscriptions)
        fill(streams, 0, 5)
        for subscription in subscriptions:
            assert taken(subscription, 5) == [0, 1, 2, 3, 4]


def test_closing_ends_a_subscription_that_waits(streams: Streams) -> None:
    """From another thread, by itself or with everything else; iterating it ends, polling it says so."""
    first, second = streams.subscribe_all(), streams.subscribe_all()
    assert taken(first, 1) == taken(second, 1) == ["caught up"]
    with ThreadPoolExecutor(2) as pool:
        iterated = pool.submit(lambda: list(first))
        polled = pool.submit(second.poll, LONG_S)
        fill(streams, 0, 1)
        assert isinstance(polled.result(LONG_S), StreamEvent)
        again = pool.submit(second.poll, LONG_S)
        first.close()
        assert len(iterated.result(LONG_S)) <= 1
        streams.close()
        with pytest.raises(Closed):
            again.result(LONG_S)


def test_a_start_that_is_not_there_is_told(streams: Streams) -> None:
    """A position behind the end is an error, not a wait for ever."""
    with pytest.raises(NotFound):
        streams.subscribe_all(5)
    with pytest.raises(InvalidArgument):
        streams.subscribe_all(max_behind=0)


def test_another_process_s_events_come_too(tmp_path: Path) -> None:
    """A reader that is not the writer follows the log on the disk."""
    with oncelog.connect(tmp_path.as_uri()) as db, oncelog.connect(tmp_path.as_uri()) as other:
        streams = db.streams("orders", create=True)
        subscription = other.streams("orders").subscribe("s")
        assert taken(subscription, 1) == ["caught up"]
        fill(streams, 0, 3)
        assert taken(subscription, 3) == [0, 1, 2]
        assert other.streams("orders").version("s") == 2


def test_subscriptions_end_with_their_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes the log, and makes one of its name: nobody goes on with the events of that one."""
    from oncelog.log.read import reader

    monkeypatch.setattr(reader, "THERE_S", 0.0)
    storage = MemoryStorage()
    with Database(storage) as db, Database(storage) as other:
        with other.streams("orders", create=True) as streams:
            fill(streams, 0, 2)
        followed = db.streams("orders")
        subscriptions = [followed.subscribe("s"), followed.subscribe_all()]
        assert [taken(one, 3) for one in subscriptions] == [[0, 1, "caught up"]] * 2
        other.delete("orders")
        for subscription in subscriptions:
            with pytest.raises(NotFound, match="deleted"):
                subscription.poll(LONG_S)
