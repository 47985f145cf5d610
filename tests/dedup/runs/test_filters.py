"""A filter never denies a key that it has, and hardly ever passes one that it has not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.dedup.identity import SECRET_BYTES, Hasher
from oncelog.dedup.runs import filters
from oncelog.dedup.runs.mix import mixed_keys

IDS = 10_000


@given(seed=st.integers(0, 1000), count=st.integers(1, 300), bits=st.integers(0, 6))
def test_every_key_passes(seed: int, count: int, bits: int) -> None:
    """In a filter of any size, of a part of any number; a batch and one by one."""
    high, low = mixed_keys(np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64))
    high >>= np.uint64(bits)  # the leading bits tell the part, here part 0
    high.sort()
    words = filters.empty_filter(count)
    filters.add(words, high, low, bits)
    assert filters.may_have([words], [len(high)], high, low, bits).all()
    assert all(filters.may_have_one(words.data, int(a), int(b), bits) for a, b in zip(high, low, strict=True))


@given(seed=st.integers(0, 1000), bits=st.integers(0, 6))
def test_one_is_answered_as_many_are(seed: int, bits: int) -> None:
    """A filter that is nearly full passes many strangers: the same ones, however it is asked."""
    random = np.random.default_rng(seed)
    words = random.integers(0, 2**64, 8 * 37, np.uint64) | random.integers(0, 2**64, 8 * 37, np.uint64)
    high, low = (random.integers(0, 2**64, 200, np.uint64) for _ in range(2))
    many = filters.may_have([words], [len(high)], high, low, bits).tolist()
    assert many == [filters.may_have_one(words.data, int(a), int(b), bits) for a, b in zip(high, low, strict=True)]
    assert len(set(many)) == 2


def test_blocks_grow_with_the_key() -> None:
    """So a filter is written from front to back; and all its blocks are used, whatever bits tell the part."""
    for bits in (0, 3):
        high = (np.arange(1000, dtype=np.uint64) << np.uint64(54 - bits)) + (np.uint64(5) << np.uint64(61)) * (bits > 0)
        blocks = filters.blocks_of(filters.empty_filter(1000), high, bits)
        assert (np.diff(blocks) >= 0).all()
        assert (blocks[0], blocks[-1]) == (0, len(filters.empty_filter(1000)) // 8 * 1000 // 1024)


def test_numbered_ids_are_as_good_as_random_ones() -> None:
    """For 200 secrets: identities are linear, and without the mix some secrets pass ten times as many strangers."""
    ids = pa.array([f"order-{number:08d}" for number in range(2 * IDS)])
    passed = []
    for number in range(200):
        keys = Hasher(number.to_bytes(SECRET_BYTES, "little")).identities(None, ids)
        high, low = mixed_keys(keys)
        order = np.argsort(high[:IDS])
        words = filters.empty_filter(IDS)
        filters.add(words, high[:IDS][order], low[:IDS][order], 0)
        passed.append(int(filters.may_have([words], [len(high[IDS:])], high[IDS:], low[IDS:], 0).sum()))
    assert 0.0002 < sum(passed) / (200 * IDS) < 0.00034  # 0.027 % is what 20 bits in blocks come to
    assert max(passed) <= 15  # 2.7 are expected; more than 15 come by chance once in ten million secrets
