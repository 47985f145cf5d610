"""A block comes back as it was written, or is refused: no damage, garbage or cut yields other records."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError, InvalidArgument, Unsupported
from oncelog.format import block
from oncelog.format.payload import columns, schema
from oncelog.types import Record
from tests.format.samples import STAMP, chain, flips, records, stored, whole, within

SMALL = stored([Record(b"hello", id="order-42")])


def resealed(raw: bytes, **changes: tuple[str, int, int]) -> bytes:
    """Return a block with header fields (format, offset, value) replaced and every checksum made to hold again."""
    changed = bytearray(raw)
    struct.pack_into("<Q", changed, 104, xxhash.xxh3_64_intdigest(changed[block.HEADER_BYTES :]))
    for kind, offset, value in changes.values():
        struct.pack_into(kind, changed, offset, value)
    struct.pack_into("<Q", changed, 120, xxhash.xxh3_64_intdigest(changed[:120]))
    return bytes(changed)


@given(rows=st.lists(records, min_size=1, max_size=20), data=st.data())
def test_block_comes_back(rows: list[Record], data: st.DataObject) -> None:
    """Every column, null, text and batch-start bit that was written is read."""
    starts = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    payload = columns.from_records(rows, starts)
    encoded = block.encode(payload, **STAMP)
    raw = whole(encoded)
    read = block.decode(pa.py_buffer(raw))
    assert read.payload.equals(payload)
    assert {name: getattr(read.header, name) for name in STAMP} == STAMP
    assert (read.header.count, read.header.checksum) == (len(rows), encoded.checksum)
    assert len(raw) == encoded.size_bytes == read.header.size_bytes
    assert len(raw) % block.ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("count", [1, 3, 5_000])
def test_slices_are_written_without_what_they_were_cut_from(count: int) -> None:
    """A group cut out of a larger table costs its own bytes, and reads as itself."""
    rows = [
        Record(b"%d" % row * 10, id=None if row % 3 else str(row), headers={"n": b"%d" % row}) for row in range(9_000)
    ]
    payload = columns.from_records(rows, [row % 7 == 0 for row in range(9_000)]).slice(1_001, count)
    encoded = block.encode(payload, **STAMP)
    assert block.decode(whole(encoded)).payload.equals(payload)
    assert encoded.size_bytes < 2_000 + 300 * count


def test_large_buffers_are_written_where_they_lie() -> None:
    """Committing does not copy the values: the chunks for writev are Arrow's own buffers."""
    payload = columns.from_records([Record(b"x" * 1_000, id=f"id-{row}") for row in range(1_000)])
    chunks = block.encode(payload, **STAMP).chunks
    addresses = {chunk.address for chunk in chunks if isinstance(chunk, pa.Buffer)}
    assert payload["value"].buffers()[2].address in addresses
    assert payload["id"].buffers()[2].address in addresses
    assert len(chunks) < 64


@pytest.mark.parametrize("count", [1, 1_000])
def test_payload_lies_in_the_buffer_read(count: int) -> None:
    """Readers hand the batch on without copying it: every buffer is inside the mapped block."""
    rows = [Record(b"x" * 100, id=f"id-{row}", headers={"a": b"b"}, sequence=row) for row in range(count)]
    buffer = pa.py_buffer(stored(rows))
    payload = block.decode(buffer).payload
    found = [part for column in payload.columns for part in column.buffers() if part is not None and part.size]
    assert found
    assert all(within(part, buffer) for part in found)


def test_threads_do_not_share_a_writer() -> None:
    """Logs of one process commit at the same time; their blocks must not mix."""
    payloads = [columns.from_records([Record(b"%d" % log * 30_000, id=str(log))]) for log in range(8)]

    def encoded_right(log: int) -> bool:
        return all(
            block.decode(whole(block.encode(payloads[log], **STAMP))).payload.equals(payloads[log]) for _ in range(20)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(encoded_right, range(8)))


def test_nothing_of_a_block_is_held_after_it_was_written() -> None:
    """An idle writer does not keep the last block's memory alive."""
    before = pa.total_allocated_bytes()
    payload = pa.RecordBatch.from_arrays([pa.array([bytes(1_000_000)])], schema=schema.schema_of(schema.VALUE))
    encoded = block.encode(payload, **STAMP)
    assert pa.total_allocated_bytes() - before >= 1_000_000
    del payload, encoded
    assert pa.total_allocated_bytes() - before < 100_000


def test_other_columns_are_refused() -> None:
    """A batch that is not a payload would be stored under a mask that does not describe it."""
    with pytest.raises(InvalidArgument, match="not a payload"):
        block.encode(pa.record_batch({"value": pa.array(["text"])}), **STAMP)
    with pytest.raises(InvalidArgument, match="not a payload"):
        block.encode(pa.record_batch({"id": pa.array(["x"])}), **STAMP)


def test_every_flipped_bit_is_seen() -> None:
    """No single damaged bit, in header, body or padding, yields a block."""
    for bit, damaged in flips(SMALL):
        with pytest.raises(CorruptionError):
            block.decode(pa.py_buffer(damaged))
        if bit < 8 * len(block.MAGIC):
            assert block.read_header(damaged) is None
        elif bit < 8 * block.HEADER_BYTES:
            with pytest.raises(CorruptionError):
                block.read_header(damaged)


def test_every_other_length_is_seen() -> None:
    """A block cut at any byte, or with a byte too many, is refused."""
    for end in range(len(SMALL)):
        with pytest.raises(CorruptionError):
            block.decode(SMALL[:end])
    for other in (SMALL[:-1], SMALL[: block.HEADER_BYTES], SMALL + b"\0"):
        with pytest.raises(CorruptionError, match=f"{len(other)} bytes, its header says {len(SMALL)}"):
            block.decode(other)


def test_no_block_is_told_from_a_damaged_one() -> None:
    """Behind the last block lie zeros or nothing: that is an end, a header cut short is not."""
    for nothing in (b"", bytes(5), bytes(500), b"text" * 100):
        assert block.read_header(nothing) is None
    assert block.read_header(SMALL, len(SMALL)) is None
    assert block.read_header(SMALL, 64) is None
    for end in range(len(block.MAGIC), block.HEADER_BYTES):
        with pytest.raises(CorruptionError, match="cut short"):
            block.read_header(SMALL[:end])


def test_header_is_found_at_an_offset() -> None:
    """A reader hops over a mapped segment without slicing it."""
    header = block.read_header(pa.py_buffer(bytes(64) + SMALL), 64)
    assert header == block.decode(SMALL).header


@pytest.mark.parametrize("field", [("<H", 8, 2), ("<H", 10, 1), ("<I", 12, 1 << 9 | 1), ("<I", 12, 2)])
def test_newer_is_unsupported_only_when_whole(field: tuple[str, int, int]) -> None:
    """A newer version, an unknown flag or column asks for an upgrade, and is never cut off as a torn tail."""
    newer = resealed(SMALL, field=field)
    with pytest.raises(Unsupported, match="upgrade"):
        block.decode(newer)
    with pytest.raises(Unsupported, match="upgrade"):
        block.read_header(newer)
    if field[1] == 8:
        with pytest.raises(Unsupported, match="upgrade"):
            block.scan(newer, previous=None)


@pytest.mark.parametrize("field", [("<q", 40, 2), ("<I", 12, 0b11111)])
def test_header_that_does_not_fit_its_body_is_damage(field: tuple[str, int, int]) -> None:
    """Checksums that hold do not excuse a count or columns that are not the body's."""
    with pytest.raises(CorruptionError):
        block.decode(resealed(SMALL, field=field))


@given(body=st.binary(max_size=256))
def test_garbage_under_valid_checksums_does_not_crash(body: bytes) -> None:
    """Arrow refuses what is no message, and its error becomes ours."""
    header = SMALL[: block.HEADER_BYTES]
    for content in (body, SMALL[128:160] + body):
        with pytest.raises(CorruptionError):
            block.decode(resealed(header + content, length=("<Q", 96, len(content))))


def test_other_messages_under_valid_checksums_are_refused() -> None:
    """A message that is no record batch, or one of other columns, is damage though its checksum holds."""
    header = SMALL[: block.HEADER_BYTES]
    others = [
        schema.schema_of(schema.VALUE).serialize(),
        columns.from_records([Record(b"hello")]).serialize(),
        pa.record_batch({"value": pa.array([1])}).serialize(),
    ]
    for content in map(bytes, others):
        with pytest.raises(CorruptionError):
            block.decode(resealed(header + content, length=("<Q", 96, len(content))))


@given(garbage=st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Whatever bytes come, the answer is an error of ours."""
    for content in (garbage, block.MAGIC + garbage):
        with pytest.raises(CorruptionError):
            block.decode(content)
        assert block.scan(content).offsets == []


@given(value=st.binary(max_size=300), record_id=st.none() | st.text(min_size=1, max_size=60))
def test_one_record_is_written_alike(value: bytes, record_id: str | None) -> None:
    """The quick way to write one record means what the general way means; with this Arrow, byte for byte."""
    quick = block.encode_one(value, None if record_id is None else record_id.encode(), **STAMP)
    general = block.encode(columns.from_records([Record(value, id=record_id)]), **STAMP)
    assert block.decode(whole(quick)).payload.equals(block.decode(whole(general)).payload)
    assert whole(quick) == whole(general)
    assert (quick.size_bytes, quick.checksum) == (general.size_bytes, general.checksum)


def test_scan_finds_every_block() -> None:
    """Recovery and locate see each block of a segment, once, and the end of the last."""
    blocks = chain([[Record(b"a" * size, id="x")] * (1 + size % 3) for size in range(0, 200, 7)])
    raw = b"".join(blocks)
    found = block.scan(pa.py_buffer(raw), bodies=True)
    assert [raw[start:][: len(part)] for start, part in zip(found.offsets, blocks, strict=True)] == blocks
    assert found.counts == [1 + size % 3 for size in range(0, 200, 7)]
    assert found.first_entries == [sum(found.counts[:number]) for number in range(len(blocks))]
    assert (found.end, found.stopped) == (len(raw), "end")
    assert found.checksum == block.decode(blocks[-1]).header.checksum


def test_scan_says_what_stopped_it() -> None:
    """A torn tail, zeros, an older run's block and damage are different things to recovery."""
    first, second, third = chain([[Record(b"a")], [Record(b"b")], [Record(b"c")]])
    middle = len(first) + len(second)

    def stop(raw: bytes, **options: bool) -> tuple[int, str]:
        found = block.scan(raw, **options)
        return found.end, found.stopped

    assert stop(first + second + bytes(200)) == (middle, "no block")
    assert stop(first + second + bytes(20)) == (middle, "no block")
    assert stop(first + second + third[:100]) == (middle, "cut short")
    assert stop(first + second + third[:-1]) == (middle, "cut short")
    assert stop(first + third) == (len(first), "broken chain")
    assert stop(first + second + third[:90] + b"?" + third[91:]) == (middle, "bad header")
    assert stop(first + second + third[:-9] + b"?" + third[-8:]) == (middle + len(third), "end")
    assert stop(first + second + third[:-9] + b"?" + third[-8:], bodies=True) == (middle, "bad body")


def test_scan_goes_on_where_it_is_told() -> None:
    """A reader that knows where it was, and what was there, does not start over; an end is kept."""
    first, second, third = chain([[Record(b"a")], [Record(b"b")], [Record(b"c")]])
    raw = first + second + third
    checksum = block.decode(first).header.checksum
    assert block.scan(raw, len(first), previous=checksum).first_entries == [1, 2]
    assert block.scan(raw, len(first), previous=None).first_entries == [1, 2]
    assert block.scan(raw, len(first), previous=0).stopped == "broken chain"
    limited = block.scan(raw, 0, len(first) + len(second))
    assert (limited.first_entries, limited.stopped) == ([0, 1], "end")
    assert block.scan(b"", previous=5).checksum == 5


def test_scan_survives_every_flipped_bit() -> None:
    """Damage in the second of two blocks never hides the first, nor lets the second pass."""
    first, second = chain([[Record(b"a")], [Record(b"b", id="i")]])
    for _, damaged in flips(second):
        found = block.scan(first + damaged, bodies=True)
        assert found.offsets == [0]
        assert found.stopped in {"no block", "bad header", "bad body"}
