"""The service Log, method by method, against a real process."""

from __future__ import annotations

import json

import grpc
import msgspec
import pyarrow as pa
import pytest

import oncelog
from oncelog.dedup.producers import ProducerMark
from oncelog.errors import InvalidArgument, NotFound
from oncelog.log.info import Extent, LogInfo, SealedFileInfo
from oncelog.log.ingest.ingester import Ingested
from oncelog.settings import LogSettings
from oncelog.wire import frames, messages, values
from oncelog.wire.frames import Kind, Raw
from tests.server.clients import Wire, WriteSession, error_of, record


def _append(wire: Wire, log: str, *records: messages.Record, atomic: bool = False) -> list[messages.Result]:
    return list(wire.call("Log.Append", log=log, records=records, atomic=atomic).results)


def _values(wire: Wire, log: str, **request: object) -> list[bytes]:
    return [entry.record.value for part in wire.answers("Log.Read", log=log, **request) for entry in part.entries]


def test_each_record_is_decided_on_its_own(wire: Wire, log: str) -> None:
    """A refused record is a result beside the acks of the others, not an error of the call."""
    _append(wire, log, record(b"a", id="a"))
    again, conflict, new = _append(wire, log, record(b"a", id="a"), record(b"x", id="a"), record(b"b", id="b"))
    assert (again.ack.position, again.ack.duplicate) == (0, True)
    assert (conflict.error.kind, conflict.error.position) == ("IdConflict", 0)
    assert (new.ack.position, new.ack.duplicate) == (1, False)


def test_an_error_of_a_call_has_all_its_fields_in_the_trailer(wire: Wire, log: str) -> None:
    """An atomic append that overlaps in part is refused with the ids that are known and new."""
    from oncelog import PartialOverlap

    _append(wire, log, record(b"a", id="a"))
    with pytest.raises(PartialOverlap) as refused:
        _append(wire, log, record(b"a", id="a"), record(b"b", id="b"), atomic=True)
    assert (refused.value.known, refused.value.new) == (("a",), ("b",))
    with pytest.raises(NotFound):
        _append(wire, "no such log", record(b"a"))


def test_labels_and_headers_come_back_as_they_were(wire: Wire, log: str) -> None:
    """Everything that a record can carry is read as it was appended."""
    headers = messages.Headers(header=[messages.Header(name="h", value=b"\x00\xff")])
    given = record(b"v", id="i", stream="s", type="t", tenant="x", headers=headers)
    _append(wire, log, given)
    [part] = wire.answers("Log.Read", log=log)
    [entry] = part.entries
    assert (entry.position, entry.record) == (0, given)
    assert (part.next_position, part.end_position) == (1, 1)


def test_reading_starts_where_it_is_told_to_and_stops_at_a_limit(wire: Wire, log: str) -> None:
    """Start and limit are those of the embedded log; a position that is not there is NotFound."""
    _append(wire, log, *(record(b"%d" % n) for n in range(10)))
    assert _values(wire, log, start=messages.Start(position=7)) == [b"7", b"8", b"9"]
    assert _values(wire, log, start=messages.Start(word="earliest"), limit=2) == [b"0", b"1"]
    with pytest.raises(grpc.RpcError) as refused:
        _values(wire, log, start=messages.Start(position=11))
    assert isinstance(error_of(refused.value), NotFound)


def test_columns_are_read_in_pieces_that_a_client_can_take(wire: Wire, log: str) -> None:
    """A block larger than a message comes in several; the columns are those that were asked for."""
    for batch in range(3):
        _append(wire, log, *(record(bytes(200_000), id=f"{batch}-{n}") for n in range(10)))
    request = messages.ReadRequest(log=log, columns=["id", "value"], chosen_columns=True)
    sizes, ids = [], []
    for data in wire.answers("Log.ReadArrow", request):
        table, _, end = frames.read_message(data)
        assert table is not None
        assert (table.schema.names, end) == (["id", "value"], 30)
        sizes.append(len(data))
        ids += table.column("id").to_pylist()
    assert len(ids) == len(set(ids)) == 30
    assert max(sizes) < 4 << 20


def test_a_follower_gets_what_was_there_and_what_comes(wire: Wire, log: str) -> None:
    """A tail has every record once, in order, without a gap where the past meets the present."""
    _append(wire, log, record(b"0"), record(b"1"))
    tail = wire.answers("Log.Read", log=log, start=messages.Start(position=0), follow=True)
    seen = [entry.record.value for entry in next(tail).entries]
    for number in range(len(seen), 20):
        if number >= 2:
            _append(wire, log, record(b"%d" % number))
        seen += [entry.record.value for entry in next(tail).entries]
    tail.cancel()
    assert seen == [b"%d" % number for number in range(20)]


def test_tables_are_appended_and_answered_in_columns(wire: Wire, log: str) -> None:
    """WriteArrow takes an Arrow stream, in parts if it is large, and answers positions and refused rows in columns."""
    rows = 60_000
    table = pa.table({"value": pa.array([b"x" * 100] * rows, pa.binary()), "id": [str(n) for n in range(rows)]})
    hello = messages.Hello(version=1, session=bytes(16), log=log).SerializeToString()
    sent = [frames.pack(Raw(Kind.HELLO, hello))]
    parts = frames.parts(Raw(Kind.TABLE, frames.table_bytes(table), tag=1))
    assert len(parts) > 1
    conflicting = pa.table({"value": pa.array([b"new", b"other"], pa.binary()), "id": ["new", "7"]})
    sent += [*parts, *frames.parts(Raw(Kind.TABLE, frames.table_bytes(conflicting), tag=2))]
    welcome, first, second = map(frames.unpack, wire.talk("Log.WriteArrow", iter(sent)))
    assert welcome.kind is Kind.WELCOME
    assert (first.kind, first.tag) == (Kind.COLUMNS, 1)
    acks = frames.column_acks(first.body)
    assert acks.positions.tolist() == list(range(rows))
    from oncelog import AppendErrors

    with pytest.raises(AppendErrors) as refused:
        frames.column_acks(second.body)
    new, conflict = refused.value.results
    assert (new.position, conflict.position) == (rows, 7)


def test_an_id_is_found_where_it_was_stored(wire: Wire, log: str) -> None:
    """The place of an id comes from what the log remembers; an id that was never stored is not an error."""
    _append(wire, log, record(b"a", id="a"), record(b"b", id="b"))
    ack = wire.call("Log.Find", log=log, id="b").ack
    assert (ack.position, ack.segment, ack.entry) == (1, 0, 1)
    with oncelog.connect(f"oncelog://{wire.address}") as db:
        found = db.log(log).find("b")
        assert found is not None
        assert found.position == 1
        assert db.log(log).find("none") is None
    assert not wire.call("Log.Find", log=log, id="none").HasField("ack")


def test_staged_rows_are_ingested_once(wire: Wire, log: str) -> None:
    """Rows that were staged over the wire become a part of the log; the same batch again changes nothing."""
    _append(wire, log, record(b"known", id="1"))
    opening = messages.StageRequest(log=log).SerializeToString()
    table = pa.table({"value": pa.array([b"known", b"new"], pa.binary()), "id": ["1", "2"]})
    staged = wire.talk("Log.Stage", iter([opening, frames.table_bytes(table).to_pybytes()]))
    batch = json.dumps({"producer": "job", "number": 0}).encode()
    asked = messages.IngestRequest(log=log, staged=[staged.json], batch=batch)
    done = values.from_document(wire.call("Log.Ingest", asked).json, Ingested)
    assert (done.records, done.duplicates, done.replayed) == (1, 1, False)
    assert values.from_document(wire.call("Log.Ingest", asked).json, Ingested).replayed
    assert _values(wire, log) == [b"known", b"new"]


def test_a_log_tells_about_itself(wire: Wire, log: str) -> None:
    """Info, extents, files, producers and positions are the embedded log's answers."""
    _append(wire, log, record(b"a", id="a"), record(b"b", producer="p", sequence=3))
    info = values.from_document(wire.call("Log.Info", log=log).json, LogInfo)
    assert (info.name, info.last_position) == (log, 1)
    assert info.counters is not None
    extents = values.from_document(wire.call("Log.Extents", log=log, start=0, end=2).json, list[Extent])
    assert sum(extent.records for extent in extents) == 2
    assert values.from_document(wire.call("Log.Files", log=log).json, list[SealedFileInfo]) == []
    marks = values.from_document(wire.call("Log.Producers", log=log).json, dict[str, ProducerMark])
    assert marks["p"].last_sequence == 3
    found = wire.call("Log.Positions", log=log, start=messages.Start(word="latest"))
    assert (found.first, found.end, found.at) == (0, 2, 2)
    assert wire.call("Log.ForgetProducer", log=log, producer="p").value
    assert not wire.call("Log.ForgetProducer", log=log, producer="p").value


def test_settings_change_only_on_what_was_seen(wire: Wire, log: str) -> None:
    """A change that is based on an older version of the log is refused, and changes nothing."""
    version = values.from_document(wire.call("Log.Info", log=log).json, LogInfo).version
    wanted = msgspec.json.encode(LogSettings(on_conflict="original"))
    with pytest.raises(InvalidArgument, match="changed since"):
        wire.call("Log.Configure", name=log, settings=wanted, if_version=version + 7)
    stored = wire.call("Log.Configure", name=log, settings=wanted, if_version=version)
    assert values.from_document(stored.json, LogSettings).on_conflict == "original"


def test_new_settings_hold_for_the_next_append(wire: Wire, log: str) -> None:
    """The server's writer is opened again: a write stream that is open goes on, by the new settings."""
    stream = WriteSession(wire, log)
    stream.send(1, record(b"a", id="1"))
    stream.answer()
    wire.call("Log.Configure", name=log, settings=msgspec.json.encode(LogSettings(on_conflict="original")))
    stream.send(2, record(b"b", id="1"))
    _, [ack] = stream.answer()
    assert (ack.position, ack.duplicate, ack.conflict) == (0, True, True)
    stream.finish()


def test_jobs_tell_their_progress_and_their_result(wire: Wire, log: str) -> None:
    """Verify ends with its report; sealing, auditing and truncating run as jobs or calls; an unknown job is refused."""
    _append(wire, log, record(b"a", id="a"))
    *_, verified = wire.answers("Log.Verify", log=log)
    assert json.loads(verified.result.json)["findings"] == []
    for kind in ("seal", "audit", "purge", "rebuild", "tidy", "sweep", "retain", "marks", "snapshot"):
        *_, last = wire.answers("Log.Job", log=log, kind=kind)
        assert last.HasField("result"), kind
    with pytest.raises(grpc.RpcError) as refused:
        list(wire.answers("Log.Job", log=log, kind="dance"))
    assert isinstance(error_of(refused.value), InvalidArgument)
    truncated = json.loads(wire.call("Log.Truncate", log=log, before=1).json)
    assert truncated["first_position"] in {0, 1}
