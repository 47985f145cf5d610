"""The Arrow message of one record with a value, or a value and an id, without asking pyarrow.

The message of such a record differs from another's in a few numbers only. A sample that pyarrow wrote is cut at
those numbers, and what is put together from it is compared with what pyarrow writes: should Arrow ever lay its
messages out otherwise, nothing is learned, and all goes through pyarrow.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.format.payload.schema import ID, VALUE, schema_of

Places = NDArray[np.int64]

_VALUE_AND_ID = VALUE | ID
PADDED_BYTES = 64
_OFFSETS = struct.Struct("<ii")
_LENGTH = struct.Struct("<q")
_SAMPLES = ((b"", b"i"), (b"1", bytes(8)), (bytes(7), bytes(9)), (bytes(8), "é".encode()), (bytes(300), bytes(255)))


def message(value: bytes, record_id: bytes | None) -> bytes:
    """Return the Arrow message of a payload of one row: ``value``, and ``id`` (in UTF-8) unless it is ``None``.

    Zeros behind it make it a multiple of ``PADDED_BYTES``.
    """
    if record_id is not None and _ID_SHAPE is not None:
        front, middle, back = _ID_SHAPE.around(len(value), len(record_id))
        return b"".join((front, value, middle, record_id, back))
    if record_id is None and _VALUE_SHAPE is not None:
        front, back = _VALUE_SHAPE.around(len(value))
        return b"".join((front, value, back))
    return _padded(_serialized(value, record_id))


def _padded(message: bytes) -> bytes:
    return message + bytes(-len(message) % PADDED_BYTES)


def parse(raw: bytes, offset: int, mask: int) -> tuple[bytes, bytes | None] | None:
    """Return value and id of the message at ``offset``, or ``None`` when it is not exactly what ``message`` writes."""
    shape = _ID_SHAPE if mask == _VALUE_AND_ID else _VALUE_SHAPE if mask == VALUE else None
    return None if shape is None else shape.parse(raw, offset)


def parse_many(raw: bytes, starts: Places, ends: Places, mask: int) -> tuple[list[bytes], list[bytes] | None] | None:
    """Return values and ids of the messages between these places; ``None`` when one is not what ``message`` writes, but
    for the zeros between value and id, which say nothing.
    """
    shape = _ID_SHAPE if mask == _VALUE_AND_ID else _VALUE_SHAPE if mask == VALUE else None
    if shape is None or bool((ends - starts < shape.size).any()):
        return None
    return shape.parse_many(raw, starts, ends)


def cut(raw: bytes, starts: Places, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return copies of the items that begin at these places, each of which is followed by at least a whole item."""
    width = kind.itemsize
    return np.ndarray((len(raw) - width + 1,), f"V{width}", raw, strides=(1,))[starts].view(kind)


def _pieces(raw: bytes, starts: Places, lengths: Places) -> list[bytes]:
    return [raw[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _serialized(value: bytes, record_id: bytes | None) -> bytes:
    arrays = [_array(value, pa.binary())]
    mask = VALUE
    if record_id is not None:
        arrays.append(_array(record_id, pa.string()))
        mask |= ID
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask)).serialize())


def _array(item: bytes, kind: pa.DataType) -> pa.Array:
    """Return an array of one item. ``pa.array`` would import pandas, where that is installed: most of a second."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(_OFFSETS.pack(0, len(item))), pa.py_buffer(item)])


class _ValueShape:
    """Messages of a value alone. The metadata has two numbers: the body's length and the value's."""

    def __init__(self, metadata: bytes, body_at: int, value_at: int) -> None:
        self.parts = metadata[:body_at], metadata[body_at + 8 : value_at], metadata[value_at + 8 :]
        front, middle, back = map(len, self.parts)
        self.pack = struct.Struct(f"<{front}sq{middle}sq{back}sii").pack
        self.unpack_length = struct.Struct(f"<{value_at}xq").unpack_from
        self.size = len(metadata) + _OFFSETS.size
        self.around = lru_cache(1024)(self._around)
        self.kind = _kind(self.parts, numbers=1)

    def _around(self, length: int) -> tuple[bytes, bytes]:
        """Return all that comes before the value (metadata, and the value's offsets), and the zeros behind it."""
        front, middle, back = self.parts
        before = self.pack(front, 8 + length + (-length & 7), middle, length, back, 0, length)
        return before, bytes(-(len(before) + length) % PADDED_BYTES)

    def parse(self, raw: bytes, offset: int) -> tuple[bytes, None] | None:
        start = offset + self.size
        if len(raw) < start:
            return None
        length = self.unpack_length(raw, offset)[0]
        if not 0 <= length <= len(raw) - start or not raw.startswith(self.around(length)[0], offset):
            return None
        return raw[start : start + length], None

    def parse_many(self, raw: bytes, starts: Places, ends: Places) -> tuple[list[bytes], None] | None:
        found = cut(raw, starts, self.kind)
        lengths = found["numbers"][:, 0]
        starts = starts + self.size
        if not _all(lengths >= 0, lengths <= ends - starts):
            return None
        body = 8 + lengths + (-lengths & 7)
        if not _all(found["body"] == body, found["offsets"] == _spans(lengths), _is_framed(found, self.parts)):
            return None
        return _pieces(raw, starts, lengths), None


class _IdShape:
    """Messages of a value and an id. Behind the value's length in the metadata come the id's three buffers."""

    def __init__(self, metadata: bytes, body_at: int, value_at: int) -> None:
        self.parts = metadata[:body_at], metadata[body_at + 8 : value_at], metadata[value_at + 56 :]
        front, middle, back = map(len, self.parts)
        self.pack = struct.Struct(f"<{front}sq{middle}s7q{back}sii").pack
        self.unpack_lengths = struct.Struct(f"<{value_at}xq40xq").unpack_from
        self.size = len(metadata) + _OFFSETS.size
        self.around = lru_cache(1024)(self._around)
        self.kind = _kind(self.parts, numbers=7)

    def _around(self, length: int, id_length: int) -> tuple[bytes, bytes, bytes]:
        """Return what comes before the value (metadata, and the value's offsets), between value and id (zeros, and the
        id's offsets), and the zeros behind the id.
        """
        front, middle, back = self.parts
        behind = 8 + length + (-length & 7)
        body = behind + 8 + id_length + (-id_length & 7)
        numbers = length, behind, 0, behind, 8, behind + 8, id_length
        before = self.pack(front, body, middle, *numbers, back, 0, length)
        between = bytes(-length & 7) + _OFFSETS.pack(0, id_length)
        return before, between, bytes(-(len(before) + length + len(between) + id_length) % PADDED_BYTES)

    def parse(self, raw: bytes, offset: int) -> tuple[bytes, bytes] | None:
        start = offset + self.size
        if len(raw) < start:
            return None
        length, id_length = self.unpack_lengths(raw, offset)
        id_start = start + length + (-length & 7) + 8
        if length < 0 or not 0 <= id_length <= len(raw) - id_start:
            return None
        front, between, _ = self.around(length, id_length)
        if not raw.startswith(front, offset) or not raw.startswith(between, start + length):
            return None
        return raw[start : start + length], raw[id_start : id_start + id_length]

    def parse_many(self, raw: bytes, starts: Places, ends: Places) -> tuple[list[bytes], list[bytes]] | None:
        found = cut(raw, starts, self.kind)
        lengths, id_lengths = found["numbers"][:, 0], found["numbers"][:, 6]
        starts = starts + self.size
        if not _all(lengths >= 0, lengths <= ends - starts, id_lengths >= 0, id_lengths <= ends - starts):
            return None
        behind = 8 + lengths + (-lengths & 7)
        id_starts = starts + behind
        if not _all(id_starts + id_lengths <= ends):
            return None
        nothing, offsets = np.zeros_like(lengths), np.full_like(lengths, 8)
        numbers = np.stack([lengths, behind, nothing, behind, offsets, behind + 8, id_lengths], axis=1)
        body = behind + 8 + id_lengths + (-id_lengths & 7)
        if not _all(found["numbers"] == numbers, found["body"] == body, found["offsets"] == _spans(lengths)):
            return None
        if not _all(_is_framed(found, self.parts), cut(raw, id_starts - 8, _SPAN)["span"] == _spans(id_lengths)):
            return None
        return _pieces(raw, starts, lengths), _pieces(raw, id_starts, id_lengths)


_SPAN = np.dtype([("span", "<i4", 2)])


def _kind(parts: tuple[bytes, bytes, bytes], *, numbers: int) -> np.dtype[Any]:
    """Return how all that comes before the value lies in memory; ``parts`` are always the same."""
    front, middle, back = (("u1", len(part)) for part in parts)
    return np.dtype(
        [
            ("front", *front),
            ("body", "<i8"),
            ("middle", *middle),
            ("numbers", "<i8", (numbers,)),
            ("back", *back),
            ("offsets", "<i4", 2),
        ]
    )


def _spans(lengths: Places) -> NDArray[np.int64]:
    """Return the two offsets of a column of one item, for items of these lengths."""
    return np.stack([np.zeros_like(lengths), lengths], axis=1)


def _is_framed(found: NDArray[Any], parts: tuple[bytes, bytes, bytes]) -> NDArray[np.bool_]:
    """Tell of each message whether it has the bytes that are always the same."""
    same = [
        (found[name] == np.frombuffer(part, np.uint8)).all(axis=1)
        for name, part in zip(("front", "middle", "back"), parts, strict=True)
    ]
    framed: NDArray[np.bool_] = same[0] & same[1] & same[2]
    return framed


def _all(*conditions: NDArray[np.bool_]) -> bool:
    return all(bool(condition.all()) for condition in conditions)


def _sample(record_id: bytes | None) -> tuple[bytes, int, int]:
    """Return a message's metadata, and where in it the lengths of body and value are (-1: nowhere)."""
    value = bytes(70_001)
    sample = _serialized(value, record_id)
    metadata = sample[: 8 + int.from_bytes(sample[4:8], "little")]
    return metadata, metadata.find(_LENGTH.pack(len(sample) - len(metadata))), metadata.find(_LENGTH.pack(len(value)))


def _learn_value() -> _ValueShape | None:
    metadata, body_at, value_at = _sample(None)
    if not 0 < body_at < value_at:
        return None
    shape = _ValueShape(metadata, body_at, value_at)
    for value, _ in _SAMPLES:
        front, back = shape.around(len(value))
        if front + value + back != _padded(_serialized(value, None)):
            return None
    return shape


def _learn_id() -> _IdShape | None:
    metadata, body_at, value_at = _sample(bytes(99))
    if not 0 < body_at < value_at:
        return None
    shape = _IdShape(metadata, body_at, value_at)
    for value, record_id in _SAMPLES:
        front, between, back = shape.around(len(value), len(record_id))
        if front + value + between + record_id + back != _padded(_serialized(value, record_id)):
            return None
    return shape


_VALUE_SHAPE = _learn_value()
_ID_SHAPE = _learn_id()
