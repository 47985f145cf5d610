"""Where a key stands in the ring: two candidate buckets of eight slots, each a 16-bit tag and a 32-bit number.

A key's identity names two buckets and a tag. A slot holds the tag of the key that was last put there, and its handle
(its place in the order of all keys ever added) less ``base``, so that it fits 32 bits. Handles only grow, and whatever
is below the ring's tail is gone, so eviction touches no slot: a slot is free when its number is below the tail.

A cursor walks around the slots of each bucket: the slot it stands on is, as a rule, the oldest. A new key goes to the
bucket whose *second* oldest slot is older, which fills buckets far more evenly than asking the oldest. Empty slots are
numbered 0 to 7, so that while a table fills this means the emptier bucket. A key that finds both buckets full moves one
of their keys to that one's other bucket, and when none can move goes into a dictionary: none is ever lost.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels, kernels_at_hand
from oncelog.dedup.ring import Handles, Keys, Ring

BUCKET_SLOTS = 8
_BUCKET_BITS = 3
_SLOT_MASK = BUCKET_SLOTS - 1
_TAG_MASK = 0xFFFF
_HALF = 32
_PART_MASK = (1 << _HALF) - 1
_NUMBER_MAX = (1 << 32) - 1
_CHUNK_KEYS = 10240
_FEW = 12
_SPILL_MIN = 16
_SPILL_ENTRY_BYTES = 200
_BOTH = 0x0101
_LINE_BYTES = 64


class Slots:
    """The index of a ring. It reads the ring's keys to be sure of a match, and never writes the ring.

    ``tail`` arguments are handles; handles must be below ``end``. ``insert`` trusts that its keys are not in yet, and
    that the ring has them already.
    """

    def __init__(self, ring: Ring, buckets: int, base: int) -> None:
        """Make an empty table of so many buckets, for handles from ``base + BUCKET_SLOTS`` on."""
        self._ring = ring
        self._base = base
        self.end = base + _NUMBER_MAX
        self._buckets = buckets
        self._tags = aligned(buckets * BUCKET_SLOTS, np.uint16)
        self._numbers = aligned(buckets * BUCKET_SLOTS, np.uint32)
        self._numbers.reshape(-1, BUCKET_SLOTS)[:] = np.arange(BUCKET_SLOTS)
        self._cursors = np.zeros(buckets, dtype=np.uint8)
        self._tag_rows = self._tags.view(np.dtype((np.void, 2 * BUCKET_SLOTS)))
        self._tag_view = self._tags.data
        self._number_view = self._numbers.data
        self._cursor_view = self._cursors.data
        self.spill: dict[tuple[int, int], int] = {}  # keys that found both buckets full, some perhaps evicted
        self._spill_highs: NDArray[np.uint64] | None = None
        self._spill_limit = _SPILL_MIN

    @property
    def nbytes(self) -> int:
        """The bytes of the table and of the dictionary."""
        spill = sys.getsizeof(self.spill) + _SPILL_ENTRY_BYTES * len(self.spill)
        highs = 0 if self._spill_highs is None else self._spill_highs.nbytes
        return self._tags.nbytes + self._numbers.nbytes + self._cursors.nbytes + spill + highs

    def _pair(self, high: int, low: int) -> tuple[int, int]:
        """Return the buckets of a key. Both parts of each half have a say: one alone, a sum over what the id says, puts
        numbered ids close together where the log's secret is unlucky.
        """
        buckets = self._buckets
        one = ((high ^ high >> _HALF) & _PART_MASK) * buckets >> _HALF
        return one, ((low ^ low >> _HALF) & _PART_MASK) * buckets >> _HALF

    def _pairs(self, keys: Keys) -> NDArray[np.int64]:
        """Return the buckets of keys, in two columns."""
        parts = keys >> np.uint64(_HALF)
        parts ^= keys
        parts &= np.uint64(_PART_MASK)
        parts *= np.uint64(self._buckets)
        parts >>= np.uint64(_HALF)
        return parts.view(np.int64)

    # Finding

    def find(self, keys: Keys, tail: int) -> Handles:
        """Return the handle of each key, -1 for one that is not in."""
        handles = np.full(len(keys), -1, dtype=np.int64)
        compiled = kernels(len(keys))
        if compiled is not None:
            table = self._tags, self._numbers, self._ring.keys, self._buckets
            compiled.find(fixed(keys), *table, self._base, self._ring.origin, tail, handles)
        else:
            for low in range(0, len(keys), _CHUNK_KEYS):
                self._find_chunk(keys[low : low + _CHUNK_KEYS], tail, handles[low : low + _CHUNK_KEYS])
        if self.spill:
            self._find_spilled(keys, handles, tail)
        return handles

    def _find_chunk(self, keys: Keys, tail: int, handles: Handles) -> None:
        rows, slots = self._same_tags(keys)
        if len(rows) <= _FEW:
            self._find_singly(keys, rows, tail, handles)
            return
        found, same = self._compare(keys, rows, slots, tail)
        wrong = np.flatnonzero(~same)
        if len(wrong) <= _FEW:
            handles[rows] = found
            self._find_singly(keys, rows[wrong], tail, handles)
        else:
            handles[rows[same]] = found[same]

    def _find_singly(self, keys: Keys, rows: NDArray[np.int64], tail: int, handles: Handles) -> None:
        for row in rows.tolist():
            high, low = keys[row].tolist()
            handles[row] = self.find_one(high, low, tail)

    def _same_tags(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of keys, and the slots in their buckets, that have the same tag; a row may have several."""
        buckets = self._pairs(keys)
        tags = keys.view(np.uint16)[:, 0]
        stored = self._tag_rows.take(buckets, mode="clip").view(np.uint16).reshape(-1, 2 * BUCKET_SLOTS)
        same = np.flatnonzero(stored == tags[:, None])
        slots = buckets.reshape(-1).take(same >> _BUCKET_BITS)
        slots <<= _BUCKET_BITS
        slots |= same & _SLOT_MASK
        same >>= _BUCKET_BITS + 1
        return same, slots

    def _compare(
        self, keys: Keys, rows: NDArray[np.int64], slots: NDArray[np.int64], tail: int
    ) -> tuple[Handles, NDArray[np.bool_]]:
        """Return the handles in the slots, and whether each is live and has the key of its row."""
        ring = self._ring
        places = self._numbers.take(slots).astype(np.int64)
        places += self._base - ring.origin
        live = places >= tail - ring.origin
        handles = places + ring.origin
        stored = ring.keys.take(np.maximum(places, 0, out=places), axis=0, mode="wrap")
        same: NDArray[np.bool_] = (stored == keys.take(rows, axis=0)).view(np.uint16).reshape(-1) == _BOTH
        same &= live
        return handles, same

    def _find_spilled(self, keys: Keys, handles: Handles, tail: int) -> None:
        if self._spill_highs is None:
            self._spill_highs = np.sort(np.array([high for high, _ in self.spill], dtype=np.uint64))
        highs = self._spill_highs
        missing = np.flatnonzero(handles < 0)
        wanted = keys[missing, 0]
        near = highs.take(np.searchsorted(highs, wanted), mode="clip") == wanted
        for row in missing[near].tolist():
            high, low = keys[row].tolist()
            handle = self.spill.get((high, low), -1)
            handles[row] = handle if handle >= tail else -1

    def find_one(self, high: int, low: int, tail: int) -> int:
        """Return the handle of one key, or -1."""
        tag, buckets, view = high & _TAG_MASK, self._buckets, self._tag_view
        one = ((high ^ high >> _HALF) & _PART_MASK) * buckets >> _HALF << _BUCKET_BITS  # as ``_pair``, without a call
        two = ((low ^ low >> _HALF) & _PART_MASK) * buckets >> _HALF << _BUCKET_BITS
        # Nearly always no slot of the two buckets has the tag.
        if tag in view[one : one + BUCKET_SLOTS].tolist() or tag in view[two : two + BUCKET_SLOTS].tolist():
            slot = self._slot_of(high, low, tail)
            if slot >= 0:
                return self._number_view[slot] + self._base
        if self.spill:
            handle = self.spill.get((high, low), -1)
            return handle if handle >= tail else -1
        return -1

    def _slot_of(self, high: int, low: int, tail: int) -> int:
        """Return the slot that has the key, or -1."""
        tag, view = high & _TAG_MASK, self._tag_view
        for bucket in self._pair(high, low):
            first = bucket << _BUCKET_BITS
            tags = view[first : first + BUCKET_SLOTS].tolist()
            slot = self._slot_in(tags, first, high, low, tail) if tag in tags else -1
            if slot >= 0:
                return slot
        return -1

    def _slot_in(self, tags: list[int], first: int, high: int, low: int, tail: int) -> int:
        """Return the slot of a bucket that has the key, given the bucket's tags."""
        tag = high & _TAG_MASK
        for slot, stored in enumerate(tags, first):
            if stored == tag:
                handle = self._number_view[slot] + self._base
                if handle >= tail and self._ring.key(handle) == (high, low):
                    return slot
        return -1

    # Inserting

    def insert(self, keys: Keys, handles: Handles, tail: int) -> None:
        """Put keys in, with these handles."""
        compiled = kernels(len(keys))
        if compiled is not None:
            numbers = (handles - self._base).astype(np.uint32)
            crowded = np.empty(len(keys), np.int64)
            table = self._tags, self._numbers, self._cursors, self._buckets
            count = compiled.insert(fixed(keys), numbers, tail - self._base, *table, crowded)
            for row in crowded[:count].tolist():
                high, low = keys[row].tolist()
                self.insert_one(high, low, int(handles[row]), tail)
            return
        for low in range(0, len(keys), _CHUNK_KEYS):
            self._insert_chunk(keys[low : low + _CHUNK_KEYS], handles[low : low + _CHUNK_KEYS], tail)

    def enter(self, keys: Keys, first: int, tail: int) -> bool:
        """Put keys in, with handles from ``first`` on, if none is in and none repeats; the ring has them already.

        ``False``, and none is in: not all are new, or some find no room, or there are no compiled loops.
        """
        compiled = kernels_at_hand(len(keys))
        if compiled is None or self.spill:
            return False
        table = self._tags, self._numbers, self._cursors, self._buckets
        ring = self._ring.keys, self._base - self._ring.origin
        ahead = np.empty(1, np.uint64)
        return bool(compiled.enter(fixed(keys), first - self._base, tail - self._base, *table, *ring, ahead))

    def _insert_chunk(self, keys: Keys, handles: Handles, tail: int) -> None:
        """Let all keys claim a slot at once; where several claim the same, the last has it, and the others try again.

        The three assignments name the same slots in the same order, so they have the same last one. Keys that found no
        free slot wait until no claim is open: to make room for them, others may have to move.
        """
        numbers = (handles - self._base).astype(np.uint32)
        buckets = self._pairs(keys).T.copy()
        tags = keys.view(np.uint16)[:, 0].copy()
        crowded: list[int] = []
        while len(numbers) > _FEW:
            chosen, slots = self._choose(buckets)
            stuck = self._try_others(buckets, chosen, slots, tail)
            if len(stuck):
                crowded += numbers[stuck].tolist()
                kept = np.delete(np.arange(len(numbers)), stuck)
                numbers, tags, buckets = numbers.take(kept), tags.take(kept), buckets.take(kept, axis=1)
                chosen, slots = chosen.take(kept), slots.take(kept)
            self._numbers[slots] = numbers
            self._tags[slots] = tags
            self._cursors[chosen] = ((slots + 1) & _SLOT_MASK).astype(np.uint8)
            lost = np.flatnonzero(self._numbers.take(slots) != numbers)
            numbers, tags, buckets = numbers.take(lost), tags.take(lost), buckets.take(lost, axis=1)
        for number in crowded + numbers.tolist():
            self.insert_one(*self._ring.key(number + self._base), number + self._base, tail)

    def _try_others(
        self, buckets: NDArray[np.int64], chosen: NDArray[np.int64], slots: NDArray[np.int64], tail: int
    ) -> NDArray[np.int64]:
        """Where the chosen slot is taken, choose the other bucket, in place; return the keys for which that is too."""
        limit = tail - self._base
        taken = np.flatnonzero(self._numbers.take(slots) >= limit)
        if len(taken) == 0:
            return taken
        others = buckets.take(taken, axis=1).sum(axis=0) - chosen.take(taken)
        chosen[taken] = others
        slots[taken] = (others << _BUCKET_BITS) | self._cursors.take(others)
        return taken[self._numbers.take(slots.take(taken)) >= limit]

    def _choose(self, buckets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each key the better of its buckets, and the slot of that bucket's cursor."""
        seconds = buckets << _BUCKET_BITS
        seconds |= (self._cursors.take(buckets) + 1) & _SLOT_MASK
        ages = self._numbers.take(seconds)
        chosen = np.where(ages[1] < ages[0], buckets[1], buckets[0])
        slots = chosen << _BUCKET_BITS
        slots |= self._cursors.take(chosen)
        return chosen, slots

    def insert_one(self, high: int, low: int, handle: int, tail: int) -> None:
        """Put one key in."""
        buckets, base, cursors, numbers = self._buckets, self._base, self._cursor_view, self._number_view
        chosen = ((high ^ high >> _HALF) & _PART_MASK) * buckets >> _HALF  # as ``_pair``, without a call
        other = ((low ^ low >> _HALF) & _PART_MASK) * buckets >> _HALF
        cursor, second = cursors[chosen], cursors[other]
        age = numbers[(chosen << _BUCKET_BITS) | (cursor + 1) & _SLOT_MASK]
        if numbers[(other << _BUCKET_BITS) | (second + 1) & _SLOT_MASK] < age:
            chosen, cursor = other, second
        slot = (chosen << _BUCKET_BITS) | cursor
        if numbers[slot] >= tail - base:
            self._insert_crowded(high, low, handle, tail)
            return
        numbers[slot] = handle - base
        self._tag_view[slot] = high & _TAG_MASK
        cursors[chosen] = (cursor + 1) & _SLOT_MASK

    def find_or_insert_one(self, high: int, low: int, handle: int, tail: int) -> int:
        """Return the handle of one key; put it in with this handle, and return -1, if it is not in."""
        tag, buckets, view = high & _TAG_MASK, self._buckets, self._tag_view
        one = ((high ^ high >> _HALF) & _PART_MASK) * buckets >> _HALF  # as ``_pair``, without a call
        two = ((low ^ low >> _HALF) & _PART_MASK) * buckets >> _HALF
        slot, other = one << _BUCKET_BITS, two << _BUCKET_BITS
        # Nearly always no slot of the two buckets has the tag.
        if (
            tag in view[slot : slot + BUCKET_SLOTS].tolist()
            or tag in view[other : other + BUCKET_SLOTS].tolist()
            or self.spill
        ):
            found = self.find_one(high, low, tail)
            if found >= 0:
                return found
        cursors, numbers = self._cursor_view, self._number_view
        cursor, second = cursors[one], cursors[two]
        if numbers[other | (second + 1) & _SLOT_MASK] < numbers[slot | (cursor + 1) & _SLOT_MASK]:
            one, slot, cursor = two, other, second
        slot |= cursor
        if numbers[slot] >= tail - self._base:
            self._insert_crowded(high, low, handle, tail)
        else:
            numbers[slot] = handle - self._base
            view[slot] = tag
            cursors[one] = (cursor + 1) & _SLOT_MASK
        return -1

    def _insert_crowded(self, high: int, low: int, handle: int, tail: int) -> None:
        """Put in a key whose cursor's slot is taken: into any free slot of its buckets, or one that can be freed."""
        slot = self._free_slot(self._pair(high, low), tail)
        if slot < 0:
            slot = self._make_room(self._pair(high, low), tail)
        if slot < 0:
            self._put_spilled(high, low, handle, tail)
        else:
            self._put(slot, high & _TAG_MASK, handle - self._base)

    def _put(self, slot: int, tag: int, number: int) -> None:
        self._tag_view[slot] = tag
        self._number_view[slot] = number
        self._cursor_view[slot >> _BUCKET_BITS] = (slot + 1) & _SLOT_MASK

    def _free_slot(self, buckets: tuple[int, ...], tail: int) -> int:
        for bucket in buckets:
            first = bucket << _BUCKET_BITS
            numbers = self._number_view[first : first + BUCKET_SLOTS].tolist()
            oldest = min(numbers)
            if oldest < tail - self._base:
                return first + numbers.index(oldest)
        return -1

    def _make_room(self, buckets: tuple[int, int], tail: int) -> int:
        """Move some key of these full buckets to its other bucket, and return the slot it leaves, or -1."""
        for bucket in buckets:
            for slot in range(bucket << _BUCKET_BITS, (bucket + 1) << _BUCKET_BITS):
                number = self._number_view[slot]
                one, two = self._pair(*self._ring.key(number + self._base))
                free = self._free_slot((two if one == bucket else one,), tail)
                if free >= 0:
                    self._put(free, self._tag_view[slot], number)
                    return slot
        return -1

    def _put_spilled(self, high: int, low: int, handle: int, tail: int) -> None:
        if len(self.spill) >= self._spill_limit:
            self.spill = {key: known for key, known in self.spill.items() if known >= tail}
            self._spill_limit = max(_SPILL_MIN, 2 * len(self.spill))
        self.spill[high, low] = handle
        self._spill_highs = None

    # Changing

    def repoint(self, keys: Keys, handles: Handles, tail: int) -> None:
        """Give keys that are in new handles."""
        for (high, low), handle in zip(keys.tolist(), handles.tolist(), strict=True):
            slot = self._slot_of(high, low, tail)
            if slot >= 0:
                self._number_view[slot] = handle - self._base
            else:
                self.spill[high, low] = handle

    def remove(self, keys: Keys, tail: int) -> None:
        """Take keys out."""
        for high, low in keys.tolist():
            slot = self._slot_of(high, low, tail)
            if slot >= 0:
                self._number_view[slot] = 0
            else:
                self.spill.pop((high, low), None)
        self._spill_highs = None


def aligned(count: int, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Return an array of zeros that begins with a line of the cache: no bucket, and no block, is in two of them."""
    size = count * np.dtype(kind).itemsize
    memory = np.zeros(size + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + size].view(kind)
