"""What clients asked for and were answered, what readers saw, and whether all of that can be true of one log."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from oncelog.types import Ack, Entry

Outcome = Literal["acked", "unknown", "not written", "conflict", "refused"]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to append a record with an id, and how it ended. ``ack`` is there if it was acknowledged."""

    client: str
    id: str
    value: bytes
    began_us: int
    ended_us: int
    outcome: Outcome
    ack: Ack | None = None


class SeenRecord(msgspec.Struct, frozen=True):
    """A record as a reader saw it."""

    position: int
    segment: int
    entry: int
    id: str | None
    value: bytes

    @classmethod
    def of(cls, entry: Entry) -> SeenRecord:
        """Return what is compared of an entry."""
        return cls(entry.position, entry.segment, entry.entry, entry.id, entry.value)


class Violation(AssertionError):
    """A promise was broken."""


class RunHistory:
    """Everything that was asked, answered and seen in one run."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.readers: dict[str, list[SeenRecord]] = defaultdict(list)

    def saw(self, reader: str, entry: Entry) -> None:
        """Note what a reader saw, in the order of its seeing."""
        self.readers[reader].append(SeenRecord.of(entry))

    def check(self, log: Sequence[SeenRecord]) -> None:
        """Raise ``Violation`` unless all that was answered and seen is true of the log."""
        self._check_log(log)
        stored = {record.id: record for record in log}
        for attempt in self.attempts:
            _check_attempt(attempt, stored.get(attempt.id))
        self._check_not_written(stored)
        self._check_order()
        for reader, seen in self.readers.items():
            _check_reader(reader, seen, log)

    def _check_log(self, log: Sequence[SeenRecord]) -> None:
        """Positions are contiguous, entries count up in each segment, an id is there once, nothing was invented."""
        if [record.position for record in log] != list(range(len(log))):
            _fail("positions have a gap", [record.position for record in log])
        for before, after in itertools.pairwise(log):
            wanted = (before.segment, before.entry + 1)
            if (after.segment, after.entry) != wanted and not (after.segment > before.segment and after.entry == 0):
                _fail("entries have a gap", before, after)
        ids = [record.id for record in log]
        if len(set(ids)) != len(ids):
            _fail("an id is stored twice", [one for one in log if ids.count(one.id) > 1])
        offered = {(attempt.id, attempt.value) for attempt in self.attempts}
        for record in log:
            if (record.id, record.value) not in offered:
                _fail("a record that nobody offered", record)

    def _check_not_written(self, stored: dict[str | None, SeenRecord]) -> None:
        """Find a record whose clients got "not written" every time."""
        for record in stored.values():
            outcomes = {attempt.outcome for attempt in self.attempts if attempt.id == record.id}
            if outcomes <= {"not written", "refused"}:
                _fail("told that it is not written, and it is", record, outcomes)

    def _check_order(self) -> None:
        """Find a record that is in front of one which was acknowledged before the first was offered."""
        first_offer: dict[str, int] = {}
        first_ack: dict[str, tuple[int, int]] = {}
        for attempt in self.attempts:
            first_offer[attempt.id] = min(attempt.began_us, first_offer.get(attempt.id, attempt.began_us))
            if attempt.ack is not None and attempt.ack.position is not None:
                told = attempt.ended_us, attempt.ack.position
                first_ack[attempt.id] = min(told, first_ack.get(attempt.id, told))
        highest = -1
        acks = sorted((moment, position) for moment, position in first_ack.values())
        for offered_us, id in sorted((offered, id) for id, offered in first_offer.items() if id in first_ack):
            while acks and acks[0][0] < offered_us:
                highest = max(highest, acks.pop(0)[1])
            if first_ack[id][1] < highest:
                _fail("a later record is in front of an acknowledged one", id, first_ack[id], highest)


def _check_attempt(attempt: Attempt, record: SeenRecord | None) -> None:
    if attempt.outcome == "acked":
        assert attempt.ack is not None
        if record is None:
            _fail("an acknowledged record is lost", attempt)
        if (attempt.ack.position, attempt.ack.segment, attempt.ack.entry) != (
            record.position,
            record.segment,
            record.entry,
        ):
            _fail("an id has two places", attempt, record)
        if attempt.value != record.value:
            _fail("acknowledged, with other content", attempt, record)
    elif attempt.outcome == "conflict" and (record is None or record.value == attempt.value):
        _fail("a conflict with nothing", attempt, record)


def _check_reader(reader: str, seen: Sequence[SeenRecord], log: Sequence[SeenRecord]) -> None:
    """Check that a reader saw the log in order, without a gap, and nothing that is not there in the end."""
    for number, record in enumerate(seen):
        if record.position >= len(log) or log[record.position] != record:
            _fail(f"{reader} saw what is not in the log", record, log[record.position : record.position + 1])
        if number and record.position != seen[number - 1].position + 1:
            _fail(f"{reader} skipped, or went back", seen[number - 1], record)


def _fail(what: str, *details: object) -> NoReturn:
    message = f"{what}: {' · '.join(str(detail)[:600] for detail in details)}"
    raise Violation(message)
