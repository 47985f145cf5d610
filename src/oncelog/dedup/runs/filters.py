"""Blocked Bloom filters (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007).

A block has 512 bits, one line of a cache: eight words of 64 bits. A key belongs to one block and sets one bit in each
of its words. The block comes from the first half of the mixed key and grows with it, so a filter is written from front
to back as sorted keys come. The bits come from the second half, six bits for each. With 20 bits an id, a key that is
not there passes with a probability of 0.027 %.
"""

from __future__ import annotations

from collections.abc import Sequence

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
_PLACES = np.arange(0, 6 * BLOCK_WORDS, 6, dtype=np.uint64)


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
    lines = _lines(words)
    touched = blocks[starts]
    for word in range(BLOCK_WORDS if len(blocks) else 0):
        lines[touched, word] |= np.bitwise_or.reduceat(_ONE << (low >> np.uint64(6 * word) & _SIX), starts)


def may_have(filters: Sequence[Words], ends: Sequence[int], high: Words, low: Words, bits: int) -> NDArray[np.bool_]:
    """Tell of each key whether it may be there. ``False`` is certain.

    Keys come part by part: those before ``ends[0]`` belong to the first filter, those before ``ends[1]`` to the second.
    """
    compiled = kernels(len(high))
    if compiled is not None:
        found = np.empty(len(high), np.bool_)
        start = 0
        for words, end in zip(filters, ends, strict=True):
            mine = slice(start, end)
            compiled.filter_find(fixed(words), fixed(high[mine]), fixed(low[mine]), bits, found[mine])
            start = end
        return found
    blocks = np.empty(len(high), np.int64)
    start = 0
    for words, end in zip(filters, ends, strict=True):
        blocks[start:end] = blocks_of(words, high[start:end], bits)
        start = end
    first = _taken(filters, ends, blocks * BLOCK_WORDS)
    passed = (first >> (low & _SIX) & _ONE).astype(np.bool_)
    left = np.flatnonzero(passed)
    lines = _taken([_lines(words) for words in filters], np.searchsorted(left, ends).tolist(), blocks[left])
    lines >>= low[left, None] >> _PLACES & _SIX
    bit = lines[:, 0].copy()
    for word in range(1, BLOCK_WORDS):  # quicker than a reduction over so few
        bit &= lines[:, word]
    passed[left] = (bit & _ONE).astype(np.bool_)
    return passed


def _taken(arrays: Sequence[Words], ends: Sequence[int], rows: NDArray[np.int64]) -> Words:
    """Return the rows of arrays: up to ``ends[0]`` those of the first array, then those of the second, and so on.

    The arrays are contiguous: numpy copies others whole before it takes of them.
    """
    taken = np.empty((len(rows), *arrays[0].shape[1:]), np.uint64)
    start = 0
    for array, end in zip(arrays, ends, strict=True):
        if end > start:
            np.take(array, rows[start:end], axis=0, out=taken[start:end], mode="clip")  # "raise" would copy
        start = end
    return taken


def _lines(words: Words) -> Words:
    return words.reshape(-1, BLOCK_WORDS)


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
