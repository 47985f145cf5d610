"""A topic: the logs that are its partitions, how they are read ahead, and how single messages are read again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from oncelog.errors import NotFound, Unavailable
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.read.reader import Tail
from oncelog.queue.send.plain_run import PlainRun, entries_of, joined
from oncelog.settings import LogSettings
from oncelog.types import Entry

DEAD_LETTERS = "dlq."
position_of = attrgetter("position")
_headers_of = attrgetter("headers")
_SKIP_MAX = 10_000
"""So many entries that others have looked at are read through; for more, reading begins again behind them."""

OpenLog = Callable[[str, LogSettings | None, bool], Log]
"""From a log's name, settings and whether to create it, to the log."""


def log_name(topic: str, partition: int) -> str:
    """Return the name of a partition's log.

    >>> log_name("emails", 0)
    'queue/emails/0'
    """
    return f"queue/{topic}/{partition}"


class Topic:
    """The partitions of one topic."""

    def __init__(self, name: str, logs: Sequence[Log]) -> None:
        self.name = name
        self.logs = logs
        self.partitions = len(logs)

    def starts(self, start: str) -> list[int]:
        """Return where a group begins in each partition."""
        return [_begin(log, start) for log in self.logs]

    def ends(self) -> list[int]:
        """Return the position behind the last message of each partition."""
        return [_begin(log, "latest") for log in self.logs]

    def read_again(self, partition: int, first: int, count: int, bytes_max: int | None = None) -> list[Entry]:
        """Return messages that a group has looked at, those that are still there, as ``read`` does.

        None means that all of them were truncated away, or purged. What is only not to be seen is not gone: if the log
        ends before these messages, this is ``Unavailable``.
        """
        found = self.read(partition, first, count, bytes_max)
        if not found and (end := self.logs[partition].end_position()) < first + count:
            message = (
                f"message {first + count - 1} of {self.name!r}, partition {partition}, was delivered before, and the "
                f"log ends at {end} now: try again; if it stays so, restore the log"
            )
            raise Unavailable(message)
        return found

    def read(self, partition: int, first: int, count: int, bytes_max: int | None = None) -> list[Entry]:
        """Return messages once more, those that are still there; not more than fit into ``bytes_max``."""
        log = self.logs[partition]
        try:
            with log.read(first, limit=count) as entries:
                return list(within(entries, bytes_max))
        except NotFound as error:
            if error.first is None or not first < error.first < first + count:
                return []
            with log.read(error.first, limit=first + count - error.first) as entries:
                return list(within(entries, bytes_max))


def size_bytes(entry: Entry) -> int:
    """Return how large a message is."""
    return len(entry.value) + (sum(map(len, entry.headers.values())) if entry.headers else 0)


def total_bytes(entries: Sequence[Entry]) -> int:
    """Return how large messages are together. Most have no headers."""
    if isinstance(entries, PlainRun):
        return sum(map(len, entries.values))
    if have_headers(entries):
        return sum(map(size_bytes, entries))
    return sum([len(entry.value) for entry in entries])


def have_headers(entries: Sequence[Entry]) -> bool:
    """Tell whether any of some messages has headers."""
    return not isinstance(entries, PlainRun) and any(map(_headers_of, entries))


def position_at(entries: Sequence[Entry], row: int) -> int:
    """Return where one of some messages stands."""
    return entries.positions[row] if isinstance(entries, PlainRun) else entries[row].position


def neighbours(entries: Sequence[Entry], first: int, count: int) -> Sequence[Entry] | None:
    """Return those of sorted messages at positions that follow each other; ``None`` if the first is not there."""
    at = _row_of(entries, first)
    return entries[at : at + count] if at < len(entries) and position_at(entries, at) == first else None


def _row_of(entries: Sequence[Entry], position: int) -> int:
    """Return how many of sorted messages are before a position."""
    if isinstance(entries, PlainRun):
        return min(max(position - entries.position, 0), len(entries))
    return bisect_left(entries, position, key=position_of)


def within(entries: Iterable[Entry], bytes_max: int | None) -> Iterator[Entry]:
    """Yield messages as long as they fit into a number of bytes; the first one always."""
    taken_bytes = 0
    for number, entry in enumerate(entries):
        if bytes_max is not None:
            taken_bytes += size_bytes(entry)
            if number and taken_bytes > bytes_max:
                return
        yield entry


def _begin(log: Log, start: str) -> int:
    info = log.info()
    return info.first_position if start == "earliest" else info.last_position + 1


class Ahead:
    """What was read of a partition and not looked at yet. Used by one thread at a time.

    ``entries`` are all there are from ``_from`` up to ``_next``, where reading goes on; ``size_bytes`` is their size.
    The sequence is replaced and never changed: who has claimed some of them still looks at it. That holds while there
    is a tail: there is none in the midst of a read.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tail: Tail | None = None
        self._from = self._next = 0
        self.entries: Sequence[Entry] = []
        self.size_bytes = 0

    @property
    def has_more(self) -> bool:
        """Whether there are entries that need not be read from the log any more."""
        return bool(self.entries) or (self._tail is not None and inner.has_rows(self._tail))

    def fill(
        self, position: int, enough: int, count: int, bytes_max: int, pay: Callable[[int], bool] | None = None
    ) -> None:
        """Have ``enough`` entries from a position on, and read up to ``count`` at once, no more once they have
        ``bytes_max``. With ``pay``, not every call looks, where looks are paid for: see ``Tail``.
        """
        try:
            self._read(position, enough, count, bytes_max, pay)
        except NotFound as error:
            if error.first is None:
                raise
            self._read(position, enough, count, bytes_max, pay)  # its tail was where everything is truncated now

    def _read(self, position: int, enough: int, count: int, bytes_max: int, pay: Callable[[int], bool] | None) -> None:
        self._go(position)
        tail, self._tail = self._tail, None  # an error, or Ctrl-C, may leave a tail behind what it did not hand over
        assert tail is not None
        while len(self.entries) < enough and self.size_bytes < bytes_max:
            found = inner.take_made(tail, count - len(self.entries), entries_of, pay)
            if found is None:
                break
            if found:
                self._add(found, position)
        self._tail = tail

    def _add(self, found: Sequence[Entry], position: int) -> None:
        """Keep what was read, from a position on."""
        self._next = position_at(found, -1) + 1
        wanted = found[_row_of(found, position) :]
        self.entries = joined(self.entries, wanted)
        self.size_bytes += total_bytes(wanted)

    def _go(self, position: int) -> None:
        """Have a tail that goes on behind the entries; where one was left in the midst of a read, begin again."""
        self.drop(position)
        if self._tail is not None and position <= self._next + _SKIP_MAX:
            return
        self.close()
        first = position
        try:
            tail = self._log.tail(first)
        except NotFound as error:
            if error.first is None or error.first <= position:
                raise
            first = error.first  # what was before is truncated
            tail = self._log.tail(first)
        self._from, self._next = position, first
        self._tail = tail

    def drop(self, position: int) -> None:
        """Forget the entries before a position; all of them, if there may be others from that position on."""
        if self._tail is None or position < self._from:  # left in the midst of a read, or a state that went back
            self.close()
            return
        self._from = position
        count = _row_of(self.entries, position)
        if count == len(self.entries):
            self.entries, self.size_bytes = [], 0
        elif count:
            left_bytes = self.size_bytes - total_bytes(self.entries[:count])
            self.entries, self.size_bytes = self.entries[count:], left_bytes

    def close(self) -> None:
        """Stop reading."""
        tail, self._tail = self._tail, None
        self.entries, self.size_bytes = [], 0
        if tail is not None:
            tail.close()
