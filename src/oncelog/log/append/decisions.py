"""Deciding records in columns: which are new, which were there before, and which clash with what was there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog import limits
from oncelog.dedup.content import content_ids
from oncelog.dedup.identity import Hasher
from oncelog.dedup.table import Table
from oncelog.dedup.window import Window
from oncelog.errors import IdConflict, InvalidArgument, OncelogError, PartialOverlap
from oncelog.format import compute as pc
from oncelog.format.payload import arrays, columns, intake, plain
from oncelog.format.payload.tables import Tabular
from oncelog.format.snapshot import ProducerMark, Snapshot
from oncelog.log.append.groups import Group
from oncelog.log.append.rows_by_producer import Owners
from oncelog.log.memory.quest import Found
from oncelog.log.memory.run_set import Hit
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.segment_index import Places
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record, moment

PlacesOf: TypeAlias = Callable[[NDArray[np.int64]], Places]
"""Tells where stored positions are."""

TimesOf: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Tells when stored positions were stored, as the runs know it."""

RECALLED_US = -2
"""Instead of a time: the record is known from a run, and its time has to be asked for."""


class Keys(NamedTuple):
    """The identities and fingerprints of a payload's rows; ``rows`` are those that carry an id (``None``: all)."""

    rows: NDArray[np.int64] | None
    identities: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]


class Seen(NamedTuple):
    """All that a log remembers: the window of what was appended (``None``: idempotence is off), and adopted files."""

    window: Window | None
    adopted: Adopted

    def evict(self, uptime_us: int) -> None:
        """Forget what is too old, or too much."""
        if self.window is not None:
            self.window.evict(uptime_us)
            self.adopted.evict(uptime_us)

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


class Admitted:
    """What was decided for each row of a payload.

    ``positions`` is where the row's record is or will be; ``new`` rows are to be written, ``duplicates`` were there (or
    come earlier in the same payload), ``conflicts`` are duplicates with other content. ``times`` is the original's time
    where it was stored before, ``handles`` are the window's for those; ``groups`` are what must be stored
    before this may be answered. ``refused`` are the errors of rows whose sequence is out of order, or of whose id
    nobody can tell, because a part of the memory is damaged.
    """

    def __init__(self, payload: pa.RecordBatch) -> None:
        count = payload.num_rows
        self.payload = payload
        self.positions: NDArray[np.int64] = np.empty(count, np.int64)
        self.new: NDArray[np.bool_] = np.ones(count, np.bool_)
        self.duplicates: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.conflicts: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.times: NDArray[np.int64] = np.full(count, -1, np.int64)
        self.handles: NDArray[np.int64] = np.empty(0, np.int64)
        self.groups: list[Group] = []
        self.refused: dict[int, OncelogError] = {}

    @classmethod
    def joined(cls, parts: Sequence[Admitted], payload: pa.RecordBatch) -> Admitted:
        """Return the decisions for the pieces of a payload as those for the whole."""
        if len(parts) == 1:
            return parts[0]
        whole = cls(payload.slice(0, 0))
        whole.payload = payload
        if parts:
            for name in ("positions", "new", "duplicates", "conflicts", "times"):
                setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        rows = 0
        for part in parts:
            whole.groups += [group for group in part.groups if group not in whole.groups]
            whole.refused |= {rows + row: error for row, error in part.refused.items()}
            rows += len(part.positions)
        return whole

    @property
    def newest(self) -> Group | None:
        """The group that is stored last of those that must be stored."""
        return max(self.groups, key=lambda group: group.first_position, default=None)

    def number(self, next_position: int) -> None:
        """Give the new rows their positions."""
        positions = np.arange(next_position, next_position + np.count_nonzero(self.new))
        if len(positions) == len(self.new):
            self.positions = positions
        else:
            self.positions[self.new] = positions

    def answers(
        self, places_of: PlacesOf, times_of: TimesOf, *, refuse: bool, rows: NDArray[np.int64] | None = None
    ) -> list[Ack | OncelogError]:
        """Return the acks of these rows (all, if none are named), which are stored; or the errors of the refused.

        ``refuse``: whether a conflict is an error.
        """
        chosen = slice(None) if rows is None else rows
        positions, times = self.positions[chosen], self.times[chosen].copy()
        duplicates, conflicts = self.duplicates[chosen], self.conflicts[chosen]
        for group in self.groups:
            times[(positions >= group.first_position) & (positions < group.next_position)] = group.timestamp_us
        places = places_of(positions)
        segments, entries = places.segments, places.entries
        recalled = np.flatnonzero(times == RECALLED_US)
        if recalled.size:
            times[recalled] = recalled_times(places, positions, recalled, times_of)
        moments = {time_us: moment(time_us) if time_us >= 0 else None for time_us in set(times.tolist())}
        columns = positions.tolist(), segments.tolist(), entries.tolist(), map(moments.__getitem__, times.tolist())
        answers: list[Ack | OncelogError] = list(map(Ack, *columns, duplicates.tolist(), conflicts.tolist()))
        for row in np.flatnonzero(segments < 0).tolist():
            answers[row] = self._from_long_ago(cast("Ack", answers[row]))
        if refuse and conflicts.any():
            ids = self.ids()
            for row in np.flatnonzero(conflicts).tolist():
                answers[row] = conflict(ids[row if rows is None else rows[row]], int(positions[row]))
        for row, error in self.refused.items():
            at = row if rows is None else int(np.searchsorted(rows, row))
            if rows is None or (at < len(rows) and rows[at] == row):
                answers[at] = error
        return answers

    @staticmethod
    def _from_long_ago(ack: Ack) -> Ack:
        """Return the ack of a record whose segment is gone; a sequence may be known without its position."""
        if ack.position is None or ack.position < 0:
            return Ack(None, None, None, None, duplicate=True)
        return Ack(ack.position, None, None, ack.timestamp, ack.duplicate, ack.conflict)

    def ids(self) -> list[str | None]:
        """Return the rows' ids."""
        at = self.payload.schema.get_field_index("id")
        return self.payload.column(at).to_pylist() if at >= 0 else [None] * self.payload.num_rows


def recalled_times(
    places: Places, positions: NDArray[np.int64], rows: NDArray[np.int64], times_of: TimesOf
) -> NDArray[np.int64]:
    """Return when these of the positions were stored: as their segments say if all in one is of one time."""
    times = places.first_us[rows]
    asked = np.flatnonzero((times != places.last_us[rows]) | (times < 0))
    if asked.size:
        times[asked] = times_of(positions[rows[asked]])
    return times


def conflict(id: str | None, position: int) -> IdConflict:
    """Return the error for an id that is taken by other content."""
    message = (
        f"id {id!r} is taken by other content, stored at position {position}: "
        "give this record an id of its own, or set on_conflict='original' to get the first one's ack"
    )
    return IdConflict(message, position=position)


def replace(record: Record, **changes: object) -> Record:
    """Return a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)


def payload_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return checked records in columns, each a batch of its own."""
    found = plain.payload(records)
    return columns.from_records(records) if found is None else found


def batch_payload(records: Sequence[Record], settings: LogSettings) -> pa.RecordBatch:
    """Return checked records in columns, as one atomic batch; ``InvalidArgument`` if they cannot be one."""
    ids = [record.id for record in records if record.id is not None]
    if ids and len(ids) != len(records):
        message = f"{len(ids)} of {len(records)} records of the batch carry an id: all must, or none"
        raise InvalidArgument(message)
    if len(set(ids)) != len(ids):
        message = f"id {Counter(ids).most_common(1)[0][0]!r} occurs more than once in one batch"
        raise InvalidArgument(message)
    if len(ids) > settings.window.keys_max:
        message = f"a batch of {len(ids)} ids could not be retried in a window of {settings.window.keys_max} keys"
        raise InvalidArgument(message)
    payload = columns.from_records(records, [True] + [False] * (len(records) - 1) if len(records) > 1 else None)
    if payload.num_rows > limits.BLOCK_RECORDS_MAX or payload.nbytes > limits.BLOCK_BYTES_MAX:
        message = (
            f"a batch of {payload.num_rows} records and {payload.nbytes} bytes does not fit a block "
            f"of {limits.BLOCK_RECORDS_MAX} records and {limits.BLOCK_BYTES_MAX} bytes"
        )
        raise InvalidArgument(message)
    return payload


def check_columns(payload: pa.RecordBatch, settings: LogSettings, log_id: str) -> pa.RecordBatch:
    """Return a user's payload as it will be stored, with content ids where those are asked for."""
    names = payload.schema.names
    if settings.idempotence == "off" and "id" in names:
        message = "column id: this log has idempotence off, so it cannot keep the promise an id asks for"
        raise InvalidArgument(message)
    if settings.idempotence != "content" or payload.num_rows == 0:
        return payload
    ids = content_ids(log_id, payload)
    if "producer" in names:  # a sequence is as good as an id
        ids = pc.if_else(payload.column(names.index("producer")).is_null(), ids, None)
    if "id" in names:
        at = names.index("id")
        return payload.set_column(at, "id", pc.coalesce(payload.column(at), ids))
    return payload.add_column(1, "id", ids)


def intake_of(
    table: Tabular,
    settings: LogSettings,
    log_id: str,
    owned: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> pa.RecordBatch:
    """Return a user's table as a payload, checked; ``InvalidArgument`` naming column, row and rule otherwise.

    ``owned`` gives rows with a sequence their producer; without it, there may be none.
    """
    payload = intake.normalise(table)
    intake.check_limits(payload)
    if owned is not None:
        payload = owned(payload)
    elif "producer" in payload.schema.names or "sequence" in payload.schema.names:
        message = "columns producer and sequence: only the log's writer can hold sequences against each other; use ids"
        raise InvalidArgument(message)
    return check_columns(payload, settings, log_id)


def check_named_once(payload: pa.RecordBatch) -> None:
    """Raise ``InvalidArgument`` for a row that carries an id and a sequence, or a sequence of nobody."""
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    producer, sequence, id = present.get("producer"), present.get("sequence"), present.get("id")
    owned = np.zeros(payload.num_rows, np.bool_) if producer is None else arrays.present(producer)
    if sequence is not None and (arrays.present(sequence) & ~owned).any():
        row = int(np.argmax(arrays.present(sequence) & ~owned))
        message = f"sequence, row {row}: whose it is must be said in the column producer"
        raise InvalidArgument(message)
    if id is not None and (arrays.present(id) & owned).any():
        row = int(np.argmax(arrays.present(id) & owned))
        raise named_twice(row=row)


def named_twice(**which: object) -> InvalidArgument:
    """Return the error for a record that carries both an id and a sequence."""
    what = ", ".join(f"{name} {value!r}" for name, value in which.items())
    message = f"{what}: has an id and a producer: a record is recognised by its id or by its sequence, not by both"
    return InvalidArgument(message)


def pieces(payload: pa.RecordBatch, settings: LogSettings) -> list[pa.RecordBatch]:
    """Cut a payload into pieces that each fit a block."""
    count = payload.num_rows
    if count <= settings.block_records and payload.nbytes <= settings.block_bytes:
        return [payload] if count else []
    sizes = np.asarray(pc.binary_length(payload.column(0)).to_numpy(zero_copy_only=False), np.int64)
    overhead_bytes = max(0, payload.nbytes - int(sizes.sum())) // count + 1
    ends = np.cumsum(sizes + overhead_bytes)
    cut: list[pa.RecordBatch] = []
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        fit = int(np.searchsorted(ends, before + settings.block_bytes, side="right"))
        end = min(max(fit, start + 1), start + settings.block_records, count)
        cut.append(payload.slice(start, end - start))
        start = end
    return cut


def keys_of(payload: pa.RecordBatch, hasher: Hasher, window: Window | None) -> Keys | None:
    """Return the identities of the rows that carry an id, or ``None`` when there are none to look up."""
    at = payload.schema.get_field_index("id")
    if window is None or at < 0:
        return None
    ids = payload.column(at)
    if ids.null_count == 0:
        return Keys(None, hasher.keys(payload), hasher.fingerprints(payload))
    present = ids.is_valid()
    rows = np.flatnonzero(arrays.present(ids))
    named = payload.filter(present)
    return Keys(rows, hasher.keys(named), hasher.fingerprints(named))


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
    admitted: Admitted,
    keys: Keys | None,
    seen: Seen,
    next_position: int,
    uptime_us: int,
    recalled: Found | None,
) -> Admitted:
    window = seen.window
    if keys is None or window is None:
        admitted.number(next_position)
        return admitted
    seen.evict(uptime_us)
    handles = window.find(keys.identities)
    known = handles >= 0
    if known.any():
        _meet_stored(admitted, keys, window, handles, known)
    recalled = seen.elsewhere(keys.identities, recalled)
    if recalled is not None:
        known |= _meet_recalled(admitted, keys, recalled, known)
    repeats = None if window.distinct(keys.identities) else _meet_each_other(admitted, keys, window, known)
    admitted.number(next_position)
    if repeats is not None:
        rows, originals = repeats
        admitted.positions[rows] = admitted.positions[originals]
    return admitted


def _rows(keys: Keys, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the payload's rows for chosen keys."""
    return keys.rows[chosen] if keys.rows is not None else np.arange(len(keys.identities))[chosen]


def _meet_stored(
    admitted: Admitted, keys: Keys, window: Window, handles: NDArray[np.int64], known: NDArray[np.bool_]
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
    admitted: Admitted, keys: Keys, window: Window, known: NDArray[np.bool_]
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
    known = handles >= 0
    recalled = seen.elsewhere(keys.identities, recalled)
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


def remember(admitted: Admitted, keys: Keys | None, window: Window | None, payload: pa.RecordBatch) -> int:
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


def snapshot_of(
    window: Window | None,
    *,
    settings: LogSettings,
    log_id: str,
    now_us: int,
    uptime_us: int,
    watermark: int,
    pending_until: int,
    segments: Sequence[tuple[int, int]],
    producers: Mapping[str, ProducerMark],
    tail_from: int = -1,
) -> Snapshot:
    """Return the committed part of a window, and the producers, as a snapshot that covers all before ``watermark``.

    Without a window it says that it is of one that has no room, so that nobody takes it for an empty window. So does
    the snapshot of a table, which has all ids from ``tail_from`` on.
    """
    state = (window or Window(0, 0)).dump()
    kept = settings.window if window is not None and tail_from < 0 else None
    return Snapshot(
        log_id=log_id,
        created_us=now_us,
        uptime_us=uptime_us,
        watermark=watermark,
        duration_us=kept.duration_us if kept is not None else 0,
        max_keys=kept.keys_max if kept is not None else 0,
        segments=segments,
        identities=state.keys,
        positions=state.positions,
        fingerprints=state.fingerprints,
        ticks=state.ticks,
        times=state.times,
        starts=state.starts,
        producers=producers,
        pending_until=pending_until,
        tail_from=tail_from,
    )
