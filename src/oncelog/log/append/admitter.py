"""Admitting records: looked up in the runs without the writer's lock, then decided and added with it.

What the runs said holds only as long as no run is built: then an id may have gone from the table into the new run
between the two looks. So the thread asks, with the lock held, whether a run was built, and looks again if one was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from oncelog.errors import Unavailable, WriterFenced
from oncelog.log.append import payloads
from oncelog.log.append.absorber import Absorber, name_of
from oncelog.log.append.answers import Admitted
from oncelog.log.append.decider import Decider, Name
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Ticket, record_bytes
from oncelog.log.append.session import WriterSession
from oncelog.log.memory.quest import Found
from oncelog.log.memory.recall import Looked, LookedOne
from oncelog.types import Record

_logger = logging.getLogger("oncelog")

AGAIN: Final = "again"
"""A run was built since the runs were searched: search them again."""


class _Rows(NamedTuple):
    """Rows to decide, by what they are recognised, and what the runs said of them."""

    payload: pa.RecordBatch
    keys: payloads.Keys | None
    looked: Looked | None

    @property
    def found(self) -> Found | None:
        """What the runs know of the rows, if there are runs."""
        return None if self.looked is None else self.looked.found


class Admitter:
    """Admits for one writer. ``check_owner`` and ``check_owners`` tell whether producers are whose they should be."""

    def __init__(
        self,
        session: WriterSession,
        decider: Decider,
        absorber: Absorber,
        *,
        check_owner: Callable[[str], None],
        check_owners: Callable[[pa.RecordBatch], None],
    ) -> None:
        self._committer = session.committer
        self._core = session.core
        self._decider = decider
        self._absorber = absorber
        self._recall = session.recall
        self._hasher = session.hasher
        self._settings = session.settings
        self._clock = session.clock
        self._window = session.core.window
        self._check_owner = check_owner
        self._check_owners = check_owners

    def one(self, record: Record, deadline_us: int | None) -> Ticket:
        """Decide one record, and add it if it is new; return when it is stored."""
        name = name_of(record, self._hasher, self._window)
        size_bytes = record_bytes(record)
        while True:
            looked = None if name is None else self._recall.look_one(name.high, name.low)
            ticket = self._committer.locked(self._one, record, size_bytes, name, looked, deadline_us)
            if ticket is not None:
                return ticket

    def _one(
        self, record: Record, size_bytes: int, name: Name | None, looked: LookedOne | None, deadline_us: int | None
    ) -> Ticket | None:
        """Decide one record, and wait for it; ``None`` if it is to be looked up again. The committer's lock is held."""
        self._make_room(size_bytes, 1, deadline_us)
        if not self._recall.is_current(looked):
            return None
        if record.producer is not None:
            self._check_owner(record.producer)
        try:
            ticket = self._decider.one(record, size_bytes, name, looked, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)
        if ticket.group is not None:
            self._committer.wait(ticket.group, deadline_us)
        return ticket

    def known(self, id: str, stream: str | None) -> tuple[Ticket, int] | None:
        """Return where a durable record with an id is, and its fingerprint; ``None`` if it is not remembered."""
        name = name_of(Record(b"", id=id, stream=stream), self._hasher, self._window)
        if name is None:
            return None
        while True:
            looked = self._recall.look_one(name.high, name.low)
            found = self._committer.locked(self._known, name, looked)
            if found != AGAIN:
                return found

    def _known(self, name: Name, looked: LookedOne) -> tuple[Ticket, int] | Literal["again"] | None:
        self._committer.check()  # the table of a writer that has ended belongs to the next one
        return self._decider.known(name, looked) if self._recall.is_current(looked) else AGAIN

    def together(
        self, payload: pa.RecordBatch, judge: Callable[[Admitted], None] | None, deadline_us: int | None
    ) -> Admitted:
        """Decide a batch, and add it if it is new."""
        keys = payloads.keys_of(payload, self._hasher, self._window, in_full=True)
        while True:
            rows = self._looked_up(payload, keys)
            admitted = self._committer.locked(self._together, rows, judge, deadline_us)
            if admitted is not None:
                return admitted

    def _looked_up(self, payload: pa.RecordBatch, keys: payloads.Keys | None) -> _Rows:
        """Search the runs for the ids of rows."""
        return _Rows(payload, keys, None if keys is None else self._recall.look(keys.identities))

    def _together(
        self, rows: _Rows, judge: Callable[[Admitted], None] | None, deadline_us: int | None
    ) -> Admitted | None:
        """Decide a batch, let ``judge`` look at what was decided, and add it; ``None`` if it is to be looked up again.

        The committer's lock is held.
        """
        if not self._may_decide(rows, deadline_us):
            return None
        try:
            decision = self._decider.decide_batch(rows.payload, rows.keys, rows.found, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)
        if judge is not None:
            judge(decision.admitted)
        try:
            return self._decider.take(decision, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)

    def payload(self, payload: pa.RecordBatch, deadline_us: int | None) -> tuple[Admitted, int]:
        """Admit a payload in pieces of a block, one hashed while another is stored; return also how many."""
        pieces = payloads.pieces(payload, self._settings)
        parts: list[Admitted] = []
        for piece in pieces:
            try:
                parts.append(self._rows(piece, deadline_us, more=len(pieces) > 1))
            except (Unavailable, WriterFenced) as error:
                if not parts:
                    raise
                message = f"{error}; what came before is on its way: retry the call with the same ids"
                raise type(error)(message, outcome="unknown") from error
        self._warn_of_window(payload)
        return Admitted.joined(parts, payload), len(parts)

    def _rows(self, piece: pa.RecordBatch, deadline_us: int | None, *, more: bool) -> Admitted:
        """Decide rows, and add those that are new; with ``more`` to come, begin to store them now."""
        keys = payloads.keys_of(piece, self._hasher, self._window, in_full=not self._core.defers(piece.num_rows))
        while True:
            rows = self._looked_up(piece, keys)
            if keys is not None and rows.found is not None:
                keys.hashed()
            admitted = self._committer.locked(self._add_rows, rows, deadline_us)
            if admitted is not None:
                if more:
                    self._committer.locked(self._committer.start_threads)
                return admitted

    def _add_rows(self, rows: _Rows, deadline_us: int | None) -> Admitted | None:
        """Decide rows that fit a block; ``None`` if they are to be looked up again. The committer's lock is held."""
        if not self._may_decide(rows, deadline_us):
            return None
        try:
            return self._decider.rows(rows.payload, rows.keys, rows.found, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            self._committer.give_up(error)

    def _may_decide(self, rows: _Rows, deadline_us: int | None) -> bool:
        """Wait until there is room for rows; tell whether what the runs said of them still holds."""
        payload = rows.payload
        self._make_room(payload.nbytes + RECORD_OVERHEAD_BYTES * payload.num_rows, payload.num_rows, deadline_us)
        if not self._recall.is_current(rows.looked):
            return False
        self._check_owners(payload)
        return True

    def _warn_of_window(self, payload: pa.RecordBatch) -> None:
        """Say that a bounded window forgets ids which the same call brought."""
        kept = self._settings.window.keys_max
        if self._window is not None and payload.num_rows > kept and "id" in payload.schema.names:
            what = "one call brought %d rows, and the log's window remembers %d ids: retried, rows are stored again"
            _logger.warning(what, payload.num_rows, kept)

    def _make_room(self, size_bytes: int, records: int, deadline_us: int | None) -> None:
        """Wait until so much more may be added, behind all that was submitted before it."""
        committer, core = self._committer, self._core
        committer.room(size_bytes, records, deadline_us)
        while core.submitted or core.absorbing:
            if core.absorbing:
                committer.until_absorbed(deadline_us)
            else:
                self._absorber.absorb()
            committer.check_open()  # answering and looking up lets go of the lock for a moment
