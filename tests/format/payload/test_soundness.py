"""Forged blocks, whose checksums hold: refused before anybody follows their offsets, wherever they are read."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import xxhash

import oncelog
from oncelog import LogSettings, Record
from oncelog.errors import CorruptionError
from oncelog.format import block, gather, manifest
from oncelog.format.payload import columns, schema
from oncelog.format.payload.soundness import check_sound
from tests.format.payload.test_ipc import message
from tests.format.samples import STAMP, whole

ROWS = 5_000
WIDTH = 10
VALUES = [f"value-{row:04d}".encode() for row in range(ROWS)]
PAYLOAD = columns.from_records([Record(value, id=f"id-{row:07d}", type="t") for row, value in enumerate(VALUES)])
FORGED = (1 << 30, 0, -8, (1 << 31) - 1)


def summed(data: bytes) -> bytes:
    """Return a block with checksums that hold."""
    head, body = bytearray(data[: block.HEADER_BYTES]), data[block.HEADER_BYTES :]
    body += bytes(-len(body) % block.ALIGNMENT_BYTES)
    struct.pack_into("<QQ", head, 96, len(body), xxhash.xxh3_64_intdigest(body))
    struct.pack_into("<Q", head, block.CHECKED_BYTES, xxhash.xxh3_64_intdigest(head[: block.CHECKED_BYTES]))
    return bytes(head) + body


def forged(data: bytes, offset: int) -> bytes:
    """Return a block in which one offset of the values, or of the ids, is another; its checksums hold."""
    marks = struct.pack("<3i", 9 * WIDTH, 10 * WIDTH, 11 * WIDTH)
    assert data.count(marks) == 2, "both columns have them"
    return summed(data.replace(marks, struct.pack("<3i", 9 * WIDTH, offset, 11 * WIDTH), 1))


@pytest.mark.parametrize("offset", FORGED)
@pytest.mark.parametrize("rows", [100, 2_000, ROWS])
def test_an_offset_outside_of_its_column_is_refused(offset: int, rows: int) -> None:
    """Offsets go up, and stay within the values: else a reader would hand out memory, or crash."""
    data = pa.py_buffer(forged(whole(block.encode(PAYLOAD.slice(0, rows), **STAMP)), offset))
    with pytest.raises(CorruptionError, match="checksum holds and its columns do not make sense"):
        block.decode(data)
    with pytest.raises(CorruptionError, match="checksum holds"):
        list(gather.gather([data]))


def test_a_compressed_payload_is_refused() -> None:
    """33 KB became 1 GiB. Blocks are never compressed: one that is was forged."""
    head = whole(block.encode(PAYLOAD, **STAMP))[: block.HEADER_BYTES]
    compressed = summed(head + message(PAYLOAD, compression="zstd").to_pybytes())
    with pytest.raises(CorruptionError, match="compressed"):
        block.decode(pa.py_buffer(compressed))
    assert block.decode(pa.py_buffer(summed(head + message(PAYLOAD).to_pybytes()))).payload == PAYLOAD


def test_nulls_where_none_may_be_are_refused() -> None:
    """A value is bytes, and so is a header: a reader need not ask."""
    value = schema.schema_of(schema.VALUE)
    with pytest.raises(CorruptionError, match="is null"):
        check_sound(pa.RecordBatch.from_arrays([pa.array([None], pa.binary())], schema=value), schema.VALUE, "block")


def test_text_that_is_not_utf8_is_found_in_full() -> None:
    """A large block is read without a look at its text; ``verify`` looks, and entries are never made of it."""
    data = whole(block.encode(PAYLOAD, **STAMP))
    bad = pa.py_buffer(summed(data.replace(b"id-0000700", b"id-\xff\xff00700"[:10], 1)))
    found = block.decode(bad)
    with pytest.raises(CorruptionError, match="not UTF-8"):
        columns.entries(found.payload, 0, 0, 0, 0)
    with pytest.raises(CorruptionError, match="do not make sense"):
        block.decode(bad, full=True)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with a log whose one block is forged."""
    folder = tmp_path / "shop"
    with oncelog.connect(f"file://{folder}") as db:
        log = db.log("orders", LogSettings(seal="off"), create=True)
        with log.writer() as writer:
            writer.append_arrow(pa.Table.from_batches([PAYLOAD]))
    path = next(folder.rglob("*.blocks"))
    data = path.read_bytes()
    end = block.scan(data).end
    assert len(block.scan(data).offsets) == 1
    forge_manifest(folder, data := forged(data[:end], 1 << 30))
    path.write_bytes(data)
    return folder


def forge_manifest(folder: Path, data: bytes) -> None:
    """Let the manifest name the checksum of a forged block."""
    home = folder / "logs" / "orders"
    version_path = max((home / "manifest").iterdir())
    version = manifest.decode_version(pa.py_buffer(version_path.read_bytes()), "")
    body = manifest.decode_body(pa.py_buffer((home / version.body_key).read_bytes()), "")
    checksum = int.from_bytes(data[block.CHECKED_BYTES : block.HEADER_BYTES], "little")
    segment = msgspec.structs.replace(body.segments[0], checksum=checksum)
    encoded = manifest.encode_body(msgspec.structs.replace(body, segments=(segment,)))
    (home / version.body_key).write_bytes(encoded)
    version = msgspec.structs.replace(version, body_checksum=xxhash.xxh3_64_intdigest(encoded))
    version_path.write_bytes(manifest.encode_version(version))


def test_a_forged_block_is_refused_by_all_who_read_it(shop: Path) -> None:
    """Readers, sealing and copies stop; ``verify`` does not call such a log sound."""
    with oncelog.connect(f"file://{shop}") as db, oncelog.connect("memory://") as other:
        log = db.log("orders")
        for _ in range(2):  # what was found to be forged is not taken for checked
            with pytest.raises(CorruptionError, match="do not make sense"):
                list(log.read())
            with pytest.raises(CorruptionError, match="do not make sense"):
                list(log.read_arrow())
        with pytest.raises(CorruptionError, match="do not make sense"):
            log.seal()
        with pytest.raises(CorruptionError, match="do not make sense"):
            db.copy("orders", other)
        report = log.verify()
        assert not report.ok
        assert any("do not make sense" in finding.what for finding in report.findings)
