"""The compiled loops of ``oncelog[fast]`` compute what numpy computes, key for key: stored logs depend on it."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oncelog
from oncelog import LogSettings
from oncelog.dedup import kernels
from oncelog.dedup import ring as rings
from oncelog.dedup import table as tables
from oncelog.dedup import window as windows
from oncelog.dedup.fingerprint import FINGERPRINT_FAMILY
from oncelog.dedup.identity import PAIR_FAMILY, Hasher
from oncelog.dedup.repeats import distinct
from oncelog.dedup.runs import sieve
from oncelog.dedup.slots import Slots
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow, WindowState
from oncelog.format.payload import columns
from oncelog.types import Record

numba = pytest.importorskip("numba")

HASHER = Hasher(bytes(range(32)))
KEY = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
LABEL = st.none() | st.text(max_size=30)
RECORD = st.builds(
    Record,
    value=st.binary(max_size=140) | st.integers(4150, 4170).map(bytes),
    id=st.text(min_size=1, max_size=80) | st.integers(980, 1000).map("x".__mul__),
    stream=LABEL,
    headers=st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3),
    sequence=st.none() | st.integers(-(2**63), 2**63 - 1),
)


class Chosen:
    """Lets a test say who computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        for name in ("COUNT_MIN", "PART_MIN"):
            monkeypatch.setattr(kernels, name, 1)
        monkeypatch.setattr(kernels._Choice, "looked", False)
        monkeypatch.setattr(kernels._Choice, "kernels", None)

    def by(self, who: str) -> None:
        """Compute by ``numba`` or by ``numpy`` from here on."""
        for name, value in (("allowed", who == "numba"), ("at_once", True)):
            self._patch.setattr(kernels._Choice, name, value)
        assert (kernels.kernels(1) is not None) == (who == "numba")


@pytest.fixture(scope="module")
def chosen() -> Iterator[Chosen]:
    """Return the choice; it is undone at the end."""
    with pytest.MonkeyPatch.context() as patch:
        yield Chosen(patch)


def test_the_compiled_primes_are_those_of_the_families() -> None:
    """They are spelt out a second time where a compiler can see them."""
    from oncelog.dedup import compiled

    assert (int(compiled.PRIME_OF_FOUR), 4) == (PAIR_FAMILY.prime, PAIR_FAMILY.rows)
    assert (int(compiled.PRIME_OF_TWO), 2) == (FINGERPRINT_FAMILY.prime, FINGERPRINT_FAMILY.rows)


@given(records=st.lists(RECORD, min_size=1, max_size=20), skip=st.integers(0, 3), scoped=st.booleans())
@settings(deadline=None, max_examples=60)
def test_hashes_are_the_same(chosen: Chosen, records: list[Record], skip: int, *, scoped: bool) -> None:
    """Strings of any length, nulls, headers, numbers, and slices of tables."""
    payload = columns.from_records(records).slice(min(skip, len(records) - 1))
    ids = payload.column("id")
    found = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        found.append((HASHER.identities(ids if scoped else None, ids), HASHER.fingerprints(payload)))
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()
    assert HASHER.fingerprint(records[-1]) == int(found[1][1][-1])


def test_large_strings_are_the_same(chosen: Chosen) -> None:
    """Wide offsets are read as narrow ones are."""
    ids = pa.array(["a", "", "b" * 300, "é"], pa.large_string())
    found = []
    for who in ("numpy", "numba"):
        chosen.by(who)
        found.append(HASHER.identities(None, ids))
    assert (found[0] == found[1]).all()


@given(keys=st.lists(KEY | st.sampled_from([(1, 2), (2, 1), (1, 1 << 33)]), min_size=1, max_size=30))
@settings(deadline=None)
def test_repeats_are_found_alike(chosen: Chosen, keys: list[tuple[int, int]]) -> None:
    """A repeated key that is overlooked would be stored twice."""
    chosen.by("numba")
    assert distinct(np.array(keys, np.uint64)) is (len(set(keys)) == len(keys))


@given(data=st.data(), crowd=st.booleans())
@settings(deadline=None, max_examples=60)
def test_windows_answer_alike(chosen: Chosen, data: st.DataObject, *, crowd: bool) -> None:
    """What was added is found under the same handle, what was evicted is not, also where all keys share buckets."""
    half = st.integers(0, 3) if crowd else st.integers(0, 2**32 - 1)
    key = st.tuples(half, st.integers(0, 50)).map(lambda pair: (pair[0] << 32 | pair[1], pair[0] << 32 | pair[1] * 7))
    windows = {who: DedupWindow(100, 60) for who in ("numpy", "numba")}
    known: dict[tuple[int, int], int] = {}
    position = now = 0
    for _ in range(data.draw(st.integers(1, 8))):
        batch = list(dict.fromkeys(data.draw(st.lists(key, min_size=1, max_size=40))))
        now += data.draw(st.integers(0, 60))
        keys = np.array(batch, np.uint64)
        answers = []
        for who, window in windows.items():
            chosen.by(who)
            window.evict(now)
            handles = window.find(keys)
            fresh = handles < 0
            positions = np.arange(position, position + np.count_nonzero(fresh))
            window.add(keys[fresh], positions, keys[fresh, 0])
            window.commit(int(position + len(positions)), now, now)
            answers.append((handles.tolist(), window.find(keys).tolist(), window.count))
        assert answers[0] == answers[1]
        position += len(batch)
        known |= dict.fromkeys(batch, position)


@given(data=st.data(), crowd=st.booleans(), buckets=st.none() | st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_one_walk_takes_what_is_new_and_leaves_the_rest(
    chosen: Chosen, data: st.DataObject, *, crowd: bool, buckets: int | None
) -> None:
    """What it takes is found as if it had been added; what it does not take leaves nothing behind.

    A known key, a repeated one, and one that finds no slot, at any row; keys move where buckets are full.
    """
    half = st.integers(0, 3) if crowd else st.integers(0, 2**32 - 1)
    key = st.tuples(half, st.integers(0, 90)).map(lambda pair: (pair[0] << 32 | pair[1], pair[0] << 32 | pair[1] * 7))
    known: dict[tuple[int, int], int] = {}
    with pytest.MonkeyPatch.context() as patch:
        if buckets is not None:
            patch.setattr(DedupWindow, "_bucket_count", lambda _: buckets)
        window = DedupWindow(100, 60)
        chosen.by("numba")
        for _ in range(data.draw(st.integers(1, 8))):
            batch = data.draw(st.lists(key, min_size=1, max_size=40))
            if data.draw(st.booleans()):
                batch = [each for each in dict.fromkeys(batch) if each not in known]
            keys, position = np.array(batch, np.uint64).reshape(-1, 2), len(known)
            before = window.count
            if window.enter(keys, position, keys[:, 0].copy):
                assert len(set(batch)) == len(batch)
                assert known.keys().isdisjoint(batch)
            else:
                assert window.count == before
                assert window.find(keys).tolist() == [known.get(each, -9) + 8 for each in batch]
                batch = [each for each in dict.fromkeys(batch) if each not in known]
                keys = np.array(batch, np.uint64).reshape(-1, 2)
                window.add(keys, np.arange(position, position + len(batch)), keys[:, 0].copy())
            known |= {each: position + row for row, each in enumerate(batch)}
            window.commit(len(known), 1, 1)
            everything = np.array(list(known), np.uint64).reshape(-1, 2)
            handles = window.find(everything)
            assert window.positions(handles).tolist() == list(known.values())
            assert window.fingerprints(handles).tolist() == everything[:, 0].tolist()


def test_a_plain_batch_takes_one_walk(chosen: Chosen) -> None:
    """Otherwise the walk is tried, undone, and the rest is done three times as slowly for every batch."""
    chosen.by("numba")
    window = DedupWindow(10**15, 10_000)
    keys = np.random.default_rng(3).integers(0, 2**64, (40_000, 2), np.uint64)
    window.add(keys[:11_000], np.arange(11_000), keys[:11_000, 0].copy())
    for position in range(11_000, 40_000, 1000):
        window.commit(position, 1, 1)
        window.evict(1)
        some = keys[position : position + 1000]
        assert window.enter(some, position, some[:, 0].copy)
    full = window.nbytes
    assert not window.enter(keys[-5000:], 40_000, keys[-5000:, 0].copy)
    assert window.nbytes == full, "what is all known needs no room"
    window.commit(40_000, 1, 1)
    window.evict(1)
    assert window.positions(window.find(keys[-10_000:])).tolist() == list(range(30_000, 40_000))
    assert (window.find(keys[:30_000]) == -1).all()
    chosen.by("numpy")
    assert not window.enter(keys[:30_000], 40_000, keys[:30_000, 0].copy), "without compiled loops there is none"


def shrink_tables(patch: pytest.MonkeyPatch, blocks: int) -> None:
    """Let a table of some keys do what one of 300,000 does, with a sieve of so few blocks that many keys pass it."""
    for module, name, value in (
        (tables, "_SMALL_KEYS", 0),
        (tables, "_RUN_KEYS", 64),
        (tables, "_PASSING_MAX", 6),
        (tables, "_SIEVE_ROUNDS", 1),
        (sieve, "_BLOCKS_MIN", blocks),
        (sieve, "IDS_PER_BLOCK", 1000),
    ):
        patch.setattr(module, name, value)


@given(data=st.data(), blocks=st.integers(1, 40), who=st.sampled_from(["numba", "numpy"]))
@settings(deadline=None, max_examples=200)
def test_keys_that_only_a_sieve_has_seen_are_known(chosen: Chosen, data: st.DataObject, blocks: int, who: str) -> None:
    """A key that is in the ring and not yet in the slots is as known as any: otherwise its record is stored twice.

    Batches of new, known and repeated keys; single keys and stored ones between them; the old end dropped at any time.
    """
    key = st.integers(0, 400).map(lambda number: (number * 7919 + 1, number))
    known: dict[tuple[int, int], int] = {}
    position = 0
    with pytest.MonkeyPatch.context() as patch:
        shrink_tables(patch, blocks)
        chosen.by(who)
        table = Table()
        for _ in range(data.draw(st.integers(1, 25))):
            batch = data.draw(st.lists(key, min_size=1, max_size=30))
            keys = np.array(batch, np.uint64)
            match data.draw(st.sampled_from(["batch", "new", "new", "new", "one", "stored", "drop"])):
                case "drop":
                    first = data.draw(st.integers(0, position))
                    table.drop_before(first)
                    known = {each: at for each, at in known.items() if at >= first}
                    continue
                case "one":
                    handle = table.find_or_add_one(*batch[0], position, batch[0][0])
                    assert (handle >= 0) == (batch[0] in known)
                    batch = [] if batch[0] in known else batch[:1]
                case "stored":
                    fresh = [each for each in dict.fromkeys(batch) if each not in known]
                    some, numbers = (
                        np.array(fresh, np.uint64).reshape(-1, 2),
                        np.arange(position, position + len(fresh)),
                    )
                    table.fold(WindowState(some, numbers, some[:, 0].copy(), numbers, numbers, numbers >= 0))
                    batch = fresh
                case how:
                    if how == "new":
                        batch = [each for each in dict.fromkeys(batch) if each not in known]
                        keys = np.array(batch, np.uint64).reshape(-1, 2)
                    if batch and table.enter(keys, position, keys[:, 0].copy):
                        assert len(set(batch)) == len(batch)
                        assert known.keys().isdisjoint(batch)
                    elif batch:
                        handles = table.find(keys)
                        assert [each in known for each in batch] == (handles >= 0).tolist()
                        batch = [each for each in dict.fromkeys(batch) if each not in known]
                        keys = np.array(batch, np.uint64).reshape(-1, 2)
                        table.add(keys, np.arange(position, position + len(batch)), keys[:, 0].copy())
            known |= {each: position + row for row, each in enumerate(batch)}
            position += len(batch)
            table.commit(position, position, position)
            assert table.count == len(known)
            stored = table.between(0, position)
            assert stored.positions.tolist() == list(known.values())
            assert stored.keys.tolist() == [list(each) for each in known]
            if data.draw(st.booleans()):
                everything = np.array([*known, (1, 401), (2, 402)], np.uint64)
                handles = table.find(everything)
                assert table.positions(handles[:-2]).tolist() == list(known.values())
                assert (handles[-2:] == -1).all()


@pytest.mark.parametrize("who", ["numba", "numpy"])
def test_batches_of_new_keys_leave_the_slots_alone(chosen: Chosen, who: str) -> None:
    """Otherwise a log that remembers every id takes twice the time of a bounded window to decide a batch."""
    chosen.by(who)
    table = Table()
    keys = np.random.default_rng(4).integers(0, 2**64, (900_000, 2), np.uint64)
    for position in range(0, 900_000, 10_000):
        some = keys[position : position + 10_000]
        if not table.enter(some, position, some[:, 0].copy):
            assert position < 50_000, "while the table grows"
            table.add(some, np.arange(position, position + 10_000), some[:, 0].copy())
        table.commit(position + 10_000, 1, 1)
        if position % 250_000 == 0:
            table.drop_before(position - 20_000)
    assert table._loose == table.count
    again = keys[-5000:]
    assert not table.enter(again, 900_000, again[:, 0].copy)
    assert table._loose == table.count, "the sieve and the ring tell that"
    assert table.positions(table.find(again)).tolist() == list(range(895_000, 900_000))
    assert table._loose == 0


@pytest.mark.parametrize("who", ["numba", "numpy"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_sieve_that_was_emptied_has_the_keys_that_stayed(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch, rounds: int, who: str
) -> None:
    """A sieve is emptied when it is full, or when the old end is dropped. A key that it lacks would be stored twice."""
    shrink_tables(monkeypatch, 4096)
    monkeypatch.setattr(tables, "_SIEVE_ROUNDS", rounds)
    emptied = []
    clear = sieve.Sieve.clear

    def noted(each: sieve.Sieve) -> None:
        emptied.append(each)
        clear(each)

    monkeypatch.setattr(sieve.Sieve, "clear", noted)
    chosen.by(who)
    table = Table()
    keys = np.random.default_rng(6).integers(0, 2**64, (600, 2), np.uint64)
    table.add(keys[:40], np.arange(40), keys[:40, 0].copy())
    for position in range(40, 600, 10):
        some, known = keys[position : position + 10], keys[position - 20 : position + 10]
        assert table.enter(some, position, some[:, 0].copy)
        table.commit(position + 10, 1, 1)
        for each in known:
            assert not table.enter(each.reshape(1, 2), position + 10, each[:1].copy)
            table._unasked = 0  # the next one asks the sieve, too
        table.drop_before(position - 20)
    assert len(emptied) > 1
    table._sifted = rounds * table._ring.capacity
    emptied.clear()
    table.drop_before(0)
    assert not emptied, "nothing was dropped: all keys would be put in again"


@pytest.mark.parametrize("who", ["numba", "numpy"])
@pytest.mark.parametrize("left", [0, 40_000])
def test_a_search_that_was_interrupted_leaves_no_key_unknown(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch, who: str, left: int
) -> None:
    """Ctrl-C while loose keys are put into the slots: the next search finds all of them, each at its position."""
    chosen.by(who)
    table = Table()
    keys = np.random.default_rng(7).integers(0, 2**64, (90_000, 2), np.uint64)
    table.add(keys[:40_000], np.arange(40_000), keys[:40_000, 0].copy())
    for position in range(40_000, 90_000, 10_000):
        some = keys[position : position + 10_000]
        assert table.enter(some, position, some[:, 0].copy)
    table.commit(90_000, 1, 1)
    table.drop_before(left)
    insert = Slots.insert
    calls: list[int] = []

    def interrupted(*given: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            insert(given[0], given[1][:100], given[2][:100], given[3])
            raise KeyboardInterrupt
        insert(*given)

    monkeypatch.setattr(Slots, "insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.find_one(1, 2)
    assert not table.enter(keys[-1:], 90_000, keys[-1:, 0].copy)
    assert table.find_one(*keys[-1].tolist()) >= 0
    assert table._loose == 0
    assert table.positions(table.find(keys[left:])).tolist() == list(range(left, 90_000))


class _Interrupt:
    """Presses Ctrl-C before a line, counted from 1, of the modules that keep a table."""

    def __init__(self, line: int) -> None:
        self._left = line
        self._modules = {tables.__file__, windows.__file__, rings.__file__}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._modules:
            return None
        self._left -= event == "line"
        if self._left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def interrupted(line: int, work: Callable[[], object]) -> bool:
    """Press Ctrl-C before a line of some work; tell whether it had so many."""
    before = sys.gettrace()
    sys.settrace(_Interrupt(line))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("who", ["numba", "numpy"])
def test_a_drop_that_was_interrupted_lets_no_key_in_again(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Ctrl-C in a truncation, which is no reason for a writer to end: what stays is known, before any search and after.

    The oldest keys that stay stand at the end of the ring, and loose ones at its beginning.
    """
    shrink_tables(monkeypatch, 4096)
    monkeypatch.setattr(tables, "_SIEVE_ROUNDS", 2)
    chosen.by(who)
    keys = np.random.default_rng(9).integers(0, 2**64, (200, 2), np.uint64)
    line = 0
    goes_on = True
    while goes_on:
        line += 1
        table = Table()
        table.add(keys[:40], np.arange(40), keys[:40, 0].copy())
        for position in range(40, 120, 10):
            some = keys[position : position + 10]
            assert table.enter(some, position, some[:, 0].copy)
            table.commit(position + 10, 1, 1)
            if position < 110:
                table.drop_before(position - 40)
        goes_on = interrupted(line, lambda table=table: table.drop_before(115))  # type: ignore[misc]
        for position in range(115, 120):
            table._unasked = 0  # the next one asks the sieve
            assert not table.enter(keys[position : position + 2], 120, keys[position : position + 2, 0].copy)
        assert table.positions(table.find(keys[115:120])).tolist() == list(range(115, 120))
    assert line > 10


def test_slots_that_were_not_built_again_in_full_are_built_again(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a search takes more buckets, because too many keys found theirs full: no key may be unknown then."""
    chosen.by("numpy")
    table = Table()
    keys = np.random.default_rng(7).integers(0, 2**64, (60_000, 2), np.uint64)
    table.add(keys[:50_000], np.arange(50_000), keys[:50_000, 0].copy())
    assert table.enter(keys[50_000:], 50_000, keys[50_000:, 0].copy)
    table.commit(60_000, 1, 1)
    monkeypatch.setattr(windows, "_SPILL_MIN", -1_000_000)
    table._slots.spill[keys[0, 0].item(), keys[0, 1].item()] = 8
    begun = Slots.__init__

    def interrupted(each: Slots, *given: Any, **named: Any) -> None:
        begun(each, *given, **named)
        monkeypatch.setattr(Slots, "insert", _interrupt)

    insert = Slots.insert
    monkeypatch.setattr(Slots, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.find_one(1, 2)
    monkeypatch.setattr(Slots, "__init__", begun)
    monkeypatch.setattr(Slots, "insert", insert)
    assert table.positions(table.find(keys)).tolist() == list(range(60_000))


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("who", ["numba", "numpy"])
def test_batches_after_a_known_key_do_not_ask_the_sieve(chosen: Chosen, who: str) -> None:
    """Where each batch has a retried record, the sieve is asked in vain: ever more seldom, until all keys are new."""
    chosen.by(who)
    table = Table()
    keys = np.random.default_rng(5).integers(0, 2**64, (41_000, 2), np.uint64)
    table.add(keys[:40_000], np.arange(40_000), keys[:40_000, 0].copy())
    table.commit(40_000, 1, 1)
    pauses = []
    for _ in range(60):
        assert not table.enter(keys[:600], 40_000, keys[:600, 0].copy)
        pauses.append(table._unasked)
    assert pauses[:12] == [2, 1, 0, 4, 3, 2, 1, 0, 8, 7, 6, 5]
    assert max(pauses) == 16
    table._unasked = 0
    for position in (40_000, 40_500):
        some = keys[position : position + 500]
        assert table.enter(some, position, some[:, 0].copy)
    assert table._loose == 1000
    assert table.positions(table.find(keys)).tolist() == list(range(41_000))


@pytest.mark.parametrize(("wish", "loaded"), [("0", False), ("1", True), (None, False)])
def test_who_says_so_gets_numba_at_once_or_never(wish: str | None, *, loaded: bool) -> None:
    """Half a second is not spent on those who append a few thousand rows, nor on those who forbid it."""
    program = """
import sys, oncelog, pyarrow as pa
with oncelog.connect("memory://") as db, db.log("a", create=True).writer() as w:
    w.append_arrow(pa.table({"value": [b"v"] * 2000, "id": [str(n) for n in range(2000)]}))
print("numba" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name != "ONCELOG_FAST"}
    if wish is not None:
        environment["ONCELOG_FAST"] = wish
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    assert ran.stdout == f"{loaded}\n"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return what the loops' loader would do in a thread of its own: a few rows are enough for it to be started."""
    started: list[Callable[[], None]] = []
    fresh = {
        "allowed": True,
        "at_once": False,
        "left": 600,
        "looked": False,
        "loading": False,
        "kernels": None,
        "start": started.append,
    }
    for name, value in fresh.items():
        monkeypatch.setattr(kernels._Choice, name, value)
    return started


def in_a_thread(work: Callable[[], None]) -> None:
    """Run what a thread would run: with a context of its own."""
    contextvars.Context().run(work)


def test_nobody_waits_while_numba_is_loaded(waiting: list[Callable[[], None]]) -> None:
    """The 290,000th row of a first program took three seconds. numpy goes on until all loops are compiled."""
    assert kernels.kernels(600) is None
    (load,) = waiting
    assert kernels.kernels(10**9) is None
    assert kernels.kernels_at_hand(600) is None
    assert len(waiting) == 1, "it is loaded once"
    in_a_thread(load)
    loaded = kernels.kernels(600)
    assert loaded is not None
    assert kernels.kernels_at_hand(600) is loaded
    assert {len(function.signatures) for function in loaded} == {1}, "each was compiled in the rehearsal"


def test_the_rehearsal_compiles_what_appends_call(waiting: list[Callable[[], None]], tmp_path: Path) -> None:
    """A loop that gets arguments of another kind than in the rehearsal is compiled again, while an append waits."""
    kernels.kernels(600)
    in_a_thread(waiting[0])
    loaded = kernels.kernels(600)
    assert loaded is not None
    small = LogSettings(segment_bytes=1 << 20)
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", small, create=True).writer() as writer:
        for first in range(0, 30_000, 3_000):
            names = [f"order-{number}" for number in range(first, first + 3_000)]
            writer.append_arrow(pa.table({"id": names, "value": names}))
            writer.append_arrow(pa.table({"id": names, "value": names}))
    assert {function.__name__: len(function.signatures) for function in loaded} == dict.fromkeys(loaded._fields, 1)


def test_a_child_forked_while_numba_is_loaded_uses_numpy(waiting: list[Callable[[], None]]) -> None:
    """The loader's thread does not survive a fork, and locks of the compiler may be held for ever."""
    kernels.kernels(600)
    kernels.stop_loading()
    assert kernels.kernels(600) is None
    assert len(waiting) == 1


def test_without_a_thread_it_is_tried_again_later(
    waiting: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No append fails, and none waits, because the process has as many threads as it may."""

    def refuse(work: Callable[[], None]) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(kernels._Choice, "start", refuse)
    assert kernels.kernels(600) is None
    assert kernels.kernels(600) is None
    monkeypatch.setattr(kernels._Choice, "start", waiting.append)
    monkeypatch.setattr(kernels._Choice, "left", 600)
    assert kernels.kernels(600) is None
    assert len(waiting) == 1
