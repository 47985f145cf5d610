"""What goes into a log, what comes out of it, and the answer to an append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(timestamp_us: int) -> datetime:
    """Return a stored timestamp (microseconds since 1970, UTC) as a datetime, exactly."""
    return EPOCH + timedelta(microseconds=timestamp_us)


def micros(when: datetime) -> int:
    """Return an aware datetime as microseconds since 1970, exactly."""
    return (when - EPOCH) // timedelta(microseconds=1)


class Record(msgspec.Struct, frozen=True):
    """What a user appends: a value, and what is known about it.

    >>> Record(b"paid", id="order-42").id
    'order-42'
    """

    value: bytes
    id: str | None = None
    stream: str | None = None
    type: str | None = None
    headers: Mapping[str, bytes] | None = None
    producer: str | None = None
    sequence: int | None = None
    tenant: str | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stored record: what was appended, where it stands, and when it was stored.

    ``position`` counts over the whole log without gaps; ``entry`` counts from 0 in its ``segment``.
    None of the three ever changes. ``timestamp`` never goes back within a log.
    """

    position: int
    segment: int
    entry: int
    timestamp: datetime
    id: str | None
    value: bytes
    stream: str | None = None
    type: str | None = None
    headers: Mapping[str, bytes] | None = None
    producer: str | None = None
    sequence: int | None = None
    tenant: str | None = None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The answer to an append: the record is durable, at this place.

    ``duplicate``: the record was stored before, and this is its original place. ``conflict``: under
    ``on_conflict="original"``, a record with this id and other content was stored before, and stands.
    """

    position: int | None
    segment: int | None
    entry: int | None
    timestamp: datetime | None
    duplicate: bool = False
    conflict: bool = False


class AckRun(Sequence[Ack]):
    """The acks of new records that follow each other in one block. Each ack is made when it is asked for: a server that
    sends them in columns makes none.
    """

    __slots__ = ("_count", "entry", "position", "segment", "time_us")

    def __init__(self, position: int, segment: int, entry: int, time_us: int, count: int) -> None:
        """Note the place of the first, the time of all, and how many they are."""
        self.position = position
        self.segment = segment
        self.entry = entry
        self.time_us = time_us
        self._count = count

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    @overload
    def __getitem__(self, at: int) -> Ack: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Ack]: ...
    def __getitem__(self, at: int | slice) -> Ack | Sequence[Ack]:
        """Return one of them, or some: those that follow each other are a run again."""
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            if step != 1:
                return [self[nth] for nth in range(start, stop, step)]
            place = self.position + start, self.segment, self.entry + start
            return AckRun(*place, self.time_us, max(0, stop - start))
        nth = range(self._count)[at]
        return Ack(self.position + nth, self.segment, self.entry + nth, moment(self.time_us))

    def __iter__(self) -> Iterator[Ack]:
        """Return each of them in turn."""
        positions = range(self.position, self.position + self._count)
        entries = range(self.entry, self.entry + self._count)
        return map(Ack, positions, repeat(self.segment), entries, repeat(moment(self.time_us)))


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record with an id is: the newest, if a bounded window once let it be stored again, or the one that a
    purge left.

    ``fingerprint`` is a keyed hash of all that was given with the id: that of a retry with the same content is the
    same.
    """

    position: int
    segment: int
    entry: int
    timestamp: datetime
    fingerprint: int


class ColumnAcks(msgspec.Struct, frozen=True):
    """The answer to ``append_arrow``: one element a row, in the order of the rows."""

    positions: NDArray[np.int64]
    duplicates: NDArray[np.bool_]
    conflicts: NDArray[np.bool_]
