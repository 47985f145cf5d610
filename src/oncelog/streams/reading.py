"""Reading events: from chosen positions, or all of them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import NotFound
from oncelog.format import compute as pc
from oncelog.format.payload import arrays
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.read.scan import Scan
from oncelog.log.stored.rows import Rows
from oncelog.streams.events import StreamEvent, events_of
from oncelog.streams.index import Index

SKIP_ROWS = 4096
"""A gap of so many records is jumped over; a smaller one is read through."""

BACK_ROWS = 4096
"""So many records are read at a time on the way back."""


class Filter(NamedTuple):
    """Which events are wanted: of streams that begin so, of these types; of one stream, from a version on."""

    prefix: str = ""
    types: frozenset[str] | None = None
    stream: str | None = None
    version: int = 0

    def wants(self, event: StreamEvent) -> bool:
        """Tell whether an event is wanted."""
        if self.stream is not None and (event.stream != self.stream or event.version < self.version):
            return False
        return event.stream.startswith(self.prefix) and (self.types is None or event.type in self.types)

    def choose(self, rows: Rows, versions: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the rows that hold wanted events, as ``wants`` would tell, without making events of the others."""
        chosen = versions >= self.version if self.stream is not None else versions >= 0
        if self.stream is not None:
            chosen &= _where(rows, "stream", lambda column: pc.equal(column, self.stream))
        if self.prefix:
            chosen &= _where(rows, "stream", lambda column: pc.starts_with(column, self.prefix))
        if self.types is not None:
            wanted = arrays.texts(sorted(self.types))
            chosen &= _where(rows, "type", lambda column: pc.is_in(column, value_set=wanted))
        return np.flatnonzero(chosen)


ALL = Filter()

Pieces = Iterator[list[StreamEvent]]
"""Events as they are read: those of each piece, perhaps none."""


def _where(rows: Rows, name: str, test: Callable[[pa.Array], pa.BooleanArray]) -> NDArray[np.bool_]:
    at = rows.payload.schema.get_field_index(name)
    if at < 0:
        return np.zeros(rows.count, np.bool_)
    return arrays.flags(test(rows.payload.column(at)).fill_null(fill_value=False))


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


def all_rows(index: Index, rows: Rows, wanted: Filter = ALL) -> list[StreamEvent]:
    """Return the wanted events among consecutive records, which are folded."""
    versions = index.versions_at(rows.first_position, rows.count)
    chosen = wanted.choose(rows, versions)
    return events_of(rows, chosen, versions[chosen])


def forward(index: Index, scan: Scan, start: object, until: int, wanted: Filter) -> Pieces:
    """Yield the wanted events from a start to before a position that is folded: those of each piece that was read,
    none of them perhaps.
    """
    scan.begin(start)
    while found := scan.next_rows(until):
        for rows in found:
            yield all_rows(index, rows, wanted)


def backward(index: Index, log: Log, before: int, wanted: Filter) -> Iterator[StreamEvent]:
    """Yield the wanted events before a position, the last one first."""
    scan = inner.scan(log)
    end = before
    while end > (first := log.first_position()):
        start = max(first, end - BACK_ROWS)
        yield from reversed(list(chain.from_iterable(forward(index, scan, start, end, wanted))))
        end = start
