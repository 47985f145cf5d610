"""Deciding records: a new one gets a place in the next block, a known one the answer of the record before it.

The other half of the append core: no lock, thread, clock or I/O. Each public method that changes something is an event,
as in ``core``. Hashing, and looking ids up in the runs, comes before the event: keys and findings are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.refreshing import RefreshingWindow
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow
from oncelog.errors import CorruptionError, OncelogError
from oncelog.format.payload.arrays import booleans
from oncelog.log.append import decisions
from oncelog.log.append.answers import RECALLED_US, Admitted
from oncelog.log.append.core import TORN, Core
from oncelog.log.append.decisions import Judged
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Crowd, Group, Ticket, record_bytes, record_of
from oncelog.log.append.payloads import Keys
from oncelog.log.memory.quest import Found
from oncelog.log.memory.recall import LookedOne
from oncelog.log.memory.run_set import Hit
from oncelog.types import Record


class Name(NamedTuple):
    """The key of a record: the two halves of its identity, and its fingerprint."""

    high: int
    low: int
    fingerprint: int


Key: TypeAlias = Name | tuple[int, int, int]
"""The same, as the hasher returns it."""

AnswerOne: TypeAlias = Callable[[Ticket, str | None], Any]
"""Returns the answer to one record that is stored, given its ticket and id. The core does not call it."""

AnswerRows: TypeAlias = Callable[..., Sequence[Any]]
"""Returns the answers to rows that are stored, given what was decided, and which rows (all, if none are named)."""


class Decision(NamedTuple):
    """A batch that was decided, and that ``take`` adds if it is new."""

    admitted: Admitted
    payload: pa.RecordBatch
    keys: Keys | None
    size_bytes: int
    judged: Judged | None


class Decider:
    """Decides records, and adds those that are new to the groups of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen = core.seen
        self._window = core.seen.window
        self._adopted = core.seen.adopted
        window = core.seen.window
        self._forgets = not isinstance(window, Table)
        self._refreshing = window if isinstance(window, RefreshingWindow) else None
        self._counters = core.counters
        self._sequences = core.sequences

    def known(self, name: Name, looked: LookedOne) -> tuple[Ticket, int] | None:
        """Return where a durable record is that is known, and its fingerprint. Nothing is counted."""
        assert self._window is not None
        handle = self._window.find_one(name.high, name.low)
        if handle >= 0 and not decisions.is_newer(looked.hit, self._window, handle):
            position, fingerprint, timestamp_us, pending = self._window.at(handle)
            return None if pending else (Ticket(position, None, timestamp_us), fingerprint)
        met = self._seen.elsewhere_one(name.high, name.low, looked.hit)
        if met is None and looked.unsure is not None:
            raise looked.unsure
        return None if met is None else (Ticket(met[0], None, RECALLED_US), met[1])

    # One record.

    def alone(  # noqa: PLR0917
        self, value: bytes, id: bytes | None, key: Key | None, hit: Hit | None, now_us: int, wall_us: int
    ) -> Group | Ticket:
        """Decide one plain record while the core is ``idle``: return the block of a new one, or the answer.

        It does in one event what ``one``, ``form`` and encoding do in three, so that little is done around a sync.
        """
        core = self._core
        core.error = TORN
        self._counters.attempts += 1
        uptime_us = core.uptime.at(now_us)
        if key is not None:
            met = self._recognise(key, uptime_us, hit)
            if met is not None:
                core.error = None
                return met
        group = core.tail.alone(core.next_position, value, id, uptime_us, wall_us)
        core.pending_bytes += group.size_bytes
        core.next_position += 1
        core.offered.append(group)
        core.error = None
        return group

    def one(self, record: Record, size_bytes: int, name: Name | None, looked: LookedOne | None, now_us: int) -> Ticket:
        """Decide one record, and add it if it is new. ``looked`` is what the runs know of it."""
        core = self._core
        core.error = TORN
        self._counters.attempts += 1
        try:
            ticket = self._one(record, size_bytes, name, looked, core.uptime.at(now_us))
        except OncelogError:
            core.error = None  # a refusal: nothing was noted
            raise
        core.error = None
        return ticket

    def _one(
        self, record: Record, size_bytes: int, name: Name | None, looked: LookedOne | None, uptime_us: int
    ) -> Ticket:
        core = self._core
        met = None
        if record.producer is not None:
            met = self._meet_sequence(record, uptime_us)
        elif name is not None:
            if looked is not None and looked.unsure is not None:
                self._check_in_table(name, looked.unsure)
            met = self._recognise(name, uptime_us, None if looked is None else looked.hit)
        if met is not None:
            return met
        group = core.group_for(size_bytes, 1)
        position = group.next_position
        if record.producer is not None:
            record = self._sequences.push(record, position, group, core.stored_position)
        group.add_record(record, size_bytes)
        core.count_in(size_bytes, 1)
        return Ticket(position, group, -1)

    def _meet_sequence(self, record: Record, uptime_us: int) -> Ticket | None:
        met = self._sequences.meet(record, uptime_us)
        if met is None or met.position < self._core.stored_position:
            return met
        return met._replace(group=self._core.group_of(met.position))

    def _check_in_table(self, name: Name, unsure: CorruptionError) -> None:
        """Raise that the runs cannot tell of a record, unless the table can."""
        assert self._window is not None
        if self._window.find_one(name.high, name.low) < 0 and self._seen.elsewhere_one(*name[:2], None) is None:
            raise unsure

    def _recognise(self, key: Key, uptime_us: int, hit: Hit | None) -> Ticket | None:
        """Return the answer to a record that is known; add it to the window as the next one if it is not."""
        high, low, fingerprint = key
        window = self._window
        assert window is not None
        if self._forgets:
            window.evict(uptime_us)
        if hit is not None or self._adopted.files:
            handle = window.find_one(high, low)
            if handle < 0 or decisions.is_newer(hit, window, handle):
                self._adopted.evict(uptime_us)
                met = self._seen.elsewhere_one(high, low, hit)
                if met is not None:
                    return self._meet_elsewhere(*met, fingerprint)
        handle = window.find_or_add_one(high, low, self._core.next_position, fingerprint)
        return None if handle < 0 else self._meet(window, handle, fingerprint, uptime_us)

    def _meet(self, window: DedupWindow, handle: int, fingerprint: int, uptime_us: int) -> Ticket:
        position, stored_fingerprint, timestamp_us, pending = window.at(handle)
        conflict = fingerprint != stored_fingerprint
        if conflict:
            self._counters.conflicts += 1
        else:
            self._counters.duplicates += 1
            if self._refreshing is not None and not pending:
                self._refreshing.refresh(np.array([handle], np.int64), uptime_us)
        group = self._core.group_of(position) if pending else None
        return Ticket(position, group, timestamp_us, duplicate=True, conflict=conflict)

    def _meet_elsewhere(self, position: int, stored: int, fingerprint: int) -> Ticket:
        conflict = stored != fingerprint
        if conflict:
            self._counters.conflicts += 1
        else:
            self._counters.duplicates += 1
        return Ticket(position, None, RECALLED_US, duplicate=True, conflict=conflict)

    # Rows.

    def rows(self, piece: pa.RecordBatch, keys: Keys | None, recalled: Found | None, now_us: int) -> Admitted:
        """Decide rows, each on its own, and add those that are new. ``recalled`` is what the runs know of them."""
        core = self._core
        core.error = TORN
        try:
            admitted = self._rows(piece, keys, recalled, core.uptime.at(now_us))
        except OncelogError:
            core.error = None
            raise
        core.error = None
        return admitted

    def _rows(self, piece: pa.RecordBatch, keys: Keys | None, recalled: Found | None, uptime_us: int) -> Admitted:
        core = self._core
        size_bytes = piece.nbytes + RECORD_OVERHEAD_BYTES * piece.num_rows
        self._counters.attempts += piece.num_rows
        judged = None
        if "producer" in piece.schema.names:
            judged = self._sequences.judge(piece, uptime_us)
            piece = judged.payload
        else:
            entered = decisions.enter(piece, keys, core.seen, core.next_position, uptime_us, recalled)
            if entered is not None:
                self._join(entered, piece, size_bytes, piece.num_rows)
                return entered
        admitted = decisions.decide(
            piece, keys, core.seen, core.next_position, uptime_us, judged=judged, recalled=recalled
        )
        self._store(Decision(admitted, piece, keys, size_bytes, judged), uptime_us)
        return admitted

    def decide_batch(self, payload: pa.RecordBatch, keys: Keys | None, recalled: Found | None, now_us: int) -> Decision:
        """Decide rows together: all are new, or all were there as one batch. ``take`` adds them, in the same hold of
        the lock.
        """
        core = self._core
        core.error = TORN
        uptime_us = core.uptime.at(now_us)
        size_bytes = payload.nbytes + RECORD_OVERHEAD_BYTES * payload.num_rows
        self._counters.attempts += payload.num_rows
        judged = None
        try:
            if "producer" in payload.schema.names:
                judged = self._sequences.judge_batch(payload, uptime_us)
                payload = judged.payload
            admitted = decisions.decide_batch(
                payload, keys, core.seen, core.next_position, uptime_us, judged=judged, recalled=recalled
            )
        except OncelogError:
            core.error = None
            raise
        core.error = None
        return Decision(admitted, payload, keys, size_bytes, judged)

    def take(self, decision: Decision, now_us: int) -> Admitted:
        """Add a batch that was decided, if it is new; return what was decided."""
        core = self._core
        core.error = TORN
        self._store(decision, core.uptime.at(now_us))
        core.error = None
        return decision.admitted

    def _store(self, decision: Decision, uptime_us: int) -> None:
        """Add the new rows to a group, and note for which groups the others wait."""
        admitted, piece, keys, size_bytes, judged = decision
        core = self._core
        new = admitted.new
        count = int(np.count_nonzero(new))
        self._counters.duplicates += int(np.count_nonzero(admitted.duplicates & ~admitted.conflicts))
        self._counters.conflicts += int(np.count_nonzero(admitted.conflicts))
        if count:
            rows = piece if count == piece.num_rows else piece.filter(booleans(new))
            size_bytes = size_bytes if count == piece.num_rows else rows.nbytes + RECORD_OVERHEAD_BYTES * count
            ids = decisions.remember(admitted, keys, self._window, piece)
            group = self._join(admitted, rows, size_bytes, ids)
            if judged is not None:
                owners = judged.owners if rows is piece else None
                self._sequences.push_rows(rows, admitted.positions[new], group, owners, core.stored_position)
        if count < piece.num_rows:
            others = core.groups_of(admitted.positions[~new])
            admitted.groups += [group for group in others if group not in admitted.groups]
        if self._refreshing is not None and admitted.handles.size:
            self._refreshing.refresh(admitted.handles, uptime_us)

    def _join(self, admitted: Admitted, rows: pa.RecordBatch, size_bytes: int, ids: int) -> Group:
        """Add new rows, of which so many carry an id, to a group, and return it."""
        core = self._core
        group = core.group_for(size_bytes, rows.num_rows)
        assert group.next_position == core.next_position
        group.add_payload(rows, size_bytes, ids)
        core.count_in(size_bytes, rows.num_rows)
        admitted.groups.append(group)
        return group

    # What was submitted.

    def absorb(self, names: Sequence[Name | None], answer: AnswerOne, now_us: int) -> None:
        """Decide the first of what was submitted, one by one; note the tokens to answer with their groups."""
        core = self._core
        core.error = TORN
        uptime_us = core.uptime.at(now_us)
        self._counters.attempts += len(names)
        records = list(map(record_of, core.submitted, core.submitted_ids))
        for name, record, token in zip(names, records, core.submitted_tokens, strict=False):
            ticket = self._one(record, record_bytes(record), name, None, uptime_us)
            crowds = core.unanswered if ticket.group is None else ticket.group.crowds
            crowds.append(Crowd([token], partial(_listed, answer, ticket, record.id)))
        core.cut_submitted(len(names))
        core.error = None

    def absorb_rows(
        self, piece: pa.RecordBatch, keys: Keys | None, recalled: Found | None, answer: AnswerRows, now_us: int
    ) -> None:
        """Decide the first of what was submitted, in columns; note the tokens to answer with their groups."""
        core = self._core
        core.error = TORN
        tokens = core.submitted_tokens[: piece.num_rows]
        admitted = self._rows(piece, keys, recalled, core.uptime.at(now_us))
        if admitted.new.all():
            admitted.groups[0].crowds.append(Crowd(tokens, partial(answer, admitted)))
        else:
            left = np.ones(piece.num_rows, np.bool_)
            for group in admitted.groups:
                inside = (admitted.positions >= group.first_position) & (admitted.positions < group.next_position)
                group.crowds.append(_crowd(tokens, np.flatnonzero(inside), answer, admitted))
                left &= ~inside
            if left.any():
                core.unanswered.append(_crowd(tokens, np.flatnonzero(left), answer, admitted))
        core.cut_submitted(piece.num_rows)
        core.error = None


def _listed(answer: AnswerOne, ticket: Ticket, id: str | None) -> list[Any]:
    return [answer(ticket, id)]


def _crowd(tokens: Sequence[Any], rows: NDArray[np.int64], answer: AnswerRows, admitted: Admitted) -> Crowd:
    return Crowd([tokens[row] for row in rows.tolist()], partial(answer, admitted, rows))
