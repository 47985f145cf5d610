"""A rehearsal of the compiled loops: every one is called once, with arguments of the kinds that it will get.

numba compiles a function, or reads it from its cache, when it is first called with arguments of a kind. After the
rehearsal no append waits for that.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.identity import SECRET_BYTES, Hasher
from oncelog.dedup.repeats import distinct
from oncelog.dedup.runs import filters
from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.runs.mix import mixed_keys
from oncelog.dedup.runs.search import find_in_pages
from oncelog.dedup.runs.sieve import Sieve
from oncelog.dedup.table import Table
from oncelog.format.runs import pages as page_format

_ROWS = 1024
"""More than ``kernels.COUNT_MIN``."""


def rehearse() -> None:
    """Hash, look up and insert some rows, and make what a run is made of."""
    texts = [f"{number:032d}" for number in range(_ROWS)]
    payload = pa.record_batch({"id": pa.array(texts, pa.string()), "value": pa.array(texts, pa.binary())})
    hasher = Hasher(bytes(SECRET_BYTES))
    keys, fingerprints = hasher.keys(payload), hasher.fingerprints(payload)
    distinct(keys)
    positions = np.arange(_ROWS)
    table = Table()
    table.add(keys, positions, fingerprints)
    table.find(keys)
    table.commit(_ROWS, 0, 0)
    table.drop_before(_ROWS)
    table.enter(keys, _ROWS, lambda: fingerprints)
    table.finish()
    _rehearse_runs(keys, fingerprints)


def _rehearse_runs(keys: NDArray[np.uint64], fingerprints: NDArray[np.uint64]) -> None:
    sieve = Sieve(_ROWS)
    sieve.sifted(keys)
    sieve.put(keys)
    high, low = mixed_keys(keys)
    sieve.add(high, low)
    entries = Entries(high, low, fingerprints, np.arange(_ROWS, dtype=np.uint64)).sorted()
    pages = page_format.empty_pages(page_format.page_count(_ROWS))
    page_format.put(pages, entries.high, entries.low, entries.fingerprints, entries.places)
    stored = Entries.of_pages(pages, _ROWS)
    words = filters.empty_filter(_ROWS)
    filters.add(words, stored.high, stored.low, 0)
    stored.digest()
    filters.may_have([words], [_ROWS], entries.high, entries.low, 0)
    find_in_pages(pages, np.zeros(_ROWS, np.int64), entries.high, entries.low)
