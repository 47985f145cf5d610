"""What goes into a log, what comes out of it, and the answer to an append."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

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


class Entry(msgspec.Struct, frozen=True):
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
