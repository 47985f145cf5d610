"""A message that is laid out as usual is not compressed, and has no nulls where none may be; any other is looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog.format.payload.columns import from_records
from oncelog.format.payload.ipc import is_plain
from oncelog.format.payload.schema import ALL_BITS, FIELDS, HEADERS, ID, START, VALUE, mask_of, schema_of
from oncelog.format.payload.usual import is_usual
from oncelog.types import Record
from tests.format.payload.test_ipc import message

MASKS = [mask for mask in range(ALL_BITS + 1) if mask & VALUE]
FULL = {
    pa.binary(): b"value",
    pa.string(): "text",
    pa.int64(): 7,
    pa.bool_(): True,
    FIELDS[HEADERS].type: [("a", b"1"), ("b", b"")],
}


def batch(mask: int, rows: int, *, nulls: bool) -> pa.RecordBatch:
    """Return rows with these columns; those that may be null are, or are not."""
    arrays = [
        pa.array([None if nulls and field.nullable else FULL[field.type]] * rows, field.type)
        for field in schema_of(mask)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask))


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_what_oncelog_writes_is_usual(rows: int, *, nulls: bool) -> None:
    """Whatever columns there are, however many rows: else every block would be looked at the slow way."""
    assert all(is_usual(batch(mask, rows, nulls=nulls).serialize(), mask) for mask in MASKS)


@pytest.mark.parametrize("mask", [VALUE, VALUE | ID, ALL_BITS])
def test_what_is_compressed_or_of_an_old_version_is_not_usual(mask: int) -> None:
    """A few kilobytes may ask for gigabytes."""
    rows = batch(mask, 500, nulls=False)
    assert not is_usual(message(rows, compression="zstd"), mask)
    assert not is_usual(message(rows, compression="lz4"), mask)
    assert not is_usual(message(rows, metadata_version=pa.ipc.MetadataVersion.V4), mask)


@pytest.mark.parametrize("bit", [VALUE, START])
@pytest.mark.parametrize("more", [0, ID, HEADERS, ALL_BITS])
def test_a_null_where_none_may_be_is_not_usual(bit: int, more: int) -> None:
    """A value, and the start of a batch, is never null."""
    mask = VALUE | bit | more
    whole = batch(mask, 2, nulls=False)
    at = whole.schema.get_field_index(FIELDS[bit].name)
    columns = whole.columns
    columns[at] = pa.array([FULL[columns[at].type], None], columns[at].type)
    assert not is_usual(pa.RecordBatch.from_arrays(columns, schema=schema_of(mask)).serialize(), mask)


def test_a_null_in_a_header_is_not_usual() -> None:
    """Neither the name of a header nor its value is ever null."""
    kind, mask = FIELDS[HEADERS].type, VALUE | HEADERS
    offsets, texts = pa.array([0, 1], pa.int32()), pa.array(["a"])
    bad = pa.MapArray.from_arrays(offsets, texts, pa.array([None], pa.binary())).cast(kind)
    rows = pa.RecordBatch.from_arrays([pa.array([b"v"]), bad], schema=schema_of(mask))
    assert not is_usual(rows.serialize(), mask)


def test_bytes_that_are_cut_short_are_not_usual() -> None:
    """However few there are: no error but a no."""
    data = batch(VALUE | ID, 1, nulls=False).serialize()
    length = 8 + int.from_bytes(data.to_pybytes()[4:8], "little")
    assert not any(is_usual(data.slice(0, end), VALUE | ID) for end in range(length - 64))


def test_every_other_byte_of_the_metadata_is_either_noticed_or_harmless() -> None:
    """Whatever byte is changed: a message that still counts as usual is plain, and Arrow finds nothing null in it."""
    rows = from_records([Record(b"v", id="i", headers={"a": b"1"}), Record(b"w", id="j")])
    mask = mask_of(rows.schema)
    data = bytearray(rows.serialize())
    usual = 0
    for at in range(8 + int.from_bytes(data[4:8], "little")):
        for flip in (1, 4, 128, 255):
            data[at] ^= flip
            if is_usual(pa.py_buffer(bytes(data)), mask):
                usual += 1
                assert is_plain(memoryview(data))
                assert _nulls(bytes(data), rows.schema) == 0
            data[at] ^= flip
    assert usual > 0


def _nulls(data: bytes, schema: pa.Schema) -> int:
    """Return how many values and headers are null, as Arrow reads it; none if Arrow refuses it."""
    try:
        found = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except (pa.ArrowException, OSError):
        return 0
    headers = found.column("headers")
    return int(found.column("value").null_count + headers.keys.null_count + headers.items.null_count)
