"""Who a record is, and whether two records say the same: 128-bit identities and 64-bit fingerprints."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup import columns
from oncelog.dedup.columns import Column
from oncelog.dedup.content import content_id, content_ids
from oncelog.dedup.fingerprint import Fingerprints
from oncelog.dedup.kernels import kernels
from oncelog.dedup.linear import Family, Multilinear
from oncelog.errors import InvalidArgument
from oncelog.types import Record

__all__ = ["SECRET_BYTES", "Hasher", "Pairs", "content_id", "content_ids"]

SECRET_BYTES = 32
"""The length of a log's secret."""

PAIR_FAMILY = Family(prime=2**32 - 5, rows=4, stripe_limbs=31, stripes=16)
_CHUNK_ROWS = 5000
_WORD = 32


class Pairs:
    """The 128-bit hash of two strings, used for (scope, id) and for a header's (name, value).

    Each string has coefficients and a length of its own, so where the one ends and the other begins counts. Two
    different pairs collide with probability (2**32 - 5)**-4, which is about 2**-128 (see ``linear``).
    """

    def __init__(self, secret: bytes, first: str, second: str, *, presence: int) -> None:
        """Draw the coefficients for the two strings from the secret, under their names.

        ``presence`` 1 tells a second string that is null from an empty one; the first is never null.
        """
        self._first = Multilinear(PAIR_FAMILY, secret, first, presence=0)
        self._second = Multilinear(PAIR_FAMILY, secret, second, presence=presence)

    def many(self, first: Column | None, second: Column) -> NDArray[np.uint64]:
        """Return the hash of each pair as (high, low); without ``first``, it is empty everywhere."""
        count = len(second.offsets) - 1
        compiled = kernels(count)
        if compiled is not None:
            words = np.zeros((count, PAIR_FAMILY.rows), np.uint32)
            done = self._second.add(compiled.hash_four, second, words)
            if done and (first is None or self._first.add(compiled.hash_four, first, words)):
                return words.view(np.uint64)
        words = np.empty((count, PAIR_FAMILY.rows), dtype="<u4")
        for low in range(0, count, _CHUNK_ROWS):
            high = min(low + _CHUNK_ROWS, count)
            sums = self._second.sums(second.rows(low, high))
            if first is not None:
                sums = PAIR_FAMILY.reduce(sums + self._first.sums(first.rows(low, high)))
            words[low:high] = sums
        return words.view("<u8")

    def one(self, first: bytes, second: bytes) -> tuple[int, int]:
        """Return the hash of one pair, the same as ``many`` does."""
        packed = self._second.one(second)
        if first:
            packed += self._first.one(first)
        a, b, c, d = PAIR_FAMILY.residues(packed)
        return b << _WORD | a, d << _WORD | c


class Hasher:
    """The keyed hashes of one log, drawn from its secret.

    Identities: two different (scope, id) pairs collide with probability about 2**-128; fingerprints: two different
    contents with about 2**-62; both for anyone who does not know the secret, and for any strings they choose, by the
    argument in ``linear``. Strings above ``Family.bytes_max`` also rest on keyed BLAKE2b. Stored logs depend on these
    values: they never change. Safe to share between threads.
    """

    def __init__(self, secret: bytes, *, by_stream: bool = False) -> None:
        """Take the log's secret, 32 random bytes. Raises ``InvalidArgument`` for any other length.

        ``by_stream``: whether an id is one of its stream, not of the whole log.
        """
        if len(secret) != SECRET_BYTES:
            message = f"a log's secret has {SECRET_BYTES} bytes, this one {len(secret)}"
            raise InvalidArgument(message)
        self.by_stream = by_stream
        self._identities = Pairs(secret, "scope", "id", presence=0)
        self._fingerprints = Fingerprints(secret, Pairs(secret, "header name", "header value", presence=1))

    def identities(self, scopes: pa.Array | None, ids: pa.Array) -> NDArray[np.uint64]:
        """Return the identity of each (scope, id), shape (n, 2): high and low. No scopes: all empty.

        A row with a null id gets some value or other.
        """
        scoped = None if scopes is None else columns.from_strings(scopes)
        return self._identities.many(scoped, columns.from_strings(ids))

    def keys(self, payload: pa.RecordBatch) -> NDArray[np.uint64]:
        """Return the identity of each row of a payload, all of which carry an id."""
        at = payload.schema.get_field_index("stream") if self.by_stream else -1
        scopes = None if at < 0 else payload.column(at)
        if scopes is not None and scopes.null_count:
            scopes = scopes.fill_null("")
        return self.identities(scopes, payload.column(payload.schema.get_field_index("id")))

    def identity(self, scope: str, id: str) -> tuple[int, int]:
        """Return the identity of one (scope, id), the same as ``identities`` does."""
        return self._identities.one(scope.encode() if scope else b"", id.encode())

    def fingerprints(self, payload: pa.RecordBatch) -> NDArray[np.uint64]:
        """Return the fingerprint of each row: all its columns but ``id`` and ``start``."""
        return self._fingerprints.many(payload)

    def fingerprint(self, record: Record) -> int:
        """Return the fingerprint of one record, the same as ``fingerprints`` does."""
        return self._fingerprints.one(record)
