"""A sieve: one filter in front of all runs, so that a new id need not be looked for in each of them.

A blocked Bloom filter (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007) whose block is
four words of 64 bits, half a line of the cache. A key belongs to one block, and sets up to two bits of each word,
which twelve bits of its second half name. Of new ids five in six end at the first word, and about one in a thousand
passes all four. A sieve is in memory alone, and no format: it is made again from the keys of runs where it is needed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.dedup.runs.mix import Halves, mixed_keys
from oncelog.dedup.slots import aligned

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

IDS_PER_BLOCK = 10
"""A new sieve has a block for so many ids: 26 bits an id."""

IDS_PER_BLOCK_MAX = 18
"""With more ids a block, more than one new id in 400 passes: a larger sieve is worth its work."""

_BLOCKS_MIN = 1 << 14
_BLOCK_WORDS = 4
BLOCK_BYTES = 8 * _BLOCK_WORDS
_PATTERNS = 4096
_PATTERNS_AT = (52, 40, 28, 16)
"""From which bit of a key's second half on the two bits of each word are named."""

_HALF = np.uint64(32)
_ONE = np.uint64(1)
_SIX = np.uint64(6)
_LAST = np.uint64(63)


class Sieve:
    """Lets every key pass that was added, and few others. Keys are the mixed halves of identities.

    One thread adds at a time; others may look meanwhile: a bit that was set stays set.
    """

    def __init__(self, ids: int) -> None:
        """Make an empty sieve for so many ids."""
        self.ids = ids
        self._blocks = max(_BLOCKS_MIN, -(-ids // IDS_PER_BLOCK))
        self._words = aligned(_BLOCK_WORDS * self._blocks, np.uint64)
        self._view = self._words.data
        self._patterns, self._pattern_list = _patterns()

    @property
    def ids_max(self) -> int:
        """How many ids it is good for."""
        return IDS_PER_BLOCK_MAX * self._blocks

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return self._words.nbytes

    def add(self, high: Column, low: Column) -> None:
        """Let keys pass from now on. Sorted ones, as runs have them, are added several times as fast."""
        compiled = kernels(len(high))
        if compiled is not None:
            compiled.sieve_add(self._words, fixed(high), fixed(low))
            return
        homes = self._homes(high)
        if bool((homes[1:] < homes[:-1]).any()):
            for shift in _PATTERNS_AT:
                np.bitwise_or.at(self._words, homes, self._pattern(low, shift))
                homes += 1
        elif len(homes):
            self._add_sorted(homes, low)

    def put(self, keys: Column) -> None:
        """Let identities pass from now on, which come in any order."""
        compiled = kernels(len(keys))
        if compiled is None:
            self._put(*mixed_keys(keys))
            return
        homes, low = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        compiled.sieve_put(fixed(keys), self._words, homes, low)

    def _put(self, high: Column, low: Column) -> None:
        """Let keys pass from now on.

        Where keys share a block, the last one writes its word, and the bits of the others are lost: these few are set
        again. ``bitwise_or.at`` for all keys takes twice as long.
        """
        homes = self._homes(high)
        for shift in _PATTERNS_AT:
            pattern = self._pattern(low, shift)
            words = self._words.take(homes, mode="clip")
            words |= pattern
            self._words[homes] = words
            lost = np.flatnonzero(~self._has(homes, pattern))
            np.bitwise_or.at(self._words, homes[lost], pattern[lost])
            homes += 1

    def clear(self) -> None:
        """Let no key pass any more."""
        self._words[:] = 0

    def _add_sorted(self, homes: Rows, low: Column) -> None:
        """Add keys whose blocks do not go back: what a word gets of all its keys is put together first."""
        starts = np.flatnonzero(np.concatenate([[True], homes[1:] != homes[:-1]]))
        touched = homes[starts]
        for shift in _PATTERNS_AT:
            bits = np.bitwise_or.reduceat(self._pattern(low, shift), starts)
            bits |= self._words.take(touched, mode="clip")
            self._words[touched] = bits
            touched += 1

    def passing(self, high: Column, low: Column) -> Rows:
        """Return the rows of the keys that pass. All others are certain: they were not added."""
        homes = self._homes(high)
        rows = np.flatnonzero(self._has(homes, self._pattern(low, _PATTERNS_AT[0])))
        for word, shift in enumerate(_PATTERNS_AT[1:], 1):
            rows = rows[self._has(homes[rows] + word, self._pattern(low[rows], shift))]
        return rows

    def sifted(self, keys: Column) -> tuple[Rows, Halves]:
        """Return the rows of the identities that pass, and their mixed halves."""
        compiled = kernels(len(keys))
        if compiled is None:
            high, low = mixed_keys(keys)
            rows = self.passing(high, low)
            return rows, (high[rows], low[rows])
        rows = np.empty(len(keys), np.int64)
        high, low = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        count = compiled.sift(fixed(keys), fixed(self._words), rows, high, low)
        return rows[:count], (high[:count], low[:count])

    def may_have(self, high: int, low: int) -> bool:
        """Tell of one key whether it passes, the same as ``passing``."""
        at = (high >> 32) * self._blocks >> 32 << 2
        for shift in _PATTERNS_AT:
            pattern = self._pattern_list[low >> shift & _PATTERNS - 1]
            if self._view[at] & pattern != pattern:
                return False
            at += 1
        return True

    def _homes(self, high: Column) -> Rows:
        """Return the first word of each key's block. Blocks are in the order of keys."""
        homes = high >> _HALF
        homes *= np.uint64(self._blocks)
        homes >>= _HALF
        homes <<= np.uint64(2)
        return homes.view(np.int64)

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
    """Return every pair of bits of a word, as an array and as a list: sooner read than computed by two shifts."""
    numbers = np.arange(_PATTERNS, dtype=np.uint64)
    patterns = _ONE << (numbers & _LAST) | _ONE << (numbers >> _SIX)
    return patterns, patterns.tolist()
