"""The loops over runs for numba to compile (``oncelog.dedup.compiled``): the same bits as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Column = NDArray[np.uint64]

_SHIFT = np.uint64(33)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_SIX = np.uint64(6)
_TWELVE = np.uint64(12)
_LAST = np.uint64(63)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_ZERO = np.uint64(0)
_FIRST_AT = np.uint64(52)
_FOURTH_AT = np.uint64(16)
"""Where a key's second half names the bits of the first and of the fourth word of a sieve's block."""
_AHEAD = 64
"""So many keys' blocks are read ahead."""
_CROWD = 64
"""More keys than this are in one bucket only where keys repeat, or are no mixed ones."""


def mix_keys(keys: _Column, high: _Column, low: _Column) -> None:
    """Set the mixed halves of identities."""
    for row in range(len(high)):
        half = keys[row, 1]
        value = (half ^ half >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        value = value ^ value >> _SHIFT ^ keys[row, 0]
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        mixed = value ^ value >> _SHIFT
        high[row] = mixed
        value = half + mixed
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        low[row] = value ^ value >> _SHIFT


def filter_add(words: _Column, high: _Column, low: _Column, bits: int) -> None:
    """Put keys into a filter."""
    blocks = np.uint64(len(words) >> 3)
    shift = np.uint64(bits)
    for row in range(len(high)):
        at = np.int64((high[row] << shift >> _HALF) * blocks >> _HALF) << 3
        rest = low[row]
        for word in range(8):
            words[at + word] |= _ONE << (rest & _LAST)
            rest >>= _SIX


def filter_find(words: _Column, high: _Column, low: _Column, bits: int, found: NDArray[np.bool_]) -> None:
    """Tell of each key whether all its bits are set.

    Two passes: the first looks at two words of a block, without a branch and with little to do for a key, so that the
    processor waits for many blocks at once. Eight of nine absent keys end there. The blocks of the others are near by
    then.
    """
    blocks = np.uint64(len(words) >> 3)
    shift = np.uint64(bits)
    for row in range(len(high)):
        at = np.int64((high[row] << shift >> _HALF) * blocks >> _HALF) << 3
        rest = low[row]
        found[row] = words[at] >> (rest & _LAST) & words[at + 1] >> (rest >> _SIX & _LAST) & _ONE == _ONE
    for row in range(len(high)):
        if found[row]:
            at = np.int64((high[row] << shift >> _HALF) * blocks >> _HALF) << 3
            rest = low[row] >> _TWELVE
            passed = _ONE
            for word in range(2, 8):
                passed &= words[at + word] >> (rest & _LAST)
                rest >>= _SIX
            found[row] = passed == _ONE


def sieve_add(words: _Column, high: _Column, low: _Column) -> None:
    """Put keys into a sieve. Each touches one block, and sorted ones touch blocks in their order."""
    blocks = np.uint64(len(words) >> 2)
    for row in range(len(high)):
        at, bits = (high[row] >> _HALF) * blocks >> _HALF << _TWO, low[row] >> _FOURTH_AT
        for step in range(4):
            words[at + _THREE - np.uint64(step)] |= _ONE << (bits & _LAST) | _ONE << (bits >> _SIX & _LAST)
            bits >>= _TWELVE


def sift(keys: _Column, words: _Column, rows: NDArray[np.int64], high: _Column, low: _Column) -> int:
    """Mix identities, and set rows and mixed halves of those that pass a sieve; return how many they are.

    Three passes, for the reason that ``filter_find`` has two. No pass writes at a place that depends on what it reads
    from the sieve, but for the last one, which few keys reach: the processor would wait for each such read.
    """
    blocks = np.uint64(len(words) >> 2)
    for row in range(len(keys)):
        half = keys[row, 1]
        value = (half ^ half >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        value = value ^ value >> _SHIFT ^ keys[row, 0]
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        mixed = value ^ value >> _SHIFT
        high[row] = mixed
        value = half + mixed
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        low[row] = value ^ value >> _SHIFT
    for row in range(len(keys)):
        word, bits = words[(high[row] >> _HALF) * blocks >> _HALF << _TWO], low[row] >> _FIRST_AT
        rows[row] = np.int64(word >> (bits & _LAST) & word >> (bits >> _SIX & _LAST) & _ONE)
    count = 0
    for row in range(len(keys)):
        if rows[row]:
            at, bits = (high[row] >> _HALF) * blocks >> _HALF << _TWO, low[row] >> _FOURTH_AT
            passes = _ONE
            for step in range(3):
                word = words[at + _THREE - np.uint64(step)]
                passes &= word >> (bits & _LAST) & word >> (bits >> _SIX & _LAST)
                bits >>= _TWELVE
            if passes == _ONE:
                rows[count], high[count], low[count] = row, high[row], low[row]
                count += 1
    return count


def sieve_put(keys: _Column, words: _Column, homes: _Column, low: _Column) -> None:
    """Put identities into a sieve, in any order.

    The blocks of the next keys are read before the first of these keys is put in, as in ``enter`` of the table.
    """
    blocks = np.uint64(len(words) >> 2)
    for row in range(len(keys)):
        half = keys[row, 1]
        value = (half ^ half >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        value = value ^ value >> _SHIFT ^ keys[row, 0]
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        mixed = value ^ value >> _SHIFT
        homes[row] = (mixed >> _HALF) * blocks >> _HALF << _TWO
        value = half + mixed
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        low[row] = value ^ value >> _SHIFT
    start, near = 0, _ZERO
    while start < len(keys):
        end = min(start + _AHEAD, len(keys))
        for row in range(start, end):
            near |= words[homes[row]]
        for row in range(start, end):
            at, bits = homes[row], low[row] >> _FOURTH_AT
            for step in range(4):
                words[at + _THREE - np.uint64(step)] |= _ONE << (bits & _LAST) | _ONE << (bits >> _SIX & _LAST)
                bits >>= _TWELVE
        start = end
    if len(keys):
        homes[0] = near  # lest the compiler leave out what was read ahead


def find_in_pages(  # noqa: PLR0917
    stored_high: _Column,
    stored_low: _Column,
    counts: NDArray[np.uint16],
    rows: NDArray[np.int64],
    high: _Column,
    low: _Column,
    slots: NDArray[np.int64],
) -> None:
    """Set the first slot of each key in its page; -1: it is not there, -2: see the next page."""
    for key in range(len(high)):
        row, wanted = rows[key], high[key]
        count = np.int64(counts[row])
        lower, upper = np.int64(0), count
        while lower < upper:
            middle = (lower + upper) >> 1
            if stored_high[row, middle] < wanted:
                lower = middle + 1
            else:
                upper = middle
        while lower < count and stored_high[row, lower] == wanted and stored_low[row, lower] != low[key]:
            lower += 1
        if lower == count:
            slots[key] = -2
        else:
            slots[key] = lower if stored_high[row, lower] == wanted else -1


def digest(high: _Column, low: _Column, fingerprints: _Column, places: _Column) -> tuple[Any, Any]:
    """Return the sums over entries."""
    weights, values = _ZERO, _ZERO
    for row in range(len(high)):
        weight = fingerprints[row] * _SPREAD ^ high[row] ^ (places[row] & _THREE)
        weight = (weight ^ weight >> _SHIFT) * _FIRST
        weight = (weight ^ weight >> _SHIFT) * _SECOND
        weight = (weight ^ weight >> _SHIFT) | _ONE
        value = low[row] ^ weight
        value = (value ^ value >> _SHIFT) * _FIRST
        value = (value ^ value >> _SHIFT) * _SECOND
        weights += weight
        values += (value ^ value >> _SHIFT) + (places[row] >> _TWO) * weight
    return weights, values


def bucket_order(
    high: _Column, least: np.uint64, shift: int, ends: NDArray[np.int64], order: NDArray[np.int64]
) -> bool:
    """Set the order of numbers by bucket sort; ``False`` when they are not spread evenly. ``ends`` is zero."""
    move = np.uint64(shift)
    for row in range(len(high)):
        ends[np.int64((high[row] - least) >> move) + 1] += 1
    for bucket in range(1, len(ends)):
        if ends[bucket] > _CROWD:
            return False
        ends[bucket] += ends[bucket - 1]
    for row in range(len(high)):
        home = np.int64((high[row] - least) >> move)
        order[ends[home]] = row
        ends[home] += 1
    start = np.int64(0)
    for bucket in range(len(ends) - 1):
        for place in range(start + 1, ends[bucket]):
            moving, at = order[place], place - 1
            while at >= start and high[order[at]] > high[moving]:
                order[at + 1] = order[at]
                at -= 1
            order[at + 1] = moving
        start = ends[bucket]
    return True
