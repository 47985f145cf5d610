"""What was sent to a log and what it answered: enough to tell whether it kept its promises."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import pyarrow as pa

from oncelog.log.writer import Writer
from oncelog.types import Entry, Record

Kind = Literal["one", "many", "batch", "arrow", "submit"]


class Request(msgspec.Struct, frozen=True):
    """Records that are sent together, and by which method."""

    kind: Kind
    records: tuple[Record, ...]


class Answer(msgspec.Struct, frozen=True):
    """What an ack says, whichever method it came from."""

    position: int
    duplicate: bool


def send(writer: Writer, request: Request) -> list[Answer]:
    """Send a request and wait, without a limit, until all of it is answered."""
    records = request.records
    if request.kind == "one":
        acks = [writer.append(record.value, id=record.id, timeout_s=None) for record in records]
    elif request.kind == "many":
        acks = writer.append_many(records, timeout_s=None)
    elif request.kind == "batch":
        acks = writer.append_batch(records, timeout_s=None)
    elif request.kind == "submit":
        futures = [writer.submit(record.value, id=record.id, timeout_s=None) for record in records]
        acks = [future.result() for future in futures]
    else:
        columns = writer.append_arrow(table(records), timeout_s=None)
        return [
            Answer(position, duplicate)
            for position, duplicate in zip(columns.positions.tolist(), columns.duplicates.tolist(), strict=True)
        ]
    return [Answer(position_of(ack.position), ack.duplicate) for ack in acks]


def position_of(position: int | None) -> int:
    """Return the position of an ack that has one, as all do that are not of a sequence."""
    assert position is not None
    return position


def table(records: Sequence[Record]) -> pa.Table:
    """Return records as ``append_arrow`` takes them."""
    ids = pa.array([record.id for record in records], pa.string())
    return pa.table({"value": pa.array([record.value for record in records], pa.binary()), "id": ids})


class History:
    """Everything that was sent, acknowledged and seen, and what must follow from it.

    Every value is sent by one record only, so a value that is there twice was written twice. Every id is sent with one
    value only.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.seen: list[Entry] = []
        self._sent: dict[bytes, str | None] = {}
        self._batches: list[Request] = []
        self._stored: dict[bytes, int] | None = None

    def send(self, writer: Writer, request: Request) -> None:
        """Send a request, and check the answers, if there are any."""
        self._sent.update({record.value: record.id for record in request.records})
        if request.kind == "batch" and request not in self._batches:
            self._batches.append(request)
        stored = self._stored
        for record, answer in zip(request.records, send(writer, request), strict=True):
            self._answered(record, answer, stored)

    def _answered(self, record: Record, answer: Answer, stored: dict[bytes, int] | None) -> None:
        known = self.acknowledged.get(record.value)
        assert known is None or answer == Answer(known, duplicate=True), f"{record.id}: {answer}, was told {known}"
        if stored is not None and known is None:
            found = stored.get(record.value)
            expected = "a new record" if found is None else f"a duplicate of {found}"
            assert answer.duplicate == (found is not None), f"{record.id}: {answer}, and it was {expected}"
            assert found in (None, answer.position), f"{record.id}: {answer}, and it was {expected}"
        self.acknowledged[record.value] = answer.position

    def found(self, entries: Sequence[Entry]) -> None:
        """Note what a writer found when it opened the log: from now on that, and nothing else, is a duplicate."""
        self.check(entries)
        self._stored = {entry.value: entry.position for entry in entries}

    def crashed(self) -> None:
        """Note that nobody knows any more what is stored of what was not acknowledged."""
        self._stored = None

    def saw(self, entries: Sequence[Entry]) -> None:
        """Note what a reader saw: from now on it is there."""
        self.check(entries)
        self.seen = list(entries)

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise ``AssertionError`` unless a log that holds these entries has kept every promise."""
        assert [entry.position for entry in entries] == list(range(len(entries))), "positions have gaps"
        for before, after in pairwise(entries):
            follows = (after.segment, after.entry) == (before.segment, before.entry + 1)
            assert follows or (after.segment > before.segment and after.entry == 0), f"{before} is followed by {after}"
            assert after.timestamp >= before.timestamp, "time went back"
        self._check_contents(entries)
        stored = {entry.value: entry.position for entry in entries}
        for value, position in self.acknowledged.items():
            assert stored.get(value) == position, f"{name(value)}: told {position}, is at {stored.get(value)}"
        for request in self._batches:
            places = [stored.get(record.value) for record in request.records]
            first = places[0]
            whole = [None] * len(places) if first is None else list(range(first, first + len(places)))
            assert places == whole, f"a batch was torn: {places}"
        assert list(entries[: len(self.seen)]) == self.seen, "what a reader saw was taken back"

    def _check_contents(self, entries: Sequence[Entry]) -> None:
        values = [entry.value for entry in entries]
        assert len(set(values)) == len(values), "a record is there twice"
        for entry in entries:
            assert entry.value in self._sent, f"{name(entry.value)} was never sent"
            assert entry.id == self._sent[entry.value], f"{name(entry.value)} has the id {entry.id}"


def name(value: bytes) -> str:
    """Return the front of a value, which tells it from all others."""
    return repr(value[:24])
