"""Content ids: an id for a record that has none, the hash of what it says."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa

from oncelog.dedup.fingerprint import HASHED_COLUMNS, content_parts
from oncelog.types import Record

_ID_CHARACTERS = 32
_LENGTH = struct.Struct("<Q")


class Hash(Protocol):
    """A hash that has been begun."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""
        ...

    def digest(self) -> bytes:
        """Return the hash of all bytes."""
        ...


@lru_cache(maxsize=1024)
def _begin(log_id: str) -> tuple[Callable[[], Hash], Callable[[], Hash]]:
    """Return what begins the log's two hashes: of a bare value, and of a value with more. No content has both forms.

    A copy of a hash that was begun costs less than a new one with all its parameters.
    """
    key = hashlib.blake2b(log_id.encode(), digest_size=32, person=b"oncelog content").digest()
    bare = hashlib.blake2b(digest_size=_ID_CHARACTERS // 2, salt=key[:16], person=key[16:31] + b"v")
    full = hashlib.blake2b(digest_size=_ID_CHARACTERS // 2, salt=key[:16], person=key[16:31] + b"r")
    return bare.copy, full.copy


def content_id(log_id: str, record: Record) -> str:
    """Return the id a record gets from its content, in the log of this permanent id: 32 hexadecimal digits.

    The id is the BLAKE2b-128 hash of everything but the id, personalised by the log's permanent id, which a copy of the
    log keeps. It does not depend on the log's secret.
    """
    return _digest(log_id, record).hex()


def _digest(log_id: str, record: Record) -> bytes:
    bare, full = _begin(log_id)
    parts = content_parts(record)
    begun = full() if parts else bare()
    begun.update(_canonical(record.value, parts) if parts else record.value)
    return begun.digest()


def content_ids(log_id: str, payload: pa.RecordBatch) -> pa.StringArray:
    """Return the content id of each row, the same as ``content_id`` does."""
    if payload.num_rows == 0:
        return pa.array([], type=pa.string())
    named = [name for name in HASHED_COLUMNS[1:] if _is_used(payload, name)]
    digests = _full_digests(log_id, payload, named) if named else _bare_digests(log_id, payload.column("value"))
    digits = b"".join(digests).hex().encode()
    offsets = np.arange(0, len(digits) + 1, _ID_CHARACTERS, dtype=np.int32)
    return pa.StringArray.from_buffers(payload.num_rows, pa.py_buffer(offsets), pa.py_buffer(digits))


def _is_used(payload: pa.RecordBatch, name: str) -> bool:
    index = payload.schema.get_field_index(name)
    return index >= 0 and bool(payload.column(index).null_count < payload.num_rows)


def _bare_digests(log_id: str, values: pa.Array) -> list[bytes]:
    begin, _ = _begin(log_id)
    digests = []
    for value in values.to_pylist():  # quicker than slicing the memory of the column for each value
        begun = begin()
        begun.update(value)
        digests.append(begun.digest())
    return digests


def _full_digests(log_id: str, payload: pa.RecordBatch, named: list[str]) -> Iterator[bytes]:
    lists = {name: payload.column(name).to_pylist() for name in ("value", *named)}
    if "headers" in lists:
        lists["headers"] = [None if entries is None else dict(entries) for entries in lists["headers"]]
    for row in zip(*lists.values(), strict=True):
        yield _digest(log_id, Record(**dict(zip(lists, row, strict=True))))


def _canonical(value: bytes, parts: list[tuple[str, bytes | Mapping[str, bytes]]]) -> bytes:
    """Spell the content so that no two contents share a spelling: names and lengths before bytes."""
    pieces = [_LENGTH.pack(len(value)), value]
    for name, part in parts:
        row = _spell_headers(part) if isinstance(part, Mapping) else part
        pieces += [_LENGTH.pack(HASHED_COLUMNS.index(name)), _LENGTH.pack(len(row)), row]
    return b"".join(pieces)


def _spell_headers(headers: Mapping[str, bytes]) -> bytes:
    pieces = []
    for name, value in sorted(headers.items()):
        encoded = name.encode()
        pieces += [_LENGTH.pack(len(encoded)), encoded, _LENGTH.pack(len(value)), value]
    return b"".join(pieces)
