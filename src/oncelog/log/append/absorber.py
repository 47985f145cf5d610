"""Deciding what was submitted: in its order, by one thread at a time, and looked up in the runs without the lock."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from oncelog.dedup.identity import Hasher
from oncelog.dedup.window import DedupWindow
from oncelog.errors import OncelogError
from oncelog.format.payload import plain
from oncelog.log.append import payloads
from oncelog.log.append.answers import Answers
from oncelog.log.append.core import TORN
from oncelog.log.append.decider import Decider, Name
from oncelog.log.append.groups import Submitted, record_of
from oncelog.log.append.session import WriterSession
from oncelog.log.memory.recall import Looked
from oncelog.types import Record

COLUMN_BYTES_MAX = 1 << 30
"""Larger columns are made in parts: Arrow counts the bytes of one in 31 bits."""

COLUMNS_MIN = 32
"""So many submitted records are decided together sooner than one by one."""


def name_of(record: Record, hasher: Hasher, window: DedupWindow | None) -> Name | None:
    """Return by what a record is recognised, if it has an id that counts."""
    if window is None or record.id is None or record.producer is not None:
        return None
    high, low = hasher.identity((record.stream or "") if hasher.by_stream else "", record.id)
    return Name(high, low, hasher.fingerprint(record))


class _Prepared(NamedTuple):
    """Rows that fit a block, and by what they are recognised."""

    piece: pa.RecordBatch
    keys: payloads.Keys | None


def _payload(submitted: Sequence[Submitted], ids: Sequence[str | None]) -> pa.RecordBatch:
    """Return checked records in columns."""
    if set(map(type, submitted)) == {bytes}:
        return plain.columns(cast("Sequence[bytes]", submitted), ids)
    return payloads.payload_of(list(map(record_of, submitted, ids)))


class Absorber:
    """Decides for one writer. The committer's lock is held on entry and on exit.

    Where there are runs, the lock is let go while they are searched. ``Core.absorbing`` is set meanwhile: an append
    waits, so that what was submitted before stays before.
    """

    def __init__(self, session: WriterSession, decider: Decider, answers: Answers) -> None:
        self._committer = session.committer
        self._core = session.core
        self._decider = decider
        self._answers = answers
        self._recall = session.recall
        self._hasher = session.hasher
        self._settings = session.settings
        self._clock = session.clock

    def absorb(self) -> None:
        """Decide all that was submitted; when another thread is at it, return when that has ended."""
        core, committer = self._core, self._committer
        if core.absorbing:
            committer.until_absorbed(None)
        if not core.submitted:
            return
        try:
            if self._recall.view.any:
                self._decide_apart()
            elif len(core.submitted) >= COLUMNS_MIN:
                for given in self._prepared(core.submitted, core.submitted_ids):
                    self._absorb(given, None)
            else:
                records = map(record_of, core.submitted, core.submitted_ids)
                names = [name_of(record, self._hasher, core.window) for record in records]
                self._decider.absorb(names, self._answers.one, self._clock.elapsed_us())
        except BaseException as error:  # noqa: BLE001
            committer.give_up(error)
        if core.unanswered:
            committer.react()

    def _absorb(self, given: _Prepared, looked: Looked | None) -> None:
        found = None if looked is None else looked.found
        self._decider.absorb_rows(given.piece, given.keys, found, self._answers.rows, self._clock.elapsed_us())

    def _prepared(self, submitted: Sequence[Submitted], ids: Sequence[str | None]) -> list[_Prepared]:
        """Return records in columns, in pieces of a block, with their keys."""
        core = self._core
        return [
            _Prepared(
                piece, payloads.keys_of(piece, self._hasher, core.window, in_full=not core.defers(piece.num_rows))
            )
            for part in self._parts(submitted)
            for piece in payloads.pieces(_payload(submitted[part], ids[part]), self._settings)
        ]

    def _parts(self, submitted: Sequence[Submitted]) -> list[slice]:
        """Return parts of what was submitted, each of which fits a column: nearly always it is one."""
        if self._core.submitted_bytes <= COLUMN_BYTES_MAX:
            return [slice(None)]
        ends = np.cumsum([len(record_of(one, None).value) for one in submitted])
        cuts = np.flatnonzero(np.diff(ends // COLUMN_BYTES_MAX)) + 1
        return [slice(*part) for part in itertools.pairwise([0, *cuts.tolist(), len(submitted)])]

    def _decide_apart(self) -> None:
        """Decide piece by piece, each looked up without the lock. If the runs cannot be asked, refuse the rest."""
        core, committer = self._core, self._committer
        submitted, ids = tuple(core.submitted), tuple(core.submitted_ids)  # more may come meanwhile
        left = len(submitted)
        try:
            core.absorbing = True
            for given in committer.unlocked(lambda: self._prepared(submitted, ids)):
                looked = self._look(given)
                committer.check()  # it may have ended meanwhile
                self._absorb(given, looked)
                left -= given.piece.num_rows
                if core.unanswered:
                    committer.react()
        except OncelogError as error:
            if core.error is TORN:
                raise
            if core.ended is None:
                core.reject(left, error)
        finally:
            core.absorbing = False
            committer.tell()

    def _look(self, given: _Prepared) -> Looked | None:
        """Look a piece up, again if a run was built meanwhile."""
        keys = given.keys
        if keys is None:
            return None
        while True:
            looked = self._committer.unlocked(self._looked_up, keys)
            if self._recall.is_current(looked):
                return looked

    def _looked_up(self, keys: payloads.Keys) -> Looked:
        """Search the runs, without the lock. What they may know is compared: then the values are hashed, too."""
        looked = self._recall.look(keys.identities)
        if looked.found is not None:
            keys.hashed()
        return looked
