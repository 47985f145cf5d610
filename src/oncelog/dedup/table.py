"""The table: the ids of a log that are not in a run yet, oldest first, without bounds.

It is a window that never evicts by itself. All its keys stand in the order of their positions, so what a run has come
to hold is dropped from its old end in one step. Of an id that was stored several times the newest position counts; the
others stay in the ring, as ghosts, because a run is made of all that the log holds.

Nearly every batch in columns brings new ids only, and most ids go into a run before anybody looks for them. So a sieve
has the ids of the table, and ids that do not pass it are new. They stay *loose*: the ring has them, the slots do not,
until a search needs them there. To put an id into a sieve touches one line of memory, to put it into the slots four.
``finish`` puts new ids into the sieve, while the device works on their block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog import limits
from oncelog.dedup.repeats import distinct, first_occurrence
from oncelog.dedup.ring import FLAG_BITS, GHOST, PENDING, START, Handles, Keys
from oncelog.dedup.runs.sieve import Sieve
from oncelog.dedup.window import DedupWindow, Later, WindowState, as_keys

_FOREVER_US, _ALL_KEYS = 1 << 62, 1 << 40

_SMALL_KEYS = 32_768
_RUN_KEYS = limits.MEMORY_RUN_IDS + limits.MEMORY_RUN_IDS // 4
"""What a table holds when a run is made of its oldest keys, and of those that come meanwhile."""

_SIEVE_ROUNDS = 2
"""A sieve is made for so many times the keys that the ring holds: it is emptied when so many were put in."""

_PASSING_MAX = 32
"""If more keys of a batch pass the sieve, the slots tell which of them are known."""

_PAUSE_MAX = 16
"""Where batches have known keys again and again, one in so many asks the sieve in vain."""


class Table(DedupWindow):
    """A window without bounds. Not safe for threads: one owner."""

    def __init__(self) -> None:
        """Make an empty table."""
        super().__init__(_FOREVER_US, _ALL_KEYS)
        self._sieve: Sieve | None = None
        self._sifted = 0
        """How many keys were put into the sieve."""
        self._sifted_to = 0
        """The handle below which the sieve has every key of the table."""
        self._pause, self._unasked = 1, 0
        """For how many batches the sieve is not asked after one with a known key, and how many of these are left."""

    @property
    def nbytes(self) -> int:
        """The bytes of everything that grows with the keys."""
        return super().nbytes + (0 if self._sieve is None else self._sieve.nbytes)

    def enter(self, keys: Keys, first_position: int, fingerprints: Later) -> bool:
        """Insert keys as pending, as a window does; where a sieve can tell that they are new, they stay loose."""
        keys = as_keys(keys)
        if not self._has_room(len(keys)):
            return False
        if self._unasked > 0 or self._ring.capacity <= _SMALL_KEYS:
            self._unasked -= 1
            return super().enter(keys, first_position, fingerprints)
        passing = self._prepared_sieve(len(keys)).sifted(keys)[0]
        if len(passing) > _PASSING_MAX or not distinct(keys) or (len(passing) and self._has_any(keys[passing])):
            self._pause = self._unasked = min(2 * self._pause, _PAUSE_MAX)
            return False
        self._pause = 1
        self._ring.write(self._ring.keys, self._head, keys)
        self._write_pending(len(keys), first_position, fingerprints)
        self._loose += len(keys)
        return True

    def defers(self, count: int) -> bool:
        """Guess whether ``enter`` would take so many keys, if they are new: a sieve needs no compiled loops."""
        is_sifted = self._unasked <= 0 and self._ring.capacity > _SMALL_KEYS
        return self._has_room(count) if is_sifted else super().defers(count)

    def finish(self, count: int | None = None) -> None:
        """Do what ``enter`` left for later: write fingerprints, and put keys into the sieve."""
        super().finish(count)
        if self._sieve is not None and self._unasked <= 0:
            self._prepared_sieve(0)

    def _prepared_sieve(self, count: int) -> Sieve:
        """Return a sieve that has every key of the table, and has room for so many more."""
        sieve, room = self._sieve, _SIEVE_ROUNDS * self._ring.capacity
        if sieve is None or sieve.ids < room:
            self._sifted = self._sifted_to = 0
            self._sieve = sieve = Sieve(room)
        elif self._sifted + count > room:
            self._empty(sieve)
        low = max(self._sifted_to, self._tail)
        if low < self._head:
            sieve.put(self._ring.read(self._ring.keys, low, self._head))
            self._sifted += self._head - low
            self._sifted_to = self._head
        return sieve

    def _empty(self, sieve: Sieve) -> None:
        self._sifted = self._sifted_to = 0  # first: an interrupt must not leave an empty sieve that counts as full
        sieve.clear()

    def _has_any(self, few: Keys) -> bool:
        """Tell whether any key of these few is in the table."""
        if (self._slots.find(few, self._tail) >= 0).any():
            return True
        loose = self._ring.read(self._ring.keys, self._head - self._loose, self._head)
        return any(_has(loose, key) for key in few)

    def _grown(self, needed: int) -> int:
        """Return the capacity for so many keys. A table that is no longer small soon has enough for a run: it gets that
        room at once, because each step up puts all keys in again.
        """
        doubled = super()._grown(needed)
        return doubled if needed <= _SMALL_KEYS else max(doubled, _RUN_KEYS)

    def evict(self, now_us: int) -> int:  # noqa: ARG002
        """Drop nothing: ids go when a run has them."""
        return 0

    @property
    def has_repeats(self) -> bool:
        """Whether an id is in it more than once."""
        return self._ghosts > 0

    def fold(self, given: WindowState) -> None:
        """Add stored keys, in the order of their positions, behind all that is there. Nothing is pending.

        A key that is there already, or comes again, is from now on the one with the newest position.
        """
        assert self._pending == 0
        count = len(given.keys)
        if count == 0:
            return
        self._reserve(count)
        live = _last_of_each(given.keys)
        before = self.find(given.keys)
        self._write(given, live)
        handles = np.arange(self._head, self._head + count)
        again = live & (before >= 0)
        self._supersede(given.keys[again], before[again], handles[again])
        fresh = live & (before < 0)
        self._slots.insert(given.keys[fresh], handles[fresh], self._tail)
        self._ghosts += count - int(np.count_nonzero(live))
        self._head += count
        self._settled = self._head
        if self._slots.spill:
            self._relieve()

    def _write(self, given: WindowState, live: NDArray[np.bool_]) -> None:
        ring, low = self._ring, self._head
        marks = given.positions << FLAG_BITS | np.where(given.starts, START, 0) | np.where(live, 0, GHOST)
        ring.write(ring.keys, low, given.keys)
        ring.write(ring.fingerprints, low, given.fingerprints)
        for numbers, values in ((ring.marks, marks), (ring.ticks, given.ticks), (ring.times, given.times)):
            numbers.admit(int(values.min()), int(values.max()), self._places)
            ring.write(numbers.stored, low, numbers.pack(values))

    def _supersede(self, keys: Keys, before: Handles, handles: Handles) -> None:
        """Let keys that are there stand for their newer records."""
        if len(keys):
            self._slots.repoint(keys, handles, self._tail)
            places = (before - self._ring.origin) % self._ring.capacity
            self._ring.marks.stored[places] |= GHOST
            self._ghosts += len(keys)

    def has_before(self, position: int) -> bool:
        """Tell whether there are committed keys below a position."""
        return self._first_committed_from(position) > self._tail

    def drop_before(self, position: int) -> int:
        """Forget the committed keys below a position, and return how many: a run has them."""
        dropped = self._move_tail(self._first_committed_from(position))
        if dropped and self._sieve is not None and self._sifted > (_SIEVE_ROUNDS - 1) * self._ring.capacity:
            self._empty(self._sieve)  # now, because the table has few keys that must be put in again
        return dropped

    def _first_committed_from(self, position: int) -> int:
        """Return the first handle whose position is not below this one, at most the first pending one."""
        ring, low, high = self._ring, self._tail, self._settled
        while low < high:
            middle = (low + high) // 2
            if (ring.marks.view[ring.place(middle)] + ring.marks.base) >> FLAG_BITS < position:
                low = middle + 1
            else:
                high = middle
        return low

    def count_between(self, first_position: int, next_position: int) -> int:
        """Return how many keys ``between`` returns."""
        return self._first_committed_from(next_position) - self._first_committed_from(first_position)

    def between(self, first_position: int, next_position: int) -> WindowState:
        """Return the committed keys from one position to before another, repeats among them, as arrays of their own."""
        low, high = self._first_committed_from(first_position), self._first_committed_from(next_position)
        ring = self._ring
        marks = ring.numbers(ring.marks, low, high)
        assert not (marks & PENDING).any()
        return WindowState(
            keys=ring.read(ring.keys, low, high).copy(),
            positions=marks >> FLAG_BITS,
            fingerprints=ring.read(ring.fingerprints, low, high).copy(),
            ticks=ring.numbers(ring.ticks, low, high),
            times=ring.numbers(ring.times, low, high),
            starts=(marks & START) != 0,
        )


def _last_of_each(keys: Keys) -> NDArray[np.bool_]:
    """Tell which rows are the last with their key."""
    if distinct(keys):
        return np.ones(len(keys), np.bool_)
    last = len(keys) - 1 - first_occurrence(keys[::-1])[::-1]
    found: NDArray[np.bool_] = last == np.arange(len(keys))
    return found


def _has(keys: Keys, key: NDArray[np.uint64]) -> bool:
    """Tell whether a key is among others."""
    same = np.flatnonzero(keys[:, 0] == key[0])
    return bool((keys[same, 1] == key[1]).any())
