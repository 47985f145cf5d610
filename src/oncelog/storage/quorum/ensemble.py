"""The ensemble of a segment: on which nodes its blocks are, and where it ends. Both are kept in the store."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from oncelog.errors import CorruptionError, NotFound
from oncelog.format import frame
from oncelog.shapes import UNREADABLE
from oncelog.storage.base import ENSEMBLES, LogHome, SegmentEnd

TAILS, RESCUED, UNREMOVED = "tails/", "rescued/", "unremoved/"
_KIND, _FORMAT = b"OLqe", 1
_TAIL_KIND, _TAIL_FORMAT = b"OLqt", 1
_T = TypeVar("_T")


class Ensemble(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the blocks of one segment.

    ``folder`` is a random name below which the registers are, on every node: a create that arrives late, after the
    segment or its log was removed, is never read. ``nodes`` are names with identities. An ensemble without
    nodes is a tombstone: the segment was fenced before it was started.
    """

    epoch: int
    ack: int
    in_flight_max: int
    folder: str
    nodes: tuple[tuple[str, str], ...]

    @property
    def fences(self) -> int:
        """How many fences in a number's registers mean that its block can never be chosen: W - A + 1."""
        return len(self.nodes) - self.ack + 1


def key_of(segment: int) -> str:
    """Return the key of a segment's ensemble."""
    return f"{ENSEMBLES}{segment:020d}"


def tail_key(segment: int) -> str:
    """Return the key of a segment's decided tail."""
    return f"{TAILS}{segment:020d}"


def rescued_key(segment: int, number: int) -> str:
    """Return the key of a block that too few nodes hold, kept in the store."""
    return f"{RESCUED}{segment:020d}/{number:010d}"


def read(store: LogHome, segment: int) -> Ensemble | None:
    """Return the ensemble of a segment; ``None`` if the segment was never started."""
    return _read(store, key_of(segment), _KIND, _FORMAT, Ensemble)


def create(store: LogHome, segment: int, ensemble: Ensemble) -> Ensemble:
    """Store an ensemble, or return the one that is there."""
    return _created(store, key_of(segment), frame.wrap(_KIND, _FORMAT, msgspec.json.encode(ensemble)), ensemble)


def read_tail(store: LogHome, segment: int) -> SegmentEnd | None:
    """Return where a segment ends, if that is decided."""
    return _read(store, tail_key(segment), _TAIL_KIND, _TAIL_FORMAT, SegmentEnd)


def decide_tail(store: LogHome, segment: int, tail: SegmentEnd) -> SegmentEnd:
    """Decide where a segment ends: the first who stores it decides. Return what holds."""
    return _created(store, tail_key(segment), frame.wrap(_TAIL_KIND, _TAIL_FORMAT, msgspec.json.encode(tail)), tail)


def _created(store: LogHome, key: str, data: bytes, value: _T) -> _T:
    if store.create(key, [data]):
        return value
    found = _read(store, key, data[:4], 1, type(value))
    assert found is not None  # these objects are never deleted while the log lives
    return found


def _read(store: LogHome, key: str, kind: bytes, version: int, wanted: type[_T]) -> _T | None:
    try:
        data = store.read(key)
    except NotFound:
        return None
    where = store.location(key)
    try:
        return msgspec.json.decode(frame.unwrap(kind, version, data, where), type=wanted)
    except UNREADABLE as error:
        message = f"{where}: cannot be read ({error})"
        raise CorruptionError(message) from error
