"""The service Streams, and a log that is written by both faces at once."""

from __future__ import annotations

import os

import grpc
import pytest

from oncelog.errors import InvalidArgument, WrongExpectedVersion
from oncelog.wire import messages
from tests.server.clients import Wire, error_of, record


@pytest.fixture
def shop(wire: Wire) -> str:
    """Return the name of a new log of streams."""
    name = f"shop-{os.urandom(8).hex()}"
    wire.call("Database.Create", name=name, kind="streams", create=True)
    return name


def _append(wire: Wire, log: str, stream: str, *values: bytes, **expected: object) -> list[messages.EventAck]:
    records = [record(value, id=f"{stream}-{value.decode()}") for value in values]
    return list(wire.call("Streams.Append", log=log, stream=stream, records=records, **expected).acks)


def test_expected_versions_hold_over_the_wire(wire: Wire, shop: str) -> None:
    """A wrong version is refused with both versions; a retry under the right one is recognised by the stream."""
    first = _append(wire, shop, "order-1", b"placed", expected_word="no stream")
    assert [(ack.version, ack.position) for ack in first] == [(0, 0)]
    again = _append(wire, shop, "order-1", b"placed", expected_word="no stream")
    assert [(ack.version, ack.duplicate) for ack in again] == [(0, True)]
    with pytest.raises(WrongExpectedVersion) as refused:
        _append(wire, shop, "order-1", b"paid", expected_version=7)
    assert (refused.value.expected, refused.value.actual) == (7, 0)
    _append(wire, shop, "order-1", b"paid", expected_version=0)
    assert wire.call("Streams.Version", log=shop, stream="order-1").version == 1
    assert not wire.call("Streams.Version", log=shop, stream="other").HasField("version")


def test_both_faces_of_a_log_count_the_same_versions(wire: Wire, shop: str) -> None:
    """Events that come by the log's face are events of their stream: the next exact version is behind them."""
    for number in range(0, 20, 2):
        _append(wire, shop, "s", b"%d" % number, expected_version=number - 1)
        wire.call("Log.Append", log=shop, records=[record(b"%d" % (number + 1), stream="s")])
    with pytest.raises(WrongExpectedVersion) as refused:
        _append(wire, shop, "s", b"x", expected_version=25)
    assert refused.value.actual == 19
    [part] = wire.answers("Streams.Read", log=shop, stream="s")
    assert [(event.version, event.value) for event in part.events] == [(n, b"%d" % n) for n in range(20)]


def test_streams_are_read_both_ways_and_listed(wire: Wire, shop: str) -> None:
    """Reading takes start, limit, direction, prefix and types."""
    _append(wire, shop, "a-1", b"0", b"1", b"2")
    _append(wire, shop, "b-1", b"3")
    backward = wire.answers("Streams.Read", log=shop, stream="a-1", backward=True, limit=2)
    assert [event.value for part in backward for event in part.events] == [b"2", b"1"]
    every = wire.answers("Streams.Read", log=shop, prefix="b")
    assert [event.stream for part in every for event in part.events] == ["b-1"]
    listed = [one for part in wire.answers("Streams.List", log=shop) for one in part.streams]
    assert [(one.stream, one.version, one.count) for one in listed] == [("a-1", 2, 3), ("b-1", 0, 1)]


def test_a_subscription_catches_up_says_so_and_goes_on(wire: Wire, shop: str) -> None:
    """Events of the past, then ``caught_up`` once, then events as they are appended: each once, in order."""
    _append(wire, shop, "s", b"0", b"1")
    items = wire.answers("Streams.Subscribe", log=shop, stream="s", start=messages.Start(position=0))
    seen: list[object] = []
    while "caught up" not in seen:
        seen += _items(next(items))
    for number in (2, 3, 4):
        _append(wire, shop, "s", b"%d" % number)
    while len(seen) < 6:
        seen += _items(next(items))
    items.cancel()
    assert seen == [b"0", b"1", "caught up", b"2", b"3", b"4"]


def _items(item: messages.SubscriptionItem) -> list[object]:
    if item.WhichOneof("item") == "caught_up":
        return ["caught up"]
    return [event.value for event in item.events.events]


def test_a_log_without_streams_is_refused(wire: Wire, log: str) -> None:
    """A log whose ids are of the whole log cannot hold streams."""
    with pytest.raises(InvalidArgument):
        _append(wire, log, "s", b"x")
    with pytest.raises(grpc.RpcError) as refused:
        list(wire.answers("Streams.Subscribe", log=log, start=messages.Start(timestamp_us=5)))
    assert isinstance(error_of(refused.value), InvalidArgument)
