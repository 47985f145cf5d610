"""A page gives back what was put in, and no byte of it can change unnoticed."""

from __future__ import annotations

import numpy as np
import pytest

from oncelog.format.runs import pages as page_format
from oncelog.format.runs.pages import PAGE_BYTES, PAGE_ENTRIES


def some_pages(count: int) -> tuple[page_format.Pages, list[np.ndarray[tuple[int], np.dtype[np.uint64]]]]:
    """Return sealed pages, and the columns that are in them."""
    random = np.random.default_rng(count)
    columns = [random.integers(0, 2**64, count, np.uint64) for _ in range(3)]
    places = random.integers(0, 2**40, count, np.uint64)
    pages = page_format.empty_pages(page_format.page_count(count))
    pages.view(np.uint8)[:] = 1  # as memory that held something else before
    page_format.put(pages, columns[0], columns[1], columns[2], places)
    page_format.complete(pages, count)
    page_format.seal(pages, 7, seed=11)
    return pages, [*columns, places]


@pytest.mark.parametrize("count", [1, PAGE_ENTRIES - 1, PAGE_ENTRIES, PAGE_ENTRIES + 1, 3 * PAGE_ENTRIES])
def test_columns_come_back(count: int) -> None:
    """Full pages and a last one that is not; all 40 bits of a place."""
    pages, columns = some_pages(count)
    for name, column in zip(("high", "low", "fingerprint"), columns, strict=False):
        assert pages[name].reshape(-1)[:count].tolist() == column.tolist()
    everything = slice(None)
    assert page_format.places_at(pages, everything, everything).reshape(-1)[:count].tolist() == columns[3].tolist()
    first = pages[:1].view(np.uint8).data
    assert [page_format.place_in(first, slot) for slot in range(min(count, PAGE_ENTRIES))] == columns[3][
        :PAGE_ENTRIES
    ].tolist()


def test_no_byte_of_a_page_changes_unnoticed() -> None:
    """Header, columns and padding alike."""
    raw = bytearray(some_pages(5)[0].tobytes())
    assert page_format.is_whole(memoryview(raw), 7, 5, 11)
    for at in range(PAGE_BYTES):
        raw[at] ^= 1 << at % 8
        assert not page_format.is_whole(memoryview(raw), 7, 5, 11), at
        raw[at] ^= 1 << at % 8


def test_a_page_of_another_place_is_noticed() -> None:
    """Another number, another count, another part: a page of something else is not the one that was asked for."""
    raw = memoryview(some_pages(5)[0].tobytes())
    assert not page_format.is_whole(raw, 8, 5, 11)
    assert not page_format.is_whole(raw, 7, 6, 11)
    assert not page_format.is_whole(raw, 7, 5, 12)
