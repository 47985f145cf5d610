"""The entries of runs in arrays: sorting, merging, and the sum that tells whether none was lost or changed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import fixed, kernels
from oncelog.dedup.runs.mix import mix_in_place, mixed_keys
from oncelog.dedup.runs.order import Order, leading, leading_order
from oncelog.errors import InvalidArgument
from oncelog.format.output import column
from oncelog.format.runs.pages import END, PLACE_SHIFT, START, Pages, places_at
from oncelog.format.runs.run import POSITION_BITS, Digest

Column = NDArray[np.uint64]

_MARKS = np.uint64(START | END)
_SHIFT = np.uint64(PLACE_SHIFT)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, odd: it spreads a fingerprint over all bits."""


class Entries(msgspec.Struct, frozen=True):
    """Entries of a run: mixed keys in two halves, fingerprints, and places (``pages`` says what a place is).

    *Sorted* entries are in the order of their keys; of equal keys the newest comes first.
    """

    high: Column
    low: Column
    fingerprints: Column
    places: Column

    def __len__(self) -> int:
        return len(self.high)

    @classmethod
    def of(
        cls,
        keys: NDArray[np.uint64],
        fingerprints: NDArray[np.uint64],
        positions: NDArray[np.int64],
        starts: NDArray[np.bool_],
        ends: NDArray[np.bool_],
    ) -> Entries:
        """Return unsorted entries for identities, shape (n, 2), as they come from a ``Hasher``.

        Positions are relative to the first of the run's range; ``InvalidArgument`` when one does not fit.
        """
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < 1 << POSITION_BITS:
            message = (
                f"positions from {positions.min()} to {positions.max()}: a run covers {1 << POSITION_BITS} at most"
            )
            raise InvalidArgument(message)
        high, low = mixed_keys(keys)
        places = positions.astype(np.uint64) << _SHIFT
        places |= starts * np.uint64(START)
        places |= ends * np.uint64(END)
        return cls(high, low, np.ascontiguousarray(fingerprints, np.uint64), places)

    @classmethod
    def none(cls) -> Entries:
        """Return no entries."""
        empty = np.empty(0, np.uint64)
        return cls(empty, empty, empty, empty)

    @classmethod
    def joined(cls, pieces: Sequence[Entries]) -> Entries:
        """Return the entries of all pieces, one piece after the other."""
        if len(pieces) == 1:
            return pieces[0]
        none = cls.none()
        each = ([getattr(piece, name) for piece in (none, *pieces)] for name in cls.__struct_fields__)
        return cls(*(np.concatenate(values) for values in each))

    @classmethod
    def of_pages(cls, pages: Pages, count: int) -> Entries:
        """Return the first ``count`` entries of consecutive pages, of which all but the last are full."""
        everything = slice(None)
        places = places_at(pages, everything, everything)
        columns = (pages["high"], pages["low"], pages["fingerprint"], places)
        return cls(*(values.reshape(-1)[:count] for values in columns))

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each entry, relative to the first of the range."""
        return (self.places >> _SHIFT).view(np.int64)

    def __getitem__(self, rows: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Entries:
        return Entries(self.high[rows], self.low[rows], self.fingerprints[rows], self.places[rows])

    def moved(self, by: int) -> Entries:
        """Return the entries with ``by`` added to every position."""
        shift = np.uint64((by << PLACE_SHIFT) & (1 << 64) - 1)
        return self if by == 0 else msgspec.structs.replace(self, places=self.places + shift)

    @property
    def columns(self) -> tuple[Column, Column, Column, Column]:
        """The columns, in the order in which loops take them."""
        return self.high, self.low, self.fingerprints, self.places

    def sorted(self) -> Entries:
        """Return the entries, sorted."""
        return self.in_order(_order(self))

    @classmethod
    def merged(cls, pieces: Sequence[Entries]) -> Entries:
        """Return the entries of all pieces, each of them sorted, as one that is sorted."""
        joined = cls.joined(pieces)
        if kernels(len(joined)) is not None:
            return joined.sorted()
        order = np.argsort(joined.high, kind="stable")  # timsort: it finds the pieces, and merges them
        placed = joined.high.take(order)
        return joined.sorted() if (placed[1:] <= placed[:-1]).any() else joined.in_order(order)

    def in_order(self, order: Order) -> Entries:
        """Return the entries in another order."""
        return Entries(*(_taken(values, order) for values in self.columns))

    def are_sorted(self) -> bool:
        """Tell whether the entries are sorted."""
        high, low, places = self.high, self.low, self.places
        if bool((high[1:] > high[:-1]).all()):
            return True
        newer = (low[1:] > low[:-1]) | ((low[1:] == low[:-1]) & (places[1:] <= places[:-1]))
        return bool(((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & newer)).all())

    def digest(self) -> Digest:
        """Return the sum over the entries."""
        compiled = kernels(len(self))
        if compiled is not None:
            weights, values = compiled.digest(*(fixed(getattr(self, name)) for name in self.__struct_fields__))
            return Digest(int(weights), int(values))
        weight = self.fingerprints * _SPREAD
        weight ^= self.high
        weight ^= self.places & _MARKS
        mix_in_place(weight)
        weight |= np.uint64(1)
        value = mix_in_place(self.low ^ weight)
        value += (self.places >> _SHIFT) * weight
        return Digest(int(weight.sum()), int(value.sum()))


def _taken(values: Column, order: Order) -> Column:
    """Return values in another order."""
    return values.take(order, out=column(len(order)), mode="clip")  # "raise" would copy


def _order(entries: Entries) -> NDArray[np.int64]:
    """Return the order of entries: first by the leading bits of their keys, then the few that agree in those."""
    order = leading_order(entries.high)
    placed = _taken(entries.high, order)
    if (placed[1:] <= placed[:-1]).any():
        bits = leading(placed, placed.min(), placed.max())
        same = bits[1:] == bits[:-1]
        tied = np.zeros(len(order), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        order[tied] = rows[np.lexsort((~entries.places[rows], entries.low[rows], entries.high[rows]))]
    return order
