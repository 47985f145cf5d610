"""Deciding records in columns: which are new, which are duplicates, and which conflict with a stored record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.ring import Handles
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow
from oncelog.errors import InvalidArgument, PartialOverlap
from oncelog.format.payload import arrays
from oncelog.format.payload.rows_by_producer import Owners
from oncelog.log.append.answers import RECALLED_US, Admitted
from oncelog.log.append.payloads import Keys
from oncelog.log.memory.quest import Found
from oncelog.log.memory.run_set import Hit
from oncelog.log.stored.adopted_ids import Adopted


class Seen(NamedTuple):
    """All that a log remembers: the window of what was appended (``None``: idempotence is off), and adopted files."""

    window: DedupWindow | None
    adopted: Adopted

    def evict(self, uptime_us: int) -> None:
        """Forget what is too old, or too much."""
        if self.window is not None:
            self.window.evict(uptime_us)
            self.adopted.evict(uptime_us)

    def defers(self, count: int) -> bool:
        """Guess whether so many rows, if they are new, would be entered now and their values hashed later. The lock
        need not be held.
        """
        window = self.window
        return window is not None and (isinstance(window, Table) or not self.adopted) and window.defers(count)

    def elsewhere(self, keys: NDArray[np.uint64], recalled: Found | None) -> Found | None:
        """Return what is known of identities beside the window; ``recalled`` is what the runs know.

        Where a window is bounded, that is what was adopted within its duration, whether a run has it or not.
        """
        if isinstance(self.window, Table) or (recalled is None and not self.adopted):
            return recalled
        held = self.adopted.find(keys)
        positions, fingerprints = held.positions.copy(), held.fingerprints.copy()
        if recalled is None:
            alone = positions >= 0
            return Found(positions, fingerprints, alone, alone, np.zeros(len(keys), np.bool_))
        newer = (recalled.positions > positions) & self.adopted.have(recalled.positions)
        positions[newer], fingerprints[newer] = recalled.positions[newer], recalled.fingerprints[newer]
        alone = positions >= 0  # each record of an adopted file is a batch of its own
        return Found(positions, fingerprints, alone, alone, recalled.failed & ~alone, recalled.errors)

    def elsewhere_one(self, high: int, low: int, hit: Hit | None) -> tuple[int, int] | None:
        """Return position and fingerprint of one identity that is known beside the window."""
        if isinstance(self.window, Table):
            return None if hit is None else (hit.position, hit.fingerprint)
        if self.adopted:
            held = self.adopted.find(np.array([[high, low]], np.uint64))
            if held.positions[0] >= 0:
                return int(held.positions[0]), int(held.fingerprints[0])
        if hit is None or not self.adopted.have(np.array([hit.position]))[0]:
            return None
        return hit.position, hit.fingerprint


class Met:
    """What was found for the rows of a payload by their sequences.

    ``open`` rows are to be decided further: they carry a new sequence, or none. The others are known, at ``positions``
    (-1 if that is too long ago) or in an earlier row (``repeats``, else -1), or ``refused``.
    """

    __slots__ = ("open", "positions", "refused", "repeats")

    def __init__(self, count: int) -> None:
        self.open: NDArray[np.bool_] = np.ones(count, np.bool_)
        self.positions: NDArray[np.int64] = np.full(count, -1, np.int64)
        self.repeats: NDArray[np.int64] = np.full(count, -1, np.int64)
        self.refused: dict[int, InvalidArgument] = {}


class Judged:
    """A payload with every sequence filled in, whose its rows are, and what was met (``None``: all rows are open)."""

    __slots__ = ("met", "owners", "payload")

    def __init__(self, payload: pa.RecordBatch, owners: Owners) -> None:
        self.payload = payload
        self.owners = owners
        self.met: Met | None = None

    def meet(self) -> Met:
        """Return what was met, to be added to."""
        if self.met is None:
            self.met = Met(self.payload.num_rows)
        return self.met


def decide(
    payload: pa.RecordBatch,
    keys: Keys | None,
    seen: Seen,
    next_position: int,
    uptime_us: int,
    *,
    judged: Judged | None = None,
    recalled: Found | None = None,
) -> Admitted:
    """Decide each row on its own, but for those that were judged by their sequence. Nothing is changed but what the
    window evicts. ``recalled`` is what the runs know of the keys.
    """
    if judged is not None and judged.met is not None:
        return _decide_met(payload, keys, seen, next_position, uptime_us, judged.met, recalled)
    return _decide(Admitted(payload), keys, seen, next_position, uptime_us, recalled)


def enter(  # noqa: PLR0917
    payload: pa.RecordBatch, keys: Keys | None, seen: Seen, next_position: int, uptime_us: int, recalled: Found | None
) -> Admitted | None:
    """Decide rows and remember them, in one walk, if each has an id that is new; ``None`` if that is not so, or takes
    more than one walk: then nothing is changed but what the window evicts.
    """
    window = seen.window
    if window is None or keys is None or keys.rows is not None or recalled is not None:
        return None
    seen.evict(uptime_us)
    if "start" in payload.schema.names or (seen.adopted and not isinstance(window, Table)):
        return None
    if not window.enter(keys.identities, next_position, keys.hashed):
        return None
    admitted = Admitted(payload)
    admitted.number(next_position)
    return admitted


def _decide_met(  # noqa: PLR0917
    payload: pa.RecordBatch,
    keys: Keys | None,
    seen: Seen,
    next_position: int,
    uptime_us: int,
    met: Met,
    recalled: Found | None,
) -> Admitted:
    """Decide the rows that a judgement by sequence left open. A row with a sequence has no id."""
    admitted = Admitted(payload)
    admitted.new = met.open
    admitted.duplicates = ~met.open
    admitted.duplicates[list(met.refused)] = False
    admitted.positions[:] = met.positions
    admitted.refused = dict(met.refused)
    _decide(admitted, keys, seen, next_position, uptime_us, recalled)
    repeats = np.flatnonzero(met.repeats >= 0)
    admitted.positions[repeats] = admitted.positions[met.repeats[repeats]]
    return admitted


def _decide(  # noqa: PLR0917
    admitted: Admitted, keys: Keys | None, seen: Seen, next_position: int, uptime_us: int, recalled: Found | None
) -> Admitted:
    window = seen.window
    if keys is None or window is None:
        admitted.number(next_position)
        return admitted
    seen.evict(uptime_us)
    handles = window.find(keys.identities)
    recalled = seen.elsewhere(keys.identities, recalled)
    known = known_in_window(window, handles, recalled)
    if known.any():
        _meet_stored(admitted, keys, window, handles, known)
    if recalled is not None:
        known |= _meet_recalled(admitted, keys, recalled, known)
    repeats = None if window.distinct(keys.identities) else _meet_each_other(admitted, keys, window, known)
    admitted.number(next_position)
    if repeats is not None:
        rows, originals = repeats
        admitted.positions[rows] = admitted.positions[originals]
    return admitted


def known_in_window(window: DedupWindow, handles: Handles, recalled: Found | None) -> NDArray[np.bool_]:
    """Tell for which rows the window answers: those that it has, unless a run has a newer record with the id.

    A table has ids from before a run where an older run was lost, or where a bounded window made runs of some files.
    """
    known: NDArray[np.bool_] = handles >= 0
    if recalled is not None and isinstance(window, Table):
        rows = np.flatnonzero(known & (recalled.positions >= 0))
        known[rows] = recalled.positions[rows] <= window.positions(handles[rows])
    return known


def is_newer(hit: Hit | None, window: DedupWindow, handle: int) -> bool:
    """Tell the same of one record that the window has: whether a run has a newer one with its id."""
    return hit is not None and isinstance(window, Table) and hit.position > window.at(handle)[0]


def _rows(keys: Keys, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the payload's rows for chosen keys."""
    return keys.rows[chosen] if keys.rows is not None else np.arange(len(keys.identities))[chosen]


def _meet_stored(
    admitted: Admitted, keys: Keys, window: DedupWindow, handles: NDArray[np.int64], known: NDArray[np.bool_]
) -> None:
    """Note the rows whose identity the window knows."""
    rows, found = _rows(keys, known), handles[known]
    admitted.handles = found[~window.pending(found)]
    admitted.new[rows] = False
    admitted.duplicates[rows] = True
    admitted.positions[rows] = window.positions(found)
    admitted.times[rows] = window.times(found)
    admitted.conflicts[rows] = window.fingerprints(found) != keys.fingerprints[known]


def _meet_recalled(admitted: Admitted, keys: Keys, found: Found, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Note the rows whose identity is in a run, and refuse those of which the runs cannot tell; return which."""
    chosen = found.found & ~known & ~found.failed
    rows = _rows(keys, chosen)
    admitted.new[rows] = False
    admitted.duplicates[rows] = True
    admitted.positions[rows] = found.positions[chosen]
    admitted.times[rows] = RECALLED_US
    admitted.conflicts[rows] = found.fingerprints[chosen] != keys.fingerprints[chosen]
    if not found.failed.any():
        return chosen
    unsure = found.failed & ~known
    for row in _rows(keys, unsure).tolist():
        admitted.new[row] = False
        admitted.positions[row] = -1
        admitted.refused[row] = found.errors[0]
    return chosen | unsure


def _meet_each_other(
    admitted: Admitted, keys: Keys, window: DedupWindow, known: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Note the rows whose identity occurs earlier in the same payload; return them, and the rows they repeat."""
    first = window.first_occurrence(keys.identities)
    repeats = np.flatnonzero((first != np.arange(len(first))) & ~known)
    rows = _rows(keys, repeats)
    admitted.new[rows] = False
    admitted.duplicates[rows] = True
    admitted.conflicts[rows] = keys.fingerprints[first[repeats]] != keys.fingerprints[repeats]
    return rows, _rows(keys, first[repeats])


def decide_batch(
    payload: pa.RecordBatch,
    keys: Keys | None,
    seen: Seen,
    next_position: int,
    uptime_us: int,
    *,
    judged: Judged | None = None,
    recalled: Found | None = None,
) -> Admitted:
    """Decide all rows as one: all new, or exactly a stored batch; else ``PartialOverlap``."""
    if judged is not None and judged.met is not None:
        return _decide_met(payload, keys, seen, next_position, uptime_us, judged.met, recalled)
    admitted = Admitted(payload)
    admitted.positions[:] = np.arange(next_position, next_position + payload.num_rows)
    window = seen.window
    if keys is None or window is None:
        return admitted
    seen.evict(uptime_us)
    handles = window.find(keys.identities)
    recalled = seen.elsewhere(keys.identities, recalled)
    known = known_in_window(window, handles, recalled)
    if recalled is not None and not known.all():
        return _decide_recalled_batch(admitted, keys, recalled, known)
    if not known.any():
        return admitted
    if not known.all() or not window.is_batch(handles):
        raise _overlap(admitted.ids(), known)
    _meet_stored(admitted, keys, window, handles, known)
    return admitted


def _decide_recalled_batch(admitted: Admitted, keys: Keys, found: Found, known: NDArray[np.bool_]) -> Admitted:
    """Decide rows that the table does not know as one batch. A range ends with a segment: no batch is in both."""
    if (found.failed & ~known).any():
        raise found.errors[0]
    elsewhere = found.found & ~known
    if not known.any() and not elsewhere.any():
        return admitted
    if not elsewhere.all() or not _is_batch(found):
        raise _overlap(admitted.ids(), known | elsewhere)
    _meet_recalled(admitted, keys, found, known)
    return admitted


def _is_batch(found: Found) -> bool:
    """Say whether what was found, in this order, is exactly one stored batch."""
    inner = found.starts[1:].any() or found.ends[:-1].any() or (np.diff(found.positions) != 1).any()
    return bool(found.starts[0] and found.ends[-1] and not inner)


def _overlap(ids: list[str | None], known: NDArray[np.bool_]) -> PartialOverlap:
    found = [id for id, seen in zip(ids, known.tolist(), strict=True) if seen and id is not None]
    new = [id for id, seen in zip(ids, known.tolist(), strict=True) if not seen and id is not None]
    message = (
        f"{len(found)} of {len(ids)} ids are stored (the first: {found[0]!r}), but not as exactly this batch in this "
        "order: nothing was written; retry a batch as it was, or use append_many"
    )
    return PartialOverlap(message, known=found, new=new)


def remember(admitted: Admitted, keys: Keys | None, window: DedupWindow | None, payload: pa.RecordBatch) -> int:
    """Put the new rows' identities into the window, as pending; return how many rows carry an id."""
    if keys is None or window is None:
        return 0
    at = payload.schema.get_field_index("start")
    starts = arrays.flags(payload.column(at)) if at >= 0 else None
    if keys.rows is None and admitted.new.all():
        window.add(keys.identities, admitted.positions, keys.fingerprints, starts)
        return len(keys.identities)
    rows = np.arange(payload.num_rows) if keys.rows is None else keys.rows
    fresh = admitted.new[rows]
    chosen = rows[fresh]
    starts = None if starts is None else starts[chosen]
    window.add(keys.identities[fresh], admitted.positions[chosen], keys.fingerprints[fresh], starts)
    return len(chosen)
