"""Files, identities and manifests stored by earlier versions are read as they were meant, whatever comes later."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import frame, identities, manifest, sealed
from oncelog.format.manifest import BODY_KIND, FORMAT, Manifest
from oncelog.format.payload import columns
from tests.golden import make

FILES = {path.stem: path.read_bytes() for path in sorted(make.FOLDER.glob("*.bin"))}


@pytest.mark.parametrize("name", ["sealed", "staged"])
def test_sealed_files_are_read(name: str) -> None:
    """A history sealed by version 1 is a table for ever, with its times and batches; a staged file has neither."""
    file = sealed.SealedFile(pa.py_buffer(FILES[name]), name)
    (piece,) = file.pieces(0, file.rows)
    starts = make.STARTS if name == "sealed" else None
    assert piece.payload.equals(columns.from_records(make.RECORDS, starts))
    if name == "staged":
        assert piece.timestamps_us is None
        assert piece.uptimes_us is None
        return
    assert piece.timestamps_us is not None
    assert piece.uptimes_us is not None
    assert piece.timestamps_us.tolist() == make.TIMESTAMPS_US
    assert piece.uptimes_us.tolist() == make.UPTIMES_US


@pytest.mark.parametrize("name", ["sealed", "staged"])
def test_sealed_files_keep_their_columns(name: str) -> None:
    """Other people's queries name these columns and rely on their types: those that are there stay as they are."""
    stored = pq.read_schema(pa.BufferReader(FILES[name]))
    written = pq.read_schema(pa.BufferReader(make.make()[name]))
    for field in stored:
        assert written.field(field.name).equals(field)


@pytest.mark.parametrize(("name", "count"), [("identities", 100), ("identities_empty", 0)])
def test_identities_are_read_and_written_the_same(name: str, count: int) -> None:
    """What an adopted file's window is built from outlives an upgrade, and a downgrade."""
    read = identities.decode(pa.py_buffer(FILES[name]), name)
    for field in identities.Identities.__struct_fields__:
        assert np.array_equal(getattr(read, field), getattr(make.make_identities(count), field))
    assert make.make()[name] == FILES[name]


def test_manifests_are_read() -> None:
    """Versions, bodies and pages of version 1 say what they said: bytes may gain fields, and lose none."""
    version = manifest.Version(12, 3, bytes(range(8)), "bodies/00000000000000000012-0001020304050607", 0xABCD_EF01)
    assert manifest.decode_version(pa.py_buffer(FILES["manifest_version"]), "version") == version
    assert manifest.decode_body(pa.py_buffer(FILES["manifest_body"]), "body") == make.MANIFEST
    assert manifest.decode_page(pa.py_buffer(FILES["manifest_page"]), "page") == make.PAGE
    assert make.make()["manifest_version"] == FILES["manifest_version"], "a version is what everybody competes for"


def test_a_body_with_fields_of_a_later_time_is_read() -> None:
    """What a newer version adds without changing the format's number is passed over, not choked on."""
    plain = msgspec.msgpack.decode(frame.unwrap(BODY_KIND, FORMAT, FILES["manifest_body"], "body"))
    later = frame.wrap(BODY_KIND, FORMAT, msgspec.msgpack.encode({**plain, "of_a_later_time": [1, 2]}))
    assert manifest.decode_body(pa.py_buffer(later), "body") == make.MANIFEST


def test_a_body_of_the_first_days_is_read() -> None:
    """Every field but those that make a log what it is has a default, so that the oldest body is still one."""
    needed = ("name", "log_id", "secret", "settings", "created_us")
    plain = msgspec.msgpack.decode(frame.unwrap(BODY_KIND, FORMAT, FILES["manifest_body"], "body"))
    first = frame.wrap(BODY_KIND, FORMAT, msgspec.msgpack.encode({name: plain[name] for name in needed}))
    expected = Manifest(**{name: getattr(make.MANIFEST, name) for name in needed})
    assert manifest.decode_body(pa.py_buffer(first), "body") == expected


DECODERS = {
    "identities": identities.decode,
    "manifest_version": manifest.decode_version,
    "manifest_body": manifest.decode_body,
    "manifest_page": manifest.decode_page,
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_byte_counts(name: str) -> None:
    """Any byte that is not what was written is an error, never another manifest or other identities."""
    for at in range(len(FILES[name])):
        changed = bytearray(FILES[name])
        changed[at] ^= 0x40
        with pytest.raises((CorruptionError, Unsupported)):
            DECODERS[name](pa.py_buffer(bytes(changed)), name)
    for length in (0, 1, 23, 24, len(FILES[name]) - 1):
        with pytest.raises(CorruptionError):
            DECODERS[name](pa.py_buffer(FILES[name][:length]), name)
