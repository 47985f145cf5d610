"""The search for keys in the pages of a part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels_at_hand
from oncelog.format.runs.pages import PAGE_ENTRIES, Pages

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

GO_ON = -2
"""The key may be in the next page: this one ends with the same first half."""

_ROUNDS = PAGE_ENTRIES.bit_length()


def page_spans(index: Column, high: Column) -> tuple[Rows, Rows]:
    """Return the first and the last page that may have each key.

    The index has the first half of the key of each page's first entry. The search begins in the last page whose half is
    below the key's: equal keys may begin in the middle of that page and go on in the next ones.
    """
    first = np.searchsorted(index, high, side="left") - 1
    last = np.searchsorted(index, high, side="right") - 1
    return np.maximum(first, 0), np.maximum(last, 0)


def find_in_pages(pages: Pages, rows: Rows, high: Column, low: Column) -> Rows:
    """Return the first slot of each key in the page at ``rows``; -1: it is not there; ``GO_ON``: see the next page."""
    compiled = kernels_at_hand(len(high))
    if compiled is not None and len(pages) > 1:  # one page is an array of another kind, for which nothing is compiled
        slots = np.empty(len(high), np.int64)
        stored = (fixed(pages[name]) for name in ("high", "low", "count"))
        compiled.find_in_pages(*stored, rows, fixed(high), fixed(low), slots)
        return slots
    stored_high, stored_low = pages["high"], pages["low"]
    counts = pages["count"][rows].astype(np.int64)
    slots = _lower_bounds(stored_high, rows, counts, high)
    looking = np.arange(len(high))
    while looking.size:  # one round, unless first halves repeat
        inside = slots[looking] < counts[looking]
        slots[looking[~inside]] = GO_ON
        looking = looking[inside]
        at = rows[looking], slots[looking]
        same = stored_high[at] == high[looking]
        hit = same & (stored_low[at] == low[looking])
        slots[looking[~same]] = -1
        looking = looking[same & ~hit]
        slots[looking] += 1
    return slots


def _lower_bounds(stored: NDArray[np.uint64], rows: Rows, counts: Rows, high: Column) -> Rows:
    """Return the first slot in each page whose first half is not below the key's: a binary search in all at once."""
    lower, upper = np.zeros(len(high), np.int64), counts.copy()
    for _ in range(_ROUNDS):
        middle = (lower + upper) >> 1
        below = (stored[rows, np.minimum(middle, PAGE_ENTRIES - 1)] < high) & (lower < upper)
        lower = np.where(below, middle + 1, lower)
        upper = np.where(below, upper, middle)
    return lower
