"""Deciding what was submitted: in its order, by one thread at a time, and looked up in the runs without the lock."""

from __future__ import annotations

from oncelog.log.append.committer import Committer
from oncelog.log.append.decider import Decider, Prepared
from oncelog.log.append.groups import Submitted, Waiting
from oncelog.log.memory.recall import Looked, Recall

COLUMNS_MIN = 32
"""So many submitted records are decided together sooner than one by one."""


class Absorber:
    """Decides for one writer. The committer's lock is held on entry and on exit.

    Where there are runs, the lock is let go while they are searched. ``absorbing`` is set meanwhile: whoever appends
    waits, so that what was submitted before stays before.
    """

    def __init__(self, committer: Committer, decider: Decider, recall: Recall) -> None:
        self._committer = committer
        self._decider = decider
        self._recall = recall

    def absorb(self) -> None:
        """Decide all that was submitted; when another thread is at it, return when that has ended."""
        committer = self._committer
        if committer.absorbing:
            committer.until_absorbed(None)
        submitted = committer.take_submitted()
        if not submitted:
            return
        done: list[int] = []
        try:
            if self._recall.view.any:
                self._decide_apart(submitted, done)
            elif len(submitted) >= COLUMNS_MIN:
                self._decide_columns(submitted)
            else:
                self._decide_singly(submitted)
        except BaseException as error:  # noqa: BLE001
            committer.forsake([future for _, _, future in submitted[sum(done) :]], error)

    def _decide_columns(self, submitted: list[Submitted]) -> None:
        done, ready = 0, []
        futures = [future for _, _, future in submitted]
        for given in self._decider.prepared(submitted):
            count = given.piece.num_rows
            ready += self._decider.submitted(given, futures[done : done + count], None)
            done += count
        if ready:
            self._committer.answer_crowds(ready)

    def _decide_singly(self, submitted: list[Submitted]) -> None:
        decider = self._decider
        waiting = [
            Waiting(future, decider.one(record, size_bytes, decider.named(record)), record.id)
            for record, size_bytes, future in submitted
        ]
        stored = [one for one in waiting if one.ticket.group is None]
        for one in waiting:
            if one.ticket.group is not None:
                one.ticket.group.waiting.append(one)
        if stored:
            self._committer.answer(stored)

    def _decide_apart(self, submitted: list[Submitted], done: list[int]) -> None:
        """Decide piece by piece, each looked up without the lock; ``done`` counts the records of those decided."""
        committer = self._committer
        futures = [future for _, _, future in submitted]
        committer.absorbing = True
        try:
            for given in committer.unlocked(lambda: self._decider.prepared(submitted)):
                looked = self._look(given)
                committer.check()  # it may have ended meanwhile
                first, count = sum(done), given.piece.num_rows
                ready = self._decider.submitted(given, futures[first : first + count], looked.found)
                done.append(count)
                if ready:
                    committer.answer_crowds(ready)
        finally:
            committer.absorbing = False
            committer.tell()

    def _look(self, given: Prepared) -> Looked:
        """Look a piece up, again if a run was built meanwhile."""
        keys = given.keys
        if keys is None:
            return Looked(0, None)
        while True:
            looked = self._committer.unlocked(lambda: self._recall.look(keys.identities))
            if self._recall.is_current(looked):
                return looked
