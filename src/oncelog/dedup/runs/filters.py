"""Blocked Bloom filters (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007).

A block has 512 bits, one line of a cache: eight words of 64 bits. A key belongs to one block and sets one bit in each
of its words. The block comes from the first half of the mixed key and grows with it, so a filter is written from front
to back as sorted keys come. The bits come from the second half, six bits for each. With 20 bits an id, a key that is
not there passes with a probability of 0.027 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.format.runs.parts import BLOCK_WORDS

Words = NDArray[np.uint64]

BITS_PER_ID = 20
_BLOCK_BITS = 512
_HALF = np.uint64(32)
_SIX = np.uint64(63)
_ONE = np.uint64(1)
_MASK = (1 << 64) - 1


def empty_filter(ids: int) -> Words:
    """Return a filter for so many ids that has none yet: the words of all its blocks, one after the other."""
    return np.zeros(max(1, -(-ids * BITS_PER_ID // _BLOCK_BITS)) * BLOCK_WORDS, np.uint64)


def blocks_of(words: Words, high: Words, bits: int) -> NDArray[np.int64]:
    """Return the block of each key. The ``bits`` leading bits are those of the part, and the same in all of them."""
    scaled = (high << np.uint64(bits)) >> _HALF
    scaled *= np.uint64(len(words) // BLOCK_WORDS)
    return (scaled >> _HALF).view(np.int64)


def add(words: Words, high: Words, low: Words, bits: int) -> None:
    """Put keys into a filter, sorted by their first halves."""
    compiled = kernels(len(high))
    if compiled is not None:
        compiled.filter_add(words, fixed(high), fixed(low), bits)
        return
    blocks = blocks_of(words, high, bits)
    starts = np.flatnonzero(np.concatenate([[True], blocks[1:] != blocks[:-1]])) if len(blocks) else blocks
    lines = words.reshape(-1, BLOCK_WORDS)
    touched = blocks[starts]
    for word in range(BLOCK_WORDS if len(blocks) else 0):
        lines[touched, word] |= np.bitwise_or.reduceat(_ONE << (low >> np.uint64(6 * word) & _SIX), starts)


def may_have(words: Words, high: Words, low: Words, bits: int) -> NDArray[np.bool_]:
    """Tell of each key whether it may be there. ``False`` is certain."""
    compiled = kernels(len(high))
    if compiled is not None:
        found = np.empty(len(high), np.bool_)
        compiled.filter_find(fixed(words), fixed(high), fixed(low), bits, found)
        return found
    first = blocks_of(words, high, bits) * BLOCK_WORDS
    passed = _has_bit(words, first, low, 0)
    left = np.flatnonzero(passed)
    for word in range(1, BLOCK_WORDS):
        kept = _has_bit(words, first[left], low[left], word)
        passed[left[~kept]] = False
        left = left[kept]
    return passed


def _has_bit(words: Words, first: NDArray[np.int64], low: Words, word: int) -> NDArray[np.bool_]:
    return (words[first + word] >> (low >> np.uint64(6 * word) & _SIX) & _ONE).astype(np.bool_)


def may_have_one(words: memoryview, high: int, low: int, bits: int) -> bool:
    """Tell of one key whether it may be there, the same as ``may_have``; the words are a view of 64-bit numbers."""
    at = ((high << bits & _MASK) >> 32) * (len(words) >> 3) >> 32 << 3
    return bool(
        words[at] >> (low & 63) & 1
        and words[at + 1] >> (low >> 6 & 63) & 1
        and words[at + 2] >> (low >> 12 & 63) & 1
        and words[at + 3] >> (low >> 18 & 63) & 1
        and words[at + 4] >> (low >> 24 & 63) & 1
        and words[at + 5] >> (low >> 30 & 63) & 1
        and words[at + 6] >> (low >> 36 & 63) & 1
        and words[at + 7] >> (low >> 42 & 63) & 1
    )
