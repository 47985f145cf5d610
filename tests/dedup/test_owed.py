"""What entering keys leaves for later is done before anybody could see that it was left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from oncelog.dedup import kernels
from oncelog.dedup import table as tables
from oncelog.dedup.ring import Keys
from oncelog.dedup.runs.sieve import Sieve
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow

FOREVER_US = 1 << 60
KEYS = np.random.default_rng(5).integers(0, 2**64, (3000, 2), np.uint64)
PRINTS: NDArray[np.uint64] = KEYS[:, 0] ^ KEYS[:, 1]


def entered(window: DedupWindow) -> None:
    """Enter keys in three batches, between keys that come another way."""
    window.add(KEYS[:500], np.arange(500), PRINTS[:500])
    window.commit(500, 1, 1)
    for low, high in ((500, 1300), (1301, 2000), (2000, 2900)):
        if low == 1301:
            one = KEYS[1300].tolist()
            assert window.find_or_add_one(one[0], one[1], 1300, PRINTS[1300].item()) == -1
        assert window.enter(KEYS[low:high], low, PRINTS[low:high].copy)
    window.add(KEYS[2900:], np.arange(2900, 3000), PRINTS[2900:])


def asked_for_many(window: DedupWindow) -> NDArray[np.uint64]:
    """Ask for the fingerprints of pending keys, as a batch with retried records does."""
    return window.fingerprints(window.find(KEYS))


def asked_for_each(window: DedupWindow) -> NDArray[np.uint64]:
    """Ask for them one by one, as a record alone does."""
    return np.array([window.at(window.find_one(*key))[1] for key in KEYS.tolist()], np.uint64)


def committed(window: DedupWindow) -> NDArray[np.uint64]:
    """Commit, and look at what a run or a snapshot stores."""
    window.commit(2500, 2, 2)
    window.commit(3000, 3, 3)
    return (window.between(0, 3000) if isinstance(window, Table) else window.dump()).fingerprints


def committed_each(window: DedupWindow) -> NDArray[np.uint64]:
    """Commit as recovery does."""
    window.commit_each(np.arange(2500), np.arange(2500))
    return window.dump().fingerprints


def grown(window: DedupWindow) -> NDArray[np.uint64]:
    """Let the arrays grow before anybody asks."""
    more = np.random.default_rng(6).integers(0, 2**64, (9000, 2), np.uint64)
    window.add(more, np.arange(3000, 12_000), more[:, 0].copy())
    return asked_for_many(window)


@pytest.fixture(params=["numpy-table", "numba-table", "numba-bounded"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DedupWindow:
    """Return an empty window with room, and say who computes. A bounded one needs compiled loops to enter keys."""
    who, kind = request.param.split("-")
    for name in ("COUNT_MIN", "PART_MIN"):
        monkeypatch.setattr(kernels, name, 1)
    for name, value in {"looked": False, "kernels": None, "allowed": who == "numba", "at_once": True}.items():
        monkeypatch.setattr(kernels._Choice, name, value)
    monkeypatch.setattr(tables, "_SMALL_KEYS", 32)
    if who == "numba":
        pytest.importorskip("numba")
        kernels.kernels(1)
    made = Table() if kind == "table" else DedupWindow(FOREVER_US, 100_000)
    made._reserve(4000)
    return made


ASKING = {
    "many": asked_for_many,
    "each": asked_for_each,
    "commit": committed,
    "commit-each": committed_each,
    "grown": grown,
}


@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_fingerprints_that_are_owed_are_there_when_they_are_asked_for(
    window: DedupWindow, asking: Callable[[DedupWindow], NDArray[np.uint64]]
) -> None:
    """The place of a key has the fingerprint of an older key until its own is written: a retry would conflict."""
    entered(window)
    assert window.owed
    assert (asking(window) == PRINTS).all()
    assert not window.owed


def test_a_finish_that_was_interrupted_is_done_again(window: DedupWindow) -> None:
    """Ctrl-C while fingerprints are hashed: they are hashed again, and those that were written stay."""
    asked: list[int] = []

    def interrupted() -> NDArray[np.uint64]:
        asked.append(len(asked))
        if len(asked) == 1:
            raise KeyboardInterrupt
        return PRINTS[100:200].copy()

    assert window.enter(KEYS[:100], 0, PRINTS[:100].copy)
    assert window.enter(KEYS[100:200], 100, interrupted)
    with pytest.raises(KeyboardInterrupt):
        window.finish()
    assert window.owed
    window.finish()
    assert len(asked) == 2
    assert (window.fingerprints(window.find(KEYS[:200])) == PRINTS[:200]).all()


def test_nobody_hashes_what_nobody_asks_for(window: DedupWindow) -> None:
    """Committing the keys of one block, or reading older ones, leaves those of the next to the thread that stores it:
    who commits or reads has the lock.
    """
    asked: list[str] = []

    def later(name: str, low: int, high: int) -> Callable[[], NDArray[np.uint64]]:
        def fingerprints() -> NDArray[np.uint64]:
            asked.append(name)
            return PRINTS[low:high].copy()

        return fingerprints

    assert window.enter(KEYS[:100], 0, later("first", 0, 100))
    assert window.enter(KEYS[100:200], 100, later("second", 100, 200))
    assert window.enter(KEYS[200:300], 200, later("third", 200, 300))
    window.commit(150, 1, 1)
    assert asked == ["first", "second"]
    assert (window.fingerprints(window.find(KEYS[:150])) == PRINTS[:150]).all()
    assert window.at(window.find_one(*KEYS[7].tolist()))[1] == PRINTS[7]
    assert len(window.dump().keys) == 150
    assert asked == ["first", "second"]
    window.commit(300, 2, 2)
    assert asked == ["first", "second", "third"]
    assert (window.dump().fingerprints == PRINTS[:300]).all()


def test_keys_that_wait_to_be_looked_for_are_known(window: DedupWindow) -> None:
    """A table puts keys into its sieve when there is time; a batch that comes before that must meet them."""
    window.add(KEYS[:100], np.arange(100), PRINTS[:100])
    assert window.enter(KEYS[100:200], 100, PRINTS[100:200].copy)
    again: Keys = np.concatenate([KEYS[200:299], KEYS[150:151]])
    assert not window.enter(again, 200, again[:, 0].copy)
    assert (window.find(again)[:99] == -1).all()
    assert window.positions(window.find(again[99:])).tolist() == [150]


@pytest.mark.parametrize("before", [0, 5])
def test_finishing_fills_the_sieve_of_a_table_that_was_small(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """While a table is small, no batch asks the sieve; afterwards the next batch must not wait for the one before."""
    monkeypatch.setattr(tables, "_SMALL_KEYS", 32)
    monkeypatch.setattr(kernels._Choice, "allowed", False)
    table, put, counts = Table(), Sieve.put, []

    def counted(sieve: Sieve, keys: Keys) -> None:
        counts.append(len(keys))
        put(sieve, keys)

    monkeypatch.setattr(Sieve, "put", counted)
    for number in range(before):
        assert not table.enter(KEYS[number : number + 1], number, PRINTS[number : number + 1].copy)
    table._reserve(4000)
    for low, high in ((100, 200), (200, 300), (300, 400)):
        assert table.enter(KEYS[low:high], low, PRINTS[low:high].copy)
        table.finish()
    assert counts == [100, 100, 100]
