"""The dedup window: which identities were seen lately, where they stand, and what they said.

Keys stand in a ring, oldest first, each under a *handle*: a number that only grows. A handle stays good until its key
is evicted. Invariants, from ``tail`` to before ``head``:

- pending keys have increasing positions; below ``settled`` none is pending, and from there on all are;
- a batch (a key with the start bit and the ones after it without) is evicted whole;
- a key below ``tail`` is gone; a ghost in between counts for nothing. ``RefreshingWindow`` and ``Table`` leave ghosts;
- the slots have every key but the newest ``loose`` ones. Only ``Table`` leaves keys loose. A method that searches the
  slots for any key, or adds to them, puts the loose keys in first;
- fingerprints that ``enter`` was promised are in ``owed``, all of pending keys, until ``finish`` writes them. A method
  that reads a fingerprint of a pending key calls ``finish`` first, and one that commits keys does so for these.

Positions, ticks and times take 32 bits as long as the window's lie close together, and 64 for good when they once did
not. The arrays start small and double up to room for ``max_keys`` and a tenth more; when more keys are pending than
that they grow further, and are cut back when they are more than twice too big.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import kernels_at_hand
from oncelog.dedup.repeats import distinct, first_occurrence
from oncelog.dedup.ring import FLAG_BITS, FLAGS, GHOST, NARROW_MAX, PENDING, START, Handles, Keys, Ring
from oncelog.dedup.slots import BUCKET_SLOTS, Slots

__all__ = ["DedupWindow", "Later", "WindowState"]

Later: TypeAlias = Callable[[], NDArray[np.uint64]]
"""Returns the fingerprints of keys that were entered. Any thread asks it when there is time, perhaps more than once."""

_CAPACITY_MIN = 32
_LOAD = 0.68
_FEW = 8
_INDEX_KEYS = 8192
_SPILL_MIN = 64
_SPILL_SHARE = 256
_CROWDED_MAX = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class WindowState:
    """The committed keys of a window, oldest first: what a snapshot stores. All arrays have one length."""

    keys: Keys
    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    ticks: NDArray[np.int64]
    times: NDArray[np.int64]
    starts: NDArray[np.bool_]


class DedupWindow:
    """A bounded memory of 128-bit keys: by age in up-time, and by number, whichever is reached first.

    Keys are (high, low) pairs, shape (n, 2). It does nothing by itself: the caller that adds also evicts. Not safe for
    threads: one owner.

    Rebuilding it from stored blocks is ``find``, then ``add`` for the absent keys, ``commit`` and ``evict``, block by
    block. A key that is still live is skipped by the caller, so the first one wins, as it did when it was written.
    """

    def __init__(self, duration_us: int, max_keys: int, *, first_handle: int = BUCKET_SLOTS) -> None:
        """Make an empty window. ``first_handle``, at least 8 and below 2**32, is for tests of what happens there."""
        self._duration_us = duration_us
        self._max_keys = max_keys
        self._tail = self._settled = self._head = first_handle
        self._ghosts = self._pending = self._loose = 0
        self._crowded = 1.0
        self._evicted = 0
        self._owed: list[tuple[int, Later]] = []
        self._ring = Ring(_CAPACITY_MIN, first_handle)
        self._slots = Slots(self._ring, self._bucket_count(), base=0)

    # What it holds

    @property
    def count(self) -> int:
        """How many keys there are, pending ones too."""
        return self._head - self._tail - self._ghosts

    @property
    def pending_count(self) -> int:
        """How many keys are pending."""
        return self._pending

    @property
    def evicted(self) -> int:
        """How many keys were evicted since the window was made."""
        return self._evicted

    @property
    def oldest_tick_us(self) -> int | None:
        """The up-time at which the oldest committed key was committed, if there is one."""
        if self.count == self._pending:
            return None
        flags = self._ring.read(self._ring.marks.stored, self._tail, self._head) & (GHOST | PENDING)
        first = self._tail + int(np.argmin(flags != 0))
        return self._ring.ticks.view[self._ring.place(first)] + self._ring.ticks.base

    @property
    def nbytes(self) -> int:
        """The bytes of everything that grows with the keys."""
        return self._ring.nbytes + self._slots.nbytes

    # Looking up

    def find(self, keys: Keys) -> Handles:
        """Return the handle of each key, -1 for one that is absent or evicted."""
        keys = as_keys(keys)
        if self._loose:
            self._index_loose()
        if len(keys) <= _FEW:
            return np.array([self.find_one(high, low) for high, low in keys.tolist()], dtype=np.int64)
        return self._slots.find(keys, self._tail)

    def find_one(self, high: int, low: int) -> int:
        """Return the handle of one key, or -1."""
        if self._loose:
            self._index_loose()
        return self._slots.find_one(high, low, self._tail)

    def positions(self, handles: Handles) -> NDArray[np.int64]:
        """Return the positions of these handles."""
        return self._ring.marks.at(handles - self._ring.origin) >> FLAG_BITS

    def fingerprints(self, handles: Handles) -> NDArray[np.uint64]:
        """Return the fingerprints of these handles."""
        if self._owed and len(handles) and int(handles.max()) >= self._owed[0][0]:
            self.finish()
        return self._ring.fingerprints.take(handles - self._ring.origin, mode="wrap")

    def times(self, handles: Handles) -> NDArray[np.int64]:
        """Return the timestamps of these handles, in microseconds; of a pending one, anything."""
        return self._ring.times.at(handles - self._ring.origin)

    def pending(self, handles: Handles) -> NDArray[np.bool_]:
        """Return which of these handles are pending."""
        pending: NDArray[np.bool_] = (self._ring.flags_at(handles) & PENDING) != 0
        return pending

    def at(self, handle: int) -> tuple[int, int, int, bool]:
        """Return position, fingerprint, time and whether it is pending, of one handle."""
        if self._owed and handle >= self._owed[0][0]:
            self.finish()
        ring = self._ring
        place = ring.place(handle)
        mark = ring.marks.view[place] + ring.marks.base
        time_us = ring.times.view[place] + ring.times.base
        return mark >> FLAG_BITS, ring.fingerprint_view[place], time_us, bool(mark & PENDING)

    def is_batch(self, handles: Handles) -> bool:
        """Say whether these handles, in this order, are exactly one stored batch."""
        if len(handles) == 0 or int(handles[0]) < self._tail or (np.diff(handles) != 1).any():
            return False
        flags = self._ring.flags_at(handles)
        if not flags[0] & START or (flags[1:] & START).any() or (np.diff(self.positions(handles)) != 1).any():
            return False
        after = int(handles[-1]) + 1
        return after >= self._head or bool(self._flags(after) & (START | GHOST))

    def _flags(self, handle: int) -> int:
        return int(self._ring.marks.view[self._ring.place(handle)]) & FLAGS

    # Adding

    def add(
        self,
        keys: Keys,
        positions: NDArray[np.int64],
        fingerprints: NDArray[np.uint64],
        starts: NDArray[np.bool_] | None = None,
    ) -> None:
        """Insert keys as pending. No starts: each is a batch of its own.

        The keys must be distinct and absent, the positions increasing and above all pending ones. A batch must come in
        one call, or in calls with nothing between them.
        """
        keys = as_keys(keys)
        count = len(keys)
        if count == 0:
            return
        if self._loose:
            self._index_loose()
        assert positions[0] <= positions[-1]
        self._reserve(count)
        ring = self._ring
        flags = np.where(starts, START | PENDING, PENDING) if starts is not None else START | PENDING
        marks = (positions << FLAG_BITS) | flags
        ring.marks.admit(int(marks[0]), int(marks[-1]), self._places)
        ring.write(ring.keys, self._head, keys)
        ring.write(ring.fingerprints, self._head, fingerprints)
        ring.write(ring.marks.stored, self._head, ring.marks.pack(marks))
        self._slots.insert(keys, np.arange(self._head, self._head + count), self._tail)
        self._head += count
        self._pending += count
        if self._slots.spill:
            self._relieve()

    def enter(self, keys: Keys, first_position: int, fingerprints: Later) -> bool:
        """Insert keys as pending, each a batch of its own, at positions from the first on, if all are new.

        ``False``, and nothing is changed: one is known or repeats, or what does it in one walk is not at hand, or there
        is no room yet, which would be made in vain if all are known. ``finish`` does what can wait.
        """
        keys = as_keys(keys)
        if not self._has_room(len(keys)) or kernels_at_hand(len(keys)) is None:
            return False
        if self._loose:
            self._index_loose()
        self._ring.write(self._ring.keys, self._head, keys)
        if not self._slots.enter(keys, self._head, self._tail):
            return False
        self._write_pending(len(keys), first_position, fingerprints)
        return True

    def defers(self, count: int) -> bool:
        """Guess whether ``enter`` would take so many keys, if they are new. Any thread may ask."""
        return self._has_room(count) and kernels_at_hand(count) is not None

    @property
    def owed(self) -> list[Later]:
        """What ``finish`` will ask for fingerprints. Any thread may look, and have them hashed before."""
        return [fingerprints for _, fingerprints in tuple(self._owed)]

    def finish(self, count: int | None = None) -> None:
        """Do what ``enter`` left for later: all, or what is owed first. It may be interrupted, and repeated."""
        for low, fingerprints in self._owed[:count]:
            self._ring.write(self._ring.fingerprints, low, fingerprints())
            del self._owed[0]

    def _finish_before(self, position: int) -> None:
        """Do the same for the keys below a position. Others may not have been hashed yet."""
        ring = self._ring
        stored = (position << FLAG_BITS) - ring.marks.base
        self.finish(sum(ring.marks.view[ring.place(low)] < stored for low, _ in self._owed))

    def _has_room(self, count: int) -> bool:
        """Tell whether the ring, and the numbers of the slots, have room for so many more keys."""
        return self._head - self._tail + count <= self._ring.capacity and self._head + count <= self._slots.end

    def _write_pending(self, count: int, first_position: int, fingerprints: Later) -> None:
        """Make pending keys, each a batch of its own, of the keys that the ring has behind the head."""
        ring, head = self._ring, self._head
        first, step = (first_position << FLAG_BITS) | START | PENDING, 1 << FLAG_BITS
        ring.marks.admit(first, first + step * (count - 1), self._places)
        first -= ring.marks.base
        ring.write(ring.marks.stored, head, np.arange(first, first + step * count, step))
        self._owed.append((head, fingerprints))
        self._head += count
        self._pending += count

    def find_or_add_one(self, high: int, low: int, position: int, fingerprint: int) -> int:
        """Return the handle of one key; insert it as pending, under the same conditions as ``add``, and return -1 if it
        is absent.
        """
        if self._loose:
            self._index_loose()
        ring, head = self._ring, self._head
        if head - self._tail >= ring.capacity or head >= self._slots.end:
            self._reserve(1)
        handle = self._slots.find_or_insert_one(high, low, head, self._tail)
        if handle >= 0:
            return handle
        marks = ring.marks
        mark = (position << FLAG_BITS) | START | PENDING
        if not 0 <= mark - marks.base <= NARROW_MAX:
            marks.admit(mark, mark, self._places)
        place = head - ring.origin
        if place >= ring.capacity:
            place -= ring.capacity
        ring.key_view[2 * place] = high
        ring.key_view[2 * place + 1] = low
        ring.fingerprint_view[place] = fingerprint
        marks.view[place] = mark - marks.base
        self._head = head + 1
        self._pending += 1
        if self._slots.spill:
            self._relieve()
        return -1

    def _places(self) -> NDArray[np.int64]:
        return self._ring.places(self._tail, self._head)

    def _settled_places(self) -> NDArray[np.int64]:
        return self._ring.settled_places(self._tail, self._head)

    # Committing and forgetting

    def commit(self, before_position: int, tick_us: int, time_us: int) -> None:
        """Make every pending key with a position below ``before_position`` committed, at this up-time and wall time."""
        if self._pending == 0:
            return
        if self._owed:
            self._finish_before(before_position)
        ring, settled = self._ring, self._settled
        marks, ticks, times = ring.marks, ring.ticks, ring.times
        if not 0 <= tick_us - ticks.base <= NARROW_MAX:
            ticks.admit(tick_us, tick_us, self._settled_places)
        if not 0 <= time_us - times.base <= NARROW_MAX:
            times.admit(time_us, time_us, self._settled_places)
        place = settled - ring.origin
        if place >= ring.capacity:
            place -= ring.capacity
        mark = marks.view[place]
        if self._pending == 1 and mark < (before_position << FLAG_BITS) - marks.base:
            marks.view[place] = mark - PENDING
            ticks.view[place] = tick_us - ticks.base
            times.view[place] = time_us - times.base
            end = settled + 1
        else:
            end = self._first_from(before_position)
            for part in ring.spans(settled, end):
                marks.stored[part] -= PENDING
                ticks.stored[part] = tick_us - ticks.base
                times.stored[part] = time_us - times.base
        self._pending -= end - settled
        self._settled = end

    def commit_each(self, ticks_us: NDArray[np.int64], times_us: NDArray[np.int64]) -> None:
        """Make every pending key committed, each at an up-time and a wall time of its own, in the order they were
        added.
        """
        assert len(ticks_us) == self._pending, "one time for each pending key"
        if self._pending == 0:
            return
        self.finish()
        ring = self._ring
        ring.ticks.admit(int(ticks_us.min()), int(ticks_us.max()), self._settled_places)
        ring.times.admit(int(times_us.min()), int(times_us.max()), self._settled_places)
        handles = np.arange(self._settled, self._head)
        places = (handles[self.pending(handles)] - ring.origin) % ring.capacity
        ring.marks.stored[places] -= PENDING
        ring.ticks.stored[places] = ring.ticks.pack(ticks_us)
        ring.times.stored[places] = ring.times.pack(times_us)
        self._pending = 0
        self._settled = self._head

    def _first_from(self, position: int) -> int:
        """Return the first handle, from ``settled`` on, whose position is not below this one; all are pending."""
        ring = self._ring
        stored = (position << FLAG_BITS) - ring.marks.base
        if ring.marks.view[ring.place(self._head - 1)] < stored:
            return self._head
        low = high = self._settled
        step = 1  # it gallops: recovery commits many small blocks of what it added at once
        while ring.marks.view[ring.place(high)] < stored:
            low, high, step = high + 1, min(high + step, self._head - 1), 2 * step
        while low < high:
            middle = (low + high) // 2
            if ring.marks.view[ring.place(middle)] < stored:
                low = middle + 1
            else:
                high = middle
        return low

    # Evicting

    def evict(self, now_us: int) -> int:
        """Drop the oldest committed keys that are too old or too many, and return how many; pending ones stay.

        Batches go whole: one that would be cut by ``max_keys`` goes.
        """
        ring, tail = self._ring, self._tail
        if tail == self._settled:
            return 0
        excess = self._head - tail - self._ghosts - self._max_keys
        expired_us = now_us - self._duration_us
        place = tail - ring.origin
        if place >= ring.capacity:
            place -= ring.capacity
        if excess <= 0 and ring.ticks.view[place] + ring.ticks.base > expired_us:
            return 0
        dropped = self._move_tail(self._first_kept(excess, expired_us))
        self._evicted += dropped
        if ring.capacity > 2 * self._full_capacity and self._head - self._tail <= self._full_capacity:
            self._resize(self._full_capacity)
        return dropped

    def evict_through(self, handle: int) -> int:
        """Drop the committed keys up to this handle, and the rest of its batch, and return how many.

        For recovery: that a live key was stored again tells that its writer had evicted it, and all before it.
        """
        dropped = self._move_tail(self._ring.next_start(min(handle + 1, self._settled), self._settled))
        self._evicted += dropped
        return dropped

    def _first_kept(self, excess: int, expired_us: int | None) -> int:
        """Return the first handle that stays when the oldest ``excess`` keys and all expired ones go, batches whole."""
        low = self._tail
        if excess > _FEW and not self._ghosts:
            low, excess = min(low + excess, self._settled), 0
        kept = self._ring.first_kept(low, self._settled, excess, expired_us)
        return kept if kept == self._tail else self._ring.next_start(kept, self._settled)

    def _move_tail(self, tail: int) -> int:
        """Let everything below the new tail go, and return how many keys that were."""
        ghosts = 0
        if self._ghosts and tail > self._tail:
            flags = self._ring.read(self._ring.marks.stored, self._tail, tail)
            ghosts = int(np.count_nonzero(flags & GHOST))
        ring, dropped = self._ring, tail - self._tail - ghosts
        origin, ghosts, loose = ring.origin_for(tail), self._ghosts - ghosts, min(self._loose, self._head - tail)
        ring.origin, self._tail, self._ghosts, self._loose = origin, tail, ghosts, loose  # no call: no interrupt
        return dropped

    # Growing

    @property
    def _full_capacity(self) -> int:
        return self._max_keys + self._max_keys // 10 + _CAPACITY_MIN

    def _reserve(self, count: int) -> None:
        """Make room for so many more keys, in the ring and in the numbers of the slots."""
        needed = self._head - self._tail + count
        if needed > self._ring.capacity:
            self._resize(self._grown(needed))
        elif self._head + count > self._slots.end:
            self._index()

    def _grown(self, needed: int) -> int:
        """Return the capacity for so many keys: twice what there was, up to what a full window needs."""
        doubled = min(max(needed, 2 * self._ring.capacity), self._full_capacity)
        return doubled if needed <= doubled else needed + needed // 8

    def _resize(self, capacity: int) -> None:
        self._ring.rebuild(capacity, np.arange(self._tail, self._head), self._tail)
        self._index()

    def _bucket_count(self) -> int:
        return int(self._ring.capacity * self._crowded / (_LOAD * BUCKET_SLOTS)) + 2

    def _index(self) -> None:
        """Build the slots again from the ring. All keys count as loose until that is done: should it be interrupted,
        the next search builds them again.
        """
        self._loose = self._head - self._tail
        self._slots = Slots(self._ring, self._bucket_count(), base=self._tail - BUCKET_SLOTS)
        self._index_from(self._tail)

    def _index_loose(self) -> None:
        """Put the loose keys into the slots. Here, too, all keys count as loose until that is done."""
        low = self._head - self._loose
        self._loose = self._head - self._tail
        if low == self._tail:
            self._index()
            return
        self._index_from(low)
        if self._slots.spill:
            self._relieve()

    def _index_from(self, low: int) -> None:
        """Put the keys from a handle on into the slots, which have all keys before it."""
        for start in range(low, self._head, _INDEX_KEYS):
            handles = np.arange(start, min(start + _INDEX_KEYS, self._head))
            if self._ghosts:
                handles = handles[self._ring.flags_at(handles) & GHOST == 0]
            self._slots.insert(self._ring.keys_at(handles), handles, self._tail)
        self._loose = 0

    def _relieve(self) -> None:
        """Take more buckets when too many keys found theirs full; for keys that always collide this ends soon."""
        if len(self._slots.spill) > _SPILL_MIN + self.count // _SPILL_SHARE and self._crowded < _CROWDED_MAX:
            self._crowded *= 2
            self._index()

    # Storing

    def dump(self) -> WindowState:
        """Return the committed keys, oldest first, as arrays of their own."""
        handles = np.arange(self._tail, self._head)
        handles = handles[self._ring.flags_at(handles) & (GHOST | PENDING) == 0]
        return WindowState(
            keys=self._ring.keys_at(handles),
            positions=self.positions(handles),
            fingerprints=self.fingerprints(handles),
            ticks=self._ring.ticks.at(handles - self._ring.origin),
            times=self.times(handles),
            starts=(self._ring.flags_at(handles) & START) != 0,
        )

    @classmethod
    def load(cls, state: WindowState, duration_us: int, max_keys: int) -> Self:
        """Make a window of dumped keys, which must be distinct. Of more than ``max_keys`` the newest batches stay."""
        window = cls(duration_us, max_keys)
        first = max(0, len(state.keys) - max_keys)
        if first:
            first += int(np.argmax(state.starts[first:])) if state.starts[first:].any() else max_keys
        window._fill(state, first)
        return window

    def _fill(self, state: WindowState, first: int) -> None:
        count = len(state.keys) - first
        if count == 0:
            return
        self._reserve(count)
        ring, low = self._ring, self._head
        marks = state.positions[first:] << FLAG_BITS | state.starts[first:]
        ring.write(ring.keys, low, state.keys[first:])
        ring.write(ring.fingerprints, low, state.fingerprints[first:])
        for numbers, values in (
            (ring.marks, marks),
            (ring.ticks, state.ticks[first:]),
            (ring.times, state.times[first:]),
        ):
            numbers.admit(int(values.min()), int(values.max()), self._places)
            ring.write(numbers.stored, low, numbers.pack(values))
        self._head = self._settled = low + count
        self._index()

    # Within one batch of keys

    distinct = staticmethod(distinct)
    first_occurrence = staticmethod(first_occurrence)


def as_keys(keys: Keys) -> Keys:
    """Return keys in the form that the loops take."""
    return np.ascontiguousarray(keys, dtype=np.uint64).reshape(-1, 2)
