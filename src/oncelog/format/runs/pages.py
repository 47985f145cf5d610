"""Pages: the unit in which the entries of a part are read and checked.

::

    0     8     checksum (xxh3, seeded) of the rest of the page
    8     4     number of the page in its part
    12    2     entries in the page
    14    18    zero
    32    1120  first halves of the mixed keys, in order
    1152  1120  second halves
    2272  1120  fingerprints
    3392  560   places, their lower 32 bits
    3952  140   places, their upper 8 bits
    4092  4     zero

A *place* is ``position << 2 | end << 1 | start``: the position is relative to the first of the run's range, *start* and
*end* tell whether the record was the first and the last of its batch. All numbers are little endian. Every page but
the last of a part is full. The seed of the checksums follows from the part's head: a page of another part is noticed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from oncelog.errors import CorruptionError

PAGE_BYTES = 4096
PAGE_ENTRIES = 140
COLUMNS_AT, PLACES_AT, TOPS_AT = 32, 3392, 3952
"""Where the columns of 64-bit numbers begin, and those of the places."""

START, END = 1, 2
PLACE_SHIFT = 2
PAGE: np.dtype[Any] = np.dtype(
    [
        ("checksum", "<u8"),
        ("number", "<u4"),
        ("count", "<u2"),
        ("zero", "V18"),
        ("high", "<u8", PAGE_ENTRIES),
        ("low", "<u8", PAGE_ENTRIES),
        ("fingerprint", "<u8", PAGE_ENTRIES),
        ("place", "<u4", PAGE_ENTRIES),
        ("place_top", "u1", PAGE_ENTRIES),
        ("end", "V4"),
    ]
)
assert PAGE.itemsize == PAGE_BYTES, "a page fills what it is said to"

Pages = NDArray[Any]
_HEADER = struct.Struct("<QIH")
_CHECKSUM_BYTES = 8
_END_BYTES = 4
_TOP = np.uint64(32)


def page_count(entries: int) -> int:
    """Return how many pages so many entries take."""
    return -(-entries // PAGE_ENTRIES)


def empty_pages(count: int) -> Pages:
    """Return so many pages of zeros."""
    return np.zeros(count, PAGE)


def put(  # noqa: PLR0917
    pages: Pages,
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    fingerprints: NDArray[np.uint64],
    places: NDArray[np.uint64],
    at: int = 0,
) -> None:
    """Fill pages with entries, from the entry number ``at`` on."""
    columns = (("high", high), ("low", low), ("fingerprint", fingerprints), ("place", places))
    for name, values in (*columns, ("place_top", places >> _TOP)):
        _put_column(pages[name], values, at)


def _put_column(column: NDArray[Any], values: NDArray[np.uint64], at: int) -> None:
    """Fill a column of pages, of which numpy keeps the lower bits, from the entry number ``at`` on."""
    page, slot = divmod(at, PAGE_ENTRIES)
    if slot:
        left = values[: PAGE_ENTRIES - slot]
        column[page, slot : slot + len(left)] = left
        values, page = values[len(left) :], page + 1
    whole = len(values) // PAGE_ENTRIES
    column[page : page + whole] = values[: whole * PAGE_ENTRIES].reshape(whole, PAGE_ENTRIES)
    rest = values[whole * PAGE_ENTRIES :]
    if len(rest):
        column[page + whole, : len(rest)] = rest


def complete(pages: Pages, entries: int) -> None:
    """Set what a page has beside its entries, so many in all: the memory may have held other pages before."""
    raw = pages.view(np.uint8).reshape(-1, PAGE_BYTES)
    raw[:, :COLUMNS_AT] = 0
    raw[:, PAGE_BYTES - _END_BYTES :] = 0
    pages["count"] = PAGE_ENTRIES
    rest = entries % PAGE_ENTRIES
    if rest:
        pages["count"][-1] = rest
        for name in ("high", "low", "fingerprint", "place", "place_top"):
            pages[name][-1, rest:] = 0


def places_at(pages: Pages, rows: Any, slots: Any) -> NDArray[np.uint64]:
    """Return places, by page and by slot in the page; both as numpy indexes."""
    lower: NDArray[np.uint64] = pages["place"][rows, slots].astype(np.uint64)
    lower |= pages["place_top"][rows, slots].astype(np.uint64) << _TOP
    return lower


def place_in(page: memoryview, slot: int) -> int:
    """Return the place at a slot of one page."""
    at = PLACES_AT + 4 * slot
    return int.from_bytes(page[at : at + 4], "little") | page[TOPS_AT + slot] << 32


def seal(pages: Pages, first: int, seed: int) -> None:
    """Give pages their numbers, from ``first`` on, and their checksums."""
    pages["number"] = np.arange(first, first + len(pages), dtype=np.uint32)
    raw = pages.view(np.uint8).data
    pages["checksum"] = [
        xxhash.xxh3_64_intdigest(raw[start + _CHECKSUM_BYTES : start + PAGE_BYTES], seed)
        for start in range(0, len(raw), PAGE_BYTES)
    ]


def is_whole(page: memoryview, number: int, count: int, seed: int) -> bool:
    """Tell whether the bytes of a page are those that were sealed as page ``number`` with so many entries."""
    if len(page) != PAGE_BYTES:
        return False
    told = _HEADER.unpack_from(page)
    return told == (xxhash.xxh3_64_intdigest(page[_CHECKSUM_BYTES:], seed), number, count)


def bad_ones(pages: Pages, first: int, numbers: Sequence[int], entries: int, seed: int) -> list[int]:
    """Return which of the numbered pages are not whole. ``pages`` begin with page ``first`` of a part of so many
    entries.
    """
    wanted = np.asarray(numbers)
    at = wanted - first
    raw = pages.view(np.uint8).data
    starts = (at * PAGE_BYTES + _CHECKSUM_BYTES).tolist()
    rest_bytes = PAGE_BYTES - _CHECKSUM_BYTES
    sums = [xxhash.xxh3_64_intdigest(raw[start : start + rest_bytes], seed) for start in starts]
    whole = pages["checksum"][at] == np.array(sums, np.uint64)
    whole &= pages["number"][at] == wanted
    whole &= pages["count"][at] == np.minimum(PAGE_ENTRIES, entries - wanted * PAGE_ENTRIES)
    bad: list[int] = wanted[~whole].tolist()
    return bad


def damaged(what: str, number: int) -> CorruptionError:
    """Return the error for a page that is not whole."""
    return CorruptionError(f"{what}: page {number} is not what was written; `oncelog rebuild` makes the run again")
