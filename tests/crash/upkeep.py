"""What was sent to a log that is sealed, adopted into and truncated meanwhile, and what must still be there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from oncelog.log.writer import Writer
from oncelog.types import Entry, Record
from tests.models.history import History, Request, name, send


class Upkeep(History):
    """A history of a log of which the front may be truncated away: up to ``cut_max``, and no further."""

    def __init__(self) -> None:
        super().__init__()
        self.first = 0
        self.cut_max = 0

    def send(self, writer: Writer, request: Request) -> None:
        """Send a request, and check the answers, if there are any."""
        self.offer(request.records)
        if request.kind == "batch":
            self.batch(request)
        stored = self._stored
        for record, answer in zip(request.records, send(writer, request), strict=True):
            self._answered(record, answer, stored)

    def batch(self, request: Request) -> None:
        """Note that records are to be there together, or not at all."""
        if request not in self._batches:
            self._batches.append(request)

    def offer(self, records: Sequence[Record]) -> None:
        """Note that records are about to be sent, or adopted."""
        self._sent.update({record.value: record.id for record in records})

    def adopted(self, records: Sequence[Record], first_position: int) -> None:
        """Note that records were adopted, from a position on."""
        for position, record in enumerate(records, first_position):
            told = self.acknowledged.setdefault(record.value, position)
            assert told == position, f"{record.id}: adopted at {position}, was told {told}"

    def passed(self, entries: Sequence[Entry]) -> None:
        """Note what a reader saw of the middle of the log."""
        known = {entry.position: entry for entry in self.seen}
        for entry in entries:
            assert known.setdefault(entry.position, entry) == entry, f"{entry} was {known[entry.position]}"
        self.seen = [known[position] for position in sorted(known)]

    def saw(self, entries: Sequence[Entry]) -> None:
        """Note what a reader saw of the whole log: from now on it is there, or truncated."""
        self.check(entries)
        self.passed(entries)

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise ``AssertionError`` unless a log that holds these entries has kept every promise."""
        first = entries[0].position if entries else max(self.first, min(self.cut_max, len(self.acknowledged)))
        assert self.first <= first <= self.cut_max, f"begins at {first}, not from {self.first} to {self.cut_max}"
        self.first = first
        assert [entry.position for entry in entries] == list(range(first, first + len(entries))), "positions have gaps"
        for before, after in pairwise(entries):
            follows = (after.segment, after.entry) == (before.segment, before.entry + 1)
            assert follows or (after.segment > before.segment and after.entry == 0), f"{before} is followed by {after}"
            assert after.timestamp >= before.timestamp, "time went back"
        self._check_contents(entries)
        stored = {entry.value: entry.position for entry in entries}
        for value, position in self.acknowledged.items():
            expected = position if position >= first else None
            assert stored.get(value) == expected, f"{name(value)}: told {position}, is at {stored.get(value)}"
        for request in self._batches:
            places = [stored[record.value] for record in request.records if record.value in stored]
            whole = not places or places[0] == first or len(places) == len(request.records)
            assert whole, f"a batch was torn: {places}"
            assert not places or places == list(range(places[0], places[0] + len(places))), f"a batch apart: {places}"
        there = {entry.position: entry for entry in entries}
        for entry in self.seen:
            assert entry.position < first or there.get(entry.position) == entry, "what a reader saw was taken back"
