"""A dedup snapshot comes back exactly, or is refused whole: never as an emptier window."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import frame, snapshot
from oncelog.format.snapshot import ProducerMark, Snapshot
from tests.format.samples import flips, within
from tests.golden.make import joined, make_snapshot

ARRAYS = ("identities", "positions", "fingerprints", "ticks", "times", "starts")


def same(one: Snapshot, other: Snapshot) -> bool:
    """Tell whether two snapshots say the same."""
    plain = [name for name in Snapshot.__struct_fields__ if name not in ARRAYS]
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS
    )


@given(
    count=st.integers(0, 200),
    segments=st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(-1, 1 << 40)), max_size=5),
    producers=st.dictionaries(st.text(), st.builds(ProducerMark, *[st.integers(-(1 << 63), (1 << 63) - 1)] * 3)),
)
def test_everything_comes_back(count: int, segments: list[tuple[int, int]], producers: dict[str, ProducerMark]) -> None:
    """What a writer knew is what its successor knows."""
    taken = msgspec.structs.replace(make_snapshot(count), segments=segments, producers=producers)
    assert same(snapshot.decode(joined(snapshot.encode(taken))), taken)


def test_arrays_keep_their_types_and_are_not_copied() -> None:
    """100,000 keys are loaded at the speed of a checksum; nobody writes into a stored object."""
    stored = pa.py_buffer(joined(snapshot.encode(make_snapshot(50))))
    read = snapshot.decode(stored)
    assert [getattr(read, name).dtype for name in ARRAYS] == ["u8", "i8", "u8", "i8", "i8", "?"]
    assert read.identities.shape == (50, 2)
    for name in ARRAYS[:-1]:
        assert within(pa.py_buffer(getattr(read, name)), stored)
        assert not getattr(read, name).flags.writeable


def test_arrays_of_any_layout_are_stored() -> None:
    """The window's ring hands over slices and transposes: their order in memory must not matter."""
    plain = make_snapshot(40)
    sliced = msgspec.structs.replace(
        plain,
        identities=np.asfortranarray(plain.identities),
        positions=np.repeat(plain.positions, 2)[::2],
        fingerprints=plain.fingerprints.astype(">u8"),
    )
    assert joined(snapshot.encode(sliced)) == joined(snapshot.encode(plain))


def test_100_000_keys_take_at_most_5_mb() -> None:
    """The stated size of a full window."""
    assert len(joined(snapshot.encode(make_snapshot(100_000)))) <= 5_000_000


def test_head_is_read_from_the_front() -> None:
    """Finding the newest snapshot reads a kilobyte of each, not the arrays."""
    taken = make_snapshot(1_000)
    head = snapshot.decode_head(joined(snapshot.encode(taken))[: snapshot.HEAD_BYTES_MAX])
    assert (head.watermark, head.log_id, head.count) == (taken.watermark, taken.log_id, 1_000)
    assert head.uptime_us == taken.uptime_us


def test_head_stays_small_whatever_the_details() -> None:
    """Many producers and segments do not push the watermark out of the first kilobyte."""
    mark = ProducerMark(1, 2, 3)
    taken = msgspec.structs.replace(
        make_snapshot(3),
        segments=[(number, number) for number in range(1_000)],
        producers={f"producer-{number}": mark for number in range(1_000)},
    )
    stored = joined(snapshot.encode(taken))
    assert snapshot.decode_head(stored[: snapshot.HEAD_BYTES_MAX]).watermark == taken.watermark
    assert same(snapshot.decode(stored), taken)


def test_every_flipped_bit_is_seen() -> None:
    """A damaged snapshot is refused, not half believed."""
    for _, damaged in flips(joined(snapshot.encode(make_snapshot(3)))):
        with pytest.raises(CorruptionError):
            snapshot.decode(damaged)


def test_every_other_length_is_seen() -> None:
    """A snapshot that was cut short is refused at every length; so is one that grew."""
    stored = joined(snapshot.encode(make_snapshot(3)))
    for end in range(len(stored)):
        with pytest.raises(CorruptionError):
            snapshot.decode(stored[:end])
    with pytest.raises(CorruptionError):
        snapshot.decode(stored + b"\0")


def test_nothing_is_not_an_empty_window() -> None:
    """An empty object, or zeros, is damage: an empty window says so in a whole snapshot."""
    for nothing in (b"", bytes(4096)):
        with pytest.raises(CorruptionError):
            snapshot.decode(nothing)
    assert len(snapshot.decode(joined(snapshot.encode(make_snapshot(0)))).positions) == 0


def test_whole_head_of_another_meaning_is_damage() -> None:
    """A head whose checksum holds and whose content is not a head's is refused, not guessed at."""
    for content in ({"log_id": "x"}, [1, 2], "text"):
        strange = frame.wrap(snapshot.KIND, snapshot.VERSION, msgspec.msgpack.encode(content))
        with pytest.raises(CorruptionError, match=r"cannot be read|does not make sense"):
            snapshot.decode(strange + bytes(64))


def test_newer_version_is_unsupported() -> None:
    """A rollback to an older Oncelog says what to do instead of reading wrongly."""
    newer = frame.wrap(snapshot.KIND, snapshot.VERSION + 1, b"")
    with pytest.raises(Unsupported, match="snapshot 5: format version 2"):
        snapshot.decode(newer, "snapshot 5")
    with pytest.raises(Unsupported):
        snapshot.decode_head(newer)


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Whatever bytes come, the answer is an error of ours."""
    for content in (garbage, snapshot.KIND + garbage):
        with pytest.raises(CorruptionError):
            snapshot.decode(content)
        with pytest.raises(CorruptionError):
            snapshot.decode_head(content)
