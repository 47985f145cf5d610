"""Writes the golden files: stored bytes of each format version, which every later version must read as they are.

``python -m tests.golden.make`` writes those that are missing. One that is there is never written again: a format
that changes gets a new version, and a new folder beside ``v1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from oncelog.format import block, columns, frame, snapshot
from oncelog.types import Record

FOLDER = Path(__file__).parent / "v1"

FRAME_KIND = b"GOLD"
FRAME_VERSION = 1
FRAME_PAYLOAD = b"what is in an envelope: \x00\xff " + "é✓".encode()

STAMP: dict[str, Any] = {
    "segment": 7,
    "first_entry": 41,
    "first_position": 1_000_041,
    "epoch": 3,
    "writer": bytes(range(16)),
    "uptime_us": 86_400_000_000,
    "timestamp_us": 1_700_000_000_123_456,
    "previous": 0x0123_4567_89AB_CDEF,
}

RECORDS = [
    Record(
        b"paid",
        id="order-42",
        stream="orders",
        type="Paid",
        headers={"trace": b"\x00\x01", "": b""},
        producer="importer-1",
        sequence=17,
        tenant="",
    ),
    Record(b""),
    Record(bytes(range(256)), id="é✓😀", headers={}, sequence=-(1 << 63), tenant="acme"),
]
STARTS = [True, False, True]


def make_snapshot(count: int) -> snapshot.Snapshot:
    """Return a snapshot of ``count`` keys, always the same."""
    row = np.arange(count, dtype=np.uint64)
    return snapshot.Snapshot(
        log_id="6f1d0c52a3e94d0bb0f3a7f2c8d5e611",
        created_us=1_700_000_000_123_456,
        uptime_us=86_400_000_000,
        watermark=1_000_041 + count,
        duration_us=600_000_000,
        max_keys=100_000,
        segments=[(6, 99_999), (7, 40 + count)] if count else [],
        identities=np.stack([row * np.uint64(0x9E37_79B9_7F4A_7C15), ~row], axis=1),
        positions=row.astype(np.int64) + 1_000_041,
        fingerprints=row * np.uint64(0xC2B2_AE3D_27D4_EB4F),
        ticks=row.astype(np.int64) * 1_000 + 86_000_000_000,
        times=row.astype(np.int64) * 1_000 + 1_700_000_000_000_000,
        starts=row % 3 == 0,
        producers={"importer-1": snapshot.ProducerMark(17, 1_000_041, 86_399_000_000)} if count else {},
    )


def joined(chunks: Iterable[Any]) -> bytes:
    """Return the pieces of something encoded as one."""
    return b"".join(map(bytes, chunks))


def make() -> dict[str, bytes]:
    """Return every golden file's name and the bytes that today's code writes for it."""
    all_columns = columns.from_records(RECORDS, STARTS)
    value_only = columns.from_records([Record(b"hello")])
    with_id = columns.from_records([Record(b"hello", id="order-42")])
    return {
        "block_value": joined(block.encode(value_only, **STAMP).chunks),
        "block_id": joined(block.encode(with_id, **STAMP).chunks),
        "block_all_columns": joined(block.encode(all_columns, **STAMP).chunks),
        "block_one": joined(block.encode_one(b"hello", "order-42", **STAMP).chunks),
        "frame": frame.wrap(FRAME_KIND, FRAME_VERSION, FRAME_PAYLOAD),
        "snapshot": joined(snapshot.encode(make_snapshot(100))),
        "snapshot_empty": joined(snapshot.encode(make_snapshot(0))),
    }


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in make().items():
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(content)


if __name__ == "__main__":
    main()
