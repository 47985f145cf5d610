"""Reading a log: to its end, or for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, TypeVar

import pyarrow as pa

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.concurrency.feeding import AT_ONCE, Fed
from oncelog.errors import Closed, InvalidArgument, NotFound
from oncelog.format.payload import tables
from oncelog.format.payload.schema import READ_SCHEMA
from oncelog.log.read.leases import ReaderLease
from oncelog.log.read.scan import BEHIND_ALL, Scan, Start
from oncelog.log.stored.rows import Rows
from oncelog.storage.base import LogHome
from oncelog.types import Entry

T = TypeVar("T")

POLL_S = 1.0
LOOK_S = 5.0
"""How often a waiting tail reads the manifest where requests cost money: the log may go on in another segment."""

THERE_S, THERE_PAID_S = 2.0, 30.0
"""How often a tail without new records checks whether its log was deleted; the second where requests cost money."""

LOOK_REQUESTS = 2
"""So many requests such a look takes: for the next block, and for the next manifest."""


class Reader(Fed[Entry]):
    """The entries of a log from a start to its end as it was when reading began. Iterate it, once: ``for``, or in a
    task ``async for``.
    """

    _what = "reader"

    def __init__(
        self,
        scan: Scan,
        start: Start,
        *,
        lease: ReaderLease | None,
        limit: int | None,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._scan = scan
        self._columns = columns
        self._lease = lease
        self._left = None if limit is None else arguments.count("limit", limit)
        if self._left is not None:
            scan.expect(self._left)
        begin(scan, start, lease)
        self._until = scan.end()
        self._left_over: Iterator[Entry] | None = None  # what a task iterates

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in order."""
        self._check_unfed()
        return self._entries()

    def _entries(self) -> Iterator[Entry]:
        for rows in self.rows():
            for entry in rows.entries():
                self._check_usable()
                yield entry

    def _look(self) -> list[Entry]:
        if self._left_over is None:
            self._left_over = self._entries()
        found = list(islice(self._left_over, AT_ONCE))
        if not found:
            raise StopIteration
        return found

    def _await_more(self, timeout_s: float) -> None:
        """Return at once: a reader never waits."""

    def _end_wait(self) -> None:
        """Do nothing: a reader never waits."""

    def _source(self) -> object:
        return self._scan.home

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the entries in columns, a block at a time, without copying them."""
        for rows in self.rows():
            yield rows.view(self._columns)

    def to_pandas(self) -> Any:
        """Read all entries, and return them as a frame of pandas: a column for each field, headers as dicts."""
        return tables.to_pandas(self.batches(), READ_SCHEMA)

    def to_polars(self) -> Any:
        """Read all entries, and return them as a frame of polars: a column for each field."""
        return tables.to_polars(self.batches(), READ_SCHEMA)

    def rows(self) -> Iterator[Rows]:
        """Yield the records in the form in which they are kept, a run at a time."""
        while self._left is None or self._left > 0:
            self._check_usable()
            if self._lease is not None:
                self._lease.hold(self._scan.position)
            found = self._scan.next_rows(self._until)
            if not found:
                break
            for rows in found:
                cut = rows.cut(0, self._left)
                if self._left is not None:
                    self._left -= cut.count
                yield cut
                if self._left == 0:
                    break
        if self._lease is not None:
            self._lease.release()  # there is nothing left to hold

    def close(self) -> None:
        """Close, and give the lease back."""
        super().close()
        if self._lease is not None and self._of_this_process:
            self._lease.release()


def begin(scan: Scan, start: Start, lease: ReaderLease | None) -> None:
    """Go to where reading starts, and hold a lease from there on if there is one.

    If the earliest record is asked for and goes before the lease is there, reading starts with the next earliest.
    """
    while True:
        scan.begin(start)
        if lease is None:
            return
        try:
            lease.hold(scan.position)
            scan.begin(scan.position)  # raises if something was truncated before the lease was there
        except BaseException as error:
            lease.release()  # a reader that never was holds nothing back
            if start != "earliest" or not isinstance(error, NotFound) or error.first is None:
                raise
        else:
            return


def check_columns(names: Sequence[str] | None) -> None:
    """Raise ``InvalidArgument`` for a column that readers do not have."""
    if isinstance(names, str) or not isinstance(names, Sequence | None):
        message = f"columns: is {names!r}, must be a list of names of columns"
        raise InvalidArgument(message)
    for name in names or ():
        if name not in READ_SCHEMA.names:
            message = f"column {name!r}: a log has {', '.join(READ_SCHEMA.names)}"
            raise InvalidArgument(message)


class Tail(Fed[Entry]):
    """The entries of a log as they become durable, for ever. Iterate it (``for``, or in a task ``async for``), or
    ``poll``; ``close()`` ends it from any thread.
    """

    _what = "tail"
    _gone: NotFound | None = None
    _checks_there = True
    """Whether a tail without anything new looks whether its log was deleted."""

    def __init__(self, home: LogHome, scan: Scan, start: Start, *, lease: ReaderLease | None, clock: Clock) -> None:
        super().__init__()
        self._home = home
        self._clock = clock
        self._scan = scan
        self._lease = lease
        begin(scan, start, lease)
        self._there_us = clock.elapsed_us()
        self._rows: deque[Rows] = deque()  # read from the log, and not entries yet
        self._ready: deque[Entry] = deque()
        self._nothing_at: tuple[tuple[int, int], int] | None = None  # where a look found nothing, and when

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

    @arguments.checked
    def take(self, limit: int) -> list[Entry]:
        """Return the next entries that are there now, at most ``limit``, without waiting. ``Closed`` once closed."""
        self._check_unfed()
        return self._left_unread(limit) or self._take(limit)

    @arguments.checked
    def take_patiently(self, limit: int, pay: Callable[[int], bool] | None = None) -> list[Entry]:
        """Do the same for one who asks again and again: where each look is paid for, not every one of them looks.

        Before a look that is paid for, ``pay`` is asked, with the number of its requests, whether it may be.
        """
        self._check_unfed()
        if pay is not None:
            arguments.function("pay", pay)
        return self._left_unread(limit) or self._take_patiently(limit, pay)

    def _take_patiently(self, limit: int, pay: Callable[[int], bool] | None = None) -> list[Entry]:
        self._check_usable()
        if self._lease is not None:
            self._lease.hold(self._scan.position)
        return self._take(limit) if self._ready or self._rows or self._is_worth_a_look(pay) else []

    def _take(self, limit: int) -> list[Entry]:
        self._check_usable()
        ready = self._ready
        if ready:
            return [ready.popleft() for _ in range(min(limit, len(ready)))]
        if not self._rows:
            if self._lease is not None:
                self._lease.hold(self._scan.position)
            self._rows += self._look_for_rows()
        return self._made(limit)

    def _made(self, limit: int) -> list[Entry]:
        """Return the next entries of the rows that were read, at most ``limit``. The others stay in columns: memory of
        entries that are gone is used again, and new memory is slow.
        """
        found: list[Entry] = []
        while self._rows and len(found) < limit:
            found += self._next_made(limit - len(found), Rows.entries)
        return found

    def _next_made(self, limit: int, make: Callable[[Rows], T]) -> T:
        """Return what is made of the next of the rows that were read, at most ``limit``; after an error they stay."""
        rows = self._rows[0]
        made = make(rows.cut(0, limit))
        if limit < rows.count:
            self._rows[0] = rows.cut(limit)
        else:
            self._rows.popleft()
        return made

    def _take_made(self, limit: int, make: Callable[[Rows], T], pay: Callable[[int], bool] | None) -> T | None:
        """Return what is made of the next rows that are there now, at most ``limit``; ``None`` if there are none."""
        self._check_usable()
        if not self._rows and (pay is None or self._is_worth_a_look(pay)):
            if self._lease is not None:
                self._lease.hold(self._scan.position)
            self._rows += self._look_for_rows()
        return self._next_made(limit, make) if self._rows else None

    def poll(self, timeout_s: float = 0.0) -> Entry | None:
        """Return the next entry, waiting for it up to ``timeout_s``; ``None`` when none came. ``Closed`` once
        closed.
        """
        self._check_usable()
        self._check_unfed()
        if self._unread:
            return self._unread.popleft()
        if not self._ready:
            self._iterated = True
            try:
                if not self._rows:
                    self._rows += self.poll_rows(timeout_s)
                self._ready += self._made(AT_ONCE)
            finally:
                self._iterated = False
        return self._ready.popleft() if self._ready else None

    @property
    def position(self) -> int:
        """The position of the next record that is to be read from the log."""
        return self._scan.position

    def end(self) -> int:
        """Return the position behind the last record that is visible now."""
        return self._scan.end()

    def poll_rows(self, timeout_s: float = 0.0) -> list[Rows]:
        """Return the next records in columns, waiting for some up to ``timeout_s``; none when none came."""
        deadline_us = self._clock.elapsed_us() + int(arguments.seconds("timeout_s", timeout_s) * 1e6)
        came = timeout_s <= 0
        while True:
            self._check_usable()
            if self._lease is not None:
                self._lease.hold(self._scan.position)
            place = self._scan.place
            found = self._look_for_rows() if self._should_look(came) else []
            if found:
                return found
            left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
            if left_s <= 0:
                return []
            if place == self._scan.place:
                came = self._home.wait(place, min(left_s, POLL_S))  # an adoption elsewhere publishes nothing
                if not came and self._home.looking_costs and self._clock.elapsed_us() >= deadline_us:
                    return []  # a look that is due is made by the next poll: one poll does not ask twice

    def _look_for_rows(self) -> list[Rows]:
        found = self._scan.next_rows()
        now_us = self._clock.elapsed_us()
        self._nothing_at = None if found else (self._scan.place, now_us)
        there_s = THERE_PAID_S if self._home.looking_costs else THERE_S
        if not found and self._checks_there and now_us - self._there_us >= there_s * 1e6:
            self._there_us = now_us
            self._scan.check_there()
        return found

    def _end_deleted(self, error: NotFound) -> None:
        """End with an error: the log was deleted in this process. A thread that waits looks, and gets the error."""
        self._gone = error
        self._end_wait()

    def _check_usable(self) -> None:
        super()._check_usable()
        if self._gone is not None:
            raise self._gone

    @property
    def _is_known_empty(self) -> bool:
        """Whether nothing was here when it was looked last."""
        return self._nothing_at is not None and self._nothing_at[0] == self._scan.place

    def _is_worth_a_look(self, pay: Callable[[int], bool] | None) -> bool:
        """Tell whether there may be something, without waiting and, where looks are paid for, without asking often."""
        if not self._home.looking_costs or not self._is_known_empty:
            return True
        is_due, place = self._is_look_due, self._scan.place
        if pay is not None and self._home.is_silent(place) and not pay(LOOK_REQUESTS if is_due else 1):
            return False
        return is_due or self._home.wait(place, 0.0)

    def _should_look(self, came: bool) -> bool:  # noqa: FBT001
        """Tell whether to look for more: if something came or, where looks are paid for, from time to time."""
        return came or not self._home.looking_costs or not self._is_known_empty or self._is_look_due

    @property
    def _is_look_due(self) -> bool:
        """Whether it is time to look if the log has moved on, though nothing came where it was looked last."""
        assert self._nothing_at is not None
        (_, cursor), looked_us = self._nothing_at
        look_s = POLL_S if cursor >= BEHIND_ALL else LOOK_S
        return self._clock.elapsed_us() - looked_us >= look_s * 1e6

    def _look(self) -> list[Entry]:
        return self._take_patiently(AT_ONCE)

    def _await_more(self, timeout_s: float) -> None:
        self._home.wait(self._scan.place, timeout_s)

    def _end_wait(self) -> None:
        self._home.wake()

    def _source(self) -> object:
        return self._home

    def close(self) -> None:
        """End the tail; a thread that waits in it returns."""
        super().close()
        if not self._of_this_process:
            return
        self._home.wake()
        if self._lease is not None:
            self._lease.release()
