"""The log as a dictionary: what it holds, which ids it knows, and what it answers. Slow, short, and easy to believe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from oncelog.dedup.content import content_id
from oncelog.errors import IdConflict, InvalidArgument, OncelogError, PartialOverlap
from oncelog.settings import Idempotence, LogSettings
from oncelog.types import Record
from tests.models.history import Request


class Outcome(NamedTuple):
    """What happens to one record, and the position of it, or of the one that was there."""

    what: Literal["new", "duplicate", "conflict"]
    position: int


class Refusal(NamedTuple):
    """What happens to records that are refused together."""

    error: type[OncelogError]
    known: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


Answer: TypeAlias = list[Outcome] | Refusal


class Stored(NamedTuple):
    """A record that is there."""

    id: str | None
    value: bytes


class Together(NamedTuple):
    """Keys that go together: those of a batch, or a single one. ``tick_us`` is the up-time at which they came."""

    positions: tuple[int, ...]
    tick_us: int


@dataclass
class Model:
    """What a log must say. ``stored`` is all there is; ``remembered`` is the window, oldest first."""

    settings: LogSettings
    log_id: str = ""
    stored: list[Stored] = field(default_factory=list)
    written: list[Together] = field(default_factory=list)
    remembered: list[Together] = field(default_factory=list)

    def copy(self) -> Model:
        """Return a model that goes its own way."""
        return Model(self.settings, self.log_id, self.stored[:], self.written[:], self.remembered[:])

    @property
    def idempotence(self) -> Idempotence:
        """How ids are treated."""
        return self.settings.idempotence

    @property
    def last_tick_us(self) -> int:
        """The up-time that the records themselves tell."""
        return max((together.tick_us for together in self.written), default=0)

    # The window.

    def known(self) -> dict[str, int]:
        """Return the ids the window holds, with their positions."""
        if self.idempotence == "off":
            return {}
        places = [place for together in self.remembered for place in together.positions]
        return {str(self.stored[place].id): place for place in places}

    def evict(self, now_us: int) -> None:
        """Forget the oldest: those that are too old, and those that are too many; a batch as a whole."""
        window = self.settings.window
        while self.remembered and self.remembered[0].tick_us <= now_us - window.duration_us:
            self.remembered.pop(0)
        while sum(len(together.positions) for together in self.remembered) > window.keys_max:
            self.remembered.pop(0)

    def reopen(self, now_us: int) -> None:
        """Rebuild the window from the log, as a writer does that opens it at this up-time."""
        self.remembered = []
        for together in self.written:
            self.evict(together.tick_us)
            self.remembered.append(together)
        self.evict(now_us)

    # Appending.

    def named(self, record: Record) -> Record:
        """Return the record with the id it will be stored with."""
        if record.id is not None or self.idempotence != "content":
            return record
        return Record(record.value, id=content_id(self.log_id, record))

    def apply(self, request: Request, now_us: int) -> Answer:
        """Return what a request is answered, and be as the log is afterwards."""
        records = [self.named(record) for record in request.records]
        if request.kind == "batch":
            return self._batch(records, now_us)
        if request.kind in ("one", "submit"):
            return [outcome for record in records for outcome in self._together([record], now_us)]
        return self._together(records, now_us)

    def _together(self, records: Sequence[Record], now_us: int) -> list[Outcome]:
        """Decide records one by one, against what was known before any of them, and against each other."""
        self.evict(now_us)
        known = self.known()
        outcomes = []
        for record in records:
            place = known.get(record.id) if record.id is not None else None
            if place is None:
                place = self._store([record], now_us)
                outcomes.append(Outcome("new", place))
                if record.id is not None:
                    known[record.id] = place
            else:
                same = self.stored[place].value == record.value
                outcomes.append(Outcome("duplicate" if same else "conflict", place))
        return outcomes

    def _batch(self, records: Sequence[Record], now_us: int) -> Answer:
        ids = [record.id for record in records if record.id is not None]
        mixed = bool(ids) and len(ids) != len(records)
        if mixed or len(set(ids)) != len(ids) or len(ids) > self.settings.window.keys_max:
            return Refusal(InvalidArgument)
        self.evict(now_us)
        known = self.known()
        if not any(id in known for id in ids):
            first = self._store(records, now_us)
            return [Outcome("new", first + row) for row in range(len(records))]
        places = tuple(known.get(id, -1) for id in ids)
        if places not in [together.positions for together in self.remembered]:
            return Refusal(
                PartialOverlap, tuple(id for id in ids if id in known), tuple(id for id in ids if id not in known)
            )
        if any(self.stored[place].value != record.value for place, record in zip(places, records, strict=True)):
            return Refusal(IdConflict)
        return [Outcome("duplicate", place) for place in places]

    def _store(self, records: Sequence[Record], now_us: int) -> int:
        first = len(self.stored)
        self.stored += [Stored(record.id, record.value) for record in records]
        if records[0].id is not None:
            together = Together(tuple(range(first, len(self.stored))), now_us)
            self.written.append(together)
            self.remembered.append(together)
        return first

    # After a crash.

    def settle(self, request: Request | None, now_us: int, found: Sequence[Stored]) -> None:
        """Take what a crash has left of a request that was not answered: all of it, or a part that may be there.

        Raises ``AssertionError`` when something else is there, or something is not that was.
        """
        assert list(found[: len(self.stored)]) == self.stored, "what was stored is not what is there"
        if len(found) == len(self.stored):
            return
        assert request is not None, f"{found[len(self.stored) :]} were never sent"
        after = self.copy()
        after.apply(request, now_us)
        assert list(found) == after.stored[: len(found)], "what is there is not what was sent"
        whole = {place for together in after.written for place in together.positions[1:]}
        assert len(found) not in whole, "a batch was torn"
        self.stored = after.stored[: len(found)]
        self.written = [together for together in after.written if together.positions[-1] < len(found)]
