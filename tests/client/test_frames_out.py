"""Frames: records that are submitted by many travel together, in columns, and each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import wait

import msgspec
import pytest

import oncelog
from oncelog import Ack, Entry, IdConflict, Record, Unavailable
from oncelog.client import frames_out
from oncelog.client.frames_out import Gathered, Made
from oncelog.concurrency.pending import begun
from oncelog.connect import Database
from oncelog.wire.frames import Kind
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 120.0


def _place(found: Ack | Entry) -> tuple[object, ...]:
    return found.position, found.segment, found.entry, found.timestamp


def test_records_in_columns_keep_all_that_they_have(remote: Database) -> None:
    """A frame of many records goes in columns. Every field arrives, and every ack says where its record stands."""
    log = remote.log("orders", create=True)
    records = [
        Record(
            b"%d" % n,
            id=f"id-{n}" if n % 2 else None,
            stream="s" if n % 3 else None,
            type="ä" if n % 5 else None,
            headers={"h": b"%d" % n} if n % 7 == 0 else None,
            tenant="t" if n % 11 else None,
        )
        for n in range(5 * frames_out.ROWS_MIN)
    ]
    with log.writer() as writer:
        acks = writer.append_many(records)
    entries = list(log.read())
    assert [_place(ack) for ack in acks] == [_place(entry) for entry in entries]
    kept = [(e.value, e.id, e.stream, e.type, e.headers, e.tenant) for e in entries]
    assert kept == [(r.value, r.id, r.stream, r.type, r.headers, r.tenant) for r in records]


def test_each_record_in_columns_has_its_own_answer(remote: Database) -> None:
    """New, known, in conflict, and the same id twice in one frame."""
    with remote.log("orders", create=True).writer() as writer:
        first = writer.append(b"paid", id="known")
        given = [
            (b"paid", "known"),
            (b"other", "known"),
            *((b"%d" % n, f"new-{n}") for n in range(50)),
            (b"0", "new-0"),
        ]
        pendings = [writer.submit(value, id=id) for value, id in given]
        wait(pendings, LONG_S)
        known, conflict, *new, twice = pendings
        assert known.result(0) == msgspec.structs.replace(first, duplicate=True)
        refused = conflict.exception(0)
        assert isinstance(refused, IdConflict)
        assert refused.position == first.position
        assert [one.result(0).duplicate for one in new] == [False] * 50
        assert twice.result(0) == msgspec.structs.replace(new[0].result(0), duplicate=True)
        assert writer.last_position == 50


def test_a_producer_s_records_in_columns_are_counted(remote: Database) -> None:
    """A producer's records go in columns, too; what is sent again under their sequences is known."""
    log = remote.log("orders", create=True)
    with log.writer(producer="importer") as writer:
        acks = writer.append_many([Record(b"%d" % n) for n in range(50)])
        assert writer.last_sequence == 49
    with log.writer(producer="importer", takeover="force") as writer:
        again = writer.append_many([Record(b"%d" % n, sequence=n) for n in range(50)])
    assert [ack.position for ack in acks] == list(range(50))
    assert all(ack.duplicate for ack in again)
    assert len(list(log.read())) == 50


def test_what_gathers_behind_frames_that_hang_is_not_written(remote: Database, shared_server: Serving) -> None:
    """While two frames have no answer the next records gather. Given up there, they are surely absent; the frames that
    were sent are unknown.
    """
    log = remote.log("orders", create=True)
    proxy = Proxy(shared_server.grpc, 1, 1 << 30)
    try:
        with oncelog.connect(f"oncelog://{proxy.address}") as db, db.log("orders").writer() as writer:
            writer.append(b"before", id="before")
            proxy.swallow()
            absent = []
            for n in range(4):
                with pytest.raises(Unavailable) as raised:
                    writer.append(b"%d" % n, id=str(n), timeout_s=0)
                absent += [b"%d" % n] if raised.value.outcome == "not written" else []
            late = writer.submit(b"late", id="late", timeout_s=0)
            assert isinstance(late.exception(LONG_S), Unavailable)
            proxy.restore()
            writer.append(b"after", id="after", timeout_s=LONG_S)
    finally:
        proxy.close()
    stored = [entry.value for entry in log.read()]
    assert len(absent) >= 2, "two frames may be under way"
    assert not {*absent, b"late"} & set(stored)
    assert {b"before", b"after"} <= set(stored)
    assert len(set(stored)) == len(stored)


@pytest.mark.parametrize("count", [2, frames_out.ROWS_MIN + 1])
def test_a_record_that_was_taken_out_while_its_frame_was_made_is_not_sent(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a stream that has ended makes a body. Meanwhile the next stream is about to begin, and a caller
    whose time is over takes its record out: "not written" must stay true, so the old body is never sent.
    """
    pendings = [begun() for _ in range(count)]
    records = [Record(b"%d" % n, id=str(n)) for n in range(count)]
    gathered = [Gathered(one, its, 10, None, True) for one, its in zip(records, pendings, strict=True)]
    frame = frames_out.frame_of(gathered, threading.Condition())
    make = frames_out._made

    def interrupted(kind: Kind, given: Sequence[Record]) -> Made:
        monkeypatch.setattr(frames_out, "_made", make)
        found = make(kind, given)
        frame.take_out(pendings[0])
        return found

    monkeypatch.setattr(frames_out, "_made", interrupted)
    assert frame.made().records == records  # for a stream that has ended
    assert frame.made() == make(Kind.EACH, records[1:])
    assert frame.made() is frame.made()
