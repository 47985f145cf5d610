"""A window in which a duplicate makes its key as young as a new one (``refresh_on_hit``).

A refreshed key is written again at the young end of the ring, and its old place becomes a ghost. So settled keys can
stand behind pending ones, which no other window has, and a refresh may change all handles.
"""

from __future__ import annotations

import numpy as np

from oncelog.dedup.ring import FLAG_BITS, GHOST, PENDING, START, Handles
from oncelog.dedup.window import DedupWindow

_GHOSTS_MIN = 256
_GHOST_SHARE = 8


class RefreshingWindow(DedupWindow):
    """A dedup window whose keys can be refreshed, each with its whole batch. Not safe for threads: one owner."""

    def refresh(self, handles: Handles, now_us: int) -> None:
        """Make committed keys, and the batches they belong to, as young as new; pending ones stay as they are.

        Positions, fingerprints and times stay. All handles are void afterwards: find them again.
        """
        self.finish()
        moved = self._whole_batches(handles)
        if len(moved) == 0:
            return
        self._reserve(len(moved))
        ring = self._ring
        keys, places = ring.keys_at(moved), (moved - ring.origin) % ring.capacity
        ring.ticks.admit(now_us, now_us, self._settled_places)
        ring.write(ring.keys, self._head, keys)
        for array in (ring.fingerprints, ring.marks.stored, ring.times.stored):
            ring.write(array, self._head, array[places])
        ring.fill(ring.ticks.stored, self._head, self._head + len(moved), now_us - ring.ticks.base)
        self._slots.repoint(keys, np.arange(self._head, self._head + len(moved)), self._tail)
        ring.marks.stored[places] |= GHOST
        self._ghosts += len(moved)
        self._head += len(moved)
        if self._pending == 0:
            self._settled = self._head
        self._move_tail(self._first_kept(excess=0, expired_us=None))
        if self._ghosts > _GHOSTS_MIN + self.count // _GHOST_SHARE:
            self._compact()

    def _whole_batches(self, handles: Handles) -> Handles:
        """Return the committed ones of these handles with all others of their batches, each once, in ring order."""
        committed = np.unique(handles[~self.pending(handles)])
        after = self._ring.flags_at(np.minimum(committed + 1, self._head - 1))
        alone = self._ring.flags_at(committed) & START != 0
        alone &= (committed + 1 == self._head) | (after & (START | GHOST) != 0)
        grouped = [self._batch_of(handle) for handle in committed[~alone].tolist()]
        return np.unique(np.concatenate([committed[alone], *grouped])) if grouped else committed

    def _batch_of(self, handle: int) -> Handles:
        low, high = handle, handle + 1
        while low > self._tail and not self._flags(low) & START:
            low -= 1
        while high < self._head and not self._flags(high) & (START | GHOST):
            high += 1
        return np.arange(low, high)

    def _compact(self) -> None:
        """Leave the ghosts behind: all keys get new handles, in the same order."""
        handles = np.arange(self._tail, self._head)
        kept = handles[self._ring.flags_at(handles) & GHOST == 0]
        before = int(np.searchsorted(kept, self._settled))
        self._ring.rebuild(self._ring.capacity, kept, self._head)
        self._tail, self._ghosts = self._head, 0
        self._settled, self._head = self._tail + before, self._tail + len(kept)
        self._index()

    def commit(self, before_position: int, tick_us: int, time_us: int) -> None:
        """Make every pending key with a position below ``before_position`` committed, as any window does."""
        self._finish_before(before_position)
        if self._head - self._settled == self._pending:
            super().commit(before_position, tick_us, time_us)
        elif self._pending:
            self._commit_among_refreshed(before_position, tick_us, time_us)

    def _commit_among_refreshed(self, before_position: int, tick_us: int, time_us: int) -> None:
        ring = self._ring
        ring.ticks.admit(tick_us, tick_us, self._settled_places)
        ring.times.admit(time_us, time_us, self._settled_places)
        places = ring.places(self._settled, self._head) % ring.capacity
        marks = ring.marks.stored[places]
        pending = (marks & PENDING) != 0
        chosen = pending & (ring.marks.at(places) >> FLAG_BITS < before_position)
        where = places[chosen]
        ring.marks.stored[where] -= PENDING
        ring.ticks.stored[where] = tick_us - ring.ticks.base
        ring.times.stored[where] = time_us - ring.times.base
        self._pending -= len(where)
        left = np.flatnonzero(pending & ~chosen)
        self._settled = self._settled + int(left[0]) if len(left) else self._head


def window_class(*, refresh_on_hit: bool) -> type[DedupWindow]:
    """Return the class of window that settings ask for."""
    return RefreshingWindow if refresh_on_hit else DedupWindow
