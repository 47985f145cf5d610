"""Gathering many blocks reads what decoding each would, and refuses what does not belong together."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import block, gather
from oncelog.format.payload import columns, schema, single
from oncelog.types import Record
from tests.format.samples import STAMP, chain, flips, records, whole, within

plain = st.builds(Record, value=st.binary(max_size=40), id=st.none() | st.text(min_size=1, max_size=20))


def gathered(blocks: Sequence[bytes]) -> list[gather.GatheredBlocks]:
    """Return the blocks, gathered."""
    return list(gather.gather(map(pa.py_buffer, blocks)))


@given(groups=st.lists(st.lists(plain, min_size=1, max_size=1) | st.lists(records, min_size=1, max_size=3), min_size=1))
def test_gathered_blocks_are_the_blocks(groups: list[list[Record]]) -> None:
    """Single records parsed without Arrow, and others between them, come out as the entries that went in."""
    (found,) = gathered(chain(groups))
    rows = columns.entries(
        found.payload, found.first_position, found.segment, found.first_entry, found.row_timestamps_us()
    )
    assert [
        Record(row.value, row.id, row.stream, row.type, row.headers, row.producer, row.sequence, row.tenant)
        for row in rows
    ] == [record for group in groups for record in group]
    assert (found.segment, found.first_entry, found.first_position) == (STAMP["segment"], 0, 500)
    assert found.counts == [len(group) for group in groups]


def test_times_are_those_of_each_block() -> None:
    """A gathered row keeps the timestamp and the up-time of the block it was stored in."""
    blocks, previous = [], 0
    for number, count in enumerate((1, 3, 1)):
        stamp = {**STAMP, "first_entry": (0, 1, 4)[number], "first_position": (0, 1, 4)[number], "previous": previous}
        stamp |= {"timestamp_us": 100 + number, "uptime_us": 200 + number}
        encoded = block.encode(columns.from_records([Record(b"v", id="i")] * count), **stamp)
        previous = encoded.checksum
        blocks.append(whole(encoded))
    (found,) = gathered(blocks)
    assert np.asarray(found.row_timestamps_us()).tolist() == [100, 101, 101, 101, 102]
    assert np.asarray(found.row_uptimes_us()).tolist() == [200, 201, 201, 201, 202]
    assert (found.previous, found.checksum) == (0, previous)


def test_large_blocks_are_not_copied() -> None:
    """Only small blocks are gathered: a large one's payload stays in its buffer, and has its place."""
    large = [Record(b"x" * 1_000)] * 100
    buffers = [pa.py_buffer(raw) for raw in chain([[Record(b"a")], large, [Record(b"b")], [Record(b"c")]])]
    found = list(gather.gather(buffers))
    assert [part.counts for part in found] == [[1], [100], [1, 1]]
    assert [part.first_entry for part in found] == [0, 1, 101]
    assert within(found[1].payload["value"].buffers()[2], buffers[1])
    assert found[1].row_timestamps_us() == STAMP["timestamp_us"]


def test_gathering_stays_bounded() -> None:
    """Recovering a long segment of small blocks does not hold all of it twice."""
    value = b"x" * 60_000
    found = gathered(chain([[Record(value)]] * 200))
    assert len(found) > 2
    assert max(part.payload.nbytes for part in found) <= gather.GATHERED_BYTES_MAX + 2 * gather.SMALL_BYTES_MAX
    assert sum(part.payload.num_rows for part in found) == 200


def test_nothing_gathers_to_nothing() -> None:
    """An empty segment has no records."""
    assert gathered([]) == []


@pytest.mark.parametrize("order", [[0, 2], [1, 0], [0, 0], [1, 3]])
def test_blocks_that_do_not_follow_are_refused(order: list[int]) -> None:
    """A hole, a repeat or another order is damage, never a shorter log."""
    blocks = chain([[Record(b"a")], [Record(b"b")], [Record(b"c"), Record(b"d")], [Record(b"x" * 70_000)]])
    with pytest.raises(CorruptionError, match="does not follow"):
        gathered([blocks[number] for number in order])


@pytest.mark.parametrize("record", [Record(b"hello"), Record(b"hello", id="order-42")])
def test_every_flipped_bit_of_a_single_record_is_seen(record: Record) -> None:
    """Parsing without Arrow is no less strict."""
    for _, damaged in flips(chain([[record]])[0]):
        with pytest.raises(CorruptionError):
            gathered([damaged])


def test_cut_and_newer_blocks_are_refused() -> None:
    """Errors are those of ``decode``, whatever way a block was read."""
    (raw,) = chain([[Record(b"hello", id="order-42")]])
    for end in range(len(raw)):
        with pytest.raises(CorruptionError):
            gathered([raw[:end]])
    newer = bytearray(raw)
    newer[8] = 2
    newer[120:] = xxhash.xxh3_64_intdigest(newer[:120]).to_bytes(8, "little") + newer[128:]
    with pytest.raises(Unsupported):
        gathered([bytes(newer)])


@given(value=st.binary(max_size=100), record_id=st.none() | st.text(min_size=1, max_size=20).map(str.encode))
def test_single_message_is_parsed_only_if_exactly_so(value: bytes, record_id: bytes | None) -> None:
    """Any byte of a message's metadata that is not as expected sends it to Arrow."""
    mask = schema.VALUE if record_id is None else schema.VALUE | schema.ID
    message = single.message(value, record_id)
    assert single.parse(b"12345678" + message, 8, mask) == (value, record_id)
    front = 8 + int.from_bytes(message[4:8], "little")
    for at in range(0, front, 3):
        changed = message[:at] + bytes([message[at] ^ 0x55]) + message[at + 1 :]
        assert single.parse(changed, 0, mask) is None
    for end in range(0, front, 5):
        assert single.parse(message[:end], 0, mask) is None


def test_other_shapes_are_left_to_arrow() -> None:
    """A null id in a block that has ids, or another column, is read the general way."""
    payload = columns.from_records([Record(b"a", id="x"), Record(b"b")]).slice(1)
    raw = whole(block.encode(payload, **{**STAMP, "first_entry": 0}))
    (found,) = gathered([raw])
    assert found.payload.to_pylist() == [{"value": b"b", "id": None}]


def test_ids_that_are_not_text_are_damage() -> None:
    """Checksums that hold do not make text of bytes that are none: nothing is read as something else."""
    (raw,) = chain([[Record(b"hello", id="order-42")]])
    forged = bytearray(raw.replace(b"order-42", b"order-\xff2"))
    forged[104:112] = xxhash.xxh3_64_intdigest(forged[128:]).to_bytes(8, "little")
    forged[120:128] = xxhash.xxh3_64_intdigest(forged[:120]).to_bytes(8, "little")
    with pytest.raises(CorruptionError, match="not UTF-8"):
        gathered([bytes(forged)])


def test_without_a_learned_shape_all_goes_through_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should Arrow lay its messages out otherwise, writing and reading still work."""
    monkeypatch.setattr(single, "_VALUE_SHAPE", None)
    monkeypatch.setattr(single, "_ID_SHAPE", None)
    for record_id in (None, "order-42"):
        raw = whole(block.encode_one(b"hello", None if record_id is None else record_id.encode(), **STAMP))
        (found,) = gathered([raw])
        assert found.payload.equals(columns.from_records([Record(b"hello", id=record_id)]))


def test_shapes_are_learned() -> None:
    """With the Arrow of today the quick way is taken; if this fails, single records have become slow."""
    assert single._VALUE_SHAPE is not None
    assert single._ID_SHAPE is not None


def outcome(blocks: Sequence[bytes]) -> object:
    """Return what comes of blocks that were checked before: what was gathered, or the kind of error."""
    try:
        found = list(gather.gather(block.CheckedBlocks(map(pa.py_buffer, blocks))))
    except (CorruptionError, Unsupported) as error:
        return type(error)
    return [
        (*(getattr(one, name) for name in one.__struct_fields__ if name != "payload"), one.payload.to_pylist())
        for one in found
    ]


@given(
    kept=st.lists(plain, min_size=40, max_size=60),
    with_ids=st.none() | st.booleans(),
    other=st.none() | st.lists(records, min_size=1, max_size=3),
)
def test_many_single_records_are_read_as_each_would_be(
    *, kept: list[Record], with_ids: bool | None, other: list[Record] | None
) -> None:
    """By columns where all are plain and alike; one by one where some have ids, or another block stands between."""
    if with_ids is not None:
        kept = [Record(one.value, id=(one.id or "x") if with_ids else None) for one in kept]
    blocks = chain([*([one] for one in kept), *([other] if other else [])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MANY", 1 << 60)
        expected = outcome(blocks)
    assert outcome(blocks) == expected
    if with_ids is not None and other is None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(single, "parse", None)  # not one of them is parsed by itself
            assert outcome(blocks) == expected


@pytest.mark.parametrize("record_id", [None, "order-42"])
def test_a_changed_byte_among_many_is_treated_as_in_one(record_id: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were checked before are not summed up again. Both ways must read, or refuse, the same."""
    blocks = chain([[Record(b"hello" * number, id=record_id)] for number in range(40)])
    for at in range(0, len(blocks[7]) - 8, 3):
        changed = [*blocks[:7], blocks[7][:at] + bytes([blocks[7][at] ^ 0x55]) + blocks[7][at + 1 :], *blocks[8:]]
        monkeypatch.setattr(gather, "MANY", 1 << 60)
        expected = outcome(changed)
        monkeypatch.setattr(gather, "MANY", 32)
        assert outcome(changed) == expected, f"byte {at}"


def test_many_single_records_that_do_not_follow_are_refused() -> None:
    """A block that is missing, comes twice or is of another chain."""
    blocks = chain([[Record(b"v", id=f"{number}")] for number in range(50)])
    for order in ([*range(20), *range(21, 50)], [*range(20), 19, *range(20, 50)], [*range(48), 49, 48]):
        assert outcome([blocks[number] for number in order]) is CorruptionError


@pytest.mark.parametrize("at", [7, 39])
def test_a_message_that_says_it_is_longer_than_its_block_is_refused(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers agree with each other: one more look tells that the id would lie in the next block, or nowhere."""
    blocks = chain([[Record(b"hello", id="order-42")] for _ in range(40)])
    shape = single._ID_SHAPE
    assert shape is not None
    front, _, _ = shape.around(5, 20)
    raw = blocks[at]
    offsets = (0).to_bytes(4, "little") + (20).to_bytes(4, "little")
    blocks[at] = raw[:128] + front + raw[128 + len(front) :].replace(offsets[:4] + (8).to_bytes(4, "little"), offsets)
    monkeypatch.setattr(gather, "MANY", 1 << 60)
    expected = outcome(blocks)
    monkeypatch.setattr(gather, "MANY", 32)
    assert outcome(blocks) == expected
