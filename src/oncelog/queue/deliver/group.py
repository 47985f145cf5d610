"""A group as its broker knows it: which row it is, its time and its rules."""

from __future__ import annotations

from oncelog.clock import Clock
from oncelog.errors import NotFound
from oncelog.queue.rules.delivery import Change, Condition, Rules
from oncelog.queue.rules.queue_time import Noted, QueueTime
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.topic import DEAD_LETTERS
from oncelog.queue.state import statements
from oncelog.queue.state.database import StateDatabase, Transaction
from oncelog.queue.state.statements import Outlook


class ConsumerGroup:
    """One group of one queue, in this process. Safe to share between threads."""

    def __init__(  # noqa: PLR0917
        self, topic: str, name: str, queue_id: int, settings: QueueSettings, database: StateDatabase, clock: Clock
    ) -> None:
        self.name = name
        self.settings = settings
        self._topic = topic
        self._queue_id = queue_id
        self._clock = clock
        self._id: int | None = None
        with database.reading() as transaction:
            row = self._row(transaction)
            self.generation = statements.generation(transaction)
            wall_us = transaction.now_us()
        self.id = self._id = row.id
        self.ordered = row.ordered
        self._time = QueueTime(clock, row.noted, wall_us, one_machine=database.one_machine)
        self.may_be_dying = True
        """Whether messages may be on their way to the dead letters: since this process looked last, or by itself."""

    def _row(self, transaction: Transaction) -> statements.GroupRow:
        """Return the group as it is stored.

        A group that was removed and made again under its name is another one, with other positions and tokens.
        """
        row = statements.group(transaction, self._queue_id, self.name)
        if row is None or self._id not in (None, row.id):
            raise self._gone()
        return row

    def _gone(self) -> NotFound:
        return NotFound(f"queue {self._topic!r} has no group {self.name!r} (any more): consume(group=…) makes it")

    def outlook(self, transaction: Transaction) -> Outlook:
        """Return what there is to do; the queue's settings hold from now on."""
        found = statements.outlook(transaction, self.id)
        if found is None:
            raise self._gone()
        self.may_be_dying = found.dying_us is not None
        self.settings = found.settings
        return found

    def apply(self, transaction: Transaction, change: Change) -> None:
        """Store what has changed."""
        statements.apply(transaction, self.id, change)
        if any(run.condition is Condition.DYING for run in change.come):
            self.may_be_dying = True

    # Time.

    def now_us(self) -> int:
        """Return the queue time."""
        return self._time.now_us()

    def begin(self, transaction: Transaction) -> tuple[int, int]:
        """Begin to change the group, which nobody else changes until the transaction ends; return its newest token and
        the queue time.
        """
        row = self._row(transaction)
        return row.token, self._time.meet(row.noted.queue_us if row.noted is not None else 0)

    def noted(self, now_us: int, wall_us: int) -> Noted:
        """Return a moment to store."""
        return self._time.note(now_us, wall_us)

    def rules(self, now_us: int) -> Rules:
        """Return the inputs of the state machine."""
        mortal = not self._topic.startswith(DEAD_LETTERS)
        return Rules(now_us, self.settings.retry, self._clock.chance, mortal)
