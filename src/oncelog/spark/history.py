"""What a pipeline did, batch by batch, in one file that every run adds to: a kill leaves what was noted before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from oncelog.spark import spec
from oncelog.spark.spec import Spec

Leg = Literal["into the log", "out of the log"]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A run began, when the log had so many records, and so many conflicts aside."""

    at_us: int
    stored: int
    conflicts: int


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A batch was done: how many rows it had, how long it took, and how many records the log had then.

    ``exported`` is up to which position the sink has them; ``triggered_us`` is when Spark began the batch.
    """

    leg: Leg
    batch: int
    rows: int
    at_us: int
    triggered_us: int
    duration_ms: int
    stored: int
    conflicts: int
    exported: int | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A run came to its end by itself."""

    at_us: int


Event = Started | Batch | Ended


class Events(Protocol):
    """Where events are kept."""

    def add(self, event: Event) -> None:
        """Add an event."""
        ...

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, oldest first."""
        ...


class Passing:
    """Events that are kept as long as the process: for a job whose log is all that the next one needs."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, oldest first."""
        return iter(self._events)


class History:
    """The file of events."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: Event) -> None:
        """Add an event."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, oldest first; a line that a kill cut short is left out."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Event)
            except msgspec.MsgspecError:
                continue


def of(given: Spec, folder: Path) -> History:
    """Return a pipeline's history: in its checkpoint, or beside the spec if that is on another machine."""
    checkpoint = spec.local_path(given.checkpoint)
    return History(checkpoint / "history.jsonl" if checkpoint is not None else folder / f"{given.name}.history.jsonl")


class Settled(msgspec.Struct, frozen=True):
    """What became of the rows of one batch into the log."""

    batch: Batch
    stored: int
    conflicts: int

    @property
    def duplicates(self) -> int:
        """The rows that were there before."""
        return max(0, self.batch.rows - self.stored - self.conflicts)


def settled(events: list[Event]) -> list[Settled]:
    """Return what became of each batch's rows, by how the log grew.

    A batch that was stored when its run was killed is done again by the next run, which finds all of it there: it is
    counted once, with what it stored the first time.
    """
    found: list[Settled] = []
    before = next((event for event in events if isinstance(event, Started)), None)
    stored, conflicts = (before.stored, before.conflicts) if before is not None else (0, 0)
    for event in events:
        if isinstance(event, Batch) and event.leg == "into the log":
            found.append(Settled(event, event.stored - stored, event.conflicts - conflicts))
            stored, conflicts = event.stored, event.conflicts
    return found


def kills(events: list[Event]) -> list[int]:
    """Return when runs were cut short: the time of the last that is known of each."""
    found: list[int] = []
    last: Event | None = None
    for event in events:
        if isinstance(event, Started) and last is not None and not isinstance(last, Ended):
            found.append(last.at_us)
        last = event
    return found


def recent(events: list[Event]) -> list[Event]:
    """Return the events of the last run, and of those before it that were cut short and that it went on with."""
    ends = [number for number, event in enumerate(events[:-1]) if isinstance(event, Ended)]
    return events[ends[-1] + 1 :] if ends else events
