"""What is known of every key, oldest first, in arrays that are used round and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Handles = NDArray[np.int64]

START = 1
"""The key begins a batch."""
GHOST = 2
"""The key is no longer here: it was made young again, or forgotten."""
PENDING = 4
"""The key's record is not durable yet."""
FLAG_BITS = 3
FLAGS = START | GHOST | PENDING

NARROW_MAX = (1 << 32) - 1
"""The most a number in 32 bits can be."""

_NEAR = 8
_SCAN = 256


class Numbers:
    """An array of 64-bit integers that lie close together, kept in 32 bits each as long as they do.

    A value is stored less ``base``, a multiple of ``unit``. When one does not fit, ``base`` moves to the least value in
    use; when that does not help, the array is widened to 64 bits, and stays so.
    """

    def __init__(self, capacity: int, unit: int = 1) -> None:
        """Make room for ``capacity`` values."""
        self._unit = unit
        self.base = 0
        self.stored: NDArray[Any] = np.zeros(capacity, dtype=np.uint32)
        self.view = self.stored.data

    def admit(self, least: int, most: int, used: Callable[[], NDArray[np.int64]]) -> None:
        """See to it that values from ``least`` to ``most`` can be stored; ``used()`` tells the places that count."""
        if self.stored.dtype == np.int64 or (least >= self.base and most - self.base <= NARROW_MAX):
            return
        places = used()
        if len(places):
            values = self.at(places)
            least, most = min(least, int(values.min())), max(most, int(values.max()))
        base = self._floor(least)
        if most - base <= NARROW_MAX:
            self.stored += np.uint32((self.base - base) & NARROW_MAX)
            self.base = base
        else:
            self.replace(self.stored.astype(np.int64))

    def _floor(self, value: int) -> int:
        return value - value % self._unit

    def pack(self, values: NDArray[np.int64]) -> NDArray[Any]:
        """Return admitted values as they are stored."""
        return (values - self.base).astype(self.stored.dtype)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values at these places."""
        return self.stored.take(places, mode="wrap") + np.int64(self.base)

    def replace(self, stored: NDArray[Any]) -> None:
        """Take another array of stored values instead."""
        self.stored = stored
        self.view = stored.data


class Ring:
    """Parallel arrays over handles: handle ``h`` stands at place ``(h - origin) % capacity``.

    ``origin`` is at most the tail, and less than one round below it. ``marks`` holds a position and its flags in one
    number: ``position << 3 | flags``.
    """

    def __init__(self, capacity: int, origin: int) -> None:
        """Make room for ``capacity`` keys, the first of which will have the handle ``origin``."""
        self.capacity = capacity
        self.origin = origin
        self.keys: Keys = np.zeros((capacity, 2), dtype=np.uint64)
        self.fingerprints = np.zeros(capacity, dtype=np.uint64)
        self.marks = Numbers(capacity, unit=1 << FLAG_BITS)
        self.ticks = Numbers(capacity)
        self.times = Numbers(capacity)
        self._look()

    def _look(self) -> None:
        self.key_view = self.keys.reshape(-1).data
        self.fingerprint_view = self.fingerprints.data

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        numbers = self.marks.stored.nbytes + self.ticks.stored.nbytes + self.times.stored.nbytes
        return self.keys.nbytes + self.fingerprints.nbytes + numbers

    def place(self, handle: int) -> int:
        """Return where a handle stands."""
        place = handle - self.origin
        return place - self.capacity if place >= self.capacity else place

    def spans(self, low: int, high: int) -> list[slice]:
        """Return the one or two slices in which the handles from ``low`` to before ``high`` stand."""
        first, count = self.place(low), high - low
        if first + count <= self.capacity:
            return [slice(first, first + count)]
        return [slice(first, self.capacity), slice(0, first + count - self.capacity)]

    def places(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the places of a range of handles, for ``take(mode="wrap")``."""
        return np.arange(low - self.origin, high - self.origin)

    def settled_places(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the places, in a range of handles, that have a tick and a time: all but the pending ones."""
        places = self.places(low, high)
        settled: NDArray[np.int64] = places[self.marks.stored.take(places, mode="wrap") & PENDING == 0]
        return settled

    def origin_for(self, tail: int) -> int:
        """Return the origin that is within one round below a tail."""
        return self.origin + (tail - self.origin) // self.capacity * self.capacity

    def read(self, array: NDArray[Any], low: int, high: int) -> NDArray[Any]:
        """Return the elements of one of the arrays for a range of handles; a copy only when it wraps around."""
        parts = [array[part] for part in self.spans(low, high)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def numbers(self, numbers: Numbers, low: int, high: int) -> NDArray[np.int64]:
        """Return the values of marks, ticks or times for a range of handles, as an array of their own."""
        return self.read(numbers.stored, low, high) + np.int64(numbers.base)

    def write(self, array: NDArray[Any], low: int, values: NDArray[Any]) -> None:
        """Set the elements of one of the arrays from the handle ``low`` on."""
        done = 0
        for part in self.spans(low, low + len(values)):
            array[part] = values[done : done + part.stop - part.start]
            done += part.stop - part.start

    def fill(self, array: NDArray[Any], low: int, high: int, value: int) -> None:
        """Set the elements of one of the arrays to one value for a range of handles."""
        for part in self.spans(low, high):
            array[part] = value

    def keys_at(self, handles: Handles) -> Keys:
        """Return the keys of these handles."""
        return self.keys.take(handles - self.origin, axis=0, mode="wrap")

    def flags_at(self, handles: Handles) -> NDArray[Any]:
        """Return the flags of these handles."""
        flags: NDArray[Any] = self.marks.stored.take(handles - self.origin, mode="wrap") & FLAGS
        return flags

    def key(self, handle: int) -> tuple[int, int]:
        """Return the key of one handle."""
        place = handle - self.origin
        place = 2 * (place - self.capacity if place >= self.capacity else place)
        return self.key_view[place], self.key_view[place + 1]

    def first_kept(self, low: int, end: int, excess: int, expired_us: int | None) -> int:
        """Return the first handle from ``low`` on, at most ``end``, that is no ghost, not expired, not in excess."""
        near = min(low + _NEAR, end)
        while low < near:
            place = self.place(low)
            if not self.marks.view[place] & GHOST:
                expired = expired_us is not None and self.ticks.view[place] + self.ticks.base <= expired_us
                if not expired and excess <= 0:
                    return low
                excess -= 1
            low += 1
        step = max(_SCAN, excess)
        while low < end:
            high = min(low + step, end)
            live = (self.read(self.marks.stored, low, high) & GHOST) == 0
            going = ~live
            if expired_us is not None:
                going |= self.read(self.ticks.stored, low, high) <= expired_us - self.ticks.base
            if excess > 0:
                going |= np.cumsum(live) <= excess
            if not going.all():
                return low + int(np.argmin(going))
            excess -= int(np.count_nonzero(live))
            low, step = high, 2 * step
        return low

    def next_start(self, handle: int, end: int) -> int:
        """Return the first handle from here on, at most ``end``, that begins a batch."""
        near = min(handle + _NEAR, end)
        while handle < near:
            if self.marks.view[self.place(handle)] & START:
                return handle
            handle += 1
        while handle < end:
            high = min(handle + _SCAN, end)
            starts = self.read(self.marks.stored, handle, high) & START
            if starts.any():
                return handle + int(np.argmax(starts))
            handle = high
        return handle

    def rebuild(self, capacity: int, kept: Handles, origin: int) -> None:
        """Keep only these handles, in this order, under new handles from ``origin`` on."""
        places = kept - self.origin
        self.keys = _moved(self.keys, places, capacity)
        self.fingerprints = _moved(self.fingerprints, places, capacity)
        for numbers in (self.marks, self.ticks, self.times):
            numbers.replace(_moved(numbers.stored, places, capacity))
        self.capacity, self.origin = capacity, origin
        self._look()


def _moved(array: NDArray[Any], places: NDArray[np.int64], capacity: int) -> NDArray[Any]:
    moved = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
    array.take(places, axis=0, out=moved[: len(places)], mode="wrap")
    return moved
