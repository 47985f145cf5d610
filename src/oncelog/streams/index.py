"""The index of a log's streams: a fold of what is durable, kept in pages, and stored so that opening reads little.

Deleting everything that is stored here loses time, never correctness: it is folded again from the base and the log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.concurrency.trouble import Trouble
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format import streams as stored
from oncelog.format.streams import PAGE_ROWS, StreamPage
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.read.scan import Scan
from oncelog.log.stored.rows import Rows
from oncelog.log.stored.stream_index import DIRECTORIES_PREFIX, PAGES_PREFIX
from oncelog.storage.base import LogHome
from oncelog.streams.directory import Directory

PAGES_KEPT = 64
"""So many full pages stay in memory: 32 MiB."""

DIRECTORIES_KEPT = 2

_FOLDED = (
    "directory", "position", "_numbers", "_versions", "_page_first", "_full", "_unsaved", "_kept", "_scan",
)  # fmt: skip
"""What of an index is a fold of the log."""


class Index:
    """Which stream every durable record is of, and at which version. Safe to share between threads.

    ``position`` is that of the next record to be folded. ``_lock`` guards what is known, ``_reading`` who reads on.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._home: LogHome = inner.home(log)
        self._clock = clock
        self._log_id = log.log_id
        self._seed = int(self._log_id[:16], 16)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._scan: Scan | None = None
        self._trouble = Trouble("oncelog.streams", f"storing the index of streams of log {log.name!r}")
        self._begin(Directory(self._seed), 0)

    def _begin(self, directory: Directory, position: int, page: StreamPage | None = None) -> None:
        self.directory = directory
        self.position = position
        self._numbers = np.full(PAGE_ROWS, -1, np.int32)
        self._versions = np.full(PAGE_ROWS, -1, np.int32)
        self._page_first = position - position % PAGE_ROWS
        self._full: OrderedDict[int, StreamPage] = OrderedDict()
        self._unsaved: dict[int, StreamPage] = {}
        self._kept = 0  # so many of those could not be saved
        if page is not None:
            self._numbers[: len(page.numbers)] = page.numbers
            self._versions[: len(page.versions)] = page.versions
        self._scan = None

    # Opening and storing.

    def open(self, *, from_base: bool = False) -> None:
        """Begin with the newest directory that is sound; if there is none, or with ``from_base``, with the base. Then
        fold the records behind it.
        """
        with self._reading, self._lock:
            found = None if from_base else self._newest()
            if found is None:
                base = inner.base(self._log)
                self._begin(Directory.of_base(self._seed, base.streams), base.position)
            else:
                self._begin(Directory.load(self._seed, found), found.position, found.page)
        self.catch_up()

    def _newest(self) -> stored.StoredDirectory | None:
        """Return the stored directory with the highest position, unless the log begins behind it or ends before it."""
        first, end = self._log.first_position(), inner.scan(self._log).end()
        for key in reversed(self._home.list(DIRECTORIES_PREFIX)):
            try:
                found = stored.decode_directory(self._home.read(key), key)
            except (CorruptionError, NotFound, Unsupported):
                continue
            if found.log_id == self._log_id and first <= found.position <= end:
                return found
        return None

    def rebuild(self) -> None:
        """Forget all that is stored, and fold the log from its base on."""
        with self._reading:
            for key in [*self._home.list(DIRECTORIES_PREFIX), *self._home.list(PAGES_PREFIX)]:
                self._home.delete(key)
            self._refold()

    def _refold(self) -> None:
        """Fold the log from its base on. Until then callers get the old versions: no version ever goes back."""
        fresh = Index(self._log, self._clock)
        fresh.open(from_base=True)
        with self._lock:
            for name in _FOLDED:
                setattr(self, name, getattr(fresh, name))

    def store(self) -> None:
        """Store the directory as it is now, and delete what is no longer needed."""
        with self._lock:
            count = self.position - self._page_first
            page = StreamPage(
                self._log_id, self._page_first, self._numbers[:count].copy(), self._versions[:count].copy()
            )
            taken = self.directory.dump(self._log_id, self.position, page)
        key = f"{DIRECTORIES_PREFIX}{taken.position:020d}-{self._clock.token(4).hex()}"
        self._home.create(key, [stored.encode_directory(taken)])
        for stale in self._home.list(DIRECTORIES_PREFIX)[:-DIRECTORIES_KEPT]:
            self._home.delete(stale)
        first = self._log.first_position()
        for old in self._home.list(PAGES_PREFIX):
            if int(old.removeprefix(PAGES_PREFIX)) + PAGE_ROWS <= first:
                self._home.delete(old)

    # Folding.

    def catch_up(self) -> int:
        """Fold all that is durable by now; return the position behind it."""
        with self._reading:
            try:
                self._read_on()
            except NotFound:
                if self._log.first_position() <= self.position:
                    raise
                self._refold()  # what was to be folded next was truncated away
            return self.position

    def _read_on(self) -> None:
        if self._scan is None:
            scan = inner.scan(self._log, ["stream"])
            scan.begin(self.position)
            self._scan = scan
        while found := self._scan.next_rows():
            for rows in found:
                self.fold(rows)

    def fold(self, rows: Rows) -> None:
        """Take in consecutive records, which follow those before (or the base)."""
        with self._lock:
            numbers = self._numbers_of(rows.payload)
            versions = self.directory.count_in(numbers, rows.first_position)
            self._turn_to(rows.first_position)
            done = 0
            while done < rows.count:
                at = rows.first_position + done - self._page_first
                count = min(PAGE_ROWS - at, rows.count - done)
                # In this order: a concurrent reader finds no event without its version.
                self._versions[at : at + count] = versions[done : done + count]
                self._numbers[at : at + count] = numbers[done : done + count]
                done += count
                self.position = rows.first_position + done
                self._turn_to(rows.first_position + done)
            filled = list(self._unsaved.values()) if len(self._unsaved) > self._kept else []
        for page in filled:
            self._save(page)

    def _numbers_of(self, payload: pa.RecordBatch) -> NDArray[np.int64]:
        at = payload.schema.get_field_index("stream")
        if at < 0:
            return np.full(payload.num_rows, -1, np.int64)
        encoded = payload.column(at).dictionary_encode()
        known = np.array([self.directory.add(name.encode()) for name in encoded.dictionary.to_pylist()], np.int64)
        numbers: NDArray[np.int64] = np.append(known, -1)[np.asarray(encoded.indices.fill_null(len(known)))]
        return numbers

    def _turn_to(self, position: int) -> None:
        """Go on at a position; a page that is full now is put away."""
        if position >= self._page_first + PAGE_ROWS:
            if self.position > self._page_first:
                page = StreamPage(self._log_id, self._page_first, self._numbers, self._versions)
                self._unsaved[page.first_position] = page
            self._page_first = position - position % PAGE_ROWS
            self._numbers = np.full(PAGE_ROWS, -1, np.int32)
            self._versions = np.full(PAGE_ROWS, -1, np.int32)
        self.position = position

    def _save(self, page: StreamPage) -> None:
        """Store a full page; one that cannot be stored stays in memory, until the next is full."""
        try:
            self._home.create(_page_key(page.first_position), [stored.encode_page(page)])
        except OncelogError as error:
            self._kept = len(self._unsaved)
            self._trouble.begin(error)
            return
        self._trouble.end()
        with self._lock:
            self._unsaved.pop(page.first_position, None)
            self._kept = len(self._unsaved)
            self._remember(page)

    def _remember(self, page: StreamPage) -> None:
        self._full[page.first_position] = page
        while len(self._full) > PAGES_KEPT:
            self._full.popitem(last=False)

    # Asking.

    @property
    def nbytes(self) -> int:
        """The bytes that are kept in memory."""
        pages = len(self._full) + len(self._unsaved) + 1
        return self.directory.nbytes + pages * 8 * PAGE_ROWS

    def version(self, stream: str) -> int:
        """Return the version of a stream's last durable event, -1 when it has none."""
        with self._lock:
            number = self.directory.find(stream.encode())
            return int(self.directory.counts[number]) - 1 if number >= 0 else -1

    def versions_at(self, first_position: int, count: int) -> NDArray[np.int32]:
        """Return the versions of consecutive records, in their streams (-1: of none)."""
        parts = []
        position, end = first_position, first_position + count
        while position < end:
            page = self._page(position)
            at = position - page.first_position
            parts.append(page.versions[at : at + end - position])
            position += len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def find(self, stream: str, start: int, *, backward: bool) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Return the positions and versions of a stream's events from version ``start`` on, or back, a page at a time.

        What comes after this call is not among them. ``NotFound`` when there is no such stream.
        """
        with self._lock:
            number = self.directory.find(stream.encode())
            if number < 0:
                message = f"there is no stream {stream!r} in log {self._log.name!r}"
                raise NotFound(message)
            first, last = int(self.directory.firsts[number]), int(self.directory.lasts[number])
        return self._found(number, max(first, self._log.first_position()), last, start, backward=backward)

    def _found(
        self, number: int, first: int, last: int, start: int, *, backward: bool
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        starts = range(first - first % PAGE_ROWS, last + 1, PAGE_ROWS)
        for page_first in reversed(starts) if backward else starts:
            try:
                page = self._page(page_first)
            except NotFound:
                if not self._is_truncated(page_first):
                    raise
                continue
            low, high = max(first - page_first, 0), last - page_first + 1
            rows = np.flatnonzero(page.numbers[low:high] == number) + low
            versions = page.versions[rows]
            wanted = (versions <= start) if backward else (versions >= start)
            positions, versions = rows[wanted] + page_first, versions[wanted]
            yield (positions[::-1], versions[::-1]) if backward else (positions, versions)

    def _page(self, position: int) -> StreamPage:
        """Return the page that holds a position; one that is lost or damaged is folded again, with all others.

        ``NotFound`` for one whose records were truncated away.
        """
        first = position - position % PAGE_ROWS
        try:
            return self._kept_page(first)
        except (CorruptionError, NotFound):
            if not self._is_truncated(first):
                self.rebuild()
        return self._kept_page(first)

    def _is_truncated(self, page_first: int) -> bool:
        return page_first + PAGE_ROWS <= self._log.first_position()

    def _kept_page(self, first: int) -> StreamPage:
        with self._lock:
            if first == self._page_first:
                return StreamPage(self._log_id, first, self._numbers, self._versions)
            page = self._full.get(first) or self._unsaved.get(first)
        if page is None:
            key = _page_key(first)
            page = stored.decode_page(self._home.read(key), key)
            if page.log_id != self._log_id or page.first_position != first:
                message = f"{key} is the page of log {page.log_id} from position {page.first_position}"
                raise CorruptionError(message)
            with self._lock:
                self._remember(page)
        return page

    def streams(self, prefix: str = "") -> list[tuple[str, int, int]]:
        """Return name, number of events and last position of the streams that begin so, by their first events."""
        with self._lock:
            size = self.directory.size
            counts, lasts = self.directory.counts[:size].tolist(), self.directory.lasts[:size].tolist()
            names = list(self.directory.names())
        found = zip(names, counts, lasts, strict=True)
        return [one for one in found if one[0].startswith(prefix)]


def _page_key(first_position: int) -> str:
    return f"{PAGES_PREFIX}{first_position:020d}"
