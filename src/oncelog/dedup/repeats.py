"""Keys that occur more than once among many keys.

Almost all keys occur once, and halves of 64 bits hardly ever repeat by chance: so the high halves are sorted alone, and
only keys whose high half repeats are compared. ``distinct`` sorts few keys: each key writes its row into a table, at a
place that depends on its high half. A key that later finds another row at its place is compared with the key of that
row. Only such keys are sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.dedup.ring import Keys

_FEW = 1024
"""So few keys are sorted."""

_PLACES_PER_KEY = 4
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def distinct(keys: Keys) -> bool:
    """Say whether no key repeats."""
    compiled = kernels(len(keys))
    if compiled is not None:
        table = np.zeros(2 << (2 * len(keys)).bit_length(), np.int32)
        return bool(compiled.distinct(fixed(np.ascontiguousarray(keys)), table))
    if len(keys) >= _FEW:
        rows = np.arange(len(keys), dtype=np.uint32)
        places = _places(keys)
        table = np.empty(_PLACES_PER_KEY << len(keys).bit_length(), np.uint32)  # only places that were written are read
        table[places] = rows
        others = table[places]
        left = np.flatnonzero(others != rows)
        if (keys[left] == keys[others[left]]).all(axis=1).any():
            return False
        keys = keys[left]  # each differs from the one in its place; two of them may be the same
    highs = np.sort(keys[:, 0])
    if not (highs[1:] == highs[:-1]).any():
        return True
    return bool((first_occurrence(keys) == np.arange(len(keys))).all())


def _places(keys: Keys) -> NDArray[np.int64]:
    """Return a place for each key: multiplicative hashing (Knuth, The Art of Computer Programming, section 6.4)."""
    shift = np.uint64(64 - ((_PLACES_PER_KEY << len(keys).bit_length()) - 1).bit_length())
    return (keys[:, 0] * _SPREAD >> shift).view(np.int64)


def first_occurrence(keys: Keys) -> NDArray[np.int64]:
    """Return for each row the first row with the same key."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    fresh = np.ones(len(keys), dtype=np.bool_)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.empty(len(keys), dtype=np.int64)
    first[order] = order[fresh][np.cumsum(fresh) - 1]
    return first


def alike(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers that occur more than once, sorted."""
    ordered = np.sort(numbers)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def among(numbers: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the rows of numbers that are wanted; the wanted ones are sorted, and at least one."""
    at = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.flatnonzero(wanted[at] == numbers)


def repeated(keys: Keys, positions: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys that occur at an earlier position, where they do again, and the earliest position of each."""
    suspects = alike(keys[:, 0])
    if not len(suspects):
        return keys[:0], positions[:0], positions[:0]
    chosen = among(keys[:, 0], suspects)
    keys, positions = keys[chosen], positions[chosen]
    order = np.lexsort((positions, keys[:, 1], keys[:, 0]))
    keys, positions = keys[order], positions[order]
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    firsts = positions[np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))]
    return keys[~begins], positions[~begins], firsts[~begins]
