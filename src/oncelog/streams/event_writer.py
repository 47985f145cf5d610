"""The writer of an event store: it has the log, and knows the version of each stream, with events on their way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from oncelog.errors import OncelogError, WriterFenced, WrongExpectedVersion
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from oncelog.streams.events import NO_VERSION, Expected
from oncelog.streams.expecting import Earlier, wrong_version
from oncelog.streams.index import Index

STORE_EVENTS = 250_000
"""After so many events, or as many as there are streams, the index is stored."""

AHEAD_MAX = 4096
"""So many streams may be ahead of the index before it is brought up to date."""


class Foreign(Exception):
    """Others have written to the log since the streams were counted: what a version is has to be looked up."""


class EventWriter:
    """Has the writer of a log for its streams: a writer of its own, or one that is lent. Safe to share between threads.

    ``_ahead`` has version and last position of each stream that the index may not have yet. All before
    ``_next_position`` is in the index, or in ``_ahead``.
    """

    def __init__(self, log: Log, index: Index) -> None:
        self._log = log
        self._index = index
        self._opened = False
        self._opening = threading.Lock()
        self.writer: Writer | None = None
        self._noting = threading.Lock()
        self._ahead: dict[str, tuple[int, int]] = {}
        self._next_position: int | None = None
        self._stored = 0
        self.housekeeper = Housekeeper("oncelog.streams", f"the streams of log {log.name!r}")

    @contextlib.contextmanager
    def writing(self, wait_s: float, check_usable: Callable[[], None]) -> Iterator[Writer]:
        """Have the log's writer for a while. ``check_usable`` raises if the event store was closed meanwhile."""
        if not inner.is_lent(self._log):
            yield self._open_writer(wait_s, check_usable)
            return
        with inner.lent(self._log) as writer:
            with self._opening:
                if self.writer is not writer:
                    self._open_index()
                    self._ahead.clear()
                    self.writer, self._stored, self._next_position = writer, self._index.position, None
            yield writer

    def _open_writer(self, wait_s: float, check_usable: Callable[[], None]) -> Writer:
        with self._opening:
            check_usable()
            if self.writer is None or self.writer.closed:
                writer = self._log.writer(wait_s=wait_s)
                try:
                    self._open_index()
                    end = self._index.catch_up()
                    self._check_end(end, writer.last_position + 1)
                except BaseException:
                    writer.close()
                    raise
                self._ahead.clear()
                self.writer, self._stored, self._next_position = writer, end, end
            return self.writer

    def _check_end(self, end: int, known: int) -> None:
        """Raise ``WriterFenced`` if more is stored than a new writer knows: another one has the log already."""
        if end > known:
            message = f"log {self._log.name!r} was taken by another writer, who has appended: try again"
            raise WriterFenced(message, outcome="not written")
        assert end == known, "the index knows all that is durable"

    def open_index(self) -> None:
        """Load the index, once."""
        with self._opening:
            self._open_index()

    def _open_index(self) -> None:
        if not self._opened:
            self._index.open()
            self._opened = True

    def leave(self, writer: Writer) -> None:
        """Let a writer go that lost the log, unless somebody has and there is another already."""
        with self._opening:
            if self.writer is writer:
                self.writer = None
                self._ahead.clear()
        if not inner.is_lent(self._log):
            with contextlib.suppress(OncelogError):
                writer.close()

    def refuse(self, writer: Writer, error: WrongExpectedVersion) -> NoReturn:
        """Say no, if this is still the log's writer: another one may have written what is missing here."""
        try:
            inner.check_held(writer)
        except WriterFenced:
            self.leave(writer)
            raise
        raise error

    def judge(self, stream: str, expected: Expected, first_position: int, count: int) -> int:
        """Return the version of the first of so many new events, and note them; raise if the stream is not as expected.

        The caller sees to it that no other thread decides at the same time.
        """
        with self._noting:
            if first_position != self._next_position:
                raise Foreign
            current = self._version(stream)
            self._check_version(stream, expected, current)
            self._ahead[stream] = (current + count, first_position + count - 1)
            self._next_position = first_position + count
        return current + 1

    def _check_version(self, stream: str, expected: Expected, current: int) -> None:
        """Raise unless the stream is as expected; ``Earlier`` when it was so once."""
        exact = NO_VERSION if expected == "no stream" else expected
        if isinstance(exact, int):
            if current > exact:
                raise Earlier(stream, expected, exact, current)
            if current < exact:
                raise wrong_version(stream, expected, current)
        elif exact == "exists" and current == NO_VERSION:
            raise wrong_version(stream, expected, current)

    def _version(self, stream: str) -> int:
        """Return the version of a stream, with events on their way. No other thread may decide during the call."""
        ahead = self._ahead.get(stream)
        return ahead[0] if ahead is not None else self._index.version(stream)

    def recount(self) -> None:
        """Bring the index up to date with all that is durable, and go on from there."""
        end = self._index.catch_up()
        with self._noting:
            self._ahead = {stream: noted for stream, noted in self._ahead.items() if noted[1] >= end}
            self._next_position = max([end, *(noted[1] + 1 for noted in self._ahead.values())])

    def look_after(self, count: int) -> None:
        """Bring the index up to date when much is ahead of it, and have it stored now and then."""
        if len(self._ahead) > AHEAD_MAX or (count and self._index.position + AHEAD_MAX < self._last_position()):
            end = self._index.catch_up()
            with self._noting:
                self._ahead = {stream: noted for stream, noted in self._ahead.items() if noted[1] >= end}
        if self._index.position - self._stored >= max(STORE_EVENTS, self._index.directory.size):
            self._stored = self._index.position
            self.housekeeper.ask("store", self._index.store)

    def _last_position(self) -> int:
        return self.writer.last_position if self.writer is not None else -1

    def store_last(self) -> None:
        """Store the index, if it has grown since it was stored."""
        if self._index.catch_up() > self._stored:
            self._index.store()
