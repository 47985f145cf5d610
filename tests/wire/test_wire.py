"""Every value and every error arrives as it was sent, and the shipped descriptors are those of the proto."""

from __future__ import annotations

import inspect
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from oncelog import errors
from oncelog.errors import (
    AppendErrors,
    EffectFailed,
    IdConflict,
    InvalidArgument,
    LogBusy,
    NotFound,
    OncelogError,
    PartialOverlap,
    Unavailable,
    WriterFenced,
    WrongExpectedVersion,
)
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.send.sender import Sent
from oncelog.queue.state.database import StateBusy
from oncelog.streams.events import EventAck, StreamEvent, StreamInfo
from oncelog.types import Ack, AckRun, ColumnAcks, Entry, Record, moment
from oncelog.wire import failures, frames, messages, methods, values

NOON = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


def test_the_shipped_descriptors_are_those_of_the_proto(tmp_path: Path) -> None:
    """A change of wire.proto without its descriptor set would leave the package with the old messages."""
    source = Path(messages.__file__).parent
    made = tmp_path / "wire.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"--descriptor_set_out={made}", "wire.proto"]
    subprocess.run(command, check=True, cwd=source)
    assert made.read_bytes() == messages.descriptor_set(), f"run: {' '.join(command[1:])}"


def test_every_method_has_a_path_and_codecs() -> None:
    """Client and server make their handlers from one table."""
    assert methods.METHODS["Log.Append"].path == "/oncelog.v1.Log/Append"
    assert methods.METHODS["Log.Write"].client_streams
    assert methods.METHODS["Log.Write"].server_streams
    assert methods.METHODS["Log.WriteArrow"].encode_request is None


SAMPLES: list[OncelogError] = [
    InvalidArgument("plain"),
    IdConflict("taken", position=7),
    IdConflict("taken", position=None),
    PartialOverlap("mixed", known=["a"], new=["b", "c"]),
    AppendErrors("some", results=[Ack(1, 2, 3, NOON), IdConflict("taken", position=0)]),
    NotFound("gone", first=0),
    NotFound("never"),
    WrongExpectedVersion("wrong", expected="no stream", actual=4),
    WrongExpectedVersion("wrong", expected=-1, actual=None),
    Unavailable("away", retry_after_s=2.5, outcome="unknown"),
    Unavailable("away"),
    WriterFenced("lost", outcome="unknown"),
    LogBusy("held", pid=12),
    EffectFailed("failed", error="why"),
]
PLAIN = [
    kind("text")
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, OncelogError) and "__init__" not in vars(kind) and kind is not InvalidArgument
]


@pytest.mark.parametrize("error", [*SAMPLES, *PLAIN], ids=lambda error: type(error).__name__)
def test_an_error_arrives_with_all_its_fields(error: OncelogError) -> None:
    """A caller decides by class, position, outcome: a field that is lost on the way decides wrongly."""
    found = failures.from_trailer(failures.trailer(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert _fields(found) == _fields(error)


def _fields(error: OncelogError) -> dict[str, object]:
    shown = dict(vars(error))
    shown.pop("results", None)
    results = [_fields(one) if isinstance(one, OncelogError) else one for one in getattr(error, "results", ())]
    return {name: value for name, value in shown.items() if value is not None} | {"results": results}


def test_a_refused_column_row_and_rule_arrive() -> None:
    """What refuses a table says where."""
    error = InvalidArgument("bad")
    error.column, error.row, error.rule = "id", 3, "size"
    found = failures.from_trailer(failures.trailer(error))
    assert isinstance(found, InvalidArgument)
    assert (found.column, found.row, found.rule) == ("id", 3, "size")


def test_an_error_of_a_rooms_own_travels_as_what_it_is_a_kind_of() -> None:
    """A client that does not know the class must still know that it may try again."""
    found = failures.from_trailer(failures.trailer(StateBusy("held", retry_after_s=2)))
    assert isinstance(found, Unavailable)
    assert (found.retry_after_s, found.outcome) == (2, "not written")


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    """An old client must not take an unknown kind for success, nor fail to read it."""
    found = failures.from_message(messages.Error(kind="Novel", message="text"))
    assert type(found) is OncelogError
    assert "Novel" in str(found)


def test_an_error_without_an_outcome_may_have_written() -> None:
    """Only an outcome that is spelled out proves that nothing was written."""
    found = failures.from_message(messages.Error(kind="Unavailable", message="text"))
    assert isinstance(found, Unavailable)
    assert found.outcome == "unknown"


def test_a_long_error_fits_a_trailer() -> None:
    """GRPC drops a call whose trailer is too long: the caller would learn nothing."""
    error = AppendErrors("x" * 100_000, results=[InvalidArgument("y" * 1000)] * 1000)
    assert len(failures.trailer(error)) < 8 * 1024
    assert isinstance(failures.from_trailer(failures.trailer(error)), AppendErrors)


def test_every_error_has_a_status() -> None:
    """No error of ours is a bare INTERNAL, but for the root of the tree."""
    for error in [*SAMPLES, *PLAIN]:
        if type(error) is not OncelogError:
            assert failures.grpc_code(error) != "INTERNAL"
    assert failures.grpc_code(Unavailable("x", outcome="unknown")) == "DEADLINE_EXCEEDED"
    assert failures.http_status(Unavailable("x", outcome="unknown")) == 504
    assert failures.http_status(NotFound("x", first=3)) == 410
    assert failures.http_status(IdConflict("x", position=3)) == 422


@pytest.mark.parametrize(
    "record",
    [
        Record(b""),
        Record(b"x", id="1"),
        Record(b"x", "1", "s", "t", {"a": b"1", "b": b""}, None, None, "me"),
        Record(b"x", headers={}),
        Record(b"x", producer="p", sequence=0),
        Record(b"", stream=""),
    ],
)
def test_a_record_arrives_as_it_was_sent(record: Record) -> None:
    """A retry must be the same record: absent is not empty, and headers keep their order."""
    found = values.record(messages.Record.FromString(values.record_message(record).SerializeToString()))
    assert found == record
    assert list(found.headers or ()) == list(record.headers or ())


def test_entries_acks_events_and_messages_arrive() -> None:
    """Times are exact, and what is not there stays not there."""
    entry = Entry(5, 1, 2, NOON, "id", b"v", "s", "t", {"h": b"x"}, "p", 3, "me")
    assert values.entry(values.entry_message(entry)) == entry
    for ack in (Ack(0, 0, 0, NOON), Ack(None, None, None, None, duplicate=True), Ack(9, None, None, NOON, True, True)):
        assert values.ack(values.ack_message(ack)) == ack
    event = StreamEvent(stream="s", version=0, position=0, timestamp=NOON, id=None, type="t", value=b"", headers=None)
    assert values.event(values.event_message(event)) == event
    event_ack = EventAck(version=0, position=1, timestamp=None, duplicate=True)
    assert values.event_ack(values.event_ack_message(event_ack)) == event_ack
    info = StreamInfo(stream="s", version=0, count=1, last_position=None)
    assert values.stream_info(values.stream_info_message(info)) == info
    message = Message(b"v", "i", "k", "t", {"h": b""}, 1.5, 2.5, RetryPolicy(max_attempts=None, jitter=0.0))
    assert values.queue_message(values.queue_message_message(message)) == message
    assert values.queue_message(values.queue_message_message(Message(b"v"))) == Message(b"v")
    sent = Sent(1, 0, NOON, duplicate=True)
    assert values.sent(values.sent_message(sent)) == sent


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 17, (3, 4), NOON])
def test_a_start_arrives(start: object) -> None:
    """Position 0 is not the absence of a position."""
    assert values.start(values.start_message(start)) == start


def test_a_start_that_is_none_is_refused() -> None:
    """A wrong start is the caller's error, before anything is sent."""
    for wrong in (None, 1.5, NOON.replace(tzinfo=None)):
        with pytest.raises(InvalidArgument):
            values.start_message(wrong)


def test_what_is_expected_of_a_stream_arrives() -> None:
    """Version 0 and -1 are versions; nothing said is anything."""
    for expected in ("any", "no stream", "exists", -1, 0, 9):
        made = messages.StreamAppendRequest()
        values.set_expected(made, expected)
        assert values.expected(made) == expected
    assert values.expected(messages.StreamAppendRequest()) == "any"


def test_a_raw_message_arrives() -> None:
    """The head says which frame it is, and how far the client has answers."""
    raw = frames.Raw(frames.Kind.TABLE, b"body", tag=1 << 40, answered=(1 << 40) - 3, timeout_s=2.5)
    found = frames.unpack(frames.pack(raw))
    assert found._replace(body=bytes(found.body)) == raw


def test_a_large_raw_message_comes_in_parts() -> None:
    """GRPC refuses messages over its limit: parts of one tag are put together again."""
    body = bytes(range(256)) * (5 << 12)
    found = [frames.unpack(part) for part in frames.parts(frames.Raw(frames.Kind.BATCH, body, tag=4))]
    assert b"".join(bytes(part.body) for part in found) == body
    assert [part.more for part in found] == [True] * (len(found) - 1) + [False]
    assert {part.tag for part in found} == {4}


@pytest.mark.parametrize("data", [b"", b"short", b"\xff" * 16, b"\0" * 12 + b"\x63" + b"\0" * 3])
def test_bytes_that_are_no_raw_message_are_refused(data: bytes) -> None:
    """Bytes of a stranger never become another error than InvalidArgument."""
    with pytest.raises(InvalidArgument):
        frames.unpack(data)


def test_a_table_and_its_answer_arrive() -> None:
    """Columns in, columns out; refused rows are errors by row."""
    sent = pa.table({"value": pa.array([b"a", b"b"]), "id": ["1", None]})
    assert frames.table(frames.table_bytes(sent)) == sent
    acks = ColumnAcks(np.array([4, -1]), np.array([False, True]), np.array([False, False]))
    found = frames.column_acks(frames.columns_bytes(acks))
    assert found.positions.tolist() == [4, -1]
    assert found.duplicates.tolist() == [False, True]
    with pytest.raises(AppendErrors) as caught:
        frames.column_acks(frames.refused_bytes([Ack(4, 0, 0, NOON), IdConflict("taken", position=2)]))
    good, bad = caught.value.results
    assert good == Ack(4, 0, 0, NOON)
    assert isinstance(bad, IdConflict)
    assert bad.position == 2


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"ARROW1" + b"\xff" * 99])
def test_bytes_that_are_no_table_are_refused(data: bytes) -> None:
    """A body from a stranger is checked before it is used."""
    with pytest.raises(InvalidArgument):
        frames.table(data)


def test_what_was_read_arrives_with_its_place() -> None:
    """A tail knows where to go on, also when nothing came."""
    batch = pa.record_batch({"value": pa.array([b"a"])})
    rows, after, end = frames.read_message(frames.read_bytes(batch, 5, 9))
    assert rows is not None
    assert rows.to_pylist() == [{"value": b"a"}]
    assert (after, end) == (5, 9)
    assert frames.read_message(frames.read_bytes(None, 5, 5)) == (None, 5, 5)


def _compressed(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(table)
    return sink.getvalue()


@pytest.mark.parametrize("full", [False, True])
def test_a_small_frame_does_not_become_gigabytes(full: bool) -> None:  # noqa: FBT001
    """Zeros shrink to a thirty-thousandth: who may append could fill the memory of the server by a frame of 50 kB."""
    rows = pa.table({"value": pa.array([bytes(1 << 20)] * 17, pa.binary())})
    with pytest.raises(InvalidArgument, match="becomes 17,825"):
        frames.table(_compressed(rows), full=full)
    assert frames.table(_compressed(rows.slice(0, 3)), full=full).equals(rows.slice(0, 3))
    assert frames.table(frames.table_bytes(rows), full=full).equals(rows)


@pytest.mark.parametrize("full", [False, True])
def test_a_text_that_many_rows_name_does_not_become_gigabytes(full: bool) -> None:  # noqa: FBT001
    """A dictionary, or views, name one long text many times: 136 kB filled 1.8 GB of the memory of a server."""
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 18_000, pa.int16()), pa.array([bytes(100_000)], pa.binary()))
    all_of_it = struct.pack("<i4sii", 100_000, bytes(4), 0, 0)  # the length, the beginning, the buffer, and where in it
    buffers = [None, pa.py_buffer(all_of_it * 18_000), pa.py_buffer(bytes(100_000))]
    views = pa.Array.from_buffers(pa.binary_view(), 18_000, buffers)
    headers = pa.MapArray.from_arrays(pa.array(range(18_001), pa.int32()), pa.array(["k"] * 18_000), views)
    for column in (long, views, headers):
        data = frames.table_bytes(pa.table({"value": column}))
        assert data.size < 1 << 20
        with pytest.raises(InvalidArgument, match="becomes 1,800,000,000 spelled out"):
            frames.table(data, full=full)
        few = pa.table({"value": column.slice(0, 3)})
        assert frames.table(frames.table_bytes(few), full=full).equals(few)


@pytest.mark.parametrize("decode", [frames.placed, frames.column_acks, frames.read_message])
def test_an_answer_that_makes_no_sense_is_damage(decode: Callable[[bytes], object]) -> None:
    """Whoever answers at an address may be no Oncelog: a client of it gets an error that it knows."""
    for data in (b"", bytes(3), bytes(16) + frames.table_bytes(pa.table({"x": [1]})).to_pybytes()[:90]):
        with pytest.raises(OncelogError):
            decode(data)
    with pytest.raises(OncelogError):
        frames.placed(frames.table_bytes(pa.table({"x": [1]})).to_pybytes())
    nobody = frames.refused_bytes([Ack(4, 0, 0, NOON)])
    with pytest.raises(errors.CorruptionError, match="makes no sense"):  # rows were refused, and none of them is named
        frames.column_acks(nobody)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_of_acks_is_sent_as_the_acks_that_it_stands_for(count: int) -> None:
    """A server answers new records in columns without an object for each: the client must not see a difference."""
    run = AckRun(position=7, segment=2, entry=4, time_us=1_700_000_000_123_456, count=5)[2 : 2 + count]
    acks = [Ack(9 + nth, 2, 6 + nth, moment(1_700_000_000_123_456)) for nth in range(count)]
    assert list(run) == acks
    assert (len(run), run[-1]) == (count, acks[-1])
    assert frames.placed(memoryview(frames.placed_bytes(run))) == acks
    assert frames.placed_bytes(run).equals(frames.placed_bytes(acks))
    assert (run[::2], run[::-1]) == (acks[::2], acks[::-1])
    with pytest.raises(IndexError):
        run[count]


@pytest.mark.parametrize("wrong", [1 << 63, (1 << 63, 0), ("0", 0), (0, True), (1,), (1, 2, 3), 1.5, None])
def test_a_start_that_is_none_is_refused_by_its_name(wrong: object) -> None:
    """What a message cannot hold is the caller's mistake, not a ValueError of the message."""
    with pytest.raises(InvalidArgument, match="start"):
        values.start_message(wrong)


def test_a_moment_before_all_that_utc_can_say_is_before_everything() -> None:
    """The earliest datetime of an eastern zone is no datetime in UTC: a server must not fail because of it."""
    early = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
    assert values.start(values.start_message(early)) == datetime.min.replace(tzinfo=UTC)
    assert values.start(messages.Start(timestamp_us=(1 << 63) - 1)) == datetime.max.replace(tzinfo=UTC)
