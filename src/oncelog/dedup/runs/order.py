"""The order of mixed keys, which are as good as random: a few passes over them, instead of many comparisons.

With numpy alone: a least-significant-digit radix sort of two digits of 16 bits, which numpy's stable sort of such
numbers is. Compiled: a bucket sort with about one key in a bucket, then an insertion sort in each (both in Knuth, The
Art of Computer Programming, volume 3, sections 5.2.5 and 5.2.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.format.output import column

Column = NDArray[np.uint64]
Order = NDArray[np.int64]

_HALF = np.uint64(32)


def in_order(high: Column) -> tuple[Order, Column]:
    """Return the order of numbers, and the numbers in order. Equal ones come in any order."""
    order = leading_order(high)
    placed = high[order]
    if (placed[1:] < placed[:-1]).any():  # hardly ever, unless they are not random
        order = np.argsort(high, kind="stable")
        placed = high[order]
    return order, placed


def leading_order(high: Column) -> Order:
    """Return the order of numbers by the leading 32 bits in which they differ (``leading``), at least."""
    if len(high) == 0:
        return np.empty(0, np.int64)
    least, most = high.min(), high.max()
    compiled = kernels(len(high))
    if compiled is not None:
        bits = max(1, len(high).bit_length() - 1)
        shift = max(0, int(most - least).bit_length() - bits)
        order, ends = column(len(high)).view(np.int64), column((1 << bits) + 1).view(np.int64)
        ends[:] = 0
        if compiled.bucket_order(fixed(high), least, shift, ends, order):
            return order
    digits = leading(high, least, most).view(np.uint16).reshape(-1, 2)
    by_lower = np.argsort(digits[:, 0], kind="stable")
    return by_lower[np.argsort(digits[by_lower, 1], kind="stable")]


def leading(high: Column, least: np.uint64, most: np.uint64) -> NDArray[np.uint32]:
    """Return the leading 32 bits in which numbers between ``least`` and ``most`` differ."""
    shift = np.uint64(64 - int(most - least).bit_length())
    return ((high - least) << shift >> _HALF).astype("<u4")
