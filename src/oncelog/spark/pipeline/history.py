"""What a pipeline did, batch by batch, in one file to which every run appends: a kill leaves earlier lines.

The file does not grow for ever: when it has become long, its older half is summed up in one line. Figures of all runs
stay what they were; what is plotted, batch by batch, is what is left.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import msgspec

from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.pipeline.storing import Account
from oncelog.spark.pipeline.whole_file import write_whole
from oncelog.storage.local import links

BYTES_MAX = 2 << 20
"""How long the file may become: some ten thousand batches."""

Leg = Literal["into the log", "out of the log"]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A run began, when the log had so many records, and so many conflicts aside."""

    at_us: int
    stored: int
    conflicts: int


class BatchDone(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A batch was done: how many rows it had, how long it took, and how many records the log had then.

    ``exported`` is up to which position the sink has them; ``triggered_us`` is when Spark began the batch. ``query`` is
    the query that stored it, and ``account`` what became of its rows, where the log has counted them.
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
    query: str = ""
    account: Account = Account()


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A run came to its end by itself."""

    at_us: int


class Summed(msgspec.Struct, frozen=True, kw_only=True, tag="summed"):
    """What there was before all other events: so many runs since ``began_us``, what became of so many rows, and how
    many records and conflicts of the log are accounted for. ``ended`` is whether the last event was the end of a run.
    """

    at_us: int
    began_us: int
    runs: int
    batches: int
    attempts: int
    settled: int
    duplicates: int
    aside: int
    stored: int
    conflicts: int
    exported: int | None
    ended: bool
    rejected: int = 0
    rescued: int = 0
    left_out: int = 0
    missing: int = 0
    totals: dict[str, tuple[int, int, int]] = {}


Event = Started | BatchDone | Ended | Summed


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
        self._path.parent.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
        with self._held() as file:
            file.write(self._end_of_line() + msgspec.json.encode(event) + b"\n")
            file.flush()
            if file.tell() > BYTES_MAX:
                left = thinned(list(self))
                write_whole(self._path, b"".join(msgspec.json.encode(one) + b"\n" for one in left))

    def _end_of_line(self) -> bytes:
        """Return what ends a line that a full disk cut short, so that the next one is not lost with it."""
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return b"" if file.read() in {b"", b"\n"} else b"\n"

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        """Yield the file, held: two runs that overlap take turns, and neither writes to one that was replaced."""
        while True:
            with links.append_to(self._path) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):  # noqa: PTH116 (one line)
                    yield file
                    return

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, oldest first; a line that a kill cut short is left out."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Event)
            except UNREADABLE:
                continue


def of(given: Spec, folder: Path) -> History:
    """Return a pipeline's history: in its checkpoint, or beside the spec if that is on another machine."""
    checkpoint = spec.local_path(given.checkpoint)
    return History(checkpoint / "history.jsonl" if checkpoint is not None else folder / f"{given.name}.history.jsonl")


class Settled(msgspec.Struct, frozen=True):
    """What became of the rows of one batch into the log."""

    batch: BatchDone
    stored: int
    conflicts: int
    counted: int | None = None

    @property
    def duplicates(self) -> int:
        """The rows that the log had already."""
        if self.counted is not None:
            return self.counted
        account = self.batch.account
        rows = self.batch.rows - account.rejected - account.left_out
        return max(0, rows - self.stored - self.conflicts)

    @property
    def rows(self) -> int:
        """The rows that came in. They can be more than the rows of the batch: an earlier attempt of the batch may have
        stored other rows, and was killed before it noted them here.
        """
        if self.counted is None:
            return self.batch.rows
        account = self.batch.account
        settled = self.stored + self.conflicts + self.counted
        return max(self.batch.rows, settled + account.rejected + account.left_out + account.missing)


def settled(events: Sequence[Event]) -> list[Settled]:
    """Return what became of each batch's rows, by how the log grew.

    A batch that was stored when its run was killed is done again by the next run, which finds all of it there: it is
    counted once, with what it stored the first time. What others stored between runs that ended is not counted.
    """
    return _settled(events)[0]


def _settled(events: Sequence[Event]) -> tuple[list[Settled], int, int]:
    """Return what became of each batch's rows, and the records and conflicts that are accounted for then.

    Where the log has counted a query's rows, by how its sums grew; else by how the log grew.
    """
    found: list[Settled] = []
    totals: dict[str, tuple[int, int, int]] = {}
    stored = conflicts = 0
    fresh = True
    for event in events:
        if isinstance(event, Summed):
            totals |= event.totals
        if isinstance(event, BatchDone) and event.leg == "into the log":
            if event.account.totals is not None:
                before = totals.get(event.query, (0, 0, 0))
                totals[event.query] = event.account.totals
                new = [now - then for now, then in zip(event.account.totals, before, strict=True)]
                found.append(Settled(event, new[0], new[2], new[1]))
            else:
                found.append(Settled(event, event.stored - stored, event.conflicts - conflicts))
            stored, conflicts = event.stored, event.conflicts
        elif isinstance(event, Summed) or (isinstance(event, Started) and fresh):
            stored, conflicts = event.stored, event.conflicts
        fresh = _is_end(event)
    return found, stored, conflicts


def _is_end(event: Event) -> bool:
    """Tell whether a run ended with an event by itself."""
    return event.ended if isinstance(event, Summed) else isinstance(event, Ended)


def _done_once(into: Sequence[Settled]) -> list[Settled]:
    """Return batches without those that were done before: the rows of a replayed batch came in once.

    A batch that comes again with other rows, because a file has changed, is counted again.
    """
    done: dict[tuple[str, int], Settled] = {}
    for number, one in enumerate(into):
        key = (one.batch.query, one.batch.batch) if one.batch.query else ("", -1 - number)
        earlier = done.get(key)
        if earlier is None:
            done[key] = one
        elif one.stored or one.conflicts or one.counted:
            done["", -1 - number] = one
    return list(done.values())


def summed(events: Sequence[Event]) -> Summed:
    """Return what all runs did together."""
    every, stored, conflicts = _settled(events)
    into = _done_once(every)
    accounts = [one.batch.account for one in into]
    totals = {one.batch.query: one.batch.account.totals for one in every if one.batch.account.totals is not None}
    before = next((event for event in events if isinstance(event, Summed)), _NOTHING)
    sent = [event.exported for event in events if isinstance(event, BatchDone | Summed) and event.exported is not None]
    began = [event.at_us for event in events if isinstance(event, Started)]
    return Summed(
        at_us=max((event.at_us for event in events), default=0),
        began_us=before.began_us or min(began, default=0),
        runs=before.runs + len(began),
        batches=before.batches + len(into),
        attempts=before.attempts + sum(one.rows for one in into),
        settled=before.settled + sum(one.stored for one in into),
        duplicates=before.duplicates + sum(one.duplicates for one in into),
        aside=before.aside + sum(one.conflicts for one in into),
        stored=stored,
        conflicts=conflicts,
        exported=max(sent, default=None),
        ended=_is_end(events[-1]) if events else True,
        rejected=before.rejected + sum(account.rejected for account in accounts),
        rescued=before.rescued + sum(account.rescued for account in accounts),
        left_out=before.left_out + sum(account.left_out for account in accounts),
        missing=before.missing + sum(account.missing for account in accounts),
        totals=before.totals | totals,
    )


_NOTHING = Summed(
    at_us=0,
    began_us=0,
    runs=0,
    batches=0,
    attempts=0,
    settled=0,
    duplicates=0,
    aside=0,
    stored=0,
    conflicts=0,
    exported=None,
    ended=True,
)


def thinned(events: list[Event]) -> list[Event]:
    """Return events with the older half of them summed up."""
    middle = len(events) // 2
    return [summed(events[:middle]), *events[middle:]]


def kills(events: Sequence[Event]) -> list[int]:
    """Return when runs were cut short: the time of the last that is known of each."""
    found: list[int] = []
    last: Event | None = None
    for event in events:
        if isinstance(event, Started) and last is not None and not _is_end(last):
            found.append(last.at_us)
        last = event
    return found


def recent(events: list[Event]) -> list[Event]:
    """Return the events of the last run, and of earlier runs that were cut short and that the last run continued."""
    ends = [number for number, event in enumerate(events[:-1]) if _is_end(event)]
    return events[ends[-1] + 1 :] if ends else events
