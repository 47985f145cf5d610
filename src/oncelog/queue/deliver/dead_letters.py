"""Dead letters: what could not be delivered, kept with its story in the topic ``dlq.<topic>``, and sent back."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from oncelog import arguments, limits
from oncelog.clock import Clock
from oncelog.errors import AppendErrors, IdConflict, InvalidArgument, NotFound, OncelogError
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.rules import message
from oncelog.queue.rules.delivery import Change, Condition, MessageRun, cut, first_of
from oncelog.queue.rules.message import Envelope, Origin
from oncelog.queue.send.sender import Outgoing, Sender, Sent
from oncelog.queue.send.topic import DEAD_LETTERS, Topic, size_bytes, within
from oncelog.queue.state import statements
from oncelog.queue.state.database import StateDatabase
from oncelog.settings import TIMEOUT_S
from oncelog.types import Entry, Record

GROUP = "redrive"
"""The group of the dead-letter topic that remembers what was sent back."""

_AT_ONCE = 100
_BURIED_AT_ONCE = 1_000
_PAGE_MAX = 10_000
_REST_US = 1_000_000
_BURIAL_S = 5.0
"""Consumers wait for burials no longer than this, and go on with them the next time."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that died, and how. ``partition`` and ``position`` are its place in the dead-letter topic."""

    partition: int
    position: int
    topic: str
    origin_partition: int
    origin_position: int
    group: str
    attempts: int
    last_error: str
    died_at: datetime
    redriven: int
    id: str
    key: str
    tenant: str
    inbox_key: str
    headers: Mapping[str, bytes]
    value: bytes


def synthetic_id(*parts: object) -> str:
    """Return a log id for something that was not sent by a producer: the same for the same parts.

    A log may remember ids for ever, and answers a known one with "there already". So the parts must name something that
    happens once: a position alone comes again in a log that was made again, a group's name in a group that was.
    """
    spelled = "".join(f"{len(str(part))}:{part}" for part in parts)
    return "~" + hashlib.blake2b(spelled.encode(), digest_size=20).hexdigest()


class Undertaker:
    """Brings messages that are dying to the dead letters: they leave their queue when they are safely there."""

    def __init__(self, broker: Broker, clock: Clock, letters: Callable[[], Sender]) -> None:
        """Take what gives the way into the dead-letter topic; it is asked for when somebody has died."""
        self._broker = broker
        self._clock = clock
        self._letters = letters
        self._lock = threading.Lock()
        self._not_before_us = 0
        self.last_error: str | None = None

    def bury(self) -> None:
        """Bury what there is. What cannot be buried now stays, and is tried again later: nothing is lost."""
        if self._clock.elapsed_us() < self._not_before_us:
            return
        held: list[bool] = []
        try:
            held.extend(map(self._lock.acquire, (False,)))  # one call, as in ``locked``: Ctrl-C leaves it not taken
            if held[0]:
                self._bury_all(self._clock.elapsed_us() + round(_BURIAL_S * 1e6))
        except OncelogError as error:
            self.last_error = str(error)
            self._not_before_us = self._clock.elapsed_us() + _REST_US
        finally:
            if held and held[0]:
                self._lock.release()

    def _bury_all(self, until_us: int) -> None:
        while (left_us := until_us - self._clock.elapsed_us()) > 0 and (runs := self._broker.dying(_AT_ONCE)):
            self._bury(runs, left_us / 1e6)
        self.last_error = None

    def _bury(self, runs: Sequence[MessageRun], timeout_s: float) -> None:
        """Bury the first messages of runs: not so many, or such large ones, that there is no room for them."""
        records: list[Record] = []
        parts: list[MessageRun] = []
        left_bytes = limits.QUEUE_CLAIM_BYTES_MAX
        for run in runs:
            part = first_of(run, _BURIED_AT_ONCE - len(records))
            entries = self._broker.topic.read_again(part.partition, part.first, part.count, left_bytes)
            records += [self._letter(run, entry) for entry in entries]
            parts.append(first_of(part, entries[-1].position + 1 - part.first) if entries else part)
            left_bytes -= sum(map(size_bytes, entries))
            if left_bytes <= 0 or len(records) >= _BURIED_AT_ONCE:
                break
        if records:
            self._write(records, timeout_s)
        self._broker.buried(parts)

    def _write(self, records: Sequence[Record], timeout_s: float) -> None:
        """Write letters. Where there is one already that tells another story (the state was lost since), it stands."""
        try:
            self._letters().send([Outgoing(0, record) for record in records], timeout_s, "join")
        except IdConflict:
            pass
        except AppendErrors as errors:
            if not all(isinstance(result, Sent | IdConflict) for result in errors.results):
                raise

    def _letter(self, run: MessageRun, entry: Entry) -> Record:
        envelope = message.envelope_of(entry) if message.is_readable(entry) else Envelope()
        topic, group = self._broker.topic.name, self._broker.name
        origin = Origin(
            topic=topic,
            partition=run.partition,
            position=entry.position,
            group=group,
            attempts=run.attempts,
            last_error=run.last_error or "",
            inbox_key=message.inbox_key_of(entry, envelope, run.partition),
        )
        return message.forwarded(
            entry,
            self._letter_id(run, entry.position),
            Envelope(
                id=message.id_of(entry, envelope), retry=envelope.retry, redriven=envelope.redriven, origin=origin
            ),
        )

    def _letter_id(self, run: MessageRun, position: int) -> str:
        """Return the id of a death: the same when it is stored again after a crash, and never that of another one."""
        broker = self._broker
        log_id = broker.topic.logs[run.partition].log_id
        return synthetic_id("dead", broker.generation, broker.id, log_id, position, run.attempts)


class Burials(NamedTuple):
    """The topic of dead letters, and its queue."""

    topic: Topic
    queue_id: int


class DeadLetters:
    """The dead letters of one queue. Made by ``Queue.dead_letters``."""

    def __init__(
        self,
        name: str,
        burials: Callable[[], Burials | None],
        database: StateDatabase,
        back: Sender,
        groups: Callable[[], Collection[str]],
    ) -> None:
        """Take what opens the dead-letter topic, if it is there, the way back into the queue they came from, and what
        tells the groups of that queue.
        """
        self._name = name
        self._open = burials
        self._database = database
        self._back = back
        self._groups = groups

    @arguments.checked
    def list(self, *, limit: int | None = None) -> list[DeadLetter]:
        """Return the dead letters that were not sent back, oldest first."""
        return list(self._each(None if limit is None else arguments.count("limit", limit)))

    def _each(self, limit: int | None = None) -> Iterator[DeadLetter]:
        """Yield the dead letters that were not sent back; few of them are held at a time."""
        burials = self._open()
        if burials is not None:
            yield from map(_dead_letter, self._entries(burials, limit))

    @arguments.checked
    def show(self, position: int) -> DeadLetter:
        """Return one; ``NotFound`` if there is none at this position of the dead-letter topic."""
        return _dead_letter(self._picked([arguments.count("position", position)])[0])

    def redrive(self, positions: Iterable[int] | None = None) -> int:
        """Send dead letters back to the queue and the group they came from: all, or those at these positions.

        Each goes under a new place in the log and its original inbox key: an effect that had committed is not run
        again. Asked for twice, at once or after a crash in between, it comes back once (within the log's window).
        Returns how many came back by this call. Those whose group was removed stay here, because nobody would get them:
        when all others are back, this is ``NotFound``.
        """
        picked = self._picked(chosen(positions)) if positions is not None else None
        grave = self._absorbed()
        if grave is None:
            return 0
        wanted = picked if picked is not None else self._entries(grave.burials, None)
        groups, gone = set(self._groups()), Counter[str]()
        count = 0
        for batch in _batches(wanted):
            homes = [_dead_letter(entry).group for entry in batch]
            gone.update(group for group in homes if group not in groups)
            there = [entry for entry, group in zip(batch, homes, strict=True) if group in groups]
            count += self._redrive(grave, there) if there else 0
        if gone:
            raise self._homeless(gone, count)
        return count

    def discard(self, positions: Iterable[int]) -> int:
        """Give dead letters up for good; return how many."""
        entries = self._picked(chosen(positions))
        grave = self._absorbed()
        return self._settle(grave, entries) if grave is not None else 0

    def _count(self) -> int:
        """Return how many there are, and read none of them. What was sent here by hand counts, too."""
        burials = self._open()
        return sum(map(len, self._unsettled(burials))) if burials is not None else 0

    def _picked(self, positions: Iterable[int]) -> Sequence[Entry]:
        """Return the letters at these positions; ``NotFound`` if one is not there. Neighbours are read together."""
        burials = self._open()
        there = self._unsettled(burials) if burials is not None else []
        wanted = list(positions)
        found = {}
        for run in _runs(sorted(wanted)):
            for entry in burials.topic.read(0, run.start, len(run)) if burials is not None else []:
                found[entry.position] = entry
        for position in wanted:
            if position not in found or not _is_in(there, position):
                raise self._missing(position)
            _dead_letter(found[position])
        return [found[position] for position in wanted]

    def _homeless(self, gone: Counter[str], count: int) -> NotFound:
        named = ", ".join(f"{letters} of group {group!r}" for group, letters in gone.items())
        return NotFound(
            f"{self._name}: {named} stay here, because there is no such group any more; {count} others were sent back: "
            "consume(group=…) makes the group, or discard() gives them up"
        )

    def _missing(self, position: int) -> NotFound:
        return NotFound(f"{self._name}: there is no dead letter at {position}, or it was sent back")

    def _redrive(self, grave: _Grave, entries: Sequence[Entry]) -> int:
        self._back.send([self._revived(grave, entry) for entry in entries], TIMEOUT_S, "join")
        return self._settle(grave, entries)

    def _revived(self, grave: _Grave, entry: Entry) -> Outgoing:
        letter, envelope = _dead_letter(entry), message.envelope_of(entry)
        revived = Envelope(
            id=envelope.id,
            retry=envelope.retry,
            group=letter.group,
            inbox_key=letter.inbox_key,
            redriven=envelope.redriven + 1,
        )
        log_id = grave.burials.topic.logs[0].log_id
        made_up = synthetic_id("redrive", grave.generation, grave.group_id, log_id, letter.position, entry.id)
        # By its key or its id it would meet the same partition: that of the first time.
        return Outgoing(letter.origin_partition, message.forwarded(entry, made_up, revived))

    def _page(self, limit: int | None, start: int) -> list[DeadLetter]:  # type: ignore[valid-type]
        """Return dead letters from a position on: not more than ``QUEUE_CLAIM_BYTES_MAX``, unless the first alone is
        larger, and not more than ``_PAGE_MAX``, because keys and names have a size, too. None: there are no more.
        """
        burials = self._open()
        if burials is None:
            return []
        some = self._entries(burials, _PAGE_MAX if limit is None else min(limit, _PAGE_MAX), start)
        fitting = within(some, limits.QUEUE_CLAIM_BYTES_MAX)
        return [_dead_letter(entry) for entry in fitting]

    def _entries(self, burials: Burials, limit: int | None, start: int = 0) -> Iterator[Entry]:
        left = limit if limit is not None else 1 << 62
        for positions in self._unsettled(burials):
            first = max(positions.start, start)
            while first < positions.stop and left > 0:
                wanted = min(_AT_ONCE, positions.stop - first, left)
                entries = burials.topic.read(0, first, wanted, limits.QUEUE_CLAIM_BYTES_MAX)
                first = entries[-1].position + 1 if entries else first + wanted
                for entry in entries:
                    if message.envelope_of(entry).origin is not None:  # else somebody has sent it here by hand
                        left -= 1
                        yield entry

    def _unsettled(self, burials: Burials) -> Sequence[range]:
        """Return the positions of letters that were not sent back or given up, in order."""
        end = burials.topic.ends()[0]
        with self._database.reading() as transaction:
            row = statements.group(transaction, burials.queue_id, GROUP)
            if row is None:  # nobody has sent any back
                return [range(burials.topic.starts("earliest")[0], end)]
            runs = statements.unsettled(transaction, row.id, 1 << 40)
            cursor = statements.cursors(transaction, row.id)[0]
        return [*(run.positions for run in runs), range(cursor, end)]

    def _absorbed(self) -> _Grave | None:
        """Have all that has come so far in runs, so that each can be taken out on its own."""
        burials = self._open()
        if burials is None:
            return None
        starts, end = burials.topic.starts("earliest"), burials.topic.ends()[0]
        with self._database.writing() as transaction:
            statements.add_group(transaction, burials.queue_id, GROUP, starts, ordered=False)
            row = statements.group(transaction, burials.queue_id, GROUP)
            assert row is not None
            cursor = statements.cursors(transaction, row.id)[0]
            if cursor < end:
                run = MessageRun(0, cursor, end - cursor, Condition.WAITING, 0)
                statements.apply(transaction, row.id, Change([], [run]))
                statements.move(transaction, row.id, 0, end)
            return _Grave(burials, row.id, statements.generation(transaction))

    def _settle(self, grave: _Grave, letters: Sequence[Entry]) -> int:
        """Have letters not be there any more; return how many were, until now."""
        count = 0
        with self._database.writing() as transaction:
            statements.group(transaction, grave.burials.queue_id, GROUP)
            for letter in letters:
                run = statements.at(transaction, grave.group_id, 0, letter.position)
                if run is not None:
                    statements.apply(transaction, grave.group_id, Change([run], cut(run, {letter.position})[1]))
                    count += 1
        return count


class _Grave(NamedTuple):
    """The dead-letter topic with the group that remembers what was sent back."""

    burials: Burials
    group_id: int
    generation: str


def name_of_letters(queue: str) -> str:
    """Return the name of the queue that holds the dead letters of another."""
    if queue.startswith(DEAD_LETTERS):
        error = f"queue {queue!r} holds dead letters, and has none of its own"
        raise InvalidArgument(error)
    return DEAD_LETTERS + queue


def chosen(positions: object) -> dict[int, None]:
    """Return the positions of dead letters that a caller chose, each once."""
    given = arguments.items("positions", positions, "positions")
    return dict.fromkeys(arguments.count("position", position) for position in given)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield letters together, not more than are sent at once."""
    batch: list[Entry] = []
    left_bytes = limits.QUEUE_CLAIM_BYTES_MAX
    for entry in entries:
        batch.append(entry)
        left_bytes -= size_bytes(entry)
        if left_bytes <= 0 or len(batch) == _AT_ONCE:
            yield batch
            batch, left_bytes = [], limits.QUEUE_CLAIM_BYTES_MAX
    if batch:
        yield batch


def _runs(positions: Sequence[int]) -> Iterator[range]:
    """Yield neighbours among sorted positions as ranges, each of ``_AT_ONCE`` at most.

    >>> list(_runs([3, 4, 5, 9]))
    [range(3, 6), range(9, 10)]
    """
    first = behind = -1
    for position in positions:
        if position != behind or position - first >= _AT_ONCE:
            if behind > first:
                yield range(first, behind)
            first = position
        behind = position + 1
    if behind > first:
        yield range(first, behind)


def _is_in(sorted_ranges: Sequence[range], position: int) -> bool:
    index = bisect_right(sorted_ranges, position, key=lambda one: one.start) - 1
    return index >= 0 and position in sorted_ranges[index]


def _dead_letter(entry: Entry) -> DeadLetter:
    envelope = message.envelope_of(entry)
    origin = envelope.origin
    if origin is None:
        error = (
            f"position {entry.position}: this was sent to a dead-letter topic by hand, and has no queue to go back to"
        )
        raise InvalidArgument(error)
    return DeadLetter(
        partition=0,
        position=entry.position,
        topic=origin.topic,
        origin_partition=origin.partition,
        origin_position=origin.position,
        group=origin.group,
        attempts=origin.attempts,
        last_error=origin.last_error,
        died_at=entry.timestamp,
        redriven=envelope.redriven,
        id=envelope.id,
        key=entry.stream or "",
        tenant=entry.tenant or "",
        inbox_key=origin.inbox_key,
        headers=message.user_headers(entry),
        value=entry.value,
    )
