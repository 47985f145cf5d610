"""What the manifest knows of a run: the objects it consists of, the positions it covers, and sums to check it by.

A *run* remembers every id of one range of positions. Its entries are sorted by their mixed keys and cut into *parts*
by the leading bits of the key: a part is one object. The timestamps of the range's commits are in *times* objects.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.format.manifest_rules import Checksum, Count, Key

POSITION_BITS = 38
"""Positions in a run are relative to the first position of its range, so one run covers so many at most."""

BLOCKED = 1
"""The kind of a run whose filters are blocked Bloom filters."""

_MASK = (1 << 64) - 1


def part_bounds(bits: int) -> NDArray[np.uint64]:
    """Return the first halves of keys at which parts begin, but for the first part, which begins at 0."""
    return np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(64 - bits if bits else 0)


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """A sum over entries, whatever their order, modulo 2**64 in each of its two numbers.

    Each entry has a weight and a value that follow from all but its position. ``weights`` sums the weights, ``values``
    sums ``value + position * weight``. So the digest of the same entries elsewhere in the log follows from this one
    alone (``moved``): a merge is checked against its inputs without their entries being summed a second time. Weights
    are odd: a digest changes whenever the position of one entry does.
    """

    weights: Checksum = 0
    values: Checksum = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.weights + other.weights & _MASK, self.values + other.values & _MASK)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.weights - other.weights & _MASK, self.values - other.values & _MASK)

    def moved(self, by: int) -> Digest:
        """Return the digest of the same entries with ``by`` added to every position.

        >>> Digest(3, 10).moved(2)
        Digest(weights=3, values=16)
        """
        return Digest(self.weights, self.values + by * self.weights & _MASK)


class RunPart(msgspec.Struct, frozen=True, array_like=True):
    """One object of a run: the entries whose keys begin with the part's number.

    ``front_bytes`` is where its pages begin, behind head, filter and index. ``checksum`` is that of its head, which
    holds the checksums of filter and index and the digest.
    """

    ids: Count
    front_bytes: Count
    size_bytes: Count
    checksum: Checksum


class TimesPart(msgspec.Struct, frozen=True, array_like=True):
    """One object with timestamps of commits. ``first`` is the position of its first commit, relative to the run's."""

    commits: Count
    first: Count
    front_bytes: Count
    size_bytes: Count
    checksum: Checksum


class Run(msgspec.Struct, frozen=True, array_like=True):
    """The ids of the records from ``first_position`` up to, but not including, ``next_position``.

    The number of parts is a power of two. ``digest`` is over all entries, with positions relative to
    ``first_position``. ``size_bytes`` counts all objects.
    """

    key: Key
    parts: tuple[RunPart, ...]
    first_position: Count
    next_position: Count
    ids: Count
    size_bytes: Count
    digest: Digest
    kind: Count = BLOCKED
    times: tuple[TimesPart, ...] = ()

    @property
    def bits(self) -> int:
        """How many leading bits of a key tell its part."""
        return len(self.parts).bit_length() - 1

    def part_key(self, number: int) -> str:
        """Return the key of the object that holds a part."""
        return f"{self.key}.{number}.ids"

    def times_key(self, number: int) -> str:
        """Return the key of an object with timestamps."""
        return f"{self.key}.{number}.times"

    def keys(self) -> list[str]:
        """Return the keys of all objects of the run: what is to be kept, copied or deleted with it."""
        ids = [self.part_key(number) for number in range(len(self.parts))]
        return ids + [self.times_key(number) for number in range(len(self.times))]


def covers(runs: Sequence[Run], first_position: int, next_position: int) -> bool:
    """Tell whether one of the runs, oldest first, covers all of these positions.

    >>> covers([], 0, 5)
    False
    """
    at = bisect.bisect_left(runs, next_position, key=lambda run: run.next_position)
    return at < len(runs) and runs[at].first_position <= first_position
