"""The identities of an adopted file, sorted, in an object beside the file: a look-up need not read the file.

::

    head       an envelope (``frame``) with the count and the checksum of what follows
    arrays     high halves of the identities (sorted), low halves, fingerprints, rows: 28 bytes an identity
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format import frame
from oncelog.shapes import prepare

KIND = b"OLid"
VERSION = 1
_KEY_BYTES = 28


class Identities(msgspec.Struct, frozen=True):
    """The identities of a file's records that carry an id, in the order of ``high``, then ``low``."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]
    rows: NDArray[np.uint32]

    @classmethod
    def sorted(cls, keys: NDArray[np.uint64], fingerprints: NDArray[np.uint64], rows: NDArray[np.uint32]) -> Identities:
        """Return identities given in any order."""
        return cls.ordered(keys[:, 0].copy(), keys[:, 1].copy(), fingerprints, rows)

    @classmethod
    def ordered(
        cls,
        high: NDArray[np.uint64],
        low: NDArray[np.uint64],
        fingerprints: NDArray[np.uint64],
        rows: NDArray[np.uint32],
    ) -> Identities:
        """Return identities given in any order, in two halves."""
        order = _order(high)
        placed = high[order]
        if (placed[1:] <= placed[:-1]).any():  # hardly ever by chance, so it is an id that is there twice
            order = np.lexsort((rows, low, high))
            placed = high[order]
        return cls(placed, low[order], fingerprints[order], rows[order])

    @classmethod
    def joined(cls, parts: Sequence[Identities]) -> Identities:
        """Return the identities of several parts as those of one."""
        if len(parts) == 1:
            return parts[0]
        none = (np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
        return cls.sorted(
            np.concatenate([none[0], *(part.keys for part in parts)]),
            np.concatenate([none[1], *(part.fingerprints for part in parts)]),
            np.concatenate([none[2], *(part.rows for part in parts)]),
        )

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The identities in two columns, as the window takes them."""
        return np.stack([self.high, self.low], axis=1)


def _order(high: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the order of numbers that are as good as random, but for some whose leading bits are the same.

    With a number's place in its low bits, what is sorted is numbers alone: numpy does that at a third of the cost.
    """
    places = np.uint64((1 << len(high).bit_length()) - 1)
    packed = high & ~places
    packed |= np.arange(len(high), dtype=np.uint64)
    packed.sort()
    packed &= places
    return packed.view(np.int64)


class _Head(msgspec.Struct, frozen=True, array_like=True):
    count: int
    checksum: int


def encode(identities: Identities) -> list[bytes | memoryview]:
    """Return the bytes of the object, in pieces."""
    arrays = [
        np.ascontiguousarray(array, kind).view(np.uint8).data
        for array, kind in (
            (identities.high, "<u8"),
            (identities.low, "<u8"),
            (identities.fingerprints, "<u8"),
            (identities.rows, "<u4"),
        )
    ]
    head = _Head(len(identities.high), _checksum(arrays))
    return [frame.wrap(KIND, VERSION, msgspec.msgpack.encode(head)), *arrays]


def _checksum(arrays: Sequence[memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(array)
    return digest.intdigest()


def decode(data: pa.Buffer, what: str) -> Identities:
    """Return the identities that the bytes hold, checked; ``CorruptionError`` or ``Unsupported`` otherwise."""
    packed, head_bytes = frame.unwrap_front(KIND, VERSION, data, what)
    head = frame.unpack(packed, _Head, what)
    body = data.slice(head_bytes)
    if body.size != head.count * _KEY_BYTES or xxhash.xxh3_64_intdigest(body) != head.checksum:
        message = f"{what}: its arrays are not those that were written"
        raise CorruptionError(message)
    count = head.count
    return Identities(
        np.frombuffer(body, "<u8", count, 0),
        np.frombuffer(body, "<u8", count, count * 8),
        np.frombuffer(body, "<u8", count, count * 16),
        np.frombuffer(body, "<u4", count, count * 24),
    )


prepare(_Head)
