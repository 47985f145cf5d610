"""Many blocks at once: small neighbours become one payload, so that what follows works on columns.

A log that was written one record at a time is read and recovered at 2-3 µs a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format.block import (
    CHECKED_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    BlockHeader,
    CheckedBlocks,
    decode,
    payload_of,
)
from oncelog.format.payload import single
from oncelog.format.payload.arrays import binaries, texts_of_utf8
from oncelog.format.payload.columns import concat
from oncelog.format.payload.schema import ALL_BITS, ID, VALUE, schema_of

_unpack = HEADER.unpack_from
_digest = xxhash.xxh3_64_intdigest

_COUNT, _BODY_BYTES = 7, 12
"""Where ``HEADER`` has the count of records and the length of the body."""

SMALL_BYTES_MAX = 65_536
"""A larger block stays as it is, uncopied."""

GATHERED_BYTES_MAX = 4_194_304
"""Small blocks are gathered up to about this many bytes."""


MANY = 32
"""So many blocks of one record are parsed by columns: about a third of the time."""

_HEADERS = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("mask", "<u4"),
        ("segment", "<i8"),
        ("entry", "<i8"),
        ("position", "<i8"),
        ("count", "<i8"),
        ("epoch", "<i8"),
        ("unused", "V8"),
        ("writer", "V16"),
        ("uptime_us", "<i8"),
        ("timestamp_us", "<i8"),
        ("body_bytes", "<u8"),
        ("body_checksum", "<u8"),
        ("previous", "<u8"),
        ("checksum", "<u8"),
    ]
)
"""``HEADER``, for columns."""
assert _HEADERS.itemsize == HEADER_BYTES == HEADER.size


class GatheredBlocks(msgspec.Struct, frozen=True):
    """Consecutive blocks of one segment, checked, as one payload.

    ``counts``, ``timestamps_us`` and ``uptimes_us`` have an element a block. ``previous`` is what the first block names
    as the checksum of the one before, ``checksum`` is the last one's own.
    """

    segment: int
    first_entry: int
    first_position: int
    payload: pa.RecordBatch
    counts: list[int]
    timestamps_us: list[int]
    uptimes_us: list[int]
    previous: int
    checksum: int

    def row_timestamps_us(self) -> int | NDArray[np.int64]:
        """Return the rows' timestamps: one for all of a single block, else one each."""
        if len(self.counts) == 1:
            return self.timestamps_us[0]
        return np.repeat(np.array(self.timestamps_us, np.int64), self.counts)

    def row_uptimes_us(self) -> int | NDArray[np.int64]:
        """Return the up-time at which the rows were stored: one for all of a single block, else one each."""
        if len(self.counts) == 1:
            return self.uptimes_us[0]
        return np.repeat(np.array(self.uptimes_us, np.int64), self.counts)


def gather(buffers: Iterable[pa.Buffer], *, full: bool = False) -> Iterator[GatheredBlocks]:
    """Yield the blocks in ``buffers``, which follow each other in one segment, gathered as far as that is cheap.

    Every block is checked as ``decode`` checks it (but for what ``CheckedBlocks`` were found to be before), and must
    follow the one before: else ``CorruptionError``.
    """
    known = buffers if isinstance(buffers, CheckedBlocks) else None
    gathering = _Gathering(checked=known is not None, sound=known is not None and known.sound, full=full)
    if known is not None and len(known) >= MANY and not full and gathering.add_singles(known):
        buffers = ()
    for buffer in buffers:
        large = buffer.size > SMALL_BYTES_MAX
        if gathering.counts and (large or gathering.size_bytes > GATHERED_BYTES_MAX):
            yield gathering.taken()
        gathering.add(buffer, large=large)
        if large:
            yield gathering.taken()
    if known is not None and not known.sound:
        known.on_sound()
    if gathering.counts:
        yield gathering.taken()


class _Gathering:
    """Blocks on their way to be gathered. What must come next is remembered when some are taken."""

    def __init__(self, *, checked: bool, sound: bool, full: bool) -> None:
        self._checked, self._sound, self._full = checked, sound, full
        self.follows: tuple[int, int, int, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self.size_bytes = 0
        self.counts: list[int] = []
        self.uptimes_us: list[int] = []
        self.timestamps_us: list[int] = []
        self.payloads: list[pa.RecordBatch] = []
        self.masks: list[int] = []
        self.values: list[bytes] = []
        self.ids: list[bytes | None] = []

    def add(self, buffer: pa.Buffer, *, large: bool) -> None:
        """Check a block and put it behind those that are here."""
        size_bytes = buffer.size
        raw = buffer if large else buffer.to_pybytes()
        fields = _unpack(raw) if size_bytes >= HEADER_BYTES else None
        if fields is None or fields[_COUNT] != 1 or large or not self._add_single(raw, fields):
            self._add_many(buffer, fields)
        self.size_bytes += size_bytes

    def _add_many(self, buffer: pa.Buffer, fields: tuple[Any, ...] | None) -> None:
        """Add any block. The header of one that was checked before is not summed up again."""
        if fields is not None and self._checked and _is_readable(fields, buffer.size):
            header = BlockHeader(*fields[3:])
            payload = payload_of(header, buffer, sound=self._sound, full=self._full)
        else:
            block = decode(buffer, checked=self._checked, sound=self._sound, full=self._full)
            header, payload = block.header, block.payload
        self._flush_singles()
        place = (header.segment, header.first_entry, header.first_position, header.previous)
        self._follow(place, header.count, header.checksum)
        self.uptimes_us.append(header.uptime_us)
        self.timestamps_us.append(header.timestamp_us)
        self.payloads.append(payload)
        self.masks.append(header.mask)

    def _add_single(self, raw: bytes, fields: tuple[Any, ...]) -> bool:
        """Add a block of one plain record; return ``False`` for any other, and for what ``decode`` will refuse."""
        # fmt: off
        (
            magic, version, flags, mask, segment, entry, position, _, _, _,
            uptime_us, timestamp_us, body_bytes, body_checksum, previous, checksum,
        ) = fields
        # fmt: on
        if magic != MAGIC or version != VERSION or flags or len(raw) != HEADER_BYTES + body_bytes:
            return False
        if not self._checked and (
            _digest(raw[:CHECKED_BYTES]) != checksum or _digest(raw[HEADER_BYTES:]) != body_checksum
        ):
            return False
        found = single.parse(raw, HEADER_BYTES, mask)
        if found is None:
            return False
        self._follow((segment, entry, position, previous), 1, checksum)
        self.uptimes_us.append(uptime_us)
        self.timestamps_us.append(timestamp_us)
        self.values.append(found[0])
        self.ids.append(found[1])
        return True

    def add_singles(self, blocks: CheckedBlocks) -> bool:
        """Add blocks that were checked before, if each of them has one plain record and follows the one before.

        ``False``, and nothing is added, if one does not: then they are looked at one by one.
        """
        sizes = np.array([block.size for block in blocks], np.int64)
        if bool((sizes < HEADER_BYTES).any()) or int(sizes.sum()) > GATHERED_BYTES_MAX:
            return False
        raw = b"".join(blocks)
        ends = np.cumsum(sizes)
        heads = single.cut(raw, ends - sizes, _HEADERS)
        first, last = heads[0], heads[-1]
        if not _are_singles(heads, sizes) or not _are_chained(heads):
            return False
        found = single.parse_many(raw, ends - sizes + HEADER_BYTES, ends, int(first["mask"]))
        if found is None:
            return False
        place = (int(first["segment"]), int(first["entry"]), int(first["position"]), int(first["previous"]))
        self._follow(place, 1, 0)
        self.follows = (place[0], int(last["entry"]) + 1, int(last["position"]) + 1, int(last["checksum"]))
        self.counts = [1] * len(blocks)
        self.uptimes_us = heads["uptime_us"].tolist()
        self.timestamps_us = heads["timestamp_us"].tolist()
        self.values, ids = found
        self.ids = [None] * len(blocks) if ids is None else list(ids)
        return True

    def _follow(self, place: tuple[int, int, int, int], count: int, checksum: int) -> None:
        if not self.counts:
            self.first = place
        if place != self.follows and self.follows is not None:
            message = (
                f"block of segment {place[0]} from entry {place[1]}: does not follow the one before: "
                f"its (segment, entry, position, checksum before) are {place}, expected {self.follows}"
            )
            raise CorruptionError(message)
        self.follows = (place[0], place[1] + count, place[2] + count, checksum)
        self.counts.append(count)

    def _flush_singles(self) -> None:
        if not self.values:
            return
        mask = VALUE
        arrays = [binaries(self.values)]
        if any(found is not None for found in self.ids):
            mask |= ID
            arrays.append(_texts(self.ids))
        self.payloads.append(pa.RecordBatch.from_arrays(arrays, schema=schema_of(mask)))
        self.masks.append(mask)
        self.values, self.ids = [], []

    def taken(self) -> GatheredBlocks:
        """Return what was gathered, and begin again."""
        assert self.follows is not None, "there is something to take"
        self._flush_singles()
        segment, first_entry, first_position, previous = self.first
        gathered = GatheredBlocks(
            segment=segment,
            first_entry=first_entry,
            first_position=first_position,
            payload=concat(self.payloads, self.masks),
            counts=self.counts,
            timestamps_us=self.timestamps_us,
            uptimes_us=self.uptimes_us,
            previous=previous,
            checksum=self.follows[3],
        )
        self._clear()
        return gathered


def _are_singles(heads: NDArray[Any], sizes: NDArray[np.int64]) -> bool:
    """Tell whether all headers are of this version, of one record, of one shape, and of blocks of these sizes."""
    return bool(
        (
            (heads["magic"] == MAGIC)
            & (heads["version"] == VERSION)
            & (heads["flags"] == 0)
            & (heads["count"] == 1)
            & (heads["mask"] == heads["mask"][0])
            & (heads["body_bytes"] == (sizes - HEADER_BYTES).view(np.uint64))
        ).all()
    )


def _are_chained(heads: NDArray[Any]) -> bool:
    """Tell whether each block of one record follows the one before."""
    rows = np.arange(len(heads))
    return bool(
        (heads["segment"] == heads["segment"][0]).all()
        and (heads["entry"] - heads["entry"][0] == rows).all()
        and (heads["position"] - heads["position"][0] == rows).all()
        and (heads["previous"][1:] == heads["checksum"][:-1]).all()
    )


def _is_readable(fields: tuple[Any, ...], size_bytes: int) -> bool:
    """Tell whether the fields of a header are of this version, and of a block of this size."""
    magic, version, flags, mask = fields[:4]
    return (
        magic == MAGIC
        and version == VERSION
        and not flags
        and not mask & ~ALL_BITS
        and bool(mask & VALUE)
        and bool(size_bytes == HEADER_BYTES + fields[_BODY_BYTES])
    )


def _texts(texts: list[bytes | None]) -> pa.Array:
    array = texts_of_utf8(texts)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        message = f"an id in a block whose checksums hold is not UTF-8: {error}"
        raise CorruptionError(message) from error
    return array
