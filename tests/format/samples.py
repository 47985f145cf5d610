"""What the tests of this folder write and read: records, stamps, and ways to damage bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from oncelog.format import block
from oncelog.format.payload import columns
from oncelog.types import Record

STAMP: dict[str, Any] = {
    "segment": 3,
    "first_entry": 7,
    "first_position": 1_000,
    "epoch": 2,
    "writer": b"0123456789abcdef",
    "uptime_us": 5_000_000,
    "timestamp_us": 1_700_000_000_000_001,
    "previous": 99,
}

labels = st.none() | st.text(max_size=20)
records = st.builds(
    Record,
    value=st.binary(max_size=60),
    id=st.none() | st.text(min_size=1, max_size=20),
    stream=labels,
    type=labels,
    headers=st.none() | st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=4),
    producer=labels,
    sequence=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    tenant=labels,
)

plain_records = st.builds(
    Record, st.binary(max_size=60), st.none() | st.text(min_size=1, max_size=20), labels, labels, tenant=labels
)
"""Records without headers, producer and sequence."""


def whole(encoded: block.Encoded) -> bytes:
    """Return an encoded block's bytes as one."""
    return b"".join(map(bytes, encoded.chunks))


def stored(rows: Sequence[Record], starts: Sequence[bool] | None = None, **stamp: Any) -> bytes:
    """Return records as the bytes of a block."""
    return whole(block.encode(columns.from_records(rows, starts), **{**STAMP, **stamp}))


def chain(groups: Sequence[Sequence[Record]]) -> list[bytes]:
    """Return groups of records as blocks that follow each other from the start of a segment."""
    blocks: list[bytes] = []
    entry = previous = 0
    for rows in groups:
        stamp = {**STAMP, "first_entry": entry, "first_position": 500 + entry, "previous": previous}
        encoded = block.encode(columns.from_records(rows), **stamp)
        blocks.append(whole(encoded))
        entry, previous = entry + len(rows), encoded.checksum
    return blocks


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the content with each single bit flipped, and which bit it was."""
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def within(buffer: pa.Buffer, outer: pa.Buffer) -> bool:
    """Tell whether a buffer lies inside another's memory."""
    start, end = outer.address, outer.address + outer.size
    return bool(start <= buffer.address and buffer.address + buffer.size <= end)
