"""The message of a payload as Arrow lays it out: recognised in one comparison, without a walk through its tables.

Before Arrow reads a message, two things are checked: its buffers are not compressed, and required columns have no null.
A few bytes of the metadata decide both. A sample message, which Arrow writes once for each set of columns, shows where
these bytes are. A message with the same bytes at the same places passes. Any other message is checked by
``ipc.is_plain`` and ``soundness``, which cost more.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from oncelog.format.payload.arrays import binaries, booleans
from oncelog.format.payload.ipc import is_plain
from oncelog.format.payload.schema import HEADERS, START, VALUE, schema_of

_ROOT = 8
_FIELDS_BYTES, _BATCH_FIELDS_BYTES = 10, 10
_VERSION, _KIND, _HEADER = 4, 6, 8
_NODES = 6
_NODE_BYTES, _NULLS = 16, 8
_U16, _I32 = struct.Struct("<H"), struct.Struct("<i")


class _Layout(NamedTuple):
    """Which bytes are looked at, and what they are."""

    bytes_min: int
    places: struct.Struct
    expected: tuple[bytes, ...]


def is_usual(message: pa.Buffer, mask: int) -> bool:
    """Tell whether a message of these columns is plain, with nothing null that may not be; ``False``: not known."""
    layout = _layout(mask)
    return (
        layout is not None
        and message.size >= layout.bytes_min
        and layout.places.unpack_from(message) == layout.expected
    )


@cache
def _layout(mask: int) -> _Layout | None:
    """Learn the layout from a message of one row."""
    schema = schema_of(mask)
    rows = [pa.nulls(1, field.type) if field.nullable else _something(field.type) for field in schema]
    sample = bytes(pa.RecordBatch.from_arrays(rows, schema=schema).serialize())
    if not is_plain(memoryview(sample)):
        return None
    places = sorted(_places(sample, mask))
    spans = _spans(places)
    shape = struct.Struct("<" + "".join(f"{gap}x{length}s" for gap, length in spans))
    return _Layout(places[-1] + 1, shape, shape.unpack_from(sample))


def _something(kind: pa.DataType) -> pa.Array:
    return binaries([b""]) if pa.types.is_binary(kind) else booleans(np.ones(1, np.bool_))


def _places(sample: bytes, mask: int) -> set[int]:
    """Return the offsets of the bytes that decide ``is_plain`` and hold the counts of nulls, and of the bytes that
    lead to them.
    """
    root = _ROOT + _number(_I32, sample, _ROOT)
    fields = root - _number(_I32, sample, root)
    version, kind = (root + _number(_U16, sample, fields + at) for at in (_VERSION, _KIND))
    header = root + _number(_U16, sample, fields + _HEADER)
    batch = header + _number(_I32, sample, header)
    batch_fields = batch - _number(_I32, sample, batch)
    nodes_at = batch + _number(_U16, sample, batch_fields + _NODES)
    nodes = nodes_at + _number(_I32, sample, nodes_at)
    spans = [(0, 4), (_ROOT, 4), (root, 4), (fields, _FIELDS_BYTES), (version, 2), (kind, 1), (header, 4), (batch, 4)]
    spans += [(batch_fields, _BATCH_FIELDS_BYTES), (nodes_at, 4), (nodes, 4)]
    spans += [(nodes + 4 + number * _NODE_BYTES + _NULLS, 8) for number in _never_null(mask)]
    return {place for begin, length in spans for place in range(begin, begin + length)}


def _number(shape: struct.Struct, sample: bytes, at: int) -> int:
    return int(shape.unpack_from(sample, at)[0])


def _never_null(mask: int) -> list[int]:
    """Return the numbers of the nodes that have no nulls: a map is four nodes, all other columns are one."""
    found = [0] if mask & VALUE else []
    headers = (mask & (HEADERS - 1)).bit_count()
    found += [headers + 2, headers + 3] if mask & HEADERS else []
    return [*found, mask.bit_count() - 1 + (3 if mask & HEADERS else 0)] if mask & START else found


def _spans(places: list[int]) -> list[tuple[int, int]]:
    """Return, for each run of neighbours, how many bytes are before it and how many it has."""
    runs = [[place for _, place in run] for _, run in groupby(enumerate(places), lambda one: one[1] - one[0])]
    ends = [0, *(run[-1] + 1 for run in runs)]
    return [(run[0] - end, len(run)) for run, end in zip(runs, ends, strict=False)]
