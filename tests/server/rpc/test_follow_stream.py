"""``Log.Follow``: many tails on one stream, each with a number, and with a room of its own."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from oncelog.errors import InvalidArgument
from oncelog.wire import frames, messages, values
from oncelog.wire.frames import FOLLOWERS_MAX, Kind, Raw
from tests.server.clients import Wire, error_of, record


class Following:
    """A stream that sends what it is told to."""

    def __init__(self, wire: Wire) -> None:
        """Open the stream."""
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.answers = wire.talk("Log.Follow", iter(self._sent.get, None))

    def send(self, kind: Kind, number: int, request: Any = None) -> None:
        """Send a message."""
        self._sent.put(frames.pack(Raw(kind, b"" if request is None else request.SerializeToString(), number)))

    def follow(self, number: int, log: str, more_bytes: int = 1 << 20) -> None:
        """Follow a log from its beginning."""
        self.send(Kind.FOLLOW, number, messages.ReadRequest(log=log, start=messages.Start(position=0)))
        self.more(number, more_bytes)

    def more(self, number: int, size_bytes: int) -> None:
        """Let so many more bytes come."""
        self._sent.put(frames.more(number, size_bytes))

    def told(self) -> Iterator[Raw]:
        """Yield the answers that are for a tail. Number 0 says that a silent stream is alive."""
        return (raw for raw in map(frames.unpack, self.answers) if raw.tag)

    def next(self) -> tuple[int, list[bytes] | str]:
        """Return the next answer: its number, and the values or the kind of an error."""
        raw = next(self.told())
        body = bytes(raw.body)
        if raw.kind is Kind.ERROR:
            return raw.tag, str(messages.Error.FromString(body).kind)
        if raw.kind is Kind.ITEM:
            return raw.tag, [
                values.event(one).value for one in messages.SubscriptionItem.FromString(body).events.events
            ]
        return raw.tag, [entry.record.value for entry in messages.Entries.FromString(body).entries]

    def end(self) -> None:
        """End the requests."""
        self._sent.put(None)


@pytest.fixture
def following(wire: Wire) -> Iterator[Following]:
    """Yield an open stream."""
    made = Following(wire)
    yield made
    made.end()
    made.answers.cancel()


def _append(wire: Wire, log: str, *given: bytes) -> None:
    wire.call("Log.Append", log=log, records=[record(value) for value in given])


def test_a_stream_carries_tails_and_subscriptions_by_number(wire: Wire, following: Following) -> None:
    """What is there comes, and what is appended later; a tail that left gets nothing more."""
    log = f"shop-{os.urandom(8).hex()}"
    wire.call("Database.Create", name=log, kind="streams", create=True)
    wire.call("Streams.Append", log=log, stream="s", records=[record(b"a")])
    following.follow(1, log)
    assert following.next() == (1, [b"a"])
    following.send(Kind.SUBSCRIBE, 9, messages.SubscribeRequest(log=log, stream="s"))
    following.more(9, 1 << 20)
    assert following.next() == (9, [b"a"])
    assert following.next() == (9, [])  # caught up
    following.send(Kind.LEAVE, 9)
    following.follow(2, log)
    assert following.next() == (2, [b"a"])
    wire.call("Streams.Append", log=log, stream="s", records=[record(b"b")])
    assert sorted([following.next(), following.next()]) == [(1, [b"b"]), (2, [b"b"])]
    following.end()
    assert list(following.told()) == []  # the stream ends when its client ends it


def test_a_tail_without_room_gets_nothing_and_holds_up_no_other(wire: Wire, log: str, following: Following) -> None:
    """The first has room for one byte, so for one message; it goes on when it has room again, and skips nothing."""
    _append(wire, log, b"a")
    following.follow(1, log, more_bytes=1)
    assert following.next() == (1, [b"a"])
    _append(wire, log, b"b")
    following.follow(2, log)
    seen: list[bytes] = []
    while len(seen) < 2:
        number, found = following.next()
        assert number == 2
        seen += found  # type: ignore[arg-type]
    assert seen == [b"a", b"b"]
    following.more(1, 1 << 20)
    assert following.next() == (1, [b"b"])


def test_a_wrong_request_ends_its_tail_alone(wire: Wire, log: str, following: Following) -> None:
    """A log that is not there, bytes that are no request, and a start that makes no sense; the others go on."""
    following.follow(1, "no such log")
    assert following.next() == (1, "NotFound")
    following._sent.put(frames.pack(Raw(Kind.FOLLOW, b"\xff\xff", 1)))  # the number is free again
    assert following.next() == (1, "InvalidArgument")
    following.more(1, 5)  # of a tail that has ended
    following.send(Kind.LEAVE, 1)
    _append(wire, log, b"a")
    following.follow(1, log)
    assert following.next() == (1, [b"a"])


@pytest.mark.parametrize(
    "wrong",
    [
        frames.pack(Raw(Kind.FOLLOW, b"", 1)),
        frames.pack(Raw(Kind.FOLLOW, b"", 0)),
        frames.pack(Raw(Kind.HELLO, b"", 2)),
        frames.pack(Raw(Kind.MORE, b"12345", 1)),
        b"short",
    ],
    ids=["taken", "zero", "kind", "more", "short"],
)
def test_what_makes_no_sense_ends_the_stream(wire: Wire, log: str, following: Following, wrong: bytes) -> None:
    """A number that is taken, or a message of another kind: the two ends do not understand each other."""
    _append(wire, log, b"a")
    following.follow(1, log)
    assert following.next() == (1, [b"a"])
    following._sent.put(wrong)
    with pytest.raises(grpc.RpcError) as refused:
        following.next()
    assert isinstance(error_of(refused.value), InvalidArgument)


def test_one_stream_has_a_bounded_number_of_tails(wire: Wire, log: str, following: Following) -> None:
    """What one stream can make a server keep is bounded. One tail too many is refused, and the others go on."""
    for number in range(1, FOLLOWERS_MAX + 2):
        following.send(Kind.FOLLOW, number, messages.ReadRequest(log=log, start=messages.Start(position=0)))
    assert following.next() == (FOLLOWERS_MAX + 1, "Unavailable")
    _append(wire, log, b"a")
    following.more(1, 1 << 20)
    assert following.next() == (1, [b"a"])
    following.send(Kind.LEAVE, 2)
    following.more(3, 1 << 20)
    assert following.next() == (3, [b"a"])  # so the server has read that number 2 left
    while True:
        following.follow(FOLLOWERS_MAX + 2, log)
        number, came = following.next()
        assert number == FOLLOWERS_MAX + 2
        if came == [b"a"]:
            break
        assert came == "Unavailable"  # number 2 has not ended yet
