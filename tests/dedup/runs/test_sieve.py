"""A sieve loses no key, and lets few others pass."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from oncelog.dedup.identity import Hasher
from oncelog.dedup.runs.mix import Halves, mixed_keys
from oncelog.dedup.runs.sieve import IDS_PER_BLOCK_MAX, Sieve


def numbered(hasher: Hasher, first: int, count: int) -> Halves:
    """Return the mixed keys of ids that count up, as users make them."""
    return mixed_keys(hasher.identities(None, pa.array([f"order-{number}" for number in range(first, first + count)])))


@pytest.mark.parametrize("secret", range(8))
def test_every_key_passes_and_few_others_do(secret: int) -> None:
    """A key that does not pass would be a second record. Of new ids, one in 250 may, when the sieve is full."""
    hasher = Hasher(bytes([secret]) * 32)
    count = IDS_PER_BLOCK_MAX << 14
    sieve = Sieve(1)
    assert sieve.ids_max == count
    high, low = numbered(hasher, 0, count)
    for start in range(0, count, 50_000):
        sieve.add(high[start : start + 50_000], low[start : start + 50_000])
    assert sieve.passing(high, low).tolist() == list(range(count))
    strangers = numbered(hasher, count, 50_000)
    assert len(sieve.passing(*strangers)) <= 50_000 // 250


@pytest.mark.parametrize("blocks_wide", [1, 300, 1 << 14])
def test_keys_are_added_alike_in_any_order(blocks_wide: int) -> None:
    """Sorted keys take another way. Keys that share a block, and bits that were set before, must not be lost there."""
    random = np.random.default_rng(1)
    before, high = (random.integers(0, blocks_wide << 50, 5000, np.uint64) for _ in range(2))
    low = random.integers(0, 2**64, 5000, np.uint64)
    one, other = Sieve(1), Sieve(1)
    for sieve in (one, other):
        sieve.add(before, low)
    order = np.argsort(high)
    one.add(high[order], low[order])
    other.add(high, low)
    assert (one._words == other._words).all()
    one.add(high[:0], low[:0])
    assert len(one.passing(high, low)) == 5000


def test_one_key_is_told_as_many_are() -> None:
    """One append and a batch must not disagree."""
    sieve = Sieve(1000)
    hasher = Hasher(bytes(32))
    sieve.add(*numbered(hasher, 0, 40_000))
    high, low = numbered(hasher, 30_000, 20_000)
    passing = set(sieve.passing(high, low).tolist())
    singly = {row for row, key in enumerate(zip(high.tolist(), low.tolist(), strict=True)) if sieve.may_have(*key)}
    assert passing == singly
    assert set(range(10_000)) <= passing
    assert len(passing) < 20_000


def test_keys_at_the_ends_of_the_range_have_a_home() -> None:
    """The first block, the last one, and every pattern."""
    sieve = Sieve(1)
    edges = np.array([0, 2**64 - 1], np.uint64)
    high, low = (half.reshape(-1) for half in np.meshgrid(edges, edges))
    assert len(sieve.passing(high, low)) == 0
    sieve.add(high, low)
    assert len(sieve.passing(high, low)) == 4


@pytest.mark.parametrize("ids", [1, 262_144, 262_145, 10_000_000])
def test_a_sieve_has_room_for_its_ids_and_some_more(ids: int) -> None:
    """It is replaced in time: a full one lets nearly everything pass, and costs as much as before."""
    sieve = Sieve(ids)
    assert sieve.ids_max >= 1.7 * ids
    assert sieve.nbytes <= max(3.3 * ids, 32 << 14)
