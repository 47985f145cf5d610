"""The window against the plainest model of it: a list of batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

from oncelog.dedup.refreshing import RefreshingWindow, window_class

DURATION_US = 50
KEYS = 160
WALL_US = 1_700_000_000_000_000


@dataclass
class Known:
    """What the model knows of one key."""

    key: int
    position: int
    fingerprint: int
    tick_us: int = 0
    time_us: int = 0
    pending: bool = True


def spread_keys() -> NDArray[np.uint64]:
    """Return keys that look like identities."""
    return np.random.default_rng(7).integers(0, 2**64, (KEYS, 2), dtype=np.uint64)


def colliding_keys() -> NDArray[np.uint64]:
    """Return keys that share both buckets whatever their number, and some of them the tag, the high or the low half."""
    numbers = np.arange(KEYS, dtype=np.uint64)
    return np.stack((numbers % np.uint64(40), numbers // np.uint64(40)), axis=1)


class WindowMachine(RuleBasedStateMachine):
    """Does the same to a window and to a list of batches, oldest first, and compares all there is to see."""

    keys = spread_keys()
    max_keys = 24
    first_handle = 8
    refresh_on_hit = False
    position_step = 1

    def __init__(self) -> None:
        super().__init__()
        kind = window_class(refresh_on_hit=self.refresh_on_hit)
        self.window = kind(DURATION_US, self.max_keys, first_handle=self.first_handle)
        self.batches: list[list[Known]] = []
        self.now_us = 1_000
        self.position = 5
        self.evicted = 0

    @property
    def known(self) -> list[Known]:
        """Return what the model knows, oldest first."""
        return [known for batch in self.batches for known in batch]

    def absent(self, count: int, seed: int) -> list[int]:
        """Return some keys that are not in."""
        taken = {known.key for known in self.known}
        free = [key for key in range(KEYS) if key not in taken]
        return [free[(seed + step) % len(free)] for step in range(min(count, len(free)))]

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12), seed=st.integers(0, KEYS))
    def add(self, sizes: list[int], seed: int) -> None:
        """Add batches, all in one call."""
        chosen = self.absent(sum(sizes), seed)
        if not chosen:
            return
        positions: list[int] = []
        starts: list[bool] = []
        added: list[list[Known]] = []
        for size in sizes:
            batch: list[Known] = []
            self.position += self.position_step
            for key in chosen[len(positions) : len(positions) + size]:
                batch.append(Known(key, self.position, (key * 2**57 + self.position) % 2**64))
                positions.append(self.position)
                starts.append(len(batch) == 1)
                self.position += 1
            added += [batch] if batch else []
        self.batches += added
        fingerprints = np.array([known.fingerprint for batch in added for known in batch], dtype=np.uint64)
        self.window.add(self.keys[chosen], np.array(positions), fingerprints, np.array(starts))

    @rule(size=st.integers(1, 3), seed=st.integers(0, KEYS))
    def add_singly(self, size: int, seed: int) -> None:
        """Add one batch, key by key."""
        batch: list[Known] = []
        for key in self.absent(size, seed):
            known = Known(key, self.position, key)
            fingerprints = np.array([known.fingerprint], np.uint64)
            self.window.add(self.keys[[key]], np.array([known.position]), fingerprints, np.array([not batch]))
            batch.append(known)
            self.position += 1
        self.batches += [batch] if batch else []

    @rule(key=st.integers(0, KEYS - 1))
    def find_or_add(self, key: int) -> None:
        """Add one key, as a batch of its own, unless it is there."""
        high, low = self.keys[key].tolist()
        before = self.window.find_one(high, low)
        assert self.window.find_or_add_one(high, low, self.position, key) == before
        if before < 0:
            self.batches.append([Known(key, self.position, key)])
            self.position += 1

    @rule(share=st.floats(0, 1), passed_us=st.integers(0, 20))
    def commit(self, share: float, passed_us: int) -> None:
        """Commit some of the oldest pending batches."""
        self.now_us += passed_us
        pending = [batch for batch in self.batches if batch[0].pending]
        settled = pending[: round(share * len(pending))]
        before = settled[-1][-1].position + 1 if settled else 0
        time_us = WALL_US + self.now_us
        self.window.commit(before, self.now_us, time_us)
        for known in (known for batch in settled for known in batch):
            known.tick_us, known.time_us, known.pending = self.now_us, time_us, False

    @rule(passed_us=st.integers(0, 60))
    def evict(self, passed_us: int) -> None:
        """Let time pass, and evict."""
        self.now_us += passed_us
        before = len(self.known)
        while self.batches and not self.batches[0][0].pending:
            too_old = self.batches[0][0].tick_us + DURATION_US <= self.now_us
            if not too_old and len(self.known) <= self.max_keys:
                break
            self.batches.pop(0)
        dropped = before - len(self.known)
        self.evicted += dropped
        assert self.window.evict(self.now_us) == dropped

    @precondition(lambda self: self.refresh_on_hit)
    @rule(chosen=st.sets(st.integers(0, 200), min_size=1, max_size=6))
    def refresh(self, chosen: set[int]) -> None:
        """Hit some keys."""
        known = self.known
        hits = {known[number % len(known)].key for number in chosen} if known else set()
        assert isinstance(self.window, RefreshingWindow)
        self.window.refresh(self.window.find(self.keys[sorted(hits)]), self.now_us)
        hit = [batch for batch in self.batches if not batch[0].pending and any(one.key in hits for one in batch)]
        self.batches = [batch for batch in self.batches if batch not in hit] + hit
        for one in (one for batch in hit for one in batch):
            one.tick_us = self.now_us

    @precondition(lambda self: self.window.pending_count == 0)
    @rule(max_keys=st.integers(1, 30))
    def reload(self, max_keys: int) -> None:
        """Dump the window and load it, perhaps into a smaller one."""
        self.window = type(self.window).load(self.window.dump(), DURATION_US, max_keys)
        self.max_keys = max_keys
        self.evicted = 0
        while len(self.known) > max_keys:
            self.batches.pop(0)

    @rule(seed=st.integers(0, 1000), cut=st.integers(-2, 2))
    def ask_for_a_batch(self, seed: int, cut: int) -> None:
        """Ask for a batch, or for one key more or less than it has."""
        if not self.batches:
            return
        index = seed % len(self.batches)
        following = [known for batch in self.batches[index:] for known in batch]
        size = max(1, len(self.batches[index]) + cut)
        handles = self.window.find(self.keys[[known.key for known in following[:size]]])
        assert self.window.is_batch(handles) == (len(handles) == len(self.batches[index]))
        if len(handles) > 1:
            assert not self.window.is_batch(handles[::-1])

    @invariant()
    def same_to_see(self) -> None:
        """Compare every answer the window can give."""
        window, known = self.window, self.known
        assert window.count == len(known)
        assert window.pending_count == sum(one.pending for one in known)
        assert window.evicted == self.evicted
        ticks = [one.tick_us for one in known if not one.pending]
        assert window.oldest_tick_us == (ticks[0] if ticks else None)
        handles = window.find(self.keys)
        assert handles.tolist() == [window.find_one(high, low) for high, low in self.keys.tolist()]
        assert sorted(np.flatnonzero(handles >= 0).tolist()) == sorted(one.key for one in known)
        found = handles[[one.key for one in known]]
        assert window.positions(found).tolist() == [one.position for one in known]
        assert window.fingerprints(found).tolist() == [one.fingerprint for one in known]
        assert window.pending(found).tolist() == [one.pending for one in known]
        settled = handles[[one.key for one in known if not one.pending]]
        assert window.times(settled).tolist() == [one.time_us for one in known if not one.pending]
        assert (np.diff(settled) > 0).all()
        for handle, one in zip(found.tolist(), known, strict=True):
            position, fingerprint, time_us, pending = window.at(handle)
            assert (position, fingerprint, pending) == (one.position, one.fingerprint, one.pending)
            assert pending or time_us == one.time_us

    @invariant()
    def dumps_what_is_committed(self) -> None:
        """Compare the dump."""
        state = self.window.dump()
        committed = [(one, one is batch[0]) for batch in self.batches for one in batch if not one.pending]
        assert state.keys.tolist() == self.keys[[one.key for one, _ in committed]].tolist()
        assert state.positions.tolist() == [one.position for one, _ in committed]
        assert state.fingerprints.tolist() == [one.fingerprint for one, _ in committed]
        assert state.ticks.tolist() == [one.tick_us for one, _ in committed]
        assert state.times.tolist() == [one.time_us for one, _ in committed]
        assert state.starts.tolist() == [start for _, start in committed]


class CollidingMachine(WindowMachine):
    """All keys want the same two buckets."""

    keys = colliding_keys()


class RefreshingMachine(WindowMachine):
    """Hits make keys young again."""

    refresh_on_hit = True
    max_keys = 60


class CollidingRefreshingMachine(RefreshingMachine):
    """Hits make keys young again that all want the same two buckets."""

    keys = colliding_keys()


class LateMachine(WindowMachine):
    """The numbers in the slots run out, and positions lie too far apart for 32 bits."""

    first_handle = 2**32 - 100
    position_step = 2**26


def check(machine: type[WindowMachine]) -> None:
    """Run a machine, quickly."""
    run_state_machine_as_test(machine, settings=settings(max_examples=24, stateful_step_count=30, deadline=None))


def test_window() -> None:
    """At most once within the window, by age, by number, by batch, pending or not, stored and loaded."""
    check(WindowMachine)


def test_colliding_keys() -> None:
    """No key is lost when its buckets are full, and none is taken for another with the same tag."""
    check(CollidingMachine)


def test_refresh() -> None:
    """A hit makes the whole batch young, also while others are pending, and commits still find theirs."""
    check(RefreshingMachine)


def test_refresh_of_colliding_keys() -> None:
    """A refreshed key that is in no slot is found under its new handle."""
    check(CollidingRefreshingMachine)


def test_late_numbers() -> None:
    """Running out of 32-bit numbers, for slots or positions, changes nothing that can be seen."""
    check(LateMachine)
