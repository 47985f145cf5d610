"""One plain record that finds nothing pending: decided, written and settled in one straight way.

This is the other part of the driver, beside ``committer``, and the only other file that takes the lock. Most appends of
a thread that waits for each of them come here. After a sync the caches of the processor are cold, and every function
and every object that is touched costs time: so there is one function, and a test counts what it calls (decision 58).
"""

from __future__ import annotations

from oncelog.errors import OncelogError
from oncelog.log.append.core import INTERRUPTS
from oncelog.log.append.decider import Decider
from oncelog.log.append.groups import Group, Ticket
from oncelog.log.append.session import WriterSession
from oncelog.types import Ack, moment


class Alone:
    """Appends such records for one writer."""

    def __init__(self, session: WriterSession, decider: Decider) -> None:
        self._core = session.core
        self._committer = session.committer
        self._lock = session.committer.lock
        self._run = session.run
        self._recall = session.recall
        self._clock = session.clock
        self._hasher = session.hasher
        self._knows_ids = session.core.window is not None
        self._decider = decider

    def append(self, value: bytes, id: str | None, timeout_us: int | None) -> Ack | Ticket | None:  # noqa: C901
        """Decide one plain record, and store it if it is new: return its ack, or the ticket of one that is known.

        ``None``, and nothing is done, if others are on their way, or a run was built meanwhile. Hashing, and looking up
        in the runs, needs no lock; nor does storage, and the ack is made while the device works (decision 55).
        """
        core, committer, clock, run = self._core, self._committer, self._clock, self._run
        view = self._recall.view
        built = view.built
        name = key = hit = group = ack = None
        request = 0
        if id is not None and self._knows_ids:
            name = id.encode()
            key = self._hasher.both(name, value)
            if view.any:
                built, hit, unsure = self._recall.look_one(key[0], key[1])
                if unsure is not None:
                    return None
        try:
            with self._lock:
                now_us = clock.elapsed_us()
                if not core.idle(now_us) or self._recall.view.built != built:
                    return None
                met = self._decider.alone(value, name, key, hit, now_us, clock.now_us())
                if type(met) is not Group:
                    return met  # type: ignore[return-value] # a ticket
                group = met
                request = core.uptime.ask(now_us)
                group.busy = True
            run.begin(group)
            ack = Ack(group.first_position, group.segment, group.first_entry, moment(group.timestamp_us))
            end = run.append(group)
            with self._lock:
                group.busy = False
                if core.error is None:  # else ended meanwhile: the next writer decides
                    core.landed(group, request, end, now_us, clock.elapsed_us())
                if committer.sleeping or core.unanswered or core.due:
                    committer.react()
        except BaseException as error:
            if group is None:
                committer.locked(committer.give_up, error)
                raise
            group.busy = False  # before any call: whatever interrupts, the block is offered again
            self._failed(group, request, error)
            if not isinstance(error, OncelogError):
                raise
        if group.state != "stored":
            deadline_us = None if timeout_us is None else now_us + timeout_us
            committer.locked(committer.wait, group, deadline_us)
        return ack or _ack(group)

    def _failed(self, group: Group, request: int, error: BaseException) -> None:
        """Report that storage did not take a block; once more if Ctrl-C ends that, because others may wait for it."""
        committer = self._committer
        try:
            committer.locked(committer.failed, group, request, error)
        except INTERRUPTS:
            committer.locked(committer.failed, group, request, error)
            raise


def _ack(group: Group) -> Ack:
    """Return the ack of the one record of a group."""
    return Ack(group.first_position, group.segment, group.first_entry, moment(group.timestamp_us))
