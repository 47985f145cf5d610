"""A sieve: one filter in front of all runs, so that a new id need not be looked for in each of them.

A blocked Bloom filter (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007) whose block is
two words of 64 bits. A key belongs to one block, and sets up to three bits of each word: which ones, a table of 4,096
patterns says. Of new ids 96 % end at the first word, all but a few in a thousand at the second, which is in the same
line of the cache. A sieve is in memory alone, and no format: it is made again from the keys of runs where it is needed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.runs.mix import mix_in_place

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

IDS_PER_BLOCK = 8
"""A new sieve has a block for so many ids, or for fewer: 16 to 32 bits an id. One new id in 500 passes, or fewer."""

IDS_PER_BLOCK_MAX = 12
"""With more ids a block, about one new id in a hundred passes: a larger sieve is worth its work."""

_BLOCKS_MIN = 1 << 15
_PATTERNS = 4096
_PATTERN_BITS = 3
_FIRST_AT, _SECOND_AT = 52, 40
"""Which bits of a key's second half choose the patterns. Filters of runs use few of them."""

_SIX = np.uint64(63)


class Sieve:
    """Lets every key pass that was added, and few others. Keys are the mixed halves of identities.

    One thread adds at a time; others may look meanwhile: a bit that was set stays set.
    """

    def __init__(self, ids: int) -> None:
        """Make an empty sieve for so many ids."""
        bits = (max(_BLOCKS_MIN, -(-ids // IDS_PER_BLOCK)) - 1).bit_length()
        self._words = np.zeros(2 << bits, np.uint64)
        self._view = self._words.data
        self._shift = 64 - bits
        self._patterns, self._pattern_list = _patterns()

    @property
    def ids_max(self) -> int:
        """How many ids it is good for."""
        return IDS_PER_BLOCK_MAX * len(self._words) // 2

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return self._words.nbytes

    def add(self, high: Column, low: Column) -> None:
        """Let keys pass from now on."""
        homes = self._homes(high)
        np.bitwise_or.at(self._words, homes, self._pattern(low, _FIRST_AT))
        homes += 1
        np.bitwise_or.at(self._words, homes, self._pattern(low, _SECOND_AT))

    def passing(self, high: Column, low: Column) -> Rows:
        """Return the rows of the keys that pass. All others are certain: they were not added."""
        homes = self._homes(high)
        rows = np.flatnonzero(self._has(homes, self._pattern(low, _FIRST_AT)))
        return rows[self._has(homes[rows] + 1, self._pattern(low[rows], _SECOND_AT))]

    def may_have(self, high: int, low: int) -> bool:
        """Tell of one key whether it passes, the same as ``passing``."""
        home = high >> self._shift << 1
        first = self._pattern_list[low >> _FIRST_AT]
        if self._view[home] & first != first:
            return False
        second = self._pattern_list[low >> _SECOND_AT & _PATTERNS - 1]
        return self._view[home + 1] & second == second

    def _homes(self, high: Column) -> Rows:
        """Return the first word of each key's block. Blocks are in the order of keys."""
        return (high >> np.uint64(self._shift) << np.uint64(1)).view(np.int64)

    def _pattern(self, low: Column, shift: int) -> Column:
        numbers = low >> np.uint64(shift) & np.uint64(_PATTERNS - 1)
        return self._patterns.take(numbers.view(np.int64), mode="clip")  # "raise" would copy

    def _has(self, homes: Rows, pattern: Column) -> NDArray[np.bool_]:
        words = self._words.take(homes, mode="clip")
        words &= pattern
        found: NDArray[np.bool_] = words == pattern
        return found


@cache
def _patterns() -> tuple[Column, list[int]]:
    """Return the patterns, as an array and as a list: bits of a word, drawn once and for all."""
    drawn = mix_in_place(np.arange(1, _PATTERNS + 1, dtype=np.uint64))
    patterns = np.zeros(_PATTERNS, np.uint64)
    for bit in range(_PATTERN_BITS):
        patterns |= np.uint64(1) << (drawn >> np.uint64(6 * bit) & _SIX)
    return patterns, patterns.tolist()
