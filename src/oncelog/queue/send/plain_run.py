"""Messages that are values and nothing else, as they are read: an entry is made only of those that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec

from oncelog.log.stored.rows import Micros, Rows
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

    __slots__ = ("place", "position", "values")

    def __init__(self, place: PlainPlace, position: int, values: list[bytes]) -> None:
        """Take the values from a position on."""
        self.place = place
        self.position = position
        self.values = values

    @property
    def positions(self) -> range:
        """Where they stand."""
        return range(self.position, self.position + len(self.values))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        """Return one of them, or some: those that follow each other are a run again."""
        found = self.positions[at]
        if isinstance(found, int):
            return self.place.entry(found, self.values[at])  # type: ignore[arg-type]  no slice
        if found.step != 1:
            return [*self][at]
        return PlainRun(self.place, found.start, self.values[at])  # type: ignore[arg-type]  a slice

    def __iter__(self) -> Iterator[Entry]:
        """Return each of them in turn."""
        return map(self.place.entry, self.positions, self.values)


def entries_of(rows: Rows) -> Sequence[Entry]:
    """Return rows as entries: of plain ones none is made yet. ``CorruptionError`` if one cannot be made."""
    times_us = _times_us(rows) if rows.payload.num_columns == 1 and rows.purged is None else None
    if times_us is None:
        return rows.entries()
    place = PlainPlace(rows.first_position, rows.segment, rows.first_entry, times_us)
    return PlainRun(place, rows.first_position, rows.payload.column(0).to_pylist())


def _times_us(rows: Rows) -> Micros | None:
    """Return the times of rows, in memory of their own; ``None`` if there are none, or one is on no calendar."""
    times_us = rows.timestamp_us
    if isinstance(times_us, int):
        first_us = last_us = times_us
    elif len(times_us):
        first_us, last_us = int(times_us[0]), int(times_us[-1])  # times never go back within a log
    else:
        return None
    try:
        moment(first_us), moment(last_us)
    except OverflowError:
        return None
    return first_us if first_us == last_us else times_us.copy()
