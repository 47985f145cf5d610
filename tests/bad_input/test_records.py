"""Names and records that break a rule are refused by name, and the log is unharmed."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import oncelog
from oncelog import (
    AppendErrors,
    Database,
    IdConflict,
    InvalidArgument,
    LogSettings,
    NotFound,
    PartialOverlap,
    Record,
    Window,
    limits,
)
from oncelog.log.writer import Writer
from tests.bad_input.refusals import assert_unharmed, in_memory, refused

# Names of logs.


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "1 to 255 bytes"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("/", "empty"),
        ("/a", "empty"),
        ("a/", "empty"),
        ("a//b", "empty"),
        ("a/../b", "'..'"),
        ("../../etc/passwd", "'..'"),
        ("a" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("\N{GRINNING FACE}" * 64, "256 bytes"),
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\ud800", "surrogate"),
        (None, "not NoneType"),
        (5, "not int"),
        (b"orders", "not bytes"),
        (Path("orders"), "Path"),
    ],
)
def test_bad_name(db: Database, tmp_path: Path, name: Any, word: str) -> None:
    """A name can neither leave the database's folder nor be one that some home could not keep."""
    for create in (False, True):
        refused(partial(db.log, name, create=create), word)
    assert db.logs() == []
    assert not (tmp_path / "db").exists()


GOOD_NAMES = [
    "a",
    "...",
    ".hidden",
    "a/b",
    "a/b/c",
    "tenant one/orders",
    "ORDERS",
    "orders",
    "%2E",
    "a%2Fb",
    "a~b",
    "con",
    "été",
    "注文",
    "\N{GRINNING FACE}",
    "e\u0301",
    "\u00e9",
    "'; drop table logs; --",
    "a" * 255,
    "a" * 254 + "b",
    "é" * 127,
    "注" * 85,
    "/".join(["x"] * 128),
    "%" * 255,
]


def test_every_good_name_is_a_log_of_its_own(db: Database) -> None:
    """Names that look alike, are long, or have signs that a file system dislikes, come back as they were given."""
    for name in GOOD_NAMES:
        with db.log(name, create=True).writer() as writer:
            writer.append(name.encode(), id="same")
    assert db.logs() == sorted(GOOD_NAMES)
    for name in GOOD_NAMES:
        assert [entry.value for entry in db.log(name).read()] == [name.encode()]


def test_log_that_is_not_there(db: Database) -> None:
    """Opening creates nothing unless it was asked to: a mistyped name is no new log."""
    refused(lambda: db.log("orders"), "'orders'", "create=True", error=NotFound)
    assert db.logs() == []


# Records.

BAD_RECORDS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"value": "text"}, ("value", "str", "encode")),
    ({"value": None}, ("value", "NoneType", "bytes")),
    ({"value": 5}, ("value", "int", "bytes")),
    ({"value": [b"a"]}, ("value", "list", "bytes")),
    ({"value": np.zeros(3)}, ("value", "ndarray", "bytes")),
    ({"value": bytes(limits.VALUE_BYTES_MAX + 1)}, ("value", "16777217", "at most 16777216")),
    ({"value": bytearray(limits.VALUE_BYTES_MAX + 1)}, ("value", "16777217", "at most 16777216")),
    ({"id": ""}, ("id", "empty", "leave it out")),
    ({"id": "a" * 256}, ("id", "256", "at most 255")),
    ({"id": "é" * 128}, ("id", "256", "at most 255")),
    ({"id": 42}, ("id", "int", "str")),
    ({"id": b"order-42"}, ("id", "bytes", "str")),
    ({"id": "\ud800"}, ("id", "surrogate")),
    ({"headers": [("a", b"b")]}, ("headers", "list", "mapping")),
    ({"headers": {"a": "b"}}, ("headers", "'a'", "str", "bytes")),
    ({"headers": {"a": None}}, ("headers", "'a'", "NoneType", "bytes")),
    ({"headers": {1: b""}}, ("headers", "int", "str")),
    ({"headers": {"\ud800": b""}}, ("headers", "surrogate")),
    ({"headers": {"a" * 1025: b""}}, ("headers", "1025", "at most 1024")),
    ({"headers": {str(n): b"" for n in range(65)}}, ("headers", "65", "at most 64")),
    ({"headers": {"a": bytes(limits.HEADER_BYTES_MAX)}}, ("headers", "65537", "at most 65536")),
    *[
        ({label: bad}, (label, *words))
        for label in ("stream", "type", "tenant")
        for bad, words in (
            (5, ("int", "str")),
            (b"x", ("bytes", "str")),
            ("a" * 1025, ("1025", "at most 1024")),
            ("\ud800", ("surrogate",)),
        )
    ],
]


def short(fields: dict[str, Any]) -> str:
    """Return a name for a case that is not as long as its value."""
    return re.sub(r"\W+", " ", f"{fields}"[:40]).strip()


@in_memory
@pytest.mark.parametrize(("fields", "words"), BAD_RECORDS, ids=[short(fields) for fields, _ in BAD_RECORDS])
def test_bad_record(writer: Writer, fields: dict[str, Any], words: tuple[str, ...]) -> None:
    """Every way in is guarded by the same rules; ``append_many`` stores what is good and names what is not."""
    given = {"value": b"v", **fields}
    bad = Record(**given)
    refused(lambda: writer.append(**given), *words)
    refused(lambda: writer.submit(**given), *words)
    refused(lambda: writer.append_batch([Record(b"v"), bad]), *words)
    with pytest.raises(AppendErrors, match="1 of 1 records were refused") as raised:
        writer.append_many([bad])
    (error,) = raised.value.results
    assert type(error) is InvalidArgument
    assert all(word in str(error) for word in words)


def test_append_many_stores_what_is_good(db: Database) -> None:
    """One bad record among good ones is named at its place, and costs the others nothing."""
    with db.log("orders", create=True).writer() as writer:
        writer.append(b"before", id="before")
        with pytest.raises(AppendErrors, match="1 of 3") as raised:
            writer.append_many([Record(b"a", id="a"), Record(b"x", id=""), Record(b"b", id="b")])
        first, error, last = raised.value.results
        assert (first.position, last.position) == (1, 2)
        assert type(error) is InvalidArgument
    assert_unharmed(db, b"a", b"b")


@in_memory
@pytest.mark.parametrize(
    "records", [None, 5, Record(b"x"), [b"x"], ["x"], [None], [(b"x",)], [{"value": b"x"}], "xy", b"xy"]
)
def test_what_is_not_records(writer: Writer, records: Any) -> None:
    """A list of something else, or a record without its list, is told apart from a program error inside."""
    refused(lambda: writer.append_batch(records), "records: ", "Record")
    refused(lambda: writer.append_many(records), "records: ", "Record")


def test_a_record_is_recognised_by_one_thing(writer: Writer) -> None:
    """An id and a sequence could say different things of one record."""
    refused(lambda: writer.append(b"v", id="i", producer="p", sequence=1), "id 'i'", "not by both")
    table = pa.table({"value": pa.array([b"v"], pa.binary()), "id": ["i"], "producer": ["p"]})
    refused(lambda: writer.append_arrow(table), "row 0", "not by both")


def test_limits_themselves_are_allowed(db: Database) -> None:
    """The largest of everything, and the smallest, goes in and comes out as it was."""
    largest = Record(
        bytes(limits.VALUE_BYTES_MAX),
        id="é" * 127 + "x",
        stream="s" * 1024,
        type="t" * 1024,
        headers={str(n).rjust(24, "0"): bytes(1000) for n in range(64)},
        tenant="n" * 1024,
    )
    smallest = Record(b"", id="\0", stream="", type="", headers={"": b""}, tenant="")
    log = db.log("orders", create=True)
    with log.writer() as writer:
        assert [ack.position for ack in writer.append_many([largest, smallest])] == [0, 1]
        assert writer.append(bytearray(b"abc"), id="3").position == 2  # type: ignore[arg-type]
        assert writer.append(memoryview(b"a-b-c")[::2], id="4").position == 3  # type: ignore[arg-type]
        assert writer.append(b"abc", id="3").duplicate
        assert writer.append(b"abc", id="4").duplicate
    found = list(log.read())
    for sent, entry in zip((largest, smallest), found, strict=False):
        for name in Record.__struct_fields__:
            assert getattr(entry, name) == getattr(sent, name)
    assert [entry.value for entry in found[2:]] == [b"abc", b"abc"]


def test_records_belong_to_the_log_once_they_are_given(db: Database) -> None:
    """What the caller does to its own buffers after ``submit`` does not change what is stored."""
    value, headers = bytearray(b"given"), {"a": b"given"}
    log = db.log("orders", create=True)
    with log.writer() as writer:
        future = writer.submit(value, id="1", headers=headers)  # type: ignore[arg-type]
        value[:] = b"other"
        headers["a"] = b"other"
        assert future.result().position == 0
        assert writer.append(b"given", id="1", headers={"a": b"given"}).duplicate
    (entry,) = log.read()
    assert (entry.value, entry.headers) == (b"given", {"a": b"given"})


def test_batch_that_cannot_be_one(db: Database) -> None:
    """A batch is refused whole, for what is wrong with it as a batch."""
    log = db.log("orders", LogSettings(window=Window(max_keys=3)), create=True)
    with log.writer() as writer:
        writer.append(b"before", id="before")
        same = [Record(b"a", id="same"), Record(b"b", id="same")]
        refused(lambda: writer.append_batch(same), "'same'", "more than once")
        refused(lambda: writer.append_batch([Record(b"a", id="1"), Record(b"b")]), "1 of 2", "all must, or none")
        many = [Record(b"a", id=str(n)) for n in range(4)]
        refused(lambda: writer.append_batch(many), "4 ids", "window of 3 keys")
        large = [Record(bytes(limits.VALUE_BYTES_MAX)) for _ in range(5)]
        refused(lambda: writer.append_batch(large), "does not fit a block")
        overlap = [Record(b"before", id="before"), Record(b"b", id="b")]
        with pytest.raises(PartialOverlap, match="retry a batch as it was") as raised:
            writer.append_batch(overlap)
        assert (raised.value.known, raised.value.new) == (("before",), ("b",))
    assert_unharmed(db)


def test_id_taken_by_other_content(writer: Writer) -> None:
    """The same id with other content is told with the first one's position, and what could be done."""
    with pytest.raises(IdConflict, match=r"position 0.*on_conflict") as raised:
        writer.append(b"other", id="before")
    assert raised.value.position == 0


def test_id_on_a_log_without_idempotence(db: Database) -> None:
    """A log that keeps no window must not take an id as if it did."""
    with db.log("plain", LogSettings(idempotence="off"), create=True).writer() as writer:
        refused(lambda: writer.append(b"v", id="1"), "idempotence off")
        refused(lambda: writer.append_arrow(pa.table({"value": [b"v"], "id": ["1"]})), "idempotence off")
        assert writer.append(b"v").position == 0


@in_memory
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, ("NoneType", "Table")),
        ({"value": [b"x"]}, ("dict", "Table")),
        (pa.table({"id": ["1"]}), ("value", "missing")),
        (pa.table({"value": [b"x"], "colour": ["red"]}), ("colour", "unknown column")),
        (pa.table({"value": [5]}), ("value", "int64")),
        (pa.table({"value": [b"x", None]}), ("value, row 1", "null")),
        (pa.table({"value": [b"x"], "id": [5]}), ("id", "int64")),
        (pa.table({"value": [b"x", b"y"], "id": ["1", ""]}), ("id, row 1", "1 to 255")),
        (pa.table({"value": [b"x", b"y"], "id": ["1", "a" * 256]}), ("id, row 1", "256 bytes")),
        (pa.table({"value": [b"x"], "stream": ["a" * 1025]}), ("stream, row 0", "1025")),
        (pa.table({"value": [b"x"], "start": [True]}), ("start", "unknown column")),
    ],
)
def test_bad_table(writer: Writer, table: Any, words: tuple[str, ...]) -> None:
    """A table is refused whole before anything of it is written, with column and row."""
    refused(lambda: writer.append_arrow(table), *words)


class Text(str):
    """A str that encodes as something else."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        """Return other bytes, which are no UTF-8."""
        return b"\xff\xfe"

    def isascii(self) -> bool:
        """Lie."""
        return True


class Number(int):
    """An int that is one of its own kind."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError


class Bytes(bytes):
    """Bytes that turn into others."""

    def __bytes__(self) -> bytes:
        """Return other bytes."""
        return b"other"


def test_subclasses_are_stored_as_what_they_are(tmp_path: Path) -> None:
    """A str with its own ``encode`` was stored as bytes that nobody could read; an int of another kind as a sequence
    was acknowledged, and no snapshot was stored from then on.
    """
    odd: dict[str, Any] = {
        "stream": Text("ä"),
        "type": Text("t"),
        "tenant": Text("x"),
        "headers": {Text("h"): Bytes(b"v")},
    }
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(Bytes(b"1"), id=Text("é"), **odd)
            writer.append_many([Record(Bytes(b"2"), id=Text("2"), **odd), Record(b"3", id="3")])
            writer.append_batch([Record(b"4", id=Text("4"), **odd)])
            writer.submit(b"5", id=Text("5"), **odd).result()
            with writer.as_producer(Text("p"), initial_sequence=Number(3)) as producer:
                assert producer.append(b"6").position == 5
            writer.append(b"7", producer="q", sequence=Number(7))
            writer.snapshot()
        read = [(entry.value, entry.id, entry.stream, entry.sequence) for entry in log.read()]
        assert read[:3] == [(b"1", "é", "ä", None), (b"2", "2", "ä", None), (b"3", "3", None, None)]
        assert [sequence for *_, sequence in read[5:]] == [3, 7]
        assert log.verify().ok
        queue = db.queue("work", create=True)
        queue.send(b"x", id=Text("é"), key=Text("ö"), tenant=Text("ü"), headers={Text("h"): Bytes(b"v")})
        [delivery] = queue.consume("g").receive()
        assert (delivery.id, delivery.key, delivery.tenant, delivery.headers) == ("é", "ö", "ü", {"h": b"v"})
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders").writer() as writer:
        assert writer.append(b"1", id="é", stream="ä", type="t", tenant="x", headers={"h": b"v"}).duplicate
        assert writer.last_sequence_of("q") == 7
