"""The mixing of keys: a fixed bijection that makes the bits of identities look random.

Identities are sums of products (``linear``). Ids that count up give identities that lie on a line, and a filter that
takes its bits from those leaks up to ten times as much for some secrets. So a run stores mixed keys. The mix is
part of the format. It is MurmurHash3's 64-bit finaliser (Austin Appleby, 2011), applied to one half at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels

_MASK = (1 << 64) - 1
_SHIFT = 33
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_SHIFT_64, _FIRST_64, _SECOND_64 = np.uint64(_SHIFT), np.uint64(_FIRST), np.uint64(_SECOND)

Halves = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def mix(value: int) -> int:
    """Return a number of 64 bits, finalised.

    >>> hex(mix(1))
    '0xb456bcfc34c2cb2c'
    """
    value = (value ^ value >> _SHIFT) * _FIRST & _MASK
    value = (value ^ value >> _SHIFT) * _SECOND & _MASK
    return value ^ value >> _SHIFT


def mix_in_place(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finalise every number of an array, and return the array."""
    values ^= values >> _SHIFT_64
    values *= _FIRST_64
    values ^= values >> _SHIFT_64
    values *= _SECOND_64
    values ^= values >> _SHIFT_64
    return values


def mixed_key(high: int, low: int) -> tuple[int, int]:
    """Return the two halves of an identity as a run stores them."""
    mixed = mix(high ^ mix(low))
    return mixed, mix(low + mixed & _MASK)


def mixed_keys(keys: NDArray[np.uint64]) -> Halves:
    """Return the halves of identities, shape (n, 2), as a run stores them; the same as ``mixed_key`` for each."""
    compiled = kernels(len(keys))
    if compiled is not None:
        halves = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        compiled.mix_keys(fixed(keys), *halves)
        return halves
    low = np.ascontiguousarray(keys[:, 1], np.uint64)
    high = mix_in_place(low.copy())
    high ^= keys[:, 0]
    mix_in_place(high)
    return high, mix_in_place(low + high)
