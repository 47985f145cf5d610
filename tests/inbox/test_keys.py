"""From messages of all kinds to keys, and the decorator that takes them from arguments."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import oncelog
from oncelog import Effect, IdConflict, Inbox, InvalidArgument
from oncelog.inbox.decisions import fingerprint
from oncelog.inbox.keys import known


class Confluent:
    """A message as confluent-kafka has it: all are methods."""

    def __init__(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self._parts = topic, partition, offset, value

    def topic(self) -> str:
        """Return the topic."""
        return self._parts[0]

    def partition(self) -> int:
        """Return the partition."""
        return self._parts[1]

    def offset(self) -> int:
        """Return the offset."""
        return self._parts[2]

    def value(self) -> bytes:
        """Return the value."""
        return self._parts[3]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """Return an inbox in memory."""
    connection = sqlite3.connect(":memory:")
    with Inbox(connection) as opened:
        yield opened
    connection.close()


def test_events_of_two_streams_with_one_id_are_two_effects(inbox: Inbox) -> None:
    """Ids are those of their stream: two orders may each have an event "paid", with nothing in it."""
    with oncelog.connect("memory://") as db:
        orders = db.streams("orders", create=True)
        for stream in ("order-1", "order-2"):
            orders.append(stream, oncelog.Record(b"", id="paid"))
        ran = []
        for message in [*orders.read_all(), *db.log("orders").read()]:
            with inbox.once(message) as effect:
                ran.append((message.stream, not effect.done))
    assert ran == [("order-1", True), ("order-2", True), ("order-1", False), ("order-2", False)]


def test_messages_of_others_are_known() -> None:
    """A Kafka record by where it stands, an HTTP request by its header, an entry of a log by its id or position."""
    records = [
        Confluent("orders", 3, 17, b"v"),
        SimpleNamespace(topic="orders", partition=3, offset=17, value=b"v"),
    ]
    for record in records:
        assert known(record)[:2] + known(record)[4:] == ("@3:17", "orders", b"v")
    request = SimpleNamespace(
        method="POST", headers={"Idempotency-Key": '"k-1"'}, url=SimpleNamespace(path="/orders"), body=b"{}"
    )
    assert known(request)[:2] == ("k-1", "POST /orders")
    with pytest.raises(InvalidArgument, match="Idempotency-Key"):
        known(SimpleNamespace(method="POST", headers={}, path="/orders"))
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"a", id="order-1")
            writer.append(b"b")
        assert [known(entry).key for entry in log.read()] == ["order-1", "@1"]
    with pytest.raises(InvalidArgument, match="nothing to be known by"):
        known(7)


@pytest.mark.parametrize("offset", [None, -1001, True, "17"])
def test_a_kafka_record_without_a_place_is_no_message(offset: Any) -> None:
    """A key made of an offset that is none would be one key for many messages, of which one would be handled."""
    with pytest.raises(InvalidArgument, match="offset"):
        known(SimpleNamespace(topic="orders", partition=3, offset=offset, value=b"v"))
    with pytest.raises(InvalidArgument, match="position"):
        known(SimpleNamespace(id=None, position=offset, value=b"v"))


class Spelled:
    """An object whose str() is its address."""


class Shout(str):  # noqa: SLOT000  (a str that a user may have)
    """A str that encodes as something else."""

    def encode(self, *_: object) -> bytes:
        """Return other bytes than its characters'."""
        return b"shout"


_NO_KEYS: list[Any] = [Spelled(), b"x", bytearray(b"x"), 7, 7.0, True, ("a",), None]


@pytest.mark.parametrize("key", _NO_KEYS, ids=lambda key: type(key).__name__)
def test_a_key_is_a_str_wherever_it_comes_in(inbox: Inbox, key: Any) -> None:
    """``str()`` of an object is its address, of bytes their repr: such a key is another one each time, or a wrong one,
    and the effect would happen again.
    """

    @inbox.effect(key="order")
    def by_argument(order: object) -> None:
        raise AssertionError

    @inbox.effect(key=lambda order: order)
    def by_function(order: object) -> None:
        raise AssertionError

    class Delivered:
        inbox_key, topic, tenant, group, value = key, "orders", "", "mailer", b"v"

    request = SimpleNamespace(method="POST", path="/", headers={"Idempotency-Key": key}, body=b"")
    entry = SimpleNamespace(id=key or b"x", position=0, value=b"v")
    calls: list[Callable[[], object]] = [
        lambda: inbox.once(key=key),
        lambda: inbox.once(Delivered()),
        lambda: inbox.once(request),
        lambda: inbox.once(entry),
        lambda: inbox.look(key=key),
        lambda: inbox.resolve(key=key, to="again"),
        lambda: inbox.erase(key=key),
        lambda: inbox.show(key),
        lambda: by_argument(key),
        lambda: by_function(key),
    ]
    if key is not None:
        calls += [lambda: inbox.once("m", key=key), lambda: inbox.once("m", topic=key)]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"key|topic"):
            call()


def test_of_a_subclass_of_str_only_the_characters_count(inbox: Inbox) -> None:
    """Two keys that encode alike by a method of their own are two keys, and each is that of its characters."""
    for key in (Shout("a"), Shout("b"), "a"):
        with inbox.once(key=key, topic=Shout("orders")) as effect:
            assert effect.done == (type(key) is str)


def test_none_is_a_payload(inbox: Inbox) -> None:
    """A key that came with the payload ``None`` and comes with another one is in conflict: it is not done."""

    @inbox.effect(key="order", payload="total")
    def charge(order: str, total: int | None) -> None:
        pass

    charge("o-1", None)
    charge("o-1", None)
    with pytest.raises(IdConflict):
        charge("o-1", 5)
    with inbox.once("o-2", payload=None):
        pass
    with pytest.raises(IdConflict), inbox.once("o-2", payload=0):
        pass
    with inbox.once("o-2") as effect:  # a caller without a payload is not refused
        assert effect.done


def test_bytes_are_never_the_encoding_of_a_value() -> None:
    """Bytes that look like what is hashed for a number have another fingerprint; other bytes keep the stored one."""
    encoded = b"\x00msgpack" + msgspec.msgpack.encode(7)
    assert fingerprint(encoded) != fingerprint(7)
    assert fingerprint(b"plain") == hashlib.blake2b(b"plain", digest_size=32).digest()
    assert fingerprint(7) == hashlib.blake2b(encoded, digest_size=32).digest()
    assert fingerprint(None) is not None


class Order(msgspec.Struct):
    """Something with an id."""

    id: str
    total: int


def test_a_path_that_leads_nowhere_is_refused(inbox: Inbox) -> None:
    """The error names the path; the effect does not happen without a key."""

    @inbox.effect(key="order.customer.id")
    def charge(order: object) -> None:
        pytest.fail(f"{order} was charged")

    orders: list[object] = [{}, {"customer": {}}, Order("o-1", 5)]
    for order in orders:
        with pytest.raises(InvalidArgument, match=r"order\.customer\.id"):
            charge(order)


def test_keys_come_from_arguments_and_functions(inbox: Inbox) -> None:
    """By name, by a path into an argument, by a function, or from the first argument itself."""
    calls: list[str] = []

    @inbox.effect(key="order_id")
    def by_name(customer: str, order_id: str = "o-0") -> str:
        calls.append("by_name")
        return f"{customer}/{order_id}"

    @inbox.effect(key="order.id", payload="order", returns=Order)
    def by_path(order: Order) -> Order:
        calls.append("by_path")
        return Order(order.id, order.total + 1)

    @inbox.effect(key=lambda a, b: f"{a}-{b}")
    def by_function(a: int, b: int) -> int:
        calls.append("by_function")
        return a * b

    @inbox.effect
    def by_message(key: str, effect: Effect) -> str:
        calls.append("by_message")
        return effect.id

    for _ in range(2):
        assert by_name("anna", order_id="o-1") == "anna/o-1"
        assert by_path(Order("o-1", 5)) == Order("o-1", 6)
        assert by_function(0, 7) == 0
    first = by_message("m")
    assert by_message("m") == first
    assert calls == ["by_name", "by_path", "by_function", "by_message"]
    with pytest.raises(IdConflict):
        by_path(Order("o-1", 99))
    with pytest.raises(InvalidArgument, match="order_id"):
        by_name("anna")


def test_async_functions_are_decorated_too(inbox: Inbox) -> None:
    """The coroutine runs once, and its result comes each time."""
    calls: list[int] = []

    @inbox.effect(key=str)
    async def double(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0)
        return 2 * number

    async def run() -> list[int]:
        return [await double(number) for number in (0, 1, 0, 1)]

    assert asyncio.run(run()) == [0, 2, 0, 2]
    assert calls == [0, 1]


def test_an_effect_needs_a_message_or_a_key(inbox: Inbox) -> None:
    """Nothing is guessed."""
    odd: Any = 7
    for bad in (inbox.once, inbox.look, lambda: inbox.look("k", color="red"), lambda: inbox.once("k", tenant=odd)):
        with pytest.raises(InvalidArgument):
            bad()
