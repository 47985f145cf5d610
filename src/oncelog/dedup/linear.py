"""A keyed universal hash of byte strings that numpy computes exactly: multilinear over 16-bit limbs.

A string is read as little-endian limbs x[0], x[1], ... below 2**16, followed by zeros for ever, and one more limb, the
*mark*, that tells its length. Its hash, in each of several independent rows, is

    (m * mark + k[0] * x[0] + k[1] * x[1] + ...) mod p

with coefficients m, k[i] drawn from the secret, as good as uniform below the prime p > 2**16.

**Bound.** Two different strings differ in the mark or in some limb, by less than 2**16, so by something that is not 0
modulo p. With all other coefficients fixed, exactly one value of that limb's coefficient makes the sums equal modulo p:
they collide with probability 1/p in one row, and p**-rows in all of them, whatever the strings are, as long as they
were chosen without knowing the secret. (The whole residue is kept. Low bits of a sum modulo a power of two would not
do: there an even difference has no inverse.) The sum of the hashes of several columns, each under its own coefficients,
is the same hash of the longer vector, so it has the same bound. Coefficients are 64-bit outputs of SHAKE-256 modulo p,
which adds less than 2**-30 of itself to the bound.

**Exactness.** Limbs are multiplied in float64, in stripes so short that no sum of products reaches 2**53: every order
of addition, fused or not, gives the same integer. Each stripe is reduced modulo p, then the stripes are added.

**Long strings**, above ``bytes_max``, are first replaced by their 128-bit keyed BLAKE2b digest, under a mark that no
short string has. For them the probability that BLAKE2b under an unknown key collides is added to the bound.
Which way a string goes depends on nothing but its own length.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.columns import Bytes, Column, Offsets
from oncelog.dedup.kernels import fixed

Sums = NDArray[np.float64]

_EXACT_MAX = 1 << 53
_LONG_MARK = 0xFFFF
_LONG_MARKED = _LONG_MARK.to_bytes(2, "little")
_DIGEST_BYTES = 16
_GEMV_ROWS_MAX = 2
LIMB = np.dtype("<u2")
_ALL_VALID = np.zeros(0, np.bool_)


class Family:
    """What the hashes of one kind have in common: the prime, the number of rows, the size of a stripe."""

    def __init__(self, *, prime: int, rows: int, stripe_limbs: int, stripes: int) -> None:
        """Check that no stripe, with its mark, can leave the exact integers."""
        assert 1 << 16 < prime <= 1 << 32
        assert (stripe_limbs + 1) * 0xFFFF * (prime - 1) < _EXACT_MAX
        assert (stripes * stripe_limbs + 1) * 0xFFFF * (prime - 1) < 1 << 61  # and a few of them in 64 bits
        self.prime = prime
        self.rows = rows
        self.stripe_limbs = stripe_limbs
        self.stripe_bytes = 2 * stripe_limbs
        self.stripes = stripes
        self.bytes_max = self.stripe_bytes * stripes

    def reduce(self, sums: Sums) -> Sums:
        """Return the sums modulo the prime: the quotient of two integers below 2**53 has an exact floor."""
        quotients = sums / float(self.prime)
        np.floor(quotients, out=quotients)
        quotients *= float(self.prime)
        return np.subtract(sums, quotients, out=quotients)


class Multilinear:
    """The hash of one column, as residues to be added to those of other columns.

    ``presence`` is what the mark of a string has above its length: with 1 a null (mark 0) differs from an empty
    string; with 0 they are the same, and both add nothing.
    """

    def __init__(self, family: Family, secret: bytes, name: str, *, presence: int) -> None:
        """Draw the coefficients for the column of this name."""
        self._family = family
        self._presence = presence
        seed = b"oncelog multilinear 1\0" + name.encode() + b"\0" + secret
        count = (family.stripes * family.stripe_limbs + 1) * family.rows
        drawn = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), dtype="<u8")
        integers = (drawn % np.uint64(family.prime)).reshape(-1, family.rows)
        self._mark = integers[0].astype(np.float64)
        self._marked = np.ascontiguousarray(integers.T)
        self._integers = self._marked[:, 1:]
        self._narrow: tuple[NDArray[np.uint32], NDArray[np.uint64]] | None = None
        self._digest_key = hashlib.blake2b(seed, digest_size=32, person=b"oncelog digest").digest()

    @cached_property
    def _stripes(self) -> NDArray[np.float64]:
        """The coefficients as whole columns need them. A log to which records are appended one by one has none."""
        family = self._family
        lines = self._integers.reshape(family.rows, family.stripes, family.stripe_limbs)
        return np.ascontiguousarray(lines.transpose(1, 0, 2).astype(np.float64))

    def add(self, hash_rows: Callable[..., bool], column: Column, out: NDArray[np.uint32]) -> bool:
        """Add the hash of every row to residues, by a compiled loop; ``False`` when one is too long for that."""
        if self._narrow is None:
            self._narrow = self._integers.astype(np.uint32), self._mark.astype(np.uint64)
        valid = _ALL_VALID if column.valid is None else column.valid
        offsets = column.offsets.astype(np.int64)
        return hash_rows(fixed(column.data), offsets, fixed(valid), *self._narrow, self._presence, out)

    def sums(self, column: Column) -> Sums:
        """Return the hash of every row, shape (rows of the family, rows of the column), reduced."""
        starts = column.offsets[:-1]
        lengths = column.offsets[1:] - starts
        marks = lengths + self._presence if self._presence else lengths
        if column.valid is not None:
            lengths, marks = np.where(column.valid, lengths, 0), np.where(column.valid, marks, 0)
        longest = int(lengths.max(initial=0))
        if longest <= self._family.bytes_max:
            return self._short(column.data, starts, lengths, marks, longest)
        return self._mixed(column.data, starts, lengths, marks)

    def _mixed(self, data: Bytes, starts: Offsets, lengths: Offsets, marks: Offsets) -> Sums:
        long = lengths > self._family.bytes_max
        short_lengths, short_marks = np.where(long, 0, lengths), np.where(long, 0, marks)
        sums = self._short(data, starts, short_lengths, short_marks, int(short_lengths.max()))
        where = np.flatnonzero(long)
        ranges = zip(starts[where].tolist(), lengths[where].tolist(), strict=True)
        view = data.data
        digests = b"".join(self._digest(view[start : start + length]) for start, length in ranges)
        limbs = np.frombuffer(digests, dtype="<u2").reshape(-1, _DIGEST_BYTES // 2).astype(np.float64)
        products = self._project(limbs, self._stripes[0, :, : _DIGEST_BYTES // 2])
        sums[:, where] += self._family.reduce(products + _LONG_MARK * self._mark[:, None])
        return sums

    def _short(self, data: Bytes, starts: Offsets, lengths: Offsets, marks: Offsets, longest: int) -> Sums:
        size = self._family.stripe_bytes
        sums = self._products(data, starts, lengths, 0, longest)
        for line, coefficient in zip(sums, self._mark.tolist(), strict=True):
            np.add(line, marks * coefficient, out=line)
        sums = self._family.reduce(sums)
        for stripe in range(1, -(-longest // size)):
            here = np.flatnonzero(lengths > stripe * size)
            if len(here) < len(lengths):
                sums[:, here] += self._family.reduce(self._products(data, starts[here], lengths[here], stripe, longest))
            else:
                sums += self._family.reduce(self._products(data, starts, lengths, stripe, longest))
        return self._family.reduce(sums) if longest > size else sums

    def _products(self, data: Bytes, starts: Offsets, lengths: Offsets, stripe: int, longest: int) -> Sums:
        """Return the sums of one stripe of each row, not reduced."""
        at = stripe * self._family.stripe_bytes
        width = min(self._family.stripe_bytes, (longest - at + 1) // 2 * 2)
        memory = _scratch(len(starts) * width // 2)
        limbs = memory[: len(starts) * width // 2].reshape(len(starts), width // 2)
        if limbs.size:
            _read(limbs, data, starts + at, lengths - at)
        sums = self._project(limbs, self._stripes[stripe, :, : width // 2])
        _IDLE.append(memory)
        return sums

    def _project(self, limbs: NDArray[np.float64], coefficients: NDArray[np.float64]) -> Sums:
        """Multiply limbs by coefficients. For one or two rows BLAS is quicker by vector than by matrix."""
        sums = np.empty((self._family.rows, len(limbs)))
        if self._family.rows > _GEMV_ROWS_MAX:
            return np.matmul(coefficients, limbs.T, out=sums)
        for line, vector in zip(sums, coefficients, strict=True):
            np.dot(limbs, vector, out=line)
        return sums

    def _digest(self, row: bytes | memoryview) -> bytes:
        return hashlib.blake2b(row, digest_size=_DIGEST_BYTES, key=self._digest_key).digest()

    def one(self, row: bytes) -> list[int]:
        """Return the hash of one string: the sum in each row of the family, not reduced.

        Integers of 64 bits hold the sum of any string's products: no stripes are needed here. The mark comes first.
        """
        size = len(row)
        if size > self._family.bytes_max:
            limbs = _LONG_MARKED + self._digest(row)
        else:
            limbs = (size + self._presence).to_bytes(2, "little") + row
            if size & 1:
                limbs += b"\0"
        values = np.frombuffer(limbs, LIMB)
        sums: list[int] = self.front(values.size).dot(values).tolist()
        return sums

    def front(self, limbs: int) -> NDArray[np.uint64]:
        """Return the coefficients of the mark and the limbs behind it, so many together, one line for each row."""
        return self._marked[:, :limbs]


_IDLE: deque[NDArray[np.float64]] = deque(maxlen=4)
"""Memory to multiply in that nobody is using: new memory, every time, costs more than the product."""


def _scratch(size: int) -> NDArray[np.float64]:
    """Return memory for so many numbers, at least."""
    try:
        memory = _IDLE.pop()
    except IndexError:
        return np.empty(size)
    return memory if memory.size >= size else np.empty(size)


def _read(limbs: NDArray[np.float64], data: Bytes, starts: Offsets, lengths: Offsets) -> None:
    """Set the limbs of each row to its first bytes, and to zero beyond its end."""
    width = 2 * limbs.shape[1]
    whole = int(lengths.min()) >= width
    step = int(starts[-1] - starts[0]) // max(1, len(starts) - 1)
    if whole and (np.diff(starts) == step).all():  # all of one length: no need to gather them
        limbs[:] = np.ndarray(limbs.shape, LIMB, data, int(starts[0]), (step, 2))
    else:
        limbs[:] = _gather(data, starts, lengths, width, whole=whole)


def _gather(data: Bytes, starts: Offsets, lengths: Offsets, width: int, *, whole: bool) -> NDArray[np.uint16]:
    """Return the first ``width`` bytes of each row as limbs, zero beyond its end; ``whole``: none ends before that.

    Rows are read through a view of the buffer as overlapping items, and what belongs to the next row is masked away.
    ``starts`` must not decrease; the rows too near to the buffer's end are read from a padded copy of it.
    """
    rows = _items(data, starts, width)
    if not whole:
        kept = _masks(width)[np.minimum(lengths, width)]
        rows = np.bitwise_and(rows.view(np.uint8), kept.view(np.uint8), out=kept.view(np.uint8))
    return rows.view(LIMB).reshape(-1, width // 2)


def _items(data: Bytes, starts: Offsets, width: int) -> NDArray[Any]:
    dtype = np.dtype((np.void, width))
    inside = int(np.searchsorted(starts, data.size - width, side="right"))
    if inside == len(starts):
        return _overlapping(data, dtype)[starts]
    rows = np.empty(len(starts), dtype=dtype)
    if inside:
        rows[:inside] = _overlapping(data, dtype)[starts[:inside]]
    first = int(starts[inside])
    tail = np.zeros(data.size - first + width, dtype=np.uint8)
    tail[: data.size - first] = data[first:]
    rows[inside:] = _overlapping(tail, dtype)[starts[inside:] - first]
    return rows


def _overlapping(data: Bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    shape = (data.size - dtype.itemsize + 1,)
    return np.ndarray(shape, dtype=dtype, buffer=data, strides=(1,))


@lru_cache(maxsize=128)
def _masks(width: int) -> NDArray[Any]:
    """Return, for every length up to ``width``, an item that is all ones up to it."""
    kept = np.arange(width) < np.arange(width + 1)[:, None]
    return np.where(kept, np.uint8(0xFF), np.uint8(0)).view(np.dtype((np.void, width))).reshape(-1)
