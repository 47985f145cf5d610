"""Messages that are values and nothing else, as they are read: an entry is made only of those that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

import msgspec
import numpy as np

from oncelog.log.stored.rows import Micros, Rows, each
from oncelog.types import Entry, moment


class PlainPlace(msgspec.Struct, frozen=True, gc=False):
    """Where plain messages stand in one segment of their log, and when they were stored."""

    first_position: int
    segment: int
    first_entry: int
    times_us: Micros

    def entry(self, position: int, value: bytes) -> Entry:
        """Return the message at a position as an entry."""
        row = position - self.first_position
        time_us = self.times_us if isinstance(self.times_us, int) else int(self.times_us[row])
        return Entry(position, self.segment, self.first_entry + row, moment(time_us), None, value)


class PlainRun(Sequence[Entry]):
    """Plain messages that follow each other. Their ``place`` has no values: who has done with one lets go of it."""

    __slots__ = ("place", "position", "positions", "values")

    def __init__(self, place: PlainPlace, position: int, values: list[bytes]) -> None:
        """Take the values from a position on."""
        self.place = place
        self.position = position
        self.positions = range(position, position + len(values))
        self.values = values

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        """Return one of them, or some: those that follow each other are a run again."""
        if not isinstance(at, slice):
            return self.place.entry(self.positions[at], self.values[at])
        found = self.positions[at]
        return PlainRun(self.place, found.start, self.values[at]) if found.step == 1 else [*self][at]

    def __iter__(self) -> Iterator[Entry]:
        """Return each of them in turn."""
        times_us, first_entry = self._times_us(), self._first_entry
        moments = repeat(moment(times_us)) if isinstance(times_us, int) else map(moment, times_us.tolist())
        entries = range(first_entry, first_entry + len(self))
        return map(Entry, self.positions, repeat(self.place.segment), entries, moments, repeat(None), self.values)

    @property
    def _first_entry(self) -> int:
        return self.place.first_entry + self.position - self.place.first_position

    def _times_us(self) -> Micros:
        times_us, row = self.place.times_us, self.position - self.place.first_position
        return times_us if isinstance(times_us, int) else times_us[row : row + len(self)]

    def and_then(self, other: PlainRun) -> PlainRun | None:
        """Return this run and another as one, if the other follows it in the same segment."""
        if other.position != self.positions.stop or other.place.segment != self.place.segment:
            return None
        times_us, others_us = self._times_us(), other._times_us()
        if not (isinstance(times_us, int) and isinstance(others_us, int) and times_us == others_us):
            times_us = np.concatenate([each(times_us, len(self)), each(others_us, len(other))])
        place = PlainPlace(self.position, self.place.segment, self._first_entry, times_us)
        return PlainRun(place, self.position, self.values + other.values)


def joined(first: Sequence[Entry], second: Sequence[Entry]) -> Sequence[Entry]:
    """Return messages, and those that come after them: a run, if they can be one."""
    if not first:
        return second
    run = first.and_then(second) if isinstance(first, PlainRun) and isinstance(second, PlainRun) else None
    return run if run is not None else [*first, *second]


def entries_of(rows: Rows) -> Sequence[Entry]:
    """Return rows as entries: of plain ones none is made yet. ``CorruptionError`` if one cannot be made."""
    times_us = _times_us(rows) if rows.payload.num_columns == 1 and rows.purged is None else None
    if times_us is None:
        return rows.entries()
    place = PlainPlace(rows.first_position, rows.segment, rows.first_entry, times_us)
    return PlainRun(place, rows.first_position, rows.payload.column(0).to_pylist())


def _times_us(rows: Rows) -> Micros | None:
    """Return the times of rows, in memory of their own; ``None`` if there are none, or one is on no calendar."""
    if not rows.count:
        return None
    times_us = each(rows.timestamp_us, 1)
    first_us, last_us = int(times_us[0]), int(times_us[-1])  # times never go back within a log
    try:
        moment(first_us), moment(last_us)
    except OverflowError:
        return None
    return first_us if first_us == last_us else times_us.copy()
