"""What becomes of a record: new, it gets a place in the next block; known, the answer of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.dedup.window import Window
from oncelog.errors import CorruptionError, OncelogError
from oncelog.log.append import decisions
from oncelog.log.append.committer import Committer
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Admitted, Judged, Seen
from oncelog.log.append.futures import AckFuture
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Crowd, Group, Submitted, Ticket
from oncelog.log.append.open_segment import Run
from oncelog.log.append.sequences import Sequences
from oncelog.log.append.uptime import Uptime
from oncelog.log.memory.quest import Found
from oncelog.log.memory.recall import LookedOne, Recall
from oncelog.log.memory.run_set import Hit
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record


class Name(NamedTuple):
    """By what a record is recognised: the halves of its identity, and its fingerprint."""

    high: int
    low: int
    fingerprint: int


class Prepared(NamedTuple):
    """Rows that fit a block, and by what they are recognised."""

    piece: pa.RecordBatch
    keys: decisions.Keys | None


class Decider:
    """Decides records for one writer, and hands those that are new to its committer, whose lock is held meanwhile."""

    def __init__(
        self,
        *,
        committer: Committer,
        run: Run,
        seen: Seen,
        hasher: Hasher,
        sequences: Sequences,
        settings: LogSettings,
        uptime: Uptime,
        clock: Clock,
        counters: Counters,
        recall: Recall,
    ) -> None:
        self._recall = recall
        self._committer = committer
        self._run = run
        self._seen = seen
        self._window, self._adopted = seen
        self._hasher = hasher
        self._sequences = sequences
        self._settings = settings
        self._uptime = uptime
        self._clock = clock
        self._counters = counters

    def named(self, record: Record) -> Name | None:
        """Return by what a record is recognised, if it has an id that counts. No lock is needed."""
        if self._window is None or record.id is None or record.producer is not None:
            return None
        high, low = self._hasher.identity((record.stream or "") if self._hasher.by_stream else "", record.id)
        return Name(high, low, self._hasher.fingerprint(record))

    def known(self, name: Name, looked: LookedOne) -> tuple[Ticket, int] | None:
        """Return where a durable record is that is known, and its fingerprint. Nothing is counted, or changed."""
        assert self._window is not None
        handle = self._window.find_one(name.high, name.low)
        if handle >= 0:
            position, fingerprint, timestamp_us, pending = self._window.at(handle)
            return None if pending else (Ticket(position, None, timestamp_us), fingerprint)
        found = self._adopted.find(np.array([[name.high, name.low]], np.uint64))
        if found.positions[0] >= 0:
            return Ticket(int(found.positions[0]), None, int(found.times[0])), int(found.fingerprints[0])
        if looked.unsure is not None:
            raise looked.unsure
        hit = looked.hit
        return None if hit is None else (Ticket(hit.position, None, decisions.RECALLED_US), hit.fingerprint)

    def one(self, record: Record, size_bytes: int, name: Name | None, looked: LookedOne | None = None) -> Ticket:
        """Decide one record, and add it if it is new. ``looked`` is what the runs know of it."""
        self._counters.attempts += 1
        try:
            if looked is not None and looked.unsure is not None:
                self._check_in_table(name, looked.unsure)
            return self._one(record, size_bytes, name, None if looked is None else looked.hit)
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)

    def _check_in_table(self, name: Name | None, unsure: CorruptionError) -> None:
        """Raise that the runs cannot tell of a record, unless the table can."""
        assert self._window is not None
        assert name is not None
        if self._window.find_one(name.high, name.low) < 0:
            raise unsure

    def _one(self, record: Record, size_bytes: int, name: Name | None, hit: Hit | None) -> Ticket:
        if record.producer is not None:
            met = self._sequences.meet(record)
            if met is not None:
                return met
        elif name is not None:
            assert self._window is not None
            met = self._recognise(self._window, *name, self._uptime.now_us(), hit)
            if met is not None:
                return met
        group = self._committer.group_for(size_bytes, 1)
        position = group.next_position
        if record.producer is not None:
            record = self._sequences.push(record, position, group)
        group.add_record(record, size_bytes)
        self._committer.admitted(size_bytes, 1)
        return Ticket(position, group, -1)

    def alone(self, value: bytes, id: str | None, timeout_us: int | None) -> Group | Ticket | None:
        """Decide one plain record, and store it if it is new: return its group, or the answer to one that is known.

        ``None``, and nothing is done, if others are on their way, or a run was built meanwhile. It does in one go what
        ``one`` and the committer do in steps, so that little is done around a sync. It takes the committer's lock
        itself: hashing and looking up in the runs needs none.
        """
        window, committer, recall = self._window, self._committer, self._recall
        name = hit = None
        built = recall.view.built
        if window is not None and id is not None:
            name = id.encode()
            high, low, fingerprint = self._hasher.both(name, value)
            if recall.view.any:
                built, hit, unsure = recall.look_one(high, low)
                if unsure is not None:
                    return None
        with committer.lock:
            if not committer.idle or recall.view.built != built:
                return None
            self._counters.attempts += 1
            now_us = self._clock.elapsed_us()
            uptime_us = self._uptime.at(now_us)
            try:
                if window is not None and name is not None:
                    met = self._recognise(window, high, low, fingerprint, uptime_us, hit)
                    if met is not None:
                        return met
                group = committer.place_one(value, name, uptime_us)
            except BaseException as error:  # noqa: BLE001
                committer.give_up(error)
            committer.offer(group, now_us)
            if group.state != "stored":
                committer.wait(group, None if timeout_us is None else now_us + timeout_us)
        return group

    def _recognise(  # noqa: PLR0917
        self, window: Window, high: int, low: int, fingerprint: int, uptime_us: int, hit: Hit | None
    ) -> Ticket | None:
        """Return the answer to a record that is known; add it to the window as the next one if it is not."""
        window.evict(uptime_us)
        handle = window.find_one(high, low)
        if handle >= 0:
            return self._meet(handle, fingerprint)
        if hit is not None:
            return self._meet_elsewhere(hit.position, hit.fingerprint, decisions.RECALLED_US, fingerprint)
        if self._adopted.files:
            self._adopted.evict(uptime_us)
            met = self._meet_adopted(high, low, fingerprint)
            if met is not None:
                return met
        window.add_one(high, low, self._committer.next_position, fingerprint)
        return None

    def _meet(self, handle: int, fingerprint: int) -> Ticket:
        assert self._window is not None
        position, stored_fingerprint, timestamp_us, pending = self._window.at(handle)
        conflict = fingerprint != stored_fingerprint
        if conflict:
            self._counters.conflicts += 1
        else:
            self._counters.duplicates += 1
            if self._settings.window.refresh_on_hit and not pending:
                self._window.refresh(np.array([handle], np.int64), self._uptime.now_us())
        group = self._committer.group_of(position) if pending else None
        return Ticket(position, group, timestamp_us, duplicate=True, conflict=conflict)

    def _meet_adopted(self, high: int, low: int, fingerprint: int) -> Ticket | None:
        found = self._adopted.find(np.array([[high, low]], np.uint64))
        if found.positions[0] < 0:
            return None
        return self._meet_elsewhere(
            int(found.positions[0]), int(found.fingerprints[0]), int(found.times[0]), fingerprint
        )

    def _meet_elsewhere(self, position: int, stored: int, time_us: int, fingerprint: int) -> Ticket:
        conflict = stored != fingerprint
        if conflict:
            self._counters.conflicts += 1
        else:
            self._counters.duplicates += 1
        return Ticket(position, None, time_us, duplicate=True, conflict=conflict)

    def prepared(self, submitted: Sequence[Submitted]) -> list[Prepared]:
        """Return records in columns, in pieces of a block, with their keys. No lock is needed."""
        payload = decisions.payload_of([record for record, _, _ in submitted])
        return [
            Prepared(piece, decisions.keys_of(piece, self._hasher, self._window))
            for piece in decisions.pieces(payload, self._settings)
        ]

    def submitted(self, given: Prepared, futures: list[AckFuture[Ack]], recalled: Found | None) -> list[Crowd]:
        """Decide a piece of what was submitted; return what can be answered now. The rest waits with its groups."""
        admitted = self.rows(given.piece, given.keys, recalled)
        if admitted.new.all():
            admitted.groups[0].crowds.append((futures, partial(self.answers, admitted)))
            return []
        left = np.ones(given.piece.num_rows, np.bool_)
        for group in admitted.groups:
            inside = (admitted.positions >= group.first_position) & (admitted.positions < group.next_position)
            group.crowds.append(self._crowd(admitted, futures, np.flatnonzero(inside)))
            left &= ~inside
        return [self._crowd(admitted, futures, np.flatnonzero(left))] if left.any() else []

    def _crowd(self, admitted: Admitted, futures: list[AckFuture[Ack]], rows: NDArray[np.int64]) -> Crowd:
        return [futures[row] for row in rows.tolist()], partial(self.answers, admitted, rows)

    def answers(self, admitted: Admitted, rows: NDArray[np.int64] | None = None) -> list[Ack | OncelogError]:
        """Return the acks, or the errors, of rows that are stored or refused: all of them, or these."""
        refuse = self._settings.on_conflict == "error"
        return admitted.answers(self._run.places_of, self._recall.timestamps_of, refuse=refuse, rows=rows)

    def rows(self, piece: pa.RecordBatch, keys: decisions.Keys | None, recalled: Found | None = None) -> Admitted:
        """Decide rows, each on its own, and add those that are new. ``recalled`` is what the runs know of them."""
        try:
            return self._rows(piece, keys, recalled)
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)

    def _rows(self, piece: pa.RecordBatch, keys: decisions.Keys | None, recalled: Found | None) -> Admitted:
        size_bytes = piece.nbytes + RECORD_OVERHEAD_BYTES * piece.num_rows
        self._counters.attempts += piece.num_rows
        judged = None
        if "producer" in piece.schema.names:
            judged = self._sequences.judge(piece)
            piece = judged.payload
        admitted = decisions.decide(
            piece,
            keys,
            self._seen,
            self._committer.next_position,
            self._uptime.now_us(),
            judged=judged,
            recalled=recalled,
        )
        self._store(admitted, piece, keys, size_bytes, judged)
        self._refresh(admitted)
        return admitted

    def batch(
        self,
        payload: pa.RecordBatch,
        keys: decisions.Keys | None,
        judge: Callable[[Admitted], None] | None,
        recalled: Found | None = None,
    ) -> Admitted:
        """Decide rows together: all are new and added, or all were there as one batch. ``judge`` may refuse them."""
        size_bytes = payload.nbytes + RECORD_OVERHEAD_BYTES * payload.num_rows
        self._counters.attempts += payload.num_rows
        try:
            admitted, payload, judged = self._decide_batch(payload, keys, recalled)
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)
        if judge is not None:
            judge(admitted)
        try:
            self._store(admitted, payload, keys, size_bytes, judged)
            self._refresh(admitted)
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)
        return admitted

    def _decide_batch(
        self, payload: pa.RecordBatch, keys: decisions.Keys | None, recalled: Found | None
    ) -> tuple[Admitted, pa.RecordBatch, Judged | None]:
        judged = None
        if "producer" in payload.schema.names:
            judged = self._sequences.judge_batch(payload)
            payload = judged.payload
        admitted = decisions.decide_batch(
            payload,
            keys,
            self._seen,
            self._committer.next_position,
            self._uptime.now_us(),
            judged=judged,
            recalled=recalled,
        )
        return admitted, payload, judged

    def _refresh(self, admitted: Admitted) -> None:
        """Make what was met as young as new, if the settings say so."""
        if self._settings.window.refresh_on_hit and self._window is not None and admitted.handles.size:
            self._window.refresh(admitted.handles, self._uptime.now_us())

    def _store(
        self,
        admitted: Admitted,
        piece: pa.RecordBatch,
        keys: decisions.Keys | None,
        size_bytes: int,
        judged: Judged | None,
    ) -> None:
        """Hand the new rows of a piece to the committer, and note what the others wait for."""
        new = admitted.new
        count = int(np.count_nonzero(new))
        self._counters.duplicates += int(np.count_nonzero(admitted.duplicates & ~admitted.conflicts))
        self._counters.conflicts += int(np.count_nonzero(admitted.conflicts))
        if count:
            rows = piece if count == piece.num_rows else piece.filter(pa.array(new))
            size_bytes = size_bytes if count == piece.num_rows else rows.nbytes + RECORD_OVERHEAD_BYTES * count
            ids = decisions.remember(admitted, keys, self._window, piece)
            group = self._committer.group_for(size_bytes, count)
            assert group.next_position == self._committer.next_position
            group.add_payload(rows, size_bytes, ids)
            if judged is not None:
                owners = judged.owners if rows is piece else None
                self._sequences.push_rows(rows, admitted.positions[new], group, owners)
            self._committer.admitted(size_bytes, count)
            admitted.groups.append(group)
        if count < piece.num_rows:
            admitted.groups += self._committer.groups_of(admitted.positions[~new])
