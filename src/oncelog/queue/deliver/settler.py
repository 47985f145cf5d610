"""The settler of one group: stores what becomes of messages that are out, each step before it counts.

Steps of several threads are stored together: one commit for all that have come meanwhile.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from oncelog.concurrency.batcher import Batcher
from oncelog.errors import OncelogError, Unavailable
from oncelog.queue.deliver.group import ConsumerGroup
from oncelog.queue.rules import delivery
from oncelog.queue.rules.delivery import Change, Condition, MessageRun
from oncelog.queue.state import statements
from oncelog.queue.state.database import WAIT_S_MIN, StateDatabase, Transaction

_CLOSE_S = 30.0

Ended = Callable[[list[list[int]] | BaseException], None]
"""What is called with the positions that steps lost, or with the error for which none was stored."""


class ConsumerStep(NamedTuple):
    """What a consumer does with messages of one partition that it holds under one token."""

    token: int
    partition: int
    positions: Sequence[int]
    kind: str = "acked"
    reason: str = ""
    again: bool = True
    extend_us: int = 0


class _Asked:
    """Steps that wait to be stored, with those of others."""

    def __init__(self, steps: Sequence[ConsumerStep]) -> None:
        self.steps = steps
        self.done = False
        self.lost: list[list[int]] = []
        self.error: BaseException | None = None


class Settler:
    """Settles for one group, in this process. Safe to share between threads."""

    def __init__(
        self, group: ConsumerGroup, database: StateDatabase, *, wake: Callable[[], None], bury: Callable[[], None]
    ) -> None:
        """Take what has consumers look again, and what brings messages that are dying to the dead letters."""
        self._wake = wake
        self._bury = bury
        self._group = group
        self._database = database
        self._asking = threading.Lock()
        self._storing = threading.Lock()
        self._asked: list[_Asked] = []
        self._submitted: Batcher[tuple[Sequence[ConsumerStep], Ended]] = Batcher(
            "oncelog-settler", self._settle_submitted
        )

    def settle(self, steps: Sequence[ConsumerStep]) -> list[list[int]]:
        """Store what consumers do with what they hold; return, for each step, the positions that others have now."""
        asked = _Asked(steps)
        with self._asking:
            self._asked.append(asked)
        with self._storing:
            if not asked.done:
                self._store()
        if asked.error is not None:
            raise asked.error
        if any(step.kind in ("refused", "returned") for step in steps):
            self._wake()
        return asked.lost

    def submit(self, steps: Sequence[ConsumerStep], ended: Ended) -> None:
        """Have steps stored without waiting for it; ``ended`` has what ``settle`` returns, or raises."""
        self._submitted.put((steps, ended))

    def _settle_submitted(self, submitted: Sequence[tuple[Sequence[ConsumerStep], Ended]]) -> None:
        try:
            lost = iter(self.settle([step for steps, _ in submitted for step in steps]))
        except BaseException as error:  # noqa: BLE001 (the future has it)
            for _, ended in submitted:
                ended(error)
            return
        if any(step.kind == "refused" for steps, _ in submitted for step in steps):
            self._bury()
        for steps, ended in submitted:
            ended(list(islice(lost, len(steps))))

    def _store(self) -> None:
        taken: list[_Asked] = []
        try:
            with self._asking:
                taken, self._asked = self._asked, []  # in here: who waits for these must learn of Ctrl-C behind it
            with self._database.writing() as transaction:
                self._settle_all(transaction, taken)
        except OncelogError as error:
            for asked in taken:
                asked.error = error
        except BaseException as error:
            interrupted = f"the thread that stored this among others was interrupted ({error!r}): try again"
            for asked in taken:
                asked.error = Unavailable(interrupted, outcome="unknown")
            raise
        finally:
            for asked in taken:
                asked.done = True

    def _settle_all(self, transaction: Transaction, taken: Sequence[_Asked]) -> None:
        _, now_us = self._group.begin(transaction)
        counted: dict[str, int] = defaultdict(int)
        for asked in taken:
            asked.lost = [self._settle(transaction, step, now_us, counted) for step in asked.steps]
        for what, by in counted.items():
            statements.count(transaction, self._group.id, what, by)

    def _settle(self, transaction: Transaction, step: ConsumerStep, now_us: int, counted: dict[str, int]) -> list[int]:
        leased = statements.leased(transaction, self._group.id, step.token)
        runs = [run for run in leased if run.partition == step.partition]
        settled = delivery.settle(runs, step.token, step.positions, now_us, self._becoming(step, now_us))
        self._apply(transaction, settled.change)
        count = sum(run.count for run in settled.taken)
        if step.kind in ("acked", "refused"):
            counted[step.kind] += count
        elif step.kind == "returned":
            counted["delivered"] -= count
        return settled.lost

    def _becoming(self, step: ConsumerStep, now_us: int) -> Callable[[MessageRun], MessageRun | None]:
        if step.kind == "refused":
            return lambda run: delivery.refused(run, step.reason, self._group.rules(now_us), again=step.again)
        if step.kind == "returned":
            return lambda run: delivery.returned(run, now_us)
        if step.kind == "extended":
            return lambda run: delivery.extended(run, now_us + step.extend_us)
        return lambda _: None

    def buried(self, parts: Sequence[MessageRun]) -> None:
        """Let go of messages that the dead letters have: of runs, or parts of them, that were dying."""
        count = 0
        with self._database.writing(wait_s=WAIT_S_MIN) as transaction:  # else the next time
            self._group.begin(transaction)
            for part in parts:
                run = statements.at(transaction, self._group.id, part.partition, part.first)
                taken, left = delivery.cut(run, part.positions) if run is not None else ([], [])
                if run is not None and taken == [part]:  # else another process has buried it
                    self._apply(transaction, Change([run], left))
                    count += part.count
            statements.count(transaction, self._group.id, "buried", count)

    def _apply(self, transaction: Transaction, change: Change) -> None:
        """Store a change, and let the next go whose keys have no other before them any more."""
        self._group.apply(transaction, change)
        for key in change.settled_keys:
            run = statements.first_of_key(transaction, self._group.id, key)
            if run is not None and run.condition is Condition.PARKED:
                statements.apply(transaction, self._group.id, Change([run], [delivery.freed(run)]))

    def close(self) -> None:
        """Settle what was submitted."""
        self._submitted.wait_idle(_CLOSE_S)
