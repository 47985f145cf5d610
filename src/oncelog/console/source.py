"""What the pages show, asked of a database. Every method but ``noted`` and ``rest`` blocks: pages call it in a thread.

A server has a subclass that knows more: answers, connections, tokens, and the acts of an administrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request

from oncelog import inner
from oncelog.clock import SYSTEM, Clock
from oncelog.connect import Database
from oncelog.console.viewer import Kind, Viewer
from oncelog.dedup.fingerprint import LINEAGE
from oncelog.errors import InvalidArgument, NotFound, OncelogError
from oncelog.format.manifest import Mark
from oncelog.format.snapshot import ProducerMark
from oncelog.inbox.inbox import Inbox, KeyStory
from oncelog.log.append.counters import Counts
from oncelog.log.info import LogInfo, SealedFileInfo
from oncelog.log.jobs.verify import Verification
from oncelog.log.log import Log
from oncelog.names import CONFLICTS
from oncelog.queue.deliver.dead_letters import DeadLetter
from oncelog.queue.inspect import Peeked, QueueStats
from oncelog.queue.queue import Queue
from oncelog.queue.rules.message import identity, partition_of
from oncelog.queue.send.topic import log_name
from oncelog.settings import LogSettings
from oncelog.streams.events import StreamEvent, StreamInfo
from oncelog.streams.streams import Direction
from oncelog.types import Entry, Location

PAGE_ROWS = 50
"""Rows on one page."""

COMPARED_MAX = 5
"""Other contents of one id that are compared on one page, the newest first."""

LABELS = ("stream", "type", "tenant", "producer", "sequence")
"""What makes the content of a record beside its value and its headers."""

LABEL_MAX = 128
"""Characters of a label, and bytes of a header, that are kept of an append that was refused."""

COUNTED_MAX = 10_000
"""Counts stop here, and say so."""

LETTERS_MAX = 1_000
"""Dead letters that a page of a queue looks at, the oldest: it shows some, and counts their errors."""

REPORT_BYTES_MAX = 16 << 20
"""A report of a pipeline that is larger is not shown."""

NAMES_TIMES = 10
"""A list of names is shown so many times as long as it took to make: a bucket with 100,000 logs lists for seconds."""

NAMES_WAIT_US = 100_000
"""A page waits for names that were quick to ask for the last time, and shows the old ones otherwise."""


class Answer(NamedTuple):
    """An answer that a server gave: ``outcome`` is ``stored``, ``duplicate``, ``conflict``, or the name of an error."""

    at: datetime
    id: str | None
    peer: str
    outcome: str
    position: int | None
    refused: Other | None = None


class Other(NamedTuple):
    """Other content that came under an id that was taken: the beginning of its value, and what the whole value, its
    labels and its headers were.
    """

    at: datetime
    peer: str
    value: bytes
    size_bytes: int
    digest: str
    headers: Mapping[str, bytes]
    labels: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether the whole value is here."""
        return len(self.value) == self.size_bytes

    def differs(self, stored: Other) -> list[str]:
        """Return what is not the same as in the stored record: the value, a label, a header. Labels and headers are
        compared as far as they are kept; a sequence only if the refused one brought its own. Lineage is no content.
        """
        found = [] if self.digest == stored.digest else ["value"]
        labels = [name for name in LABELS if name in self.labels or name not in ("producer", "sequence")]
        found += [name for name in labels if _cut(self.labels.get(name)) != _cut(stored.labels.get(name))]
        headers = sorted({*self.headers, *stored.headers}.difference(LINEAGE))
        return found + [f"header {name}" for name in headers if _differ(self.headers, stored.headers, name)]


def _cut(text: str | None) -> str | None:
    return text if text is None else text[:LABEL_MAX]


def _differ(some: Mapping[str, bytes], others: Mapping[str, bytes], name: str) -> bool:
    one, other = some.get(name), others.get(name)
    return one is None or other is None or one[:LABEL_MAX] != other[:LABEL_MAX]


def content(entry: Entry) -> Other:
    """Return the content of a record, to be compared."""
    labels = {name: str(getattr(entry, name)) for name in LABELS if getattr(entry, name) is not None}
    value, headers = entry.value, dict(entry.headers or {})
    return Other(entry.timestamp, "", value, len(value), hashlib.sha256(value).hexdigest(), headers, labels)


class NotedAct(NamedTuple):
    """A line of the audit: an act, what it is done to, and what it was asked with."""

    act: str
    kind: Kind
    name: str
    details: Mapping[str, str]


Failed = Callable[[Exception], Awaitable[None]]
"""Writes to the audit, on the loop, that an act which went on after its answer has failed."""


class FoundId(NamedTuple):
    """What is known of an id: where it is stored, as what, the recent answers, and other content that came under it.

    ``not_kept`` counts the recent conflicts whose content is not known any more. ``is_bounded``: the log forgets ids,
    so an id that it does not know may be stored, and one that it knows may be stored more than once. ``is_by_stream``:
    an id belongs to its stream, not to the log. ``topic`` is the queue whose messages the log has, if it is one.
    """

    id: str
    location: Location | None
    entry: Entry | None
    stored: Other | None
    answers: Sequence[Answer]
    others: Sequence[Other]
    not_kept: int
    is_bounded: bool
    is_by_stream: bool
    topic: str = ""


_OF_A_QUEUE = re.compile(r"queue/(.+)/\d+")


def _topic_of(name: str) -> str:
    """Return the queue whose messages a log has; nothing if it is another log.

    >>> _topic_of("queue/emails/0"), _topic_of("orders")
    ('emails', '')
    """
    found = _OF_A_QUEUE.fullmatch(name)
    return found[1] if found is not None else ""


class Verifying(NamedTuple):
    """How far a verification is: records done, records in all, and how it ended, if it did."""

    done: int
    total: int
    result: Verification | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.result is not None or self.error is not None


class LogMoment(NamedTuple):
    """A log at one moment; the difference of two samples is a rate."""

    at_us: int
    end_position: int
    counts: Counts | None
    info: LogInfo


class _Names(NamedTuple):
    """Names, until when they are good, and how long it took to ask for them."""

    until_us: int
    took_us: int
    names: list[str]


class Source:
    """A database as the console sees it: read-only, beside the process that writes."""

    acts = False
    """Whether the console may change anything."""

    live_answers = False
    """Whether recent answers are known: only a server has them."""

    def __init__(
        self,
        database: Database,
        *,
        inboxes: Mapping[str, Inbox] | None = None,
        reports: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.database = database
        self.inboxes = dict(inboxes or {})
        self.reports = {name: Path(path) for name, path in (reports or {}).items()}
        self.queue_state: str | None = None
        self.clock = clock
        self._lock = threading.Lock()
        self._names: dict[str, _Names] = {}
        self._asking: set[str] = set()

    async def rest(self, seconds: float) -> bool:
        """Wait between two looks of a live page; tell whether the page is brought up to date again."""
        await asyncio.sleep(seconds)
        return True

    # Names.

    def log_names(self, search: str = "") -> list[str]:
        """Return the names of the logs that contain a text. A log that was never finished may be among them."""
        return _matching(self._cached("logs", partial(inner.listed, self.database)), search)

    def queue_names(self, search: str = "") -> list[str]:
        """Return the names of the queues that contain a text; none where the database has no place for queues."""
        return _matching(self._cached("queues", self._queues), search)

    def _queues(self) -> list[str]:
        try:
            return self.database.queues(state=self.queue_state)
        except InvalidArgument:  # a bucket: its queues need a state that the console was not given
            return []

    def _cached(self, what: str, ask: Callable[[], list[str]]) -> list[str]:
        """Return names. Names that are old are asked for again; if that takes long, beside the page, which does not
        wait for it.
        """
        with self._lock:
            kept = self._names.get(what)
            if kept is not None and self.clock.elapsed_us() <= kept.until_us:
                return kept.names
            if kept is not None and kept.took_us > NAMES_WAIT_US:
                if what not in self._asking:
                    self._asking.add(what)
                    threading.Thread(target=self._ask, args=(what, ask), daemon=True).start()
                return kept.names
            return self._asked(what, ask)

    def _asked(self, what: str, ask: Callable[[], list[str]]) -> list[str]:
        begun_us = self.clock.elapsed_us()
        names = ask()
        took_us = self.clock.elapsed_us() - begun_us
        if names:  # who makes the first log looks for it at once
            self._names[what] = _Names(begun_us + took_us * (1 + NAMES_TIMES), took_us, names)
        else:
            self._names.pop(what, None)
        return names

    def _ask(self, what: str, ask: Callable[[], list[str]]) -> None:
        """Ask in a thread of its own. An outage leaves the names that are known; the next page asks again."""
        try:
            with contextlib.suppress(OncelogError):
                self._asked(what, ask)
        finally:
            self._asking.discard(what)

    def forget_names(self) -> None:
        """Ask for names again: something was created or deleted."""
        with self._lock:
            self._names.clear()

    # Logs.

    def log(self, name: str) -> Log:
        """Open a log that exists."""
        return self.database.log(name)

    def info(self, name: str) -> LogInfo:
        """Return what is known of a log."""
        return self.log(name).info()

    def sample(self, log: Log) -> LogMoment:
        """Return how far a log is now."""
        info = log.info()
        return LogMoment(self.clock.elapsed_us(), info.last_position + 1, info.counters, info)

    def files(self, name: str) -> list[SealedFileInfo]:
        """Return the sealed files of a log."""
        return self.log(name).files()

    def entries(self, name: str, start: int | datetime, limit: int = PAGE_ROWS) -> list[Entry]:
        """Return records from a position or a time on."""
        log = self.log(name)
        if isinstance(start, int):
            start = max(start, log.first_position())
        with log.read(start=start, limit=limit) as reader:
            return list(reader)

    def latest(self, name: str, limit: int) -> list[Entry]:
        """Return the newest records, the newest first."""
        first = max(0, self.log(name).end_position() - limit)
        return self.entries(name, first, limit)[::-1]

    def entry(self, name: str, position: int) -> Entry:
        """Return one record; ``NotFound`` if it is not there."""
        found = self.entries(name, position, 1)
        if not found or found[0].position != position:
            message = f"log {name!r} has no record at position {position}"
            raise NotFound(message)
        return found[0]

    def find(self, name: str, id: str, stream: str | None = None) -> FoundId:
        """Return what is known of an id, from the memory of ids."""
        log = self.log(name)
        location = log.find(id, stream=stream)
        entry = None
        if location is not None:
            with contextlib.suppress(NotFound):
                entry = self.entry(name, location.position)
        answers = self.answers(name, PAGE_ROWS, id=id)
        conflicts = [answer for answer in answers if answer.outcome == "conflict"]
        refused = [answer.refused for answer in conflicts if answer.refused is not None]
        others = [*refused, *self._put_aside(name, id)]
        return FoundId(
            id=id,
            location=location,
            entry=entry,
            stored=content(entry) if entry is not None else None,
            answers=answers,
            others=others[:COMPARED_MAX],
            not_kept=len(conflicts) - len(refused),
            is_bounded=not log.settings.window.unbounded,
            is_by_stream=log.settings.id_scope == "stream",
            topic=_topic_of(name),
        )

    def log_of_message(self, name: str, id: str, key: str) -> str:
        """Return the log of a queue that has a message, by another log of that queue: its key or its id tells."""
        topic = _topic_of(name)
        logs = sum(_topic_of(one) == topic for one in self.log_names(name.removesuffix(name.rpartition("/")[2])))
        return log_name(topic, partition_of(key, id, logs or 1) or 0)

    def find_message(self, name: str, id: str, key: str) -> FoundId:
        """Return what is known of a message in a log of a queue, by the id and the key that it was sent with."""
        return self.find(name, identity("", key, id))._replace(id=id)

    def _put_aside(self, name: str, id: str) -> list[Other]:
        """Return the rows with this id that Spark's sink put aside, among the newest ones."""
        try:
            log = self.log(CONFLICTS + name)
        except OncelogError:
            return []
        with log.read(start=max(log.first_position(), log.end_position() - COUNTED_MAX)) as reader:
            return [content(entry) for entry in islice((one for one in reader if one.id == id), COMPARED_MAX)]

    def answers(self, name: str, limit: int, *, id: str | None = None) -> list[Answer]:  # noqa: ARG002 (a server's subclass knows)
        """Return the latest answers to appends, the newest first; those to one id, if it is given."""
        return []

    def producers(self, name: str) -> dict[str, ProducerMark]:
        """Return the producers of a log."""
        return self.log(name).producers()

    def marks(self, name: str) -> list[Mark]:
        """Return how far each producer of batches (a Spark query) has come."""
        return self.log(name).marks()

    def report(self, name: str) -> bytes:
        """Return the report of a pipeline, as the pipeline wrote it; ``NotFound`` if there is none."""
        path = self.reports.get(name)
        try:
            size_bytes = path.stat().st_size if path is not None else 0
            if path is not None and 0 < size_bytes <= REPORT_BYTES_MAX:
                return path.read_bytes()
        except OSError as error:
            message = f"the report of {name!r} is not there yet: {error.strerror}"
            raise NotFound(message) from error
        message = f"there is no report {name!r} that can be shown"
        raise NotFound(message)

    # What only a server knows.

    def noted(self, request: Request, viewer: Viewer, act: NotedAct) -> AbstractAsyncContextManager[Failed]:  # noqa: ARG002 (a server's subclass notes)
        """Write an act to the audit before the body does it, on the loop, and once more if the body fails; an act that
        cannot be noted is not done. What is yielded writes that the act failed after the body.
        """
        message = "this console only looks: it changes nothing"
        raise InvalidArgument(message)

    def delete_log(self, name: str) -> None:
        """Delete a log."""
        self.database.delete(name)

    def configure(self, name: str, settings: LogSettings) -> None:
        """Store other settings of a log."""
        self.log(name).configure(settings)

    def verify(self, name: str, failed: Failed) -> None:  # noqa: ARG002 (a server's subclass verifies)
        """Begin to verify a log, unless that is under way; ``verifying`` tells how far it is. ``failed`` is called if
        the verification ends without a result, or finds an error.
        """
        message = f"this console does not verify: use oncelog log verify {name}"
        raise InvalidArgument(message)

    def verifying(self, name: str) -> Verifying | None:  # noqa: ARG002 (a server's subclass knows)
        """Return how far the latest verification of a log is; ``None`` if there was none since the server began."""
        return None

    def server(self) -> dict[str, list[dict[str, object]]]:
        """Return the tables of the server's own page by their titles: connections, tokens, audit."""
        return {}

    # Streams.

    def is_streams(self, name: str) -> bool:
        """Return whether a log is an event store."""
        return self.log(name).settings.id_scope == "stream"

    def streams(self, name: str, prefix: str, limit: int) -> list[StreamInfo]:
        """Return streams whose names begin so."""
        return self.database.streams(name).list(prefix)[:limit]

    def events(self, name: str, stream: str, start: int, *, backward: bool) -> list[StreamEvent]:
        """Return a page of events of a stream; ``start`` below 0 is its first event, or backward its last."""
        begin = start if start >= 0 else None
        direction: Direction = "backward" if backward else "forward"
        return list(self.database.streams(name).read(stream, begin, limit=PAGE_ROWS, direction=direction))

    # Queues.

    def queue(self, name: str) -> Queue:
        """Open a queue that exists."""
        return self.database.queue(name, state=self.queue_state)

    def queue_stats(self, name: str) -> QueueStats:
        """Return how a queue stands."""
        return self.queue(name).stats()

    def peek(self, name: str, group: str) -> list[Peeked]:
        """Return the first messages that a group has not settled."""
        return self.queue(name).peek(group)

    def dead_count(self, name: str) -> int:
        """Return how many dead letters a queue has. None of them is read."""
        return 0 if name.startswith("dlq.") else inner.dead_count(self.queue(name))

    def letters(self, name: str, limit: int | None = LETTERS_MAX) -> list[DeadLetter]:
        """Return the dead letters of a queue, oldest first, up to a limit."""
        if name.startswith("dlq."):
            return []
        return self.queue(name).dead_letters.list(limit=limit)

    # Inboxes.

    def inbox(self, name: str) -> Inbox:
        """Return an inbox that the console was given."""
        if name not in self.inboxes:
            message = f"there is no inbox {name!r}: the console was started with {', '.join(self.inboxes) or 'none'}"
            raise NotFound(message)
        return self.inboxes[name]

    def inbox_keys(self, inbox: str, key: str, status: str) -> list[KeyStory]:
        """Return the story of a key; without a key, the keys that changed last, those with a status if one is given."""
        if key:
            return self.inbox(inbox).show(key)
        wanted: Any = status or None
        return self.inbox(inbox).latest(wanted, limit=PAGE_ROWS)


def _matching(names: list[str], search: str) -> list[str]:
    wanted = search.lower()
    return [name for name in names if wanted in name.lower()] if wanted else names


def when(text: str) -> datetime:
    """Return a time that a person typed (UTC unless it says otherwise), or raise ``InvalidArgument``.

    >>> when("2026-11-16T14:02").isoformat()
    '2026-11-16T14:02:00+00:00'
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not a time: write 2026-11-16T14:02"
        raise InvalidArgument(message) from error
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
