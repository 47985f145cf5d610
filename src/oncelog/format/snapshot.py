"""The dedup snapshot: a window and its producers at one moment, with the watermark they belong to.

::

    head       an envelope (``frame``) of at most 1024 bytes: watermark, sizes, and the checksums of what follows
    zeros      up to a multiple of 64 bytes
    arrays     identities, positions, fingerprints, ticks, times, starts: each up to a multiple of 8 bytes
    details    per-segment watermarks and producers, in msgpack

A snapshot caches what the log can tell, so a damaged one is refused whole and never read as an empty window.
48.2 bytes a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog import limits
from oncelog.errors import CorruptionError
from oncelog.format import frame
from oncelog.shapes import prepare

KIND = b"OLsn"
VERSION = 1
HEAD_BYTES_MAX = 1024
"""So many bytes from the front are enough for ``decode_head``."""

_ALIGNMENT_BYTES = 64
_KEY_BYTES = 48


class ProducerMark(msgspec.Struct, frozen=True, array_like=True):
    """How far a producer got, and the up-time at which it was last active."""

    last_sequence: int
    last_position: int
    active_us: int


class Snapshot(msgspec.Struct, frozen=True):
    """A window of ``n`` identities, oldest first as far as the writer kept them so, and all it takes to continue it.

    ``watermark`` is the position after the last record it covers; ``segments`` has (segment, last entry) for the
    segments it covers. ``ticks`` are up-time, ``times`` wall time, both in µs; ``starts`` are the batch-start bits.
    ``pending_until`` is the position behind the last record that was on its way then: ids may have made room for those,
    so a log that never got so far cannot believe it. ``tail_from`` is not -1 in a log that remembers without bounds:
    then all ids from that position on are in it, and none before.
    """

    log_id: str
    created_us: int
    uptime_us: int
    watermark: int
    duration_us: int
    max_keys: int
    segments: Sequence[tuple[int, int]]
    identities: NDArray[np.uint64]
    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    ticks: NDArray[np.int64]
    times: NDArray[np.int64]
    starts: NDArray[np.bool_]
    producers: Mapping[str, ProducerMark] = {}
    pending_until: int = 0
    tail_from: int = -1


class SnapshotHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be known of a snapshot from its first bytes."""

    log_id: str
    created_us: int
    uptime_us: int
    watermark: int
    duration_us: int
    max_keys: int
    count: int
    arrays_checksum: int
    details_bytes: int
    details_checksum: int
    pending_until: int = 0
    tail_from: int = -1

    @property
    def reach(self) -> int:
        """The position that a log must have got to for the snapshot to be believed."""
        return max(self.watermark, self.pending_until)


class _Details(msgspec.Struct, frozen=True, array_like=True):
    segments: list[tuple[int, int]]
    producers: dict[str, ProducerMark]


def encode(snapshot: Snapshot) -> list[bytes]:
    """Return a snapshot's bytes, in pieces."""
    arrays = _array_bytes(snapshot)
    details = msgspec.msgpack.encode(
        _Details([(int(segment), int(entry)) for segment, entry in snapshot.segments], dict(snapshot.producers))
    )
    head = SnapshotHead(
        log_id=snapshot.log_id,
        created_us=snapshot.created_us,
        uptime_us=snapshot.uptime_us,
        watermark=snapshot.watermark,
        duration_us=snapshot.duration_us,
        max_keys=snapshot.max_keys,
        count=len(snapshot.positions),
        arrays_checksum=_checksum(arrays),
        details_bytes=len(details),
        details_checksum=xxhash.xxh3_64_intdigest(details),
        pending_until=snapshot.pending_until,
        tail_from=snapshot.tail_from,
    )
    framed = frame.wrap(KIND, VERSION, msgspec.msgpack.encode(head))
    assert len(framed) <= HEAD_BYTES_MAX, "a snapshot's head fits its bound"
    return [framed + bytes(-len(framed) % _ALIGNMENT_BYTES), *arrays, details]


def _array_bytes(snapshot: Snapshot) -> list[bytes]:
    count = len(snapshot.positions)
    shaped = (
        (snapshot.identities, "<u8", (count, 2)),
        (snapshot.positions, "<i8", (count,)),
        (snapshot.fingerprints, "<u8", (count,)),
        (snapshot.ticks, "<i8", (count,)),
        (snapshot.times, "<i8", (count,)),
    )
    assert all(array.shape == shape for array, _, shape in shaped), "all arrays are of one length"
    assert snapshot.starts.shape == (count,), "all arrays are of one length"
    starts = np.packbits(snapshot.starts, bitorder="little").tobytes()
    chunks = [array.astype(kind, copy=False).tobytes() for array, kind, _ in shaped]
    return [*chunks, starts + bytes(-len(starts) % 8)]


def _checksum(chunks: list[bytes]) -> int:
    digest = xxhash.xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
    return digest.intdigest()


def decode_head(prefix: pa.Buffer | bytes, what: str = "snapshot") -> SnapshotHead:
    """Return the head from a snapshot's first ``HEAD_BYTES_MAX`` bytes (or all of it); raises as ``decode`` does."""
    return _head(prefix, what)[0]


def _head(data: pa.Buffer | bytes, what: str) -> tuple[SnapshotHead, int]:
    payload, size_bytes = frame.unwrap_front(KIND, VERSION, data, what)
    return frame.unpack(payload, SnapshotHead, what), size_bytes


def decode(buffer: pa.Buffer | bytes, what: str = "snapshot") -> Snapshot:
    """Return a snapshot, checked to its last byte. The arrays lie in the buffer, read-only; only ``starts`` is copied.

    ``CorruptionError``, naming ``what``, when any byte is not what was written; ``Unsupported`` for a newer version.
    """
    head, framed_bytes = _head(buffer, what)
    if not 0 <= head.count <= limits.WINDOW_KEYS_MAX:
        _refuse(what, f"{head.count} keys")
    memory = memoryview(buffer).cast("B")
    first = framed_bytes + -framed_bytes % _ALIGNMENT_BYTES
    behind = first + _KEY_BYTES * head.count + (head.count + 63) // 64 * 8
    if memory.nbytes != behind + head.details_bytes:
        _refuse(what, f"{memory.nbytes} bytes, its head says {behind + head.details_bytes}")
    if any(memory[framed_bytes:first]):
        _refuse(what, "bytes behind its head are not zero")
    if xxhash.xxh3_64_intdigest(memory[first:behind]) != head.arrays_checksum:
        _refuse(what, "the checksum of its arrays does not match")
    if xxhash.xxh3_64_intdigest(memory[behind:]) != head.details_checksum:
        _refuse(what, "the checksum of its details does not match")
    details = frame.unpack(memory[behind:], _Details, what)
    return _assembled(head, details, memory[first:behind])


def _assembled(head: SnapshotHead, details: _Details, arrays: memoryview) -> Snapshot:
    count = head.count
    marks = [0, 16 * count, 24 * count, 32 * count, 40 * count, 48 * count]
    kinds = ("<u8", "<i8", "<u8", "<i8", "<i8")
    parts: list[NDArray[Any]] = [
        np.frombuffer(arrays[start:end], kind) for kind, start, end in zip(kinds, marks, marks[1:], strict=False)
    ]
    starts = np.unpackbits(np.frombuffer(arrays[marks[-1] :], np.uint8), count=count, bitorder="little")
    return Snapshot(
        log_id=head.log_id,
        created_us=head.created_us,
        uptime_us=head.uptime_us,
        watermark=head.watermark,
        duration_us=head.duration_us,
        max_keys=head.max_keys,
        segments=details.segments,
        identities=parts[0].reshape(count, 2),
        positions=parts[1],
        fingerprints=parts[2],
        ticks=parts[3],
        times=parts[4],
        starts=starts.view(np.bool_),
        producers=details.producers,
        pending_until=head.pending_until,
        tail_from=head.tail_from,
    )


def _refuse(what: str, why: str) -> None:
    message = f"{what}: damaged: {why}"
    raise CorruptionError(message)


prepare(SnapshotHead, _Details)
