"""What comes in between: a storage that is away while answers are made up, a close while a block is."""

from __future__ import annotations

import contextlib
import threading

import pytest

from oncelog.errors import OncelogError, Unavailable
from oncelog.log.append.absorber import COLUMNS_MIN
from oncelog.log.append.groups import Group
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.append.tail import SegmentTail
from oncelog.types import Record
from tests.log.watched import orders
from tests.log.worlds import DiskWorld

AWAY = "storage is away for a moment"


@pytest.mark.parametrize("count", [1, 2 * COLUMNS_MIN])
def test_answers_that_cannot_be_given_now_end_nothing(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an old record is may have to be looked up: who asked for it is told, and the writer goes on."""

    def away(*_: object) -> None:
        raise Unavailable(AWAY)

    with orders(DiskWorld().database()).writer() as writer:
        records = [Record(b"old", id=f"old {number}") for number in range(count)]
        writer.append_many(records)
        with monkeypatch.context() as patched:
            for name in ("places_of", "place_of"):
                patched.setattr(SegmentRun, name, away)
            futures = [writer.submit(record.value, id=record.id) for record in records]
            for future in futures:
                assert AWAY in str(future.exception(timeout=30))
        assert writer.submit(b"new", id="new").result(timeout=30).position == count
        assert writer.append(b"old", id="old 0").duplicate


def test_closed_while_a_block_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows then whether it is stored: that is what is said, and the next writer finds out."""
    made, goes_on = threading.Event(), threading.Event()
    errors: list[OncelogError] = []
    encode = SegmentTail.encode

    def slowly(tail: SegmentTail, group: Group) -> None:
        made.set()
        assert goes_on.wait(30)
        encode(tail, group)

    log = orders(DiskWorld().database())
    writer = log.writer()
    writer.append(b"first")
    records = [Record(b"a", id="a"), Record(b"b", id="b")]

    def append() -> None:
        try:
            writer.append_many(records)
        except OncelogError as error:
            errors.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentTail, "encode", slowly)
        appending = threading.Thread(target=append)
        appending.start()
        assert made.wait(30)
        with contextlib.suppress(Unavailable):
            writer.close(timeout_s=0)
        goes_on.set()
        appending.join()
    assert [type(error) for error in errors] == [Unavailable]
    with log.writer() as writer:
        writer.append_many(records)
    assert [entry.id for entry in log.read()] == [None, "a", "b"]
