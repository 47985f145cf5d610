"""Who the streams of a log are, and how far each has got: compact, and a fold of the log.

A stream has a number: they count from 0 in the order of first events, from whichever place the log is folded. Names lie
behind each other in one piece; a hash table of their numbers finds them. About 50 bytes a stream and its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

from oncelog.format import streams as stored

_SLOTS_MIN = 64
_LOAD = 0.6


class Directory:
    """Streams by name and by number. Not safe for threads: one owner."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._names = bytearray()
        self._ends = np.zeros(16, np.int64)
        self.counts = np.zeros(16, np.int64)
        self.firsts = np.zeros(16, np.int64)
        self.lasts = np.zeros(16, np.int64)
        self._slots = np.zeros(_SLOTS_MIN, np.int32)
        self.size = 0

    @classmethod
    def of_base(cls, seed: int, streams: Mapping[str, int]) -> Directory:
        """Return the streams of a base: their events are gone, their counts stay."""
        directory = cls(seed)
        for name, count in streams.items():
            number = directory.add(name.encode())
            directory.counts[number] = count
        return directory

    @classmethod
    def load(cls, seed: int, found: stored.StoredDirectory) -> Directory:
        """Return the streams of a stored directory."""
        directory = cls(seed)
        directory._names = bytearray(found.names)
        directory._ends, directory.counts = found.ends.astype(np.int64), found.counts.astype(np.int64)
        directory.firsts, directory.lasts = found.firsts.astype(np.int64), found.lasts.astype(np.int64)
        directory._slots = found.slots.astype(np.int32)
        directory.size = len(found.ends)
        return directory

    def dump(self, log_id: str, position: int, page: stored.StreamPage) -> stored.StoredDirectory:
        """Return what is to be stored; nothing of it changes any more."""
        size = self.size
        return stored.StoredDirectory(
            log_id=log_id,
            position=position,
            names=bytes(self._names),
            ends=self._ends[:size].copy(),
            counts=self.counts[:size].copy(),
            firsts=self.firsts[:size].copy(),
            lasts=self.lasts[:size].copy(),
            slots=self._slots.copy(),
            page=page,
        )

    @property
    def nbytes(self) -> int:
        """The bytes of everything that grows with the streams."""
        arrays = (self._ends, self.counts, self.firsts, self.lasts, self._slots)
        return len(self._names) + sum(array.nbytes for array in arrays)

    def find(self, name: bytes) -> int:
        """Return the number of a stream, -1 if there is none of that name."""
        return int(self._slots[self._slot(name)]) - 1

    def _slot(self, name: bytes) -> int:
        """Return the slot that holds a name, or would."""
        slots, mask = self._slots, len(self._slots) - 1
        slot = xxhash.xxh3_64_intdigest(name, self._seed) & mask
        while True:
            number = int(slots[slot]) - 1
            if number < 0 or self._name(number) == name:
                return slot
            slot = (slot + 1) & mask

    def _name(self, number: int) -> bytes:
        start = int(self._ends[number - 1]) if number else 0
        return bytes(self._names[start : int(self._ends[number])])

    def name(self, number: int) -> str:
        """Return the name of a stream."""
        return self._name(number).decode()

    def names(self) -> Iterator[str]:
        """Yield the names, in the order of numbers."""
        start = 0
        for end in self._ends[: self.size].tolist():
            yield self._names[start:end].decode()
            start = end

    def add(self, name: bytes) -> int:
        """Return the number of a stream, a new one if there was none of that name."""
        slot = self._slot(name)
        number = int(self._slots[slot]) - 1
        if number >= 0:
            return number
        number = self.size
        if number == len(self._ends):
            self._grow()
        self._names += name
        self._ends[number] = len(self._names)
        self.counts[number] = 0
        self.firsts[number] = self.lasts[number] = -1
        self._slots[slot] = number + 1
        self.size += 1
        if self.size > _LOAD * len(self._slots):
            self._rehash(2 * len(self._slots))
        return number

    def _grow(self) -> None:
        room = len(self._ends) + max(16, len(self._ends) // 2)
        for name in ("_ends", "counts", "firsts", "lasts"):
            grown = np.zeros(room, np.int64)
            grown[: self.size] = getattr(self, name)[: self.size]
            setattr(self, name, grown)

    def _rehash(self, count: int) -> None:
        slots, mask = [0] * count, count - 1
        start = 0
        for number, end in enumerate(self._ends[: self.size].tolist()):
            slot = xxhash.xxh3_64_intdigest(bytes(self._names[start:end]), self._seed) & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = number + 1
            start = end
        self._slots = np.array(slots, np.int32)

    def count_in(self, numbers: NDArray[np.int64], first_position: int) -> NDArray[np.int32]:
        """Take in the streams of consecutive records (-1: of none); return the version of each."""
        rows = np.flatnonzero(numbers >= 0)
        versions = np.full(len(numbers), -1, np.int32)
        if not len(rows):
            return versions
        chosen = numbers[rows]
        order = np.argsort(chosen, kind="stable")
        ordered = chosen[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        lengths = np.diff(np.append(starts, len(ordered)))
        ranks = np.arange(len(ordered)) - np.repeat(starts, lengths)
        versions[rows[order]] = self.counts[ordered] + ranks
        streams = ordered[starts]
        self.counts[streams] += lengths
        firsts = first_position + rows[order[starts]]
        self.firsts[streams] = np.where(self.firsts[streams] < 0, firsts, self.firsts[streams])
        self.lasts[streams] = first_position + rows[order[starts + lengths - 1]]
        return versions
