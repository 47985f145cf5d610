"""Keys that occur more than once in one batch of keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.dedup.ring import Keys


def distinct(keys: Keys) -> bool:
    """Say whether no key repeats."""
    compiled = kernels(len(keys))
    if compiled is not None:
        table = np.zeros(2 << (2 * len(keys)).bit_length(), np.int32)
        return bool(compiled.distinct(fixed(np.ascontiguousarray(keys)), table))
    highs = np.sort(keys[:, 0])
    if not (highs[1:] == highs[:-1]).any():
        return True
    return bool((first_occurrence(keys) == np.arange(len(keys))).all())


def first_occurrence(keys: Keys) -> NDArray[np.int64]:
    """Return for each row the first row with the same key."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    fresh = np.ones(len(keys), dtype=np.bool_)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.empty(len(keys), dtype=np.int64)
    first[order] = order[fresh][np.cumsum(fresh) - 1]
    return first
