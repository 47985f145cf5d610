"""The compiled loops over runs set and find the same bits as numpy: either may read what the other wrote."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from oncelog.dedup.runs import compiled, filters, search
from oncelog.dedup.runs.builder import build_part
from oncelog.dedup.runs.mix import mixed_keys
from oncelog.dedup.runs.sieve import Sieve
from oncelog.format.runs.pages import PAGE
from tests.dedup.test_compiled import Chosen
from tests.log.memory.ids import Ids

numba = pytest.importorskip("numba")


@pytest.fixture(scope="module")
def chosen() -> Iterator[Chosen]:
    """Return the choice; it is undone at the end."""
    with pytest.MonkeyPatch.context() as patch:
        yield Chosen(patch)


@pytest.mark.parametrize("count", [1, 2, 139, 140, 141, 3000])
def test_parts_are_the_same_byte_for_byte(chosen: Chosen, count: int) -> None:
    """Mix, filter, digest and pages."""
    found = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        told, digest, data = build_part("log", 0, 0, Ids.random(count, 0, count).entries().sorted())
        found.append((told, digest, b"".join(data)))
    assert found[0] == found[1]


@pytest.mark.parametrize("bits", [0, 1, 5])
def test_filters_pass_the_same_keys(chosen: Chosen, bits: int) -> None:
    """A half-full filter, so that both answers come."""
    random = np.random.default_rng(bits)
    words = random.integers(0, 2**64, 8 * 100, np.uint64) | random.integers(0, 2**64, 8 * 100, np.uint64)
    high, low = mixed_keys(random.integers(0, 2**64, (4000, 2), np.uint64))
    answers = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        answers.append(filters.may_have([words], [len(high)], high, low, bits))
    assert (answers[0] == answers[1]).all()
    assert 0 < answers[0].sum() < 4000


def test_a_sieve_lets_the_same_keys_pass(chosen: Chosen) -> None:
    """Keys that were added, and so many others that some pass at each word."""
    keys = np.random.default_rng(4).integers(0, 2**64, (400_000, 2), np.uint64)
    chosen.by("numpy")
    sieve = Sieve(1)
    sieve.add(*mixed_keys(keys[:370_000]))
    answers = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        rows, halves = sieve.sifted(keys[365_000:])
        assert (np.stack(halves) == np.stack(mixed_keys(keys[365_000:][rows]))).all()
        answers.append(rows.tolist())
    assert answers[0] == answers[1]
    assert answers[0][:5000] == list(range(5000))
    assert 0 < len(answers[0]) - 5000 < 1000


def test_keys_are_put_into_a_sieve_alike(chosen: Chosen) -> None:
    """A bit that is lost where keys share a block lets a stored id pass for a new one."""
    keys = np.random.default_rng(8).integers(0, 2**64, (60_000, 2), np.uint64)
    words = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        sieve = Sieve(1)
        for start in range(0, 60_000, 12_000):
            sieve.put(keys[start : start + 12_000])
        sieve.put(keys[:0])
        words.append(sieve._words.copy())
        assert sieve.sifted(keys)[0].tolist() == list(range(60_000))
        others = np.random.default_rng(9).integers(0, 2**64, (60_000, 2), np.uint64)
        assert len(sieve.sifted(others)[0]) < 60
    assert (words[0] == words[1]).all()


def test_no_keys_enter_a_sieve() -> None:
    """A compiled loop that writes to the first row of none would write to what lies behind."""
    none = np.zeros(0, np.uint64)
    compiled.sieve_put(none.reshape(0, 2), np.zeros(4, np.uint64), none, none)


def test_a_sieve_gets_the_same_bits(chosen: Chosen) -> None:
    """A bit that one way sets and the other asks for at another place would be a second record."""
    high, low = mixed_keys(np.random.default_rng(5).integers(0, 2**64, (20_000, 2), np.uint64))
    order = np.argsort(high)
    words = []
    for who in ("numpy", "numba"):
        for rows in (order, slice(None)):
            chosen.by(who)
            sieve = Sieve(1)
            sieve.add(high[rows], low[rows])
            words.append(sieve._words)
    assert all((each == words[0]).all() for each in words)
    assert words[0].any()


def test_pages_are_searched_alike(chosen: Chosen) -> None:
    """Keys before, between and behind those of a page, and first halves that repeat with other second halves."""
    random = np.random.default_rng(3)
    pages = np.zeros(20, PAGE)
    pages["high"] = np.sort(random.integers(0, 40, (20, 140), np.uint64), axis=1)
    pages["low"] = random.integers(0, 3, (20, 140), np.uint64)
    pages["count"] = random.integers(1, 141, 20)
    rows, high = random.integers(0, 20, 5000), random.integers(0, 42, 5000, np.uint64)
    low = random.integers(0, 4, 5000, np.uint64)
    slots = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        slots.append(search.find_in_pages(pages, rows, high, low).tolist())
    assert slots[0] == slots[1]
    assert {-1, search.GO_ON} < set(slots[0])


def test_the_loops_are_plain_python_as_well() -> None:
    """What numba compiles is what is read here."""
    words = filters.empty_filter(50)
    high, low = mixed_keys(np.random.default_rng(1).integers(0, 2**64, (50, 2), np.uint64))
    with np.errstate(over="ignore"):
        compiled.filter_add(words, high, low, 0)
    assert filters.may_have([words], [len(high)], high, low, 0).all()
