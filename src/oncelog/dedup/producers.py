"""Producers and their sequences: how far each got, and whether a sequence is new, known, or out of order.

Per producer there are two facts. What is *persisted* (the last sequence that is durable, and its position) is a fold
of the log: that of its last record. What was *pushed* belongs to a session: the sequences that were admitted since it
began, stored or still on their way. With H the last one persisted when the session began, a sequence at or below H is
a duplicate; above H it is new if it is higher than any that was pushed, a duplicate if it is one of those, and out of
order otherwise: two threads that push 7, then 6, must not lose the 6.
"""

from __future__ import annotations

import bisect
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import InvalidArgument
from oncelog.format.payload import arrays
from oncelog.format.snapshot import ProducerMark

__all__ = ["UNKNOWN", "ProducerMark", "Producers", "Pushed", "last_marks", "mixed", "used_up"]

RUNS_MAX = 1024
"""So many runs of sequences without a gap, in sequence and in position, a session remembers beside those in flight."""

_FEW = 8
"""So many runs are sooner pushed one by one."""

SEQUENCE_MAX = (1 << 63) - 1
UNKNOWN = -1
"""The position of a duplicate that is too old to tell it."""


class Pushed(NamedTuple):
    """The last that some records bring of one producer: a sequence and its position."""

    sequence: int
    position: int


class _Session:
    """What one producer pushed since its session began.

    Runs are consecutive sequences at consecutive positions, in three arrays of one length, in order; a run whose
    positions were forgotten has ``UNKNOWN``. ``floor`` is H. Sequences above it and up to ``blurred`` are so long ago
    that it is no longer known which of them were pushed. ``owner`` refers weakly to the one who has the session open: a
    handle that was dropped holds no name.
    """

    __slots__ = ("blurred", "counted", "firsts", "floor", "lasts", "next_sequence", "owner", "positions")

    def __init__(self, floor: int | None) -> None:
        self.floor = self.blurred = floor
        self.counted: bool | None = None
        self.next_sequence = 0 if floor is None else floor + 1
        self.owner: weakref.ref[object] | None = None
        self.firsts = array("q")
        self.lasts = array("q")
        self.positions = array("q")

    @property
    def is_open(self) -> bool:
        """Whether somebody has the session open."""
        return self.owner is not None and self.owner() is not None

    @property
    def last(self) -> int | None:
        """The highest sequence that was pushed, or persisted before the session."""
        return self.lasts[-1] if self.lasts else self.floor

    @property
    def last_position(self) -> int:
        """The position of the last one pushed in this session; -1 when there is none, or it is forgotten."""
        return self.positions[-1] + self.lasts[-1] - self.firsts[-1] if self.lasts else UNKNOWN

    def find(self, sequence: int) -> int | None:
        """Return the position of a sequence that was pushed (perhaps ``UNKNOWN``), ``None`` for one that was not."""
        at = bisect.bisect_right(self.firsts, sequence) - 1
        if at < 0 or sequence > self.lasts[at]:
            return None
        position = self.positions[at]
        return position if position == UNKNOWN else position + sequence - self.firsts[at]

    def push(self, first: int, last: int, position: int, stored_position: int) -> None:
        """Add a run of sequences that are higher than all before."""
        if self.lasts and first == self.lasts[-1] + 1 and position == self._behind():
            self.lasts[-1] = last
            return
        self.firsts.append(first)
        self.lasts.append(last)
        self.positions.append(position)
        if len(self.firsts) > RUNS_MAX:
            self._forget(stored_position)

    def push_many(
        self, firsts: NDArray[np.int64], lasts: NDArray[np.int64], positions: NDArray[np.int64], stored_position: int
    ) -> None:
        """Add many runs, each higher than all before."""
        self.push(int(firsts[0]), int(lasts[0]), int(positions[0]), stored_position)
        for mine, more in ((self.firsts, firsts), (self.lasts, lasts), (self.positions, positions)):
            mine.frombytes(np.ascontiguousarray(more[1:], np.int64).tobytes())
        if len(self.firsts) > RUNS_MAX:
            self._forget(stored_position)

    def _behind(self) -> int:
        last = self.positions[-1]
        return last if last == UNKNOWN else last + self.lasts[-1] - self.firsts[-1] + 1

    def _forget(self, stored_position: int) -> None:
        """Make room: the older half of what is stored loses its positions, and then, if there are gaps, itself.

        Done for many at once: it takes as long as there are runs.
        """
        old = min(bisect.bisect_left(self.positions, stored_position), len(self.firsts) // 2)
        if old < RUNS_MAX // 2:
            return
        firsts, lasts = np.array(self.firsts[:old]), np.array(self.lasts[:old])
        gaps = firsts[1:] != lasts[:-1] + 1
        firsts, lasts = firsts[np.concatenate(([True], gaps))], lasts[np.concatenate((gaps, [True]))]
        dropped = max(0, len(firsts) - RUNS_MAX // 4)
        if dropped:
            self.blurred = int(lasts[dropped - 1])
        self.firsts = array("q", firsts[dropped:].tolist()) + self.firsts[old:]
        self.lasts = array("q", lasts[dropped:].tolist()) + self.lasts[old:]
        self.positions = array("q", [UNKNOWN]) * (len(firsts) - dropped) + self.positions[old:]


class Producers:
    """All producers of one log, as one writer knows them. Does nothing by itself; not safe for threads: one owner.

    Marks stand in the order of their last activity. ``expired`` and ``evicted`` count the producers that were forgotten
    for their inactivity, and for the cap.
    """

    def __init__(self, marks: Mapping[str, ProducerMark] | None = None) -> None:
        ordered = sorted((marks or {}).items(), key=lambda item: (item[1].active_us, item[1].last_position))
        self._marks: OrderedDict[str, ProducerMark] = OrderedDict(ordered)
        self._sessions: dict[str, _Session] = {}
        self.expired = self.evicted = 0
        self._crowd: tuple[int, int] | None = None  # how many were left, of which cap, when those that are open stayed

    def __len__(self) -> int:
        """Return how many producers have something that is durable."""
        return len(self._marks)

    def marks(self) -> dict[str, ProducerMark]:
        """Return how far each producer got, the least recently active first."""
        return dict(self._marks)

    def mark(self, name: str) -> ProducerMark | None:
        """Return how far a producer got; ``None`` for one that has nothing durable."""
        return self._marks.get(name)

    # Sessions.

    def open(self, name: str, owner: object, initial_sequence: int | None = None) -> None:
        """Begin a session of an owner, which takes over what is still on its way; an owner before it has none any more.

        ``initial_sequence`` is the first that will be counted.
        """
        session = self._sessions[name] = self._begun(name, self._sessions.get(name))
        session.owner = weakref.ref(owner)
        if initial_sequence is not None:
            session.next_sequence = initial_sequence

    def owner(self, name: str) -> object | None:
        """Return the one who has a producer open; ``None`` if nobody has."""
        session = self._sessions.get(name)
        return None if session is None or session.owner is None else session.owner()

    def _begun(self, name: str, before: _Session | None) -> _Session:
        mark = self._marks.get(name)
        session = _Session(mark.last_sequence if mark is not None else None)
        if before is not None and before.last is not None and (session.floor is None or before.last > session.floor):
            at = 0 if session.floor is None else bisect.bisect_right(before.lasts, session.floor)
            session.firsts, session.lasts = before.firsts[at:], before.lasts[at:]
            session.positions = before.positions[at:]
            session.next_sequence = before.last + 1
        return session

    def close(self, name: str, owner: object) -> None:
        """End a session, if it is still its owner's."""
        session = self._sessions.get(name)
        if session is not None and self.owner(name) is owner:
            session.owner = None

    def restart(self) -> None:
        """Begin every session again: nothing is pending."""
        for name, before in self._sessions.items():
            session = self._sessions[name] = self._begun(name, None)
            session.owner, session.counted = before.owner, before.counted
            session.next_sequence = max(session.next_sequence, before.next_sequence)

    def _session(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = self._begun(name, None)
        return session

    # Deciding.

    def count(self, name: str, sequence: int | None, records: int = 1) -> int:
        """Return the sequence of a producer's next record: the one given, or the next if this session counts.

        A session gives every record its sequence, or none, and so many ``records`` must have one left to count:
        ``InvalidArgument`` otherwise.
        """
        session = self._session(name)
        counted = sequence is None
        if session.counted is not None and session.counted != counted:
            raise mixed(name, counted=session.counted)
        session.counted = counted
        if sequence is not None:
            return sequence
        if session.next_sequence > SEQUENCE_MAX - records + 1:
            raise used_up(name)
        return session.next_sequence

    def count_on(self, name: str, next_sequence: int) -> None:
        """Note up to where sequences were counted, though they turned out to be known."""
        self._session(name).next_sequence = next_sequence

    def find(self, name: str, sequence: int) -> int | None:
        """Return ``None`` for a sequence that is new, else the position of the one that is there, or ``UNKNOWN``.

        Raises ``InvalidArgument`` for one that is neither: it is out of order.
        """
        session = self._session(name)
        last = session.last
        if last is None or sequence > last:
            return None
        if session.floor is not None and sequence <= session.floor:
            mark = self._marks.get(name)
            return mark.last_position if mark is not None and mark.last_sequence == sequence else UNKNOWN
        found = session.find(sequence)
        if found is not None:
            return found
        if session.blurred is not None and sequence <= session.blurred:
            message = (
                f"producer {name!r}: sequence {sequence} is so long ago that this session no longer knows whether it "
                "was pushed: close the producer and open it again"
            )
        else:
            message = (
                f"producer {name!r}: sequence {sequence} was never pushed, and {last} was: sequences must increase, so "
                "this record would be lost; push it under a higher one"
            )
        raise InvalidArgument(message)

    def is_above(self, name: str, sequence: int) -> bool:
        """Tell whether a sequence is higher than all that was pushed."""
        last = self._session(name).last
        return last is None or sequence > last

    def push(self, name: str, first: int, last: int, position: int, stored_position: int) -> None:
        """Note that records were admitted: sequences ``first`` to ``last`` without a gap, from that position on."""
        session = self._session(name)
        session.next_sequence = last + 1
        highest = session.last
        if highest is None or first > highest:
            session.push(first, last, position, stored_position)
        elif last > highest:  # nothing is checked now: that it is on its way is all that counts
            session.push(last, last, position + last - first, stored_position)

    def push_runs(
        self,
        name: str,
        firsts: NDArray[np.int64],
        lasts: NDArray[np.int64],
        positions: NDArray[np.int64],
        stored_position: int,
    ) -> None:
        """Note that many such runs were admitted, in this order."""
        if len(firsts) > _FEW and self.is_above(name, int(firsts[0])) and (firsts[1:] > lasts[:-1]).all():
            session = self._session(name)
            session.next_sequence = int(lasts[-1]) + 1
            session.push_many(firsts, lasts, positions, stored_position)
            return
        for first, last, position in zip(firsts.tolist(), lasts.tolist(), positions.tolist(), strict=True):
            self.push(name, first, last, position, stored_position)

    # What is durable.

    def persist(self, pushed: Mapping[str, Pushed], uptime_us: int) -> None:
        """Note that these are durable, at this up-time."""
        for name, last in pushed.items():
            self._marks[name] = ProducerMark(last.sequence, last.position, uptime_us)
            self._marks.move_to_end(name)

    def touch(self, name: str, uptime_us: int) -> None:
        """Note that a producer is active, though it brought nothing new."""
        mark = self._marks.get(name)
        if mark is not None:
            self._marks[name] = ProducerMark(mark.last_sequence, mark.last_position, uptime_us)
            self._marks.move_to_end(name)

    def evict(self, uptime_us: int, *, inactive_us: int, max_producers: int, stored_position: int) -> None:
        """Forget the producers that were inactive for too long, and the least recently active beyond the cap.

        One that is open is active: its session knows its sequences, and its retry would be stored again. One with
        something on its way stays too.
        """
        if not self._marks:
            return
        excess = len(self._marks) - max_producers
        crowded = excess > 0 and self._crowd != (len(self._marks), max_producers)
        oldest = next(iter(self._marks.values()))
        if not crowded and oldest.active_us + inactive_us > uptime_us:
            return
        victims: list[tuple[str, bool]] = []
        spared: list[str] = []
        for name, mark in self._marks.items():
            expired = mark.active_us + inactive_us <= uptime_us
            if not expired and excess <= len(victims):
                break
            session = self._sessions.get(name)
            if session is not None and session.is_open:
                spared.append(name)
            elif session is None or session.last_position < stored_position:
                victims.append((name, expired))
        self._drop(victims)
        for name in spared:
            self.touch(name, uptime_us)
        self._crowd = (len(self._marks), max_producers) if spared else None

    def _drop(self, victims: list[tuple[str, bool]]) -> None:
        for name, expired in victims:
            self.forget(name)
            self.expired += expired
            self.evicted += not expired

    def forget(self, name: str) -> None:
        """Forget a producer: its next sequence is its first. Its owner goes on in a new session."""
        self._marks.pop(name, None)
        before = self._sessions.pop(name, None)
        if before is not None and before.is_open:
            session = self._sessions[name] = _Session(None)
            session.owner, session.counted = before.owner, before.counted
            session.next_sequence = before.next_sequence

    def fold(self, payload: pa.RecordBatch, first_position: int, uptimes_us: NDArray[np.int64]) -> None:
        """Take in stored records, which come in the order of their positions."""
        for name, (sequence, row) in last_marks(payload).items():
            self._marks[name] = ProducerMark(sequence, first_position + row, int(uptimes_us[row]))
            self._marks.move_to_end(name)


def mixed(name: str, *, counted: bool) -> InvalidArgument:
    """Return the error for a sequence that is given where they are counted, or missing where they are given."""
    message = (
        f"producer {name!r} {'counts its sequences' if counted else 'gives its sequences'}: "
        f"{'none may be given' if counted else 'every record must carry one'}"
    )
    return InvalidArgument(message)


def used_up(name: str) -> InvalidArgument:
    """Return the error for a record that has no sequence left."""
    message = f"producer {name!r} has come to the highest sequence there is: go on under another name"
    return InvalidArgument(message)


def last_marks(payload: pa.RecordBatch) -> dict[str, Pushed]:
    """Return, for each producer in a payload, its last sequence and the row of that; in the order of those rows."""
    names = payload.schema.names
    if "producer" not in names or "sequence" not in names:
        return {}
    producers = payload.column(names.index("producer")).dictionary_encode()
    sequences = payload.column(names.index("sequence"))
    valid = np.flatnonzero(arrays.present(producers.indices) & arrays.present(sequences))
    codes = np.asarray(producers.indices.fill_null(0))[valid]
    rows = np.full(len(producers.dictionary), -1, np.int64)
    rows[codes] = valid  # of several for one producer, the last stays
    numbers = np.asarray(sequences.fill_null(0))
    last = [
        (int(row), name) for row, name in zip(rows.tolist(), producers.dictionary.to_pylist(), strict=True) if row >= 0
    ]
    return {name: Pushed(int(numbers[row]), row) for row, name in sorted(last)}
