"""Writes the golden files: stored bytes of each format version, which every later version must read as they are.

``python -m tests.golden.make`` writes those that are missing. One that is there is never written again: a format
that changes gets a new version, and a new folder beside ``v1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from oncelog.dedup.runs.entries import Entries
from oncelog.format import block, frame, identities, manifest, sealed, snapshot
from oncelog.format.payload import columns
from oncelog.format.runs.times import Commits
from oncelog.log.memory.building import store_run
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
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


TIMESTAMPS_US = [1_700_000_000_123_456, 1_700_000_000_123_456, 1_700_000_001_000_000]
UPTIMES_US = [86_400_000_000, 86_400_000_000, 86_400_876_544]


def make_sealed() -> bytes:
    """Return a sealed file."""
    payload = columns.from_records(RECORDS, STARTS)
    table = sealed.to_table(payload, np.array(TIMESTAMPS_US, np.int64), np.array(UPTIMES_US, np.int64))
    return joined([sealed.encode([table])])


def make_staged() -> bytes:
    """Return a file that is made to be adopted."""
    return joined([sealed.encode([sealed.to_staged(columns.from_records(RECORDS))], sealed.STAGED_SCHEMA)])


def make_identities(count: int) -> identities.Identities:
    """Return the identities of ``count`` records, always the same."""
    row = np.arange(count, dtype=np.uint64)
    keys = np.stack([row * np.uint64(0x9E37_79B9_7F4A_7C15), ~row], axis=1)
    return identities.Identities.sorted(keys, row * np.uint64(0xC2B2_AE3D_27D4_EB4F), row.astype(np.uint32))


RUN_KEY = "sealed/01700000000123456791-0123456789abcdef"
RUN_FIRST = 1_000_041


def make_run() -> dict[str, bytes]:
    """Return a run of 200 ids, what the manifest says of it and its two objects, always the same."""
    row = np.arange(200, dtype=np.uint64)
    keys = np.stack([row * np.uint64(0x9E37_79B9_7F4A_7C15), ~row], axis=1)
    keys[199] = keys[0]  # stored twice
    fingerprints = row * np.uint64(0xC2B2_AE3D_27D4_EB4F)
    positions = row.astype(np.int64) * ((1 << 38) // 200)
    entries = Entries.of(keys, fingerprints, positions, row % 3 == 0, row % 3 == 2)
    commits = Commits(positions[::20], 1_700_000_000_000_000 + positions[::20])
    home = MemoryStorage().home("golden")
    run = store_run(
        home, "6f1d0c52a3e94d0bb0f3a7f2c8d5e611", RUN_KEY, entries, RUN_FIRST, RUN_FIRST + (1 << 38), commits
    )
    objects = [home.read(key).to_pybytes() for key in (run.part_key(0), run.times_key(0))]
    return {"run": msgspec.msgpack.encode(run), "run_part": objects[0], "run_times": objects[1]}


def make_segment(number: int, **more: Any) -> manifest.Segment:
    """Return a closed segment."""
    return manifest.Segment(
        number=number,
        first_position=number * 100,
        entries=100,
        epoch=3,
        end=65_536 + number,
        checksum=0xFEDC_BA98_7654_3210 - number,
        size_bytes=65_536 + number,
        first_timestamp_us=1_700_000_000_000_000 + number * 1_000,
        last_timestamp_us=1_700_000_000_000_999 + number * 1_000,
        last_uptime_us=86_400_000_000 + number,
        ids=99,
        **more,
    )


SEALED_KEY = "sealed/01700000000123456789-0011223344556677.parquet"
ADOPTED_KEY = "sealed/01700000000123456790-8899aabbccddeeff.parquet"
PAGE = (make_segment(4), make_segment(5, file=manifest.File(SEALED_KEY, 0, 4_321, 0x0F1E_2D3C_4B5A_6978)))
MANIFEST = manifest.Manifest(
    name="orders/eu é",
    log_id="6f1d0c52a3e94d0bb0f3a7f2c8d5e611",
    secret=bytes(range(32)),
    settings=LogSettings(
        idempotence="content",
        window=Window(duration_s=12.5, max_keys=77, refresh_on_hit=True),
        on_conflict="original",
        segment_age_s=3_600.0,
        seal="off",
        retention_s=86_400.0,
        retention_bytes=1 << 40,
    ),
    created_us=1_690_000_000_000_000,
    epoch=3,
    writer=bytes(range(16)),
    writer_window=Window(duration_s=12.5, max_keys=77),
    window_since=450,
    open_segment=9,
    open_epoch=3,
    next_segment=10,
    first_position=430,
    next_position=900,
    last_timestamp_us=1_700_000_000_009_999,
    uptime_us=86_400_000_009,
    pages=(manifest.Page("pages/00000000000000000004-0011223344556677", 0x0123_4567_89AB_CDEF, 400, 600, 2, 65_540),),
    segments=(
        make_segment(6, file=manifest.File(SEALED_KEY, 100, 4_321, 0x0F1E_2D3C_4B5A_6978)),
        make_segment(7, file=manifest.File(ADOPTED_KEY, 0, 1_234, 1), identities=ADOPTED_KEY[:-8] + ".ids"),
        make_segment(8),
    ),
    doomed=("blocks:5", "pages/00000000000000000000-ffeeddccbbaa9988"),
    staging_floor_us=1_699_999_996_400_000,
    truncating=500,
    truncator=b"\x01\x02\x03\x04\x05\x06\x07\x08",
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
        "block_one": joined(block.encode_one(b"hello", b"order-42", **STAMP).chunks),
        "frame": frame.wrap(FRAME_KIND, FRAME_VERSION, FRAME_PAYLOAD),
        "snapshot": joined(snapshot.encode(make_snapshot(100))),
        "snapshot_empty": joined(snapshot.encode(make_snapshot(0))),
        "sealed": make_sealed(),
        "staged": make_staged(),
        "identities": joined(identities.encode(make_identities(100))),
        "identities_empty": joined(identities.encode(make_identities(0))),
        "manifest_version": manifest.encode_version(
            manifest.Version(12, 3, bytes(range(8)), "bodies/00000000000000000012-0001020304050607", 0xABCD_EF01)
        ),
        "manifest_body": manifest.encode_body(MANIFEST),
        "manifest_page": manifest.encode_page(PAGE),
        **make_run(),
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
