"""What was promised, what was seen, and what is there in the end, held against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oncelog import Entry
from oncelog.settings import Idempotence
from tests.crash.work import Step, checksum, number_of, record


class Acked(NamedTuple):
    """An answer that a writer got for the record of a number."""

    number: int
    position: int
    segment: int
    entry: int
    duplicate: bool


class Seen(NamedTuple):
    """An entry that a reader saw while writers lived and died."""

    position: int
    number: int
    checksum: int


@dataclass
class History:
    """All that happened to one log: what writers were about to send, their answers, and what readers saw."""

    idempotence: Idempotence = "explicit"
    sent: list[Step] = field(default_factory=list)
    acks: list[Acked] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def complaints(self, entries: Sequence[Entry]) -> list[str]:
        """Return every way in which a log's content breaks what was promised: none, one hopes."""
        return [
            *_order(entries),
            *_content(self, entries),
            *_twice(entries),
            *_lost(self, entries),
            *_answers(self),
            *_batches(self, entries),
            *_taken_back(self, entries),
        ]


def _order(entries: Sequence[Entry]) -> Iterator[str]:
    """Positions count from 0 without a gap, entries from 0 in each segment, and time does not go back."""
    for expected, entry in enumerate(entries):
        if entry.position != expected:
            yield f"position {entry.position} where {expected} is due"
    for before, after in pairwise(entries):
        follows = (before.segment, before.entry + 1) == (after.segment, after.entry)
        begins = after.segment > before.segment and after.entry == 0
        if not follows and not begins:
            yield f"{after.segment}/{after.entry} comes right after {before.segment}/{before.entry}"
        if after.timestamp < before.timestamp:
            yield f"the time goes back at position {after.position}"


def _content(history: History, entries: Sequence[Entry]) -> Iterator[str]:
    """All that is there was sent, and is as it was sent."""
    sent = {number for step in history.sent for number in step.numbers}
    for entry in entries:
        number = number_of(entry.value)
        wanted = record(number, history.idempotence)
        if number not in sent:
            yield f"{number} was never sent and is at position {entry.position}"
        if (entry.value, entry.id) != (wanted.value, wanted.id):
            yield f"{number} is not what was sent, at position {entry.position}"


def _twice(entries: Sequence[Entry]) -> Iterator[str]:
    """Nothing is there twice."""
    for number, count in Counter(number_of(entry.value) for entry in entries).items():
        if count > 1:
            yield f"{number} is there {count} times"


def _lost(history: History, entries: Sequence[Entry]) -> Iterator[str]:
    """All that was acknowledged is there, where the answer said."""
    for ack in history.acks:
        entry = entries[ack.position] if ack.position < len(entries) else None
        if entry is None or number_of(entry.value) != ack.number:
            yield f"{ack.number} was acknowledged at position {ack.position} and is not there"
        elif (entry.segment, entry.entry) != (ack.segment, ack.entry):
            yield f"{ack.number} was acknowledged at {ack.segment}/{ack.entry}, it is at {entry.segment}/{entry.entry}"


def _answers(history: History) -> Iterator[str]:
    """All answers for one id are the same, and at most one of them says that it was new."""
    if history.idempotence == "off":
        return
    first: dict[int, Acked] = {}
    for ack in history.acks:
        known = first.setdefault(ack.number, ack)
        if known.position != ack.position:
            yield f"{ack.number} was acknowledged at position {known.position}, then at {ack.position}"
        if known is not ack and not ack.duplicate:
            yield f"{ack.number} was acknowledged before, and then as new"


def _batches(history: History, entries: Sequence[Entry]) -> Iterator[str]:
    """Atomic batches are there whole, in one piece and in their order, or not at all."""
    places: dict[int, int] = {}
    for entry in entries:
        places.setdefault(number_of(entry.value), entry.position)
    for step in {step for step in history.sent if step.kind == "batch"}:
        found = [places[number] for number in step.numbers if number in places]
        if found and found != list(range(found[0], found[0] + step.size)):
            yield f"of the batch {step.numbers} there is {found}"


def _taken_back(history: History, entries: Sequence[Entry]) -> Iterator[str]:
    """All that a reader once saw is there for good."""
    for seen in history.seen:
        entry = entries[seen.position] if seen.position < len(entries) else None
        if entry is None or (number_of(entry.value), checksum(entry.value)) != (seen.number, seen.checksum):
            yield f"a reader saw {seen.number} at position {seen.position}, where it is not"
