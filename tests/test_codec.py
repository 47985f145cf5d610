"""Codecs: objects go in and come out typed, equal objects are equal bytes, and a wrong value is refused where it is
written.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import oncelog
from oncelog import BadValue, InvalidArgument, Message, Record


class Line(msgspec.Struct, frozen=True):
    """A part of an order."""

    article: str
    count: int


@dataclasses.dataclass
class Order:
    """What a program has instead of bytes."""

    id: str
    amount: Decimal
    at: datetime
    lines: list[Line] = dataclasses.field(default_factory=list)
    rate: float | None = None
    tags: frozenset[str] = frozenset()
    by_day: dict[int, str] = dataclasses.field(default_factory=dict)


ORDER = Order(
    "42",
    Decimal("9.90"),
    datetime(2026, 1, 2, tzinfo=UTC),
    [Line("pen", 2)],
    1.5,
    frozenset("abcdef"),
    {2: "b", 1: "a"},
)
ORDERS = oncelog.json(Order)


def test_what_goes_in_comes_out_typed() -> None:
    """A dataclass with Structs, decimals, moments, sets and numbered keys is the same object behind the log."""
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        ack = writer.append(ORDERS.encode(ORDER), id=ORDER.id)
        (entry,) = db.log("orders").read()
        order: Order = ORDERS.decode(entry)
        assert order == ORDER
        assert writer.append(ORDERS.encode(order), id=order.id).position == ack.position


def test_every_face_takes_and_gives_values() -> None:
    """What has a value can be decoded: entries, events, deliveries, what peek shows, and dead letters."""
    lines = oncelog.json(Line)
    line = Line("pen", 2)
    with oncelog.connect("memory://") as db:
        streams = db.streams("events", create=True)
        streams.append("s", [Record(lines.encode(line))])
        (event,) = streams.read("s")
        queue = db.queue("work", create=True)
        queue.send_many([Message(lines.encode(line))])
        with queue.consume() as deliveries:
            (peeked,) = queue.peek()
            (delivery,) = deliveries.receive()
            delivery.nack("no", retry=False)
        (letter,) = queue.dead_letters.list()
        assert [lines.decode(one) for one in (event, peeked, delivery, letter)] == [line] * 4


def test_plain_objects_need_no_type() -> None:
    """``oncelog.json`` itself is for dicts and lists."""
    given = {"b": [1, 2.5, None, "é"], "a": {"x": True}}
    data = oncelog.json.encode(given)
    assert data == '{"a":{"x":true},"b":[1,2.5,null,"é"]}'.encode()
    assert oncelog.json.decode(data) == given


def test_equal_objects_are_equal_bytes_in_every_process() -> None:
    """The order of a set's elements differs between processes: a retry after a restart must not be a conflict."""
    program = """
import oncelog
print(oncelog.json.encode({"b": {"x", "y", "z", "w"}, "a": frozenset("qwertyuiop"), "n": {3: {"m", "n"}, 1: 2}}))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1, found
    assert oncelog.json.encode({"a": 1, "b": 2}) == oncelog.json.encode({"b": 2, "a": 1})
    assert oncelog.json.encode({2: "b", 1: "a"}) == oncelog.json.encode({1: "a", 2: "b"})


@pytest.mark.parametrize(
    ("codec", "value", "says"),
    [
        (ORDERS, {"id": "42"}, "is not of Order"),
        (oncelog.json(dict[str, int]), {"a": "x"}, "is not of dict"),
        (oncelog.json(Line), Line("pen", "two"), "is not of Line"),  # type: ignore[arg-type]
        (ORDERS, dataclasses.replace(ORDER, rate=float("nan")), "has NaN or infinity"),
        (oncelog.json, {"deep": [{"a": (float("-inf"),)}]}, "has NaN or infinity"),
        (oncelog.json, object(), "cannot be JSON"),
        (oncelog.json, "\ud800", "cannot be JSON"),
        (oncelog.json, {object(): 1}, "cannot be JSON"),
    ],
    ids=["mapping", "items", "field", "nan", "infinity", "object", "surrogate", "key"],
)
def test_a_wrong_value_is_refused_where_it_is_written(codec: Any, value: object, says: str) -> None:
    """What no reader could read, or would read as something else, is not written: JSON would have null for NaN."""
    with pytest.raises(InvalidArgument, match=says):
        codec.encode(value)


def test_a_value_within_itself_is_refused() -> None:
    """A list that holds itself has no end."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="cannot be JSON"):
        oncelog.json.encode(endless)


@pytest.mark.parametrize("make", [lambda data: data, bytearray, memoryview], ids=["bytes", "bytearray", "memoryview"])
@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[1]", b'{"article":"pen"}', b"[" * 100_000, b'{"article":"\xff"}']
)
def test_bytes_that_are_no_such_object_are_named(make: Callable[[bytes], Any], data: bytes) -> None:
    """The reader gets an error of Oncelog's tree, also for bytes that were made to do harm."""
    with pytest.raises(BadValue, match="is not of Line") as caught:
        oncelog.json(Line).decode(make(data))
    assert caught.value.position is None


def test_bytes_without_an_end_are_an_error() -> None:
    """Brackets that were made to exhaust the stack are an error as others are."""
    with pytest.raises(BadValue):
        oncelog.json.decode(b"[" * 1_000_000)


def test_the_place_of_a_bad_value_is_told() -> None:
    """Somebody has to look at the record: the error says where it is."""
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"{}")
        writer.append(b"no JSON")
        *_, entry = db.log("orders").read()
        with pytest.raises(BadValue, match="at position 1 is not of Line") as caught:
            oncelog.json(Line).decode(entry)
        assert caught.value.position == 1


@pytest.mark.parametrize("kind", [list[int] | list[str], "Nothing", 5])
def test_a_type_that_cannot_be_read_is_refused_at_once(kind: Any) -> None:
    """The mistake is in the program, and is told before anything is read or written."""
    with pytest.raises(InvalidArgument, match="cannot be a type of values"):
        oncelog.json(kind)


def test_a_moment_is_stored_as_it_is_or_refused() -> None:
    """Before 1893 Vienna was 1:05:21 off UTC. The seconds of an offset do not fit into JSON: the value would come back
    as another moment.
    """
    vienna = ZoneInfo("Europe/Vienna")
    for codec in (oncelog.json(dict[str, list[datetime]]), oncelog.json):
        for moment in (
            datetime(1880, 1, 1, tzinfo=vienna),
            datetime(1880, 1, 1, tzinfo=timezone(timedelta(seconds=61))),
        ):
            with pytest.raises(InvalidArgument, match="off UTC"):
                codec.encode({"at": [moment]})
    for moment in (datetime(1980, 7, 1, tzinfo=vienna), datetime(1880, 1, 1, tzinfo=vienna).astimezone(UTC)):
        assert oncelog.json(datetime).decode(oncelog.json(datetime).encode(moment)) == moment


def test_a_moment_may_be_a_key() -> None:
    """As every value that msgspec writes as a key; it is looked at like others."""
    by_time = oncelog.json(dict[datetime, int])
    value = {datetime(1980, 7, 1, tzinfo=ZoneInfo("Europe/Vienna")): 1}
    assert by_time.decode(by_time.encode(value)) == value
    with pytest.raises(InvalidArgument, match="off UTC"):
        by_time.encode({datetime(1880, 1, 1, tzinfo=ZoneInfo("Europe/Vienna")): 1})


@pytest.mark.parametrize("text", [b'"1980-07-01T00:00:00+02:00"', b"null"])
def test_what_is_json_already_may_be_part_of_a_value(text: bytes) -> None:
    """A ``msgspec.Raw`` is stored as it is, whatever is in it."""
    assert oncelog.json.encode({"as it is": msgspec.Raw(text)}) == b'{"as it is":' + text + b"}"
