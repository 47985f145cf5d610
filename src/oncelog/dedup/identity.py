"""Who a record is, and whether two records say the same: 128-bit identities and 64-bit fingerprints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup import columns
from oncelog.dedup.columns import Column
from oncelog.dedup.content import content_id, content_ids
from oncelog.dedup.fingerprint import FINGERPRINT_FAMILY, Fingerprints
from oncelog.dedup.kernels import kernels
from oncelog.dedup.linear import Family, Multilinear
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.types import Record

__all__ = ["SECRET_BYTES", "Hasher", "Pairs", "content_id", "content_ids"]

SECRET_BYTES = 32
"""The length of a log's secret."""

PAIR_FAMILY = Family(prime=2**32 - 5, rows=4, stripe_limbs=31, stripes=16)
_PRIME = PAIR_FAMILY.prime
_OTHER = FINGERPRINT_FAMILY.prime
_CHUNK_ROWS = 5000
_WORD = 32
_WORD_LIMBS = 4  # in a factor of a product

SHORT_BYTES_MAX = 256
"""Up to this an id and a value are hashed together, when they come alone."""
_SHORT_MAX = 256
_PADS = [bytes(size & 1) for size in range(SHORT_BYTES_MAX + 1)]
_ID_MARKS = [size.to_bytes(2, "little") for size in range(SHORT_BYTES_MAX + 1)]
_VALUE_MARKS = [(size + 1).to_bytes(2, "little") for size in range(SHORT_BYTES_MAX + 1)]


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
            words[low:high] = sums.T
        return words.view("<u8")

    def one(self, first: bytes, second: bytes) -> tuple[int, int]:
        """Return the hash of one pair, the same as ``many`` does."""
        a, b, c, d = self._second.one(second)
        if first:
            e, f, g, h = self._first.one(first)
            a, b, c, d = a + e, b + f, c + g, d + h
        return b % _PRIME << _WORD | a % _PRIME, d % _PRIME << _WORD | c % _PRIME

    def front(self, limbs: int) -> NDArray[np.uint64]:
        """Return the coefficients of the second string's mark and the limbs behind it, so many together."""
        return self._second.front(limbs)


class _Product:
    """Multiplies the limbs of one id and one value by their coefficients, in memory of its own: for one thread.

    New arrays for each record would cost as much as the product. ``limbs`` are the lowest 16 bits of the factors.
    """

    __slots__ = ("factors", "limbs", "multiply", "results", "sums")

    def __init__(self, coefficients: NDArray[np.uint64]) -> None:
        self.factors = np.zeros(coefficients.shape[1], np.uint64)  # as wide as the coefficients: nothing is converted
        self.limbs = self.factors.data.cast("B").cast("H")[::_WORD_LIMBS]
        self.sums = np.zeros(len(coefficients), np.uint64)
        self.results = self.sums.data
        self.multiply: Callable[..., Any] = coefficients.dot


class Hasher:
    """The keyed hashes of one log, drawn from its secret.

    Identities: two different (scope, id) pairs collide with probability about 2**-128; fingerprints: two different
    contents with about 2**-62; both for anyone who does not know the secret, and for any strings they choose, by the
    argument in ``linear``. Strings above ``Family.bytes_max`` also rest on keyed BLAKE2b. Stored logs depend on these
    values: they never change. Safe to share between threads.
    """

    def __init__(self, secret: bytes, *, by_stream: bool = False) -> None:
        """Take the log's secret, 32 random bytes. Raises ``InvalidArgument`` for any other length.

        ``by_stream``: whether an id is one of its stream, not of the whole log. ``Unsupported`` where the lowest byte
        of a number is not its first: limbs and tags are views of the same memory.
        """
        if sys.byteorder != "little":
            message = "this processor is not little-endian: Oncelog would not recognise ids there"
            raise Unsupported(message)
        if len(secret) != SECRET_BYTES:
            message = f"a log's secret has {SECRET_BYTES} bytes, this one {len(secret)}"
            raise InvalidArgument(message)
        self.by_stream = by_stream
        self._short: dict[tuple[int, int], list[_Product]] = {}
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

    def both(self, id: bytes, value: bytes) -> tuple[int, int, int]:
        """Return identity (high and low) and fingerprint of a record that has an id, a value, and nothing else.

        One product with the coefficients of both: what an append waits for is not the arithmetic, but the calls.
        """
        id_bytes, value_bytes = len(id), len(value)
        if id_bytes > SHORT_BYTES_MAX or value_bytes > SHORT_BYTES_MAX:
            return *self._identities.one(b"", id), self._fingerprints.of_value(value)
        lengths = id_bytes + 1 >> 1, value_bytes + 1 >> 1
        idle = self._short.get(lengths)
        if idle is None:
            idle = self._learn(lengths)
        try:
            product = idle.pop()  # until it is put back, it is this thread's alone
        except IndexError:
            product = self._product(*lengths)
        limbs = b"".join(
            (_ID_MARKS[id_bytes], id, _PADS[id_bytes], _VALUE_MARKS[value_bytes], value, _PADS[value_bytes])
        )
        product.limbs[:] = memoryview(limbs).cast("H")
        product.multiply(product.factors, product.sums)
        a, b, c, d, e, f = product.results.tolist()
        idle.append(product)
        return b % _PRIME << _WORD | a % _PRIME, d % _PRIME << _WORD | c % _PRIME, f % _OTHER << _WORD | e % _OTHER

    def _learn(self, lengths: tuple[int, int]) -> list[_Product]:
        """Return where the products for an id and a value of so many limbs are kept while nobody uses them."""
        if len(self._short) >= _SHORT_MAX:
            self._short = {}
        return self._short.setdefault(lengths, [])

    def _product(self, id_limbs: int, value_limbs: int) -> _Product:
        """Return what multiplies an id and a value of so many limbs, each behind its mark."""
        ids, values = self._identities.front(id_limbs + 1), self._fingerprints.front(value_limbs + 1)
        coefficients = np.zeros((len(ids) + len(values), id_limbs + value_limbs + 2), np.uint64)
        coefficients[: len(ids), : id_limbs + 1] = ids
        coefficients[len(ids) :, id_limbs + 1 :] = values
        return _Product(coefficients)
