"""Reading a log: to its end, or for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Self

import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import Closed, InvalidArgument
from oncelog.format.schema import READ_SCHEMA
from oncelog.log.handle import Handle
from oncelog.log.manifests import Manifests
from oncelog.log.rows import Rows
from oncelog.log.scan import Scan, Start
from oncelog.storage.base import LogHome
from oncelog.types import Entry

POLL_S = 1.0


class Reader(Handle):
    """The entries of a log from a start to its end as it was when reading began. Iterate it, once."""

    _what = "reader"

    def __init__(self, home: LogHome, manifests: Manifests, name: str, start: Start, limit: int | None) -> None:
        super().__init__()
        if limit is not None and limit < 0:
            message = f"limit is {limit}, must be 0 or more"
            raise InvalidArgument(message)
        self._scan = Scan(home, manifests, name)
        self._scan.begin(start)
        self._until = self._scan.end()
        self._left = limit

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in order."""
        for rows in self._rows():
            for entry in rows.entries():
                self._check_usable()
                yield entry

    def batches(self, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the entries in columns, a block at a time, without copying them."""
        for rows in self._rows():
            yield rows.view(names)

    def _rows(self) -> Iterator[Rows]:
        while self._left is None or self._left > 0:
            self._check_usable()
            found = self._scan.next_rows(self._until)
            if not found:
                return
            for rows in found:
                if self._left is None:
                    yield rows
                    continue
                cut = rows.cut(0, self._left)
                self._left -= cut.count
                yield cut
                if not self._left:
                    return


def check_columns(names: Sequence[str] | None) -> None:
    """Raise ``InvalidArgument`` for a column that readers do not have."""
    for name in names or ():
        if name not in READ_SCHEMA.names:
            message = f"column {name!r}: a log has {', '.join(READ_SCHEMA.names)}"
            raise InvalidArgument(message)


class Tail(Handle):
    """The entries of a log as they become durable, for ever. Iterate it, or ``poll``; ``close()`` ends it from any
    thread.
    """

    _what = "tail"

    def __init__(self, home: LogHome, manifests: Manifests, name: str, start: Start, clock: Clock) -> None:
        super().__init__()
        self._home = home
        self._clock = clock
        self._scan = Scan(home, manifests, name)
        self._scan.begin(start)
        self._ready: deque[Entry] = deque()

    def __iter__(self) -> Self:
        """Return the tail itself."""
        return self

    def __next__(self) -> Entry:
        """Return the next entry, whenever it comes; ends when the tail is closed."""
        while True:
            try:
                entry = self.poll(POLL_S)
            except Closed:
                if self._closed:
                    raise StopIteration from None
                raise
            if entry is not None:
                return entry

    def poll(self, timeout_s: float = 0.0) -> Entry | None:
        """Return the next entry, waiting for it up to ``timeout_s``; ``None`` when none came. ``Closed`` once
        closed.
        """
        deadline_us = self._clock.elapsed_us() + int(timeout_s * 1e6)
        while True:
            self._check_usable()
            if self._ready:
                return self._ready.popleft()
            place = self._scan.place
            for rows in self._scan.next_rows():
                self._ready += rows.entries()
            if self._ready:
                continue
            left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
            if left_s <= 0:
                return None
            if place == self._scan.place:
                self._home.wait(place, left_s)

    def close(self) -> None:
        """End the tail; a thread that waits in it returns."""
        super().close()
        self._home.wake()
