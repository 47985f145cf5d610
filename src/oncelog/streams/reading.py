"""Reading events: from chosen positions, or all of them, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.log.rows import Rows
from oncelog.log.scan import Scan
from oncelog.streams.events import StreamEvent, events_of
from oncelog.streams.index import Index

SKIP_ROWS = 4096
"""A gap of so many records is jumped over; a smaller one is read through."""

BACK_ROWS = 4096
"""So many records are read at a time on the way back."""


class Filter:
    """Which events are wanted: of streams that begin so, of these types."""

    def __init__(self, prefix: str = "", types: frozenset[str] | None = None, stream: str | None = None) -> None:
        self.prefix = prefix
        self.types = types
        self.stream = stream

    def wants(self, event: StreamEvent) -> bool:
        """Tell whether an event is wanted."""
        if self.stream is not None and event.stream != self.stream:
            return False
        return event.stream.startswith(self.prefix) and (self.types is None or event.type in self.types)


def pick(scan: Scan, positions: NDArray[np.int64], versions: NDArray[np.int32]) -> Iterator[list[StreamEvent]]:
    """Yield the events at these positions, which increase and are durable; what was truncated meanwhile is left out."""
    done = 0
    placed = False
    while done < len(positions):
        target = int(positions[done])
        if not placed or not scan.position <= target < scan.position + SKIP_ROWS:
            try:
                scan.begin(target)
            except NotFound as error:
                if error.first is None or error.first <= target:
                    raise
                done = int(np.searchsorted(positions, error.first))
                continue
            placed = True
        found = scan.next_rows()
        if not found:
            return
        for rows in found:
            end = int(np.searchsorted(positions, rows.next_position))
            chosen = positions[done:end] - rows.first_position
            yield events_of(rows, chosen, versions[done:end])
            done = max(done, end)


def all_rows(index: Index, rows: Rows) -> list[StreamEvent]:
    """Return the events among consecutive records, which are folded."""
    versions = index.versions_at(rows.first_position, rows.count)
    chosen = np.flatnonzero(versions >= 0)
    return events_of(rows, chosen, versions[chosen])


def forward(index: Index, scan: Scan, start: object, until: int, wanted: Filter) -> Iterator[StreamEvent]:
    """Yield the wanted events from a start to before a position that is folded."""
    scan.begin(start)
    while found := scan.next_rows(until):
        for rows in found:
            yield from filter(wanted.wants, all_rows(index, rows))


def backward(index: Index, log: Log, before: int, wanted: Filter) -> Iterator[StreamEvent]:
    """Yield the wanted events before a position, the last one first."""
    scan = log.scan()
    end = before
    while end > (first := log.first_position()):
        start = max(first, end - BACK_ROWS)
        yield from reversed(list(forward(index, scan, start, end, wanted)))
        end = start
