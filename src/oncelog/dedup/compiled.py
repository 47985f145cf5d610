"""The loops of this room for numba to compile: the same results as numpy's, without its temporaries.

``oncelog[fast]`` brings numba. Every function here is plain Python as well, and is tested as that, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.ring import Handles, Keys
from oncelog.dedup.runs import compiled as runs

PRIME_OF_FOUR = np.uint64(2**32 - 5)
PRIME_OF_TWO = np.uint64(2**31 - 1)
"""The primes of the two families. A compiler divides by what it knows at a fraction of the cost."""

_HALF = np.uint64(32)
_PART = np.uint64(2**32 - 1)
_TAG = np.uint64(0xFFFF)
_ONES = np.uint64(0x0001_0001_0001_0001)
_TOPS = np.uint64(0x8000_8000_8000_8000)
_NOTHING = np.uint64(0)


class Kernels(NamedTuple):
    """The compiled functions. They let other threads go on while they work."""

    hash_four: Any
    hash_two: Any
    find: Any
    insert: Any
    distinct: Any
    mix_keys: Any
    filter_add: Any
    filter_find: Any
    find_in_pages: Any
    digest: Any
    bucket_order: Any


def compile_all(numba: Any) -> Kernels:
    """Return the functions compiled, from numba's cache where it has them; ``RuntimeError`` if it can keep none."""
    functions = hash_four, hash_two, find, insert, distinct
    of_runs = runs.mix_keys, runs.filter_add, runs.filter_find, runs.find_in_pages, runs.digest, runs.bucket_order
    return Kernels(*(numba.njit(cache=True, nogil=True)(function) for function in (*functions, *of_runs)))


def hash_four(  # noqa: PLR0917
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    valid: NDArray[np.bool_],
    coefficients: NDArray[np.uint32],
    marks: NDArray[np.uint64],
    presence: int,
    out: NDArray[np.uint32],
) -> bool:
    """Add the hash of each string to ``out``, four residues a row; ``False`` when one is longer than there are
    coefficients, which have a line for each residue.
    """
    one, two, three, four = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    for row in range(len(out)):
        if len(valid) and not valid[row]:
            continue
        start, length = offsets[row], offsets[row + 1] - offsets[row]
        if length > len(one):
            return False
        text = data[start : start + length]
        mark = np.uint64(length + presence)
        a = mark * marks[0] + np.uint64(out[row, 0])
        b = mark * marks[1] + np.uint64(out[row, 1])
        c = mark * marks[2] + np.uint64(out[row, 2])
        d = mark * marks[3] + np.uint64(out[row, 3])
        for at in range(length):
            byte = np.uint64(text[at])
            a += byte * np.uint64(one[at])
            b += byte * np.uint64(two[at])
            c += byte * np.uint64(three[at])
            d += byte * np.uint64(four[at])
        out[row, 0] = a % PRIME_OF_FOUR
        out[row, 1] = b % PRIME_OF_FOUR
        out[row, 2] = c % PRIME_OF_FOUR
        out[row, 3] = d % PRIME_OF_FOUR
    return True


def hash_two(  # noqa: PLR0917
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    valid: NDArray[np.bool_],
    coefficients: NDArray[np.uint32],
    marks: NDArray[np.uint64],
    presence: int,
    out: NDArray[np.uint32],
) -> bool:
    """Do the same with two residues a row."""
    one, two = coefficients[0], coefficients[1]
    for row in range(len(out)):
        if len(valid) and not valid[row]:
            continue
        start, length = offsets[row], offsets[row + 1] - offsets[row]
        if length > len(one):
            return False
        text = data[start : start + length]
        mark = np.uint64(length + presence)
        a = mark * marks[0] + np.uint64(out[row, 0])
        b = mark * marks[1] + np.uint64(out[row, 1])
        for at in range(length):
            byte = np.uint64(text[at])
            a += byte * np.uint64(one[at])
            b += byte * np.uint64(two[at])
        out[row, 0] = a % PRIME_OF_TWO
        out[row, 1] = b % PRIME_OF_TWO
    return True


def find(  # noqa: PLR0917
    keys: Keys,
    tags: NDArray[np.uint16],
    numbers: NDArray[np.uint32],
    stored: Keys,
    buckets: int,
    base: int,
    origin: int,
    tail: int,
    handles: Handles,
) -> None:
    """Set the handle of each key, -1 for one that is in none of its slots.

    Four tags of 16 bits are compared at once: in ``differing``, equal tags are zero, and a zero among four numbers
    shows in its highest bit (Anderson, Bit Twiddling Hacks: "Determine if a word has a zero byte").
    """
    capacity = len(stored)
    scale = np.uint64(buckets)
    words = tags.view(np.uint64)
    for row in range(len(keys)):
        high, low = keys[row, 0], keys[row, 1]
        tag = np.uint16(high & _TAG)
        repeated = (high & _TAG) * _ONES
        found = np.int64(-1)
        for side in range(2):
            half = high if side == 0 else low
            bucket = np.int64(((half ^ half >> _HALF) & _PART) * scale >> _HALF)
            differing, others = words[2 * bucket] ^ repeated, words[2 * bucket + 1] ^ repeated
            zeros = ((differing - _ONES) & ~differing) | ((others - _ONES) & ~others)
            if zeros & _TOPS == _NOTHING:
                continue
            first = bucket * 8
            for slot in range(first, first + 8):
                if tags[slot] != tag:
                    continue
                handle = np.int64(numbers[slot]) + base
                if handle < tail:
                    continue
                place = (handle - origin) % capacity
                if stored[place, 0] == high and stored[place, 1] == low:
                    found = handle
                    break
            if found >= 0:
                break
        handles[row] = found


def insert(  # noqa: PLR0917
    keys: Keys,
    added: NDArray[np.uint32],
    limit: int,
    tags: NDArray[np.uint16],
    numbers: NDArray[np.uint32],
    cursors: NDArray[np.uint8],
    buckets: int,
    crowded: NDArray[np.int64],
) -> int:
    """Put keys in under the numbers ``added``; return how many found no slot: their rows are in ``crowded``."""
    count = 0
    scale = np.uint64(buckets)
    for row in range(len(keys)):
        high, low = keys[row, 0], keys[row, 1]
        chosen = np.int64(((high ^ high >> _HALF) & _PART) * scale >> _HALF) * 8
        other = np.int64(((low ^ low >> _HALF) & _PART) * scale >> _HALF) * 8
        slot, second = chosen + cursors[chosen >> 3], other + cursors[other >> 3]
        if numbers[other + ((second + 1) & 7)] < numbers[chosen + ((slot + 1) & 7)]:
            slot = second
        if np.int64(numbers[slot]) >= limit:  # then any that is free
            for at in range(8):
                if numbers[chosen + at] < numbers[slot]:
                    slot = chosen + at
                if numbers[other + at] < numbers[slot]:
                    slot = other + at
            if np.int64(numbers[slot]) >= limit:
                crowded[count] = row
                count += 1
                continue
        numbers[slot] = added[row]
        tags[slot] = np.uint16(high & _TAG)
        cursors[slot >> 3] = (slot + 1) & 7
    return count


def distinct(keys: Keys, table: NDArray[np.int32]) -> bool:
    """Say whether no key repeats. ``table`` is zero, and a power of two long, at least twice the keys."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(keys)):
        high, low = keys[row, 0], keys[row, 1]
        at = np.int64((high ^ low >> _HALF) & mask)
        while table[at] != 0:
            seen = table[at] - 1
            if keys[seen, 0] == high and keys[seen, 1] == low:
                return False
            at = np.int64(np.uint64(at + 1) & mask)
        table[at] = row + 1
    return True
