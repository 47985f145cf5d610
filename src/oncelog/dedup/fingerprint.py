"""Whether two records say the same: a 64-bit hash of all that the user gave but the id."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup import columns
from oncelog.dedup.columns import Column
from oncelog.dedup.kernels import kernels
from oncelog.dedup.linear import Family, Multilinear
from oncelog.format.payload.arrays import booleans
from oncelog.types import Record

FINGERPRINT_FAMILY = Family(prime=2**31 - 1, rows=2, stripe_limbs=63, stripes=33)
HASHED_COLUMNS = ("value", "stream", "type", "headers", "producer", "sequence", "tenant")
"""The columns of a payload that make its content: all but ``id`` and ``start``."""

LINEAGE = ("oncelog.file", "oncelog.line", "oncelog.batch")
"""Headers that say where a record came from. They are no part of its content: the same row of another file is a
duplicate, and not a conflict.
"""

_PRIME = FINGERPRINT_FAMILY.prime
_CHUNK_ROWS = 5000
_WORD = 32
_PAIR = struct.Struct("<QQ")
_SEQUENCE = struct.Struct("<q")
NO_LABELS = (None,) * 6
"""Stream, type, headers, producer, sequence and tenant of a plain record: a value, perhaps an id, and nothing else."""


class PairHash(Protocol):
    """The 128-bit hash of two strings, in its two forms."""

    def many(self, first: Column | None, second: Column) -> NDArray[np.uint64]:
        """Return the hash of each pair as (high, low)."""
        ...

    def one(self, first: bytes, second: bytes) -> tuple[int, int]:
        """Return the hash of one pair."""
        ...


class Fingerprints:
    """The fingerprint of a payload: the sum of its columns' hashes, each under coefficients of its own.

    Two residues below 2**31 - 1 side by side: different contents collide with probability about 2**-62. A null, and
    a column that is not there, adds nothing; an empty string does. A row's headers are hashed as the
    concatenation of the 128-bit hashes of its entries (name and value), in the order of those hashes, so that the
    order in which they were given does not count: 64 entries add less than 2**-115 to the bound.
    """

    def __init__(self, secret: bytes, headers: PairHash) -> None:
        """Draw coefficients from the secret, for each column when it is first seen."""
        self._secret = secret
        self._headers = headers
        self._columns: dict[str, Multilinear] = {}
        self._value = self._column("value")

    def _column(self, name: str) -> Multilinear:
        found = self._columns.get(name)
        if found is None:
            found = Multilinear(FINGERPRINT_FAMILY, self._secret, name, presence=1)
            self._columns[name] = found
        return found

    def many(self, payload: pa.RecordBatch) -> NDArray[np.uint64]:
        """Return the fingerprint of each row."""
        parts = self._parts(payload)
        compiled = kernels(payload.num_rows)
        if compiled is not None:
            words = np.zeros((payload.num_rows, FINGERPRINT_FAMILY.rows), np.uint32)
            if all(hasher.add(compiled.hash_two, column, words) for hasher, column in parts):
                return words.view(np.uint64).reshape(-1)
        fingerprints = np.empty(payload.num_rows, dtype=np.uint64)
        for low in range(0, payload.num_rows, _CHUNK_ROWS):
            high = min(low + _CHUNK_ROWS, payload.num_rows)
            first, *others = (hasher.sums(column.rows(low, high)) for hasher, column in parts)
            residues = FINGERPRINT_FAMILY.reduce(sum(others, start=first)) if others else first
            fingerprints[low:high] = residues[1].astype(np.uint64) << _WORD | residues[0].astype(np.uint64)
        return fingerprints

    def _parts(self, payload: pa.RecordBatch) -> list[tuple[Multilinear, Column]]:
        """Return the columns that are there and not all null, each with its hash."""
        parts = []
        for name in HASHED_COLUMNS:
            index = payload.schema.get_field_index(name)
            if index < 0 or (payload.column(index).null_count == payload.num_rows and name != "value"):
                continue
            parts.append((self._column(name), self._read(name, payload.column(index))))
        return parts

    def _read(self, name: str, array: pa.Array) -> Column:
        if name == "headers":
            return self._read_headers(array)
        return columns.from_integers(array) if name == "sequence" else columns.from_strings(array)

    def _read_headers(self, array: pa.MapArray) -> Column:
        """Return each row's headers as the hashes of its entries, sorted."""
        offsets, entries, valid = _content_entries(array)
        names, values = columns.from_strings(entries.field(0)), columns.from_strings(entries.field(1))
        hashes = self._headers.many(names, values)
        rows = np.repeat(np.arange(len(array)), np.diff(offsets))
        order = np.lexsort((hashes[:, 1], hashes[:, 0], rows))
        data = np.ascontiguousarray(hashes[order]).view(np.uint8).reshape(-1)
        return columns.from_items(data, offsets, _PAIR.size, valid)

    def one(self, record: Record) -> int:
        """Return the fingerprint of one record."""
        low, high = self._value.one(record.value)
        if (record.stream, record.type, record.headers, record.producer, record.sequence, record.tenant) != NO_LABELS:
            for name, part in content_parts(record):
                row = self._pack_headers(part) if isinstance(part, Mapping) else part
                more_low, more_high = self._column(name).one(row)
                low, high = low + more_low, high + more_high
        return high % _PRIME << _WORD | low % _PRIME

    def front(self, limbs: int) -> NDArray[np.uint64]:
        """Return the coefficients of a value's mark and the limbs behind it, so many together."""
        return self._value.front(limbs)

    def of_value(self, value: bytes) -> int:
        """Return the fingerprint of a record that has a value, perhaps an id, and nothing else."""
        low, high = self._value.one(value)
        return high % _PRIME << _WORD | low % _PRIME

    def _pack_headers(self, headers: Mapping[str, bytes]) -> bytes:
        hashes = sorted(self._headers.one(name.encode(), value) for name, value in headers.items())
        return b"".join(_PAIR.pack(*pair) for pair in hashes)


def _content_entries(array: pa.MapArray) -> tuple[NDArray[np.int64], pa.StructArray, NDArray[np.bool_] | None]:
    """Return all headers but those of lineage, where each row's begin, and which rows have any left."""
    import pyarrow.compute as pc  # noqa: PLC0415  it takes long to load, and few records have headers

    offsets, entries = columns.map_entries(array)
    valid = columns.validity(array)
    lineage = pc.is_in(entries.field(0), pa.array(LINEAGE, entries.field(0).type)).to_numpy(zero_copy_only=False)
    if not lineage.any():
        return offsets, entries, valid
    before = np.diff(offsets)
    rows = np.repeat(np.arange(len(array)), before)
    counts = np.bincount(rows[~lineage], minlength=len(array))
    there = (counts > 0) | (before == 0)
    valid = there if valid is None else valid & there
    return np.concatenate(([0], np.cumsum(counts))), entries.filter(booleans(~lineage)), valid


def content_headers(headers: Mapping[str, bytes]) -> Mapping[str, bytes] | None:
    """Return the headers that are content; ``None`` where all of them are lineage.

    >>> content_headers({"a": b"1", "oncelog.file": b"day.json"}), content_headers({"oncelog.line": b"7"})
    ({'a': b'1'}, None)
    """
    if headers.keys().isdisjoint(LINEAGE):
        return headers
    return {name: value for name, value in headers.items() if name not in LINEAGE} or None


def content_parts(record: Record) -> list[tuple[str, bytes | Mapping[str, bytes]]]:
    """Return what the record has besides its value and id, as bytes; the headers as they are."""
    parts: list[tuple[str, bytes | Mapping[str, bytes]]] = []
    if record.stream is not None:
        parts.append(("stream", record.stream.encode()))
    if record.type is not None:
        parts.append(("type", record.type.encode()))
    headers = content_headers(record.headers) if record.headers is not None else None
    if headers is not None:
        parts.append(("headers", headers))
    if record.producer is not None:
        parts.append(("producer", record.producer.encode()))
    if record.sequence is not None:
        parts.append(("sequence", _SEQUENCE.pack(record.sequence)))
    if record.tenant is not None:
        parts.append(("tenant", record.tenant.encode()))
    return parts
