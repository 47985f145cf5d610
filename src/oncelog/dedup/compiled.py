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
_BYTE = np.uint64(8)
_PART = np.uint64(2**32 - 1)
_TAG = np.uint64(0xFFFF)
_ONES = np.uint64(0x0001_0001_0001_0001)
_TOPS = np.uint64(0x8000_8000_8000_8000)
_NOTHING = np.uint64(0)
_ONE = np.uint64(1)
_BITS = np.uint64(3)
_LAST = np.uint64(7)
_AHEAD = 32
"""So many keys' buckets are read ahead: they stay in the first cache."""


class Kernels(NamedTuple):
    """The compiled functions. They let other threads go on while they work."""

    hash_four: Any
    hash_two: Any
    find: Any
    insert: Any
    enter: Any
    distinct: Any
    mix_keys: Any
    filter_add: Any
    filter_find: Any
    sieve_add: Any
    sieve_put: Any
    sift: Any
    find_in_pages: Any
    digest: Any
    bucket_order: Any


def compile_all(numba: Any) -> Kernels:
    """Return the functions compiled, from numba's cache where it has them; ``RuntimeError`` if it can keep none."""
    functions = hash_four, hash_two, find, insert, enter, distinct
    filters = runs.filter_add, runs.filter_find, runs.sieve_add, runs.sieve_put, runs.sift
    of_runs = runs.mix_keys, *filters, runs.find_in_pages, runs.digest, runs.bucket_order
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
    """Add the hash of each string to ``out``, four residues a row; ``False`` when one has more limbs of two bytes than
    there are coefficients, which have a line for each residue.

    Limbs are read up to a multiple of eight, what lies behind the string counting for nothing: an id is so short that
    what is left over, limb by limb, would take longest.
    """
    one, two, three, four = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    for row in range(len(out)):
        if len(valid) and not valid[row]:
            continue
        start, length = offsets[row], offsets[row + 1] - offsets[row]
        limbs = length >> 1
        if length > 2 * len(one):
            return False
        padded = min((limbs + 7) & ~7, (len(data) - start) >> 1, len(one))
        text = data[start : start + 2 * padded]
        mark = np.uint64(length + presence)
        a = mark * marks[0] + np.uint64(out[row, 0])
        b = mark * marks[1] + np.uint64(out[row, 1])
        c = mark * marks[2] + np.uint64(out[row, 2])
        d = mark * marks[3] + np.uint64(out[row, 3])
        for at in range(padded):
            limb = np.uint64(text[2 * at]) | np.uint64(text[2 * at + 1]) << _BYTE
            limb = limb if at < limbs else _NOTHING
            a += limb * np.uint64(one[at])
            b += limb * np.uint64(two[at])
            c += limb * np.uint64(three[at])
            d += limb * np.uint64(four[at])
        if length & 1:
            limb = np.uint64(data[start + length - 1])
            a += limb * np.uint64(one[limbs])
            b += limb * np.uint64(two[limbs])
            c += limb * np.uint64(three[limbs])
            d += limb * np.uint64(four[limbs])
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
        limbs = length >> 1
        if length > 2 * len(one):
            return False
        text = data[start : start + length]
        mark = np.uint64(length + presence)
        a = mark * marks[0] + np.uint64(out[row, 0])
        b = mark * marks[1] + np.uint64(out[row, 1])
        for at in range(limbs):
            limb = np.uint64(text[2 * at]) | np.uint64(text[2 * at + 1]) << _BYTE
            a += limb * np.uint64(one[at])
            b += limb * np.uint64(two[at])
        if length & 1:
            limb = np.uint64(text[length - 1])
            a += limb * np.uint64(one[limbs])
            b += limb * np.uint64(two[limbs])
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


def enter(  # noqa: C901, PLR0912, PLR0915, PLR0917
    keys: Keys,
    first: int,
    limit: int,
    tags: NDArray[np.uint16],
    numbers: NDArray[np.uint32],
    cursors: NDArray[np.uint8],
    buckets: int,
    stored: Keys,
    offset: int,
    ahead: NDArray[np.uint64],
) -> bool:
    """Put keys in under the numbers from ``first`` on if none is there, none repeats, and each finds a slot.

    Otherwise ``False``, and none is in: their slots are free again. ``stored`` has the keys already; a number stands
    there at the place that is larger by ``offset``. One walk does what ``find``, ``distinct`` and ``insert`` do in
    three, and leaves all that is not plain to them.

    The buckets of the next keys are read before the first of these keys is put in: so little is done for each that the
    processor waits for many of them at once. What was read goes to ``ahead``, lest the compiler leave it out.
    """
    scale, capacity, count = np.uint64(buckets), np.int64(len(stored)), np.int64(len(keys))
    words = tags.view(np.uint64)
    entered, near, is_plain = np.int64(0), _NOTHING, True
    while is_plain and entered < count:
        end = min(entered + _AHEAD, count)
        for row in range(entered, end):
            high, low = keys[row, 0], keys[row, 1]
            one = ((high ^ high >> _HALF) & _PART) * scale >> _HALF
            two = ((low ^ low >> _HALF) & _PART) * scale >> _HALF
            near |= words[one + one] | words[two + two] | np.uint64(cursors[one]) | np.uint64(cursors[two])
            near |= np.uint64(numbers[one << _BITS]) | np.uint64(numbers[two << _BITS])
        for row in range(entered, end):
            high, low = keys[row, 0], keys[row, 1]
            tag = high & _TAG
            repeated = tag * _ONES
            one = ((high ^ high >> _HALF) & _PART) * scale >> _HALF
            two = ((low ^ low >> _HALF) & _PART) * scale >> _HALF
            a, b = words[one + one] ^ repeated, words[one + one + _ONE] ^ repeated
            c, d = words[two + two] ^ repeated, words[two + two + _ONE] ^ repeated
            zeros = ((a - _ONES) & ~a) | ((b - _ONES) & ~b) | ((c - _ONES) & ~c) | ((d - _ONES) & ~d)
            chosen, other = one << _BITS, two << _BITS
            if zeros & _TOPS != _NOTHING:  # some tag is the same: see whose it is
                for at in range(16):
                    slot = (chosen if at < 8 else other) + (np.uint64(at) & _LAST)  # noqa: PLR2004
                    number = np.int64(numbers[slot])
                    if np.uint64(tags[slot]) == tag and number >= limit:
                        place = (number + offset) % capacity
                        if stored[place, 0] == high and stored[place, 1] == low:
                            is_plain = False
            cursor, second = np.uint64(cursors[one]), np.uint64(cursors[two])
            slot = chosen + cursor
            if numbers[other + (second + _ONE & _LAST)] < numbers[chosen + (cursor + _ONE & _LAST)]:
                slot = other + second
            if np.int64(numbers[slot]) >= limit:  # then any that is free
                for at in range(8):
                    if numbers[chosen + np.uint64(at)] < numbers[slot]:
                        slot = chosen + np.uint64(at)
                    if numbers[other + np.uint64(at)] < numbers[slot]:
                        slot = other + np.uint64(at)
            if is_plain and np.int64(numbers[slot]) >= limit:  # both are full: move a key to its other bucket
                is_plain = False
                for at in range(16):
                    slot = (chosen if at < 8 else other) + (np.uint64(at) & _LAST)  # noqa: PLR2004
                    place = (np.int64(numbers[slot]) + offset) % capacity
                    high_there, low_there = stored[place, 0], stored[place, 1]
                    home = ((high_there ^ high_there >> _HALF) & _PART) * scale >> _HALF
                    if home == slot >> _BITS:
                        home = ((low_there ^ low_there >> _HALF) & _PART) * scale >> _HALF
                    free = home << _BITS
                    for step in range(1, 8):
                        if numbers[(home << _BITS) + np.uint64(step)] < numbers[free]:
                            free = (home << _BITS) + np.uint64(step)
                    if np.int64(numbers[free]) < limit:
                        numbers[free], tags[free] = numbers[slot], tags[slot]
                        cursors[home] = np.uint8(free + _ONE & _LAST)
                        is_plain = True
                        break
            if not is_plain:
                break
            numbers[slot] = np.uint32(first + row)
            tags[slot] = np.uint16(tag)
            cursors[slot >> _BITS] = np.uint8(slot + _ONE & _LAST)
            entered += 1
    for row in range(0 if is_plain else entered):
        high, low = keys[row, 0], keys[row, 1]
        one = ((high ^ high >> _HALF) & _PART) * scale >> _HALF << _BITS
        two = ((low ^ low >> _HALF) & _PART) * scale >> _HALF << _BITS
        for at in range(8):
            if np.int64(numbers[one + np.uint64(at)]) == first + row:
                numbers[one + np.uint64(at)] = 0
            if np.int64(numbers[two + np.uint64(at)]) == first + row:
                numbers[two + np.uint64(at)] = 0
    ahead[0] = near
    return is_plain


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
