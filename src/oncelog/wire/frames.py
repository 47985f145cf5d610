"""Raw messages: a head of 16 bytes, then Arrow or a serialized message. And tables as bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from oncelog.errors import AppendErrors, CorruptionError, InvalidArgument, OncelogError
from oncelog.format.payload.intake import spelled_bytes
from oncelog.format.payload.ipc import inflated_bytes, is_plain_stream
from oncelog.format.payload.schema import TIMESTAMP_TYPE
from oncelog.limits import HTTP_BODY_BYTES_MAX
from oncelog.types import Ack, AckRun, ColumnAcks, micros, moment
from oncelog.wire import failures, messages

_HEAD = struct.Struct("<QIBBH")
_READ_HEAD = struct.Struct("<qq")
_MORE_BYTES = struct.Struct("<I")
HEAD_BYTES = 16
TENTHS_MAX = (1 << 16) - 1
_MORE = 1

FRAMES_MAX = 64
"""Frames that a write stream may have without an answer."""

IN_FLIGHT_BYTES_MAX = 8 << 20
"""Bytes that a write stream may have without an answer; a single larger frame may be alone."""

MESSAGE_BYTES_MAX = 4 << 20
"""A larger frame comes in parts."""

REQUEST_BYTES_MAX = MESSAGE_BYTES_MAX + (1 << 20)
"""The largest message that a server takes."""

PART_BYTES = 1 << 20

FOLLOW_BYTES = 2 << 20
"""What a client lets a server send ahead to one tail, about: a single larger message may come."""

FOLLOWERS_MAX = 1_000
"""Tails and subscriptions of one ``Follow``."""

assert _HEAD.size == _READ_HEAD.size == HEAD_BYTES


class Kind(IntEnum):
    """What the body of a raw message is."""

    HELLO = 0
    WELCOME = 1
    EACH = 2
    BATCH = 3
    TABLE = 4
    RESULTS = 5
    ERROR = 6
    COLUMNS = 7
    DRAINING = 8
    ROWS = 9
    PLACED = 10
    FOLLOW = 11
    SUBSCRIBE = 12
    MORE = 13
    LEAVE = 14
    ENTRIES = 15
    ITEM = 16


class Raw(NamedTuple):
    """One raw message of ``WriteArrow``. ``timeout_s`` is 0 when it is not said."""

    kind: Kind
    body: bytes | memoryview
    tag: int = 0
    answered: int = 0
    timeout_s: float = 0.0
    more: bool = False


def pack(raw: Raw) -> bytes:
    """Return a raw message as bytes."""
    tenths = min(TENTHS_MAX, max(1, round(raw.timeout_s * 10))) if raw.timeout_s else 0
    head = _HEAD.pack(raw.tag, max(0, raw.tag - raw.answered), raw.kind, _MORE if raw.more else 0, tenths)
    return b"".join((head, raw.body))


def unpack(data: bytes) -> Raw:
    """Return the raw message of bytes, without copying its body; ``InvalidArgument`` for bytes that are none."""
    if len(data) < HEAD_BYTES:
        text = f"a raw message of {len(data)} bytes: its head alone has {HEAD_BYTES}"
        raise InvalidArgument(text)
    tag, unanswered, kind, flags, tenths = _HEAD.unpack_from(data)
    try:
        known = Kind(kind)
    except ValueError as error:
        text = f"a raw message of kind {kind}: this version knows {', '.join(str(int(one)) for one in Kind)}"
        raise InvalidArgument(text) from error
    body = memoryview(data)[HEAD_BYTES:]
    return Raw(known, body, tag, max(0, tag - unanswered), tenths / 10, bool(flags & _MORE))


def parts(raw: Raw) -> list[bytes]:
    """Return a raw message as bytes, in parts if it is large."""
    if len(raw.body) + HEAD_BYTES <= MESSAGE_BYTES_MAX:
        return [pack(raw)]
    view = memoryview(raw.body)
    starts = range(0, len(view), PART_BYTES)
    return [pack(raw._replace(body=view[at : at + PART_BYTES], more=at + PART_BYTES < len(view))) for at in starts]


# Following.


def more(number: int, size_bytes: int) -> bytes:
    """Return the message that lets a server send so many more bytes to a tail."""
    return pack(Raw(Kind.MORE, _MORE_BYTES.pack(size_bytes), number))


def more_bytes(raw: Raw) -> int:
    """Return how many more bytes may be sent."""
    if len(raw.body) != _MORE_BYTES.size:
        text = f"a message of kind {raw.kind.name} has {_MORE_BYTES.size} bytes behind its head, not {len(raw.body)}"
        raise InvalidArgument(text)
    return int(_MORE_BYTES.unpack(raw.body)[0])


# Tables.

_REPEATING = frozenset({pa.lib.Type_DICTIONARY, pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW})


def table_bytes(table: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return a table as an Arrow IPC stream."""
    return _table_bytes(table, b"")


def _table_bytes(table: pa.Table | pa.RecordBatch, head: bytes) -> pa.Buffer:
    """Return a head and, behind it, a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    sink.write(head)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


def table(data: bytes | memoryview | pa.Buffer, *, full: bool = True) -> pa.Table:
    """Return the table of an Arrow IPC stream; ``InvalidArgument`` for bytes that are none.

    Not ``full``: the sizes of its buffers are checked here, and each element is left to who takes the rows in.
    """
    stream = pa.py_buffer(data)
    try:
        if not is_plain_stream(memoryview(stream).cast("B")):
            _check_inflated(stream)
        with pa.ipc.open_stream(stream) as reader:
            found = reader.read_all()
        repeating = [column for column in found.columns if _may_repeat(column.type)]
        found.validate(full=full or bool(repeating))
        _check_spelled(repeating, stream.size)
    except InvalidArgument:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        text = f"not an Arrow IPC stream: {error}"
        raise InvalidArgument(text) from error
    return found


def _may_repeat(kind: pa.DataType) -> bool:
    """Tell whether a column can name one long text many times."""
    parts = (kind.key_type, kind.item_type) if pa.types.is_map(kind) else (kind,)
    return any(part.id in _REPEATING for part in parts)


def _check_spelled(columns: Sequence[pa.ChunkedArray], sent_bytes: int) -> None:
    """Raise ``InvalidArgument`` for columns that become too large once each row has its text: a dictionary of one long
    text, which 18,000 rows name, has 136 kB, and becomes gigabytes.
    """
    pieces = [piece for column in columns for piece in column.chunks]
    flat = [part for one in pieces for part in ((one.keys, one.items) if pa.types.is_map(one.type) else (one,))]
    spelled = sum(spelled_bytes(one) for one in flat)
    if spelled > max(sent_bytes, HTTP_BODY_BYTES_MAX):
        text = (
            f"an Arrow IPC stream of {sent_bytes:,} bytes becomes {spelled:,} spelled out: more than the "
            f"{HTTP_BODY_BYTES_MAX:,} that dictionaries and views may; send it in smaller pieces"
        )
        raise InvalidArgument(text)


def _check_inflated(stream: pa.Buffer) -> None:
    """Raise ``InvalidArgument`` for a stream that becomes too large: compressed, 50 kB of zeros are gigabytes."""
    inflated = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        body = message.body if message.body is not None else pa.py_buffer(b"")
        inflated += inflated_bytes(memoryview(message.metadata), memoryview(body))
    if inflated > max(stream.size, HTTP_BODY_BYTES_MAX):
        text = (
            f"an Arrow IPC stream of {stream.size:,} bytes becomes {inflated:,}: more than the {HTTP_BODY_BYTES_MAX:,} "
            "that a compressed one may; send it in smaller pieces, or uncompressed"
        )
        raise InvalidArgument(text)


# The answer to a table, in columns.


def columns_bytes(acks: ColumnAcks) -> pa.Buffer:
    """Return the answer to a table without a refused row."""
    return table_bytes(
        pa.record_batch(
            {
                "position": pa.array(acks.positions),
                "duplicate": pa.array(acks.duplicates),
                "conflict": pa.array(acks.conflicts),
            }
        )
    )


def refused_bytes(results: Sequence[Ack | OncelogError]) -> pa.Buffer:
    """Return the answer to a table of which rows were refused: their errors are in the column ``error``, and where
    the others stand in those that only this answer has.
    """
    good = [None if isinstance(one, OncelogError) else one for one in results]
    wrong = [failures.to_message(one).SerializeToString() if isinstance(one, OncelogError) else None for one in results]
    return table_bytes(
        pa.record_batch(
            {
                "position": pa.array([-1 if one is None or one.position is None else one.position for one in good]),
                "duplicate": pa.array([one is not None and one.duplicate for one in good]),
                "conflict": pa.array([one is not None and one.conflict for one in good]),
                "error": pa.array(wrong, pa.binary()),
                "segment": pa.array([None if one is None else one.segment for one in good], pa.int64()),
                "entry": pa.array([None if one is None else one.entry for one in good], pa.int64()),
                "timestamp": pa.array([None if one is None else one.timestamp for one in good], TIMESTAMP_TYPE),
            }
        )
    )


def placed_bytes(results: Sequence[Ack | OncelogError]) -> pa.Buffer:
    """Return the answers to records that came in columns: with where each stands, and the errors of those refused."""
    if isinstance(results, AckRun):
        return _run_bytes(results)
    if any(isinstance(one, OncelogError) for one in results):
        return refused_bytes(results)
    acks: Sequence[Any] = results
    times = [one.timestamp for one in acks]
    moments = {one: -1 if one is None else micros(one) for one in set(times)}
    return table_bytes(
        pa.record_batch(
            {
                "position": pa.array([one.position for one in acks], pa.int64()),
                "duplicate": pa.array([one.duplicate for one in acks], pa.bool_()),
                "conflict": pa.array([one.conflict for one in acks], pa.bool_()),
                "segment": pa.array([one.segment for one in acks], pa.int64()),
                "entry": pa.array([one.entry for one in acks], pa.int64()),
                "time_us": pa.array([moments[one] for one in times], pa.int64()),
            }
        )
    )


def _run_bytes(run: AckRun) -> pa.Buffer:
    """Return what ``placed_bytes`` returns, without an ack for each record."""
    count = len(run)
    return table_bytes(
        pa.record_batch(
            {
                "position": pa.array(np.arange(run.position, run.position + count, dtype=np.int64)),
                "duplicate": pa.array(np.zeros(count, np.bool_)),
                "conflict": pa.array(np.zeros(count, np.bool_)),
                "segment": pa.array(np.full(count, run.segment, np.int64)),
                "entry": pa.array(np.arange(run.entry, run.entry + count, dtype=np.int64)),
                "time_us": pa.array(np.full(count, run.time_us, np.int64)),
            }
        )
    )


@contextlib.contextmanager
def _sensible() -> Iterator[None]:
    """Raise ``CorruptionError`` for an answer that makes no sense: another program may listen at the address."""
    try:
        yield
    except OncelogError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, struct.error, DecodeError, pa.ArrowException) as error:
        text = f"the server's answer makes no sense ({type(error).__name__}): is it an Oncelog server of this version?"
        raise CorruptionError(text) from error


@_sensible()
def placed(data: bytes | memoryview) -> list[Ack | OncelogError]:
    """Return the answers to records that were sent in columns."""
    found = table(data)
    if "error" in found.schema.names:
        return refused_results(found)
    columns = {name: found.column(name).to_pylist() for name in found.schema.names}
    times = columns["time_us"]
    moments = {one: None if one < 0 else moment(one) for one in set(times)}
    places = columns["position"], columns["segment"], columns["entry"], map(moments.__getitem__, times)
    return list(map(Ack, *places, columns["duplicate"], columns["conflict"]))


@_sensible()
def column_acks(data: bytes | memoryview) -> ColumnAcks:
    """Return the answer to a table, or raise ``AppendErrors`` if rows of it were refused."""
    found = table(data)
    if "error" not in found.schema.names:
        return _column_acks(found)
    results = refused_results(found)
    refused = [one for one in results if isinstance(one, OncelogError)]
    text = f"{len(refused)} of {len(results)} records were refused, the first: {refused[0]}"
    raise AppendErrors(text, results=results)


def _column_acks(found: pa.Table) -> ColumnAcks:
    return ColumnAcks(*(_numbers(found, name) for name in ("position", "duplicate", "conflict")))


def refused_results(found: pa.Table) -> list[Ack | OncelogError]:
    """Return the answers of ``refused_bytes``."""
    acks = _column_acks(found)
    places = zip(*(_places(found, name) for name in ("segment", "entry", "timestamp")), strict=True)
    rows = enumerate(zip(found.column("error").to_pylist(), places, strict=True))
    return [_row(acks, row, wrong, place) for row, (wrong, place) in rows]


def _numbers(found: pa.Table, name: str) -> Any:
    return found.column(name).to_numpy() if found.num_rows else np.empty(0, np.int64 if name == "position" else bool)


def _places(found: pa.Table, name: str) -> list[Any]:
    """Return a part of where rows stand; an earlier version does not tell."""
    return found.column(name).to_pylist() if name in found.schema.names else [None] * found.num_rows


def _row(acks: ColumnAcks, row: int, wrong: bytes | None, place: tuple[Any, Any, Any]) -> Ack | OncelogError:
    if wrong is not None:
        return failures.from_message(messages.Error.FromString(wrong))
    position = int(acks.positions[row])
    return Ack(
        None if position < 0 else position,
        *place,
        bool(acks.duplicates[row]),
        bool(acks.conflicts[row]),
    )


# What is read.


def read_bytes(batch: pa.RecordBatch | None, next_position: int, end_position: int) -> bytes:
    """Return a raw message of ``ReadArrow``; without a batch it only says how far reading is."""
    head = _READ_HEAD.pack(next_position, end_position)
    return head if batch is None else _table_bytes(batch, head).to_pybytes()


@_sensible()
def read_message(data: bytes) -> tuple[pa.Table | None, int, int]:
    """Return the rows of a raw message of ``ReadArrow``, the position behind them, and the log's end."""
    next_position, end_position = _READ_HEAD.unpack_from(data)
    rows = table(memoryview(data)[HEAD_BYTES:]) if len(data) > HEAD_BYTES else None
    return rows, next_position, end_position
