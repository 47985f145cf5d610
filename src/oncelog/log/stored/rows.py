"""Consecutive records as they are read, whatever they are kept in: a block, or a piece of a sealed file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.format.gather import GatheredBlocks
from oncelog.format.payload import columns
from oncelog.format.payload.arrays import booleans
from oncelog.format.sealed import Purged
from oncelog.types import Entry

Micros = int | NDArray[np.int64]
"""Microseconds: one figure for all rows, or one for each."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of records of one segment, with the place and the times of each.

    Those that were ``purged`` have their place, and nothing else: readers do not see them.
    """

    payload: pa.RecordBatch
    segment: int
    first_position: int
    first_entry: int
    timestamp_us: Micros
    uptime_us: Micros
    purged: Purged | None = None

    @classmethod
    def of_blocks(cls, found: GatheredBlocks) -> Rows:
        """Return the records of neighbouring blocks."""
        times = found.row_timestamps_us(), found.row_uptimes_us()
        return cls(found.payload, found.segment, found.first_position, found.first_entry, *times)

    @property
    def count(self) -> int:
        """How many records there are."""
        return int(self.payload.num_rows)

    @property
    def next_position(self) -> int:
        """The position behind the last record."""
        return self.first_position + self.count

    def cut(self, start: int, end: int | None = None) -> Rows:
        """Return the rows from ``start`` to ``end``, as far as they are there, sharing their bytes."""
        if start <= 0 and (end is None or end >= self.count):
            return self
        start = min(max(start, 0), self.count)
        end = self.count if end is None else min(max(start, end), self.count)
        return Rows(
            self.payload.slice(start, end - start),
            self.segment,
            self.first_position + start,
            self.first_entry + start,
            self.timestamp_us if isinstance(self.timestamp_us, int) else self.timestamp_us[start:end],
            self.uptime_us if isinstance(self.uptime_us, int) else self.uptime_us[start:end],
            None if self.purged is None else self.purged.cut(start, end),
        )

    def before(self, moment_us: int) -> int:
        """Return how many rows are older than a moment. Timestamps never go back."""
        if isinstance(self.timestamp_us, int):
            return self.count if self.timestamp_us < moment_us else 0
        return int(np.searchsorted(self.timestamp_us, moment_us))

    def entries(self) -> list[Entry]:
        """Return the records one by one."""
        found = columns.entries(self.payload, self.first_position, self.segment, self.first_entry, self.timestamp_us)
        if self.purged is None:
            return found
        gone = set(self.purged.rows.tolist())
        return [entry for row, entry in enumerate(found) if row not in gone]

    def view(self, names: Sequence[str] | None) -> pa.RecordBatch:
        """Return the records in the columns of a reader, all or those named, without copying them."""
        place = (self.first_position, self.segment, self.first_entry)
        found = columns.view(self.payload, *place, self.timestamp_us, names)
        return found if self.purged is None else found.filter(booleans(self.present()))

    def present(self) -> NDArray[np.bool_]:
        """Return which of the records are there, and were not purged."""
        kept = np.ones(self.count, np.bool_)
        if self.purged is not None:
            kept[self.purged.rows] = False
        return kept


def each(micros: Micros, count: int) -> NDArray[np.int64]:
    """Return a time for each of so many rows."""
    return np.full(count, micros, np.int64) if isinstance(micros, int) else micros
