"""A queue: what a database hands out by name."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Self

from oncelog import arguments, names
from oncelog.clock import Clock
from oncelog.concurrency.pending import Pending, failed
from oncelog.errors import CorruptionError, InvalidArgument, NotFound, OncelogError, Unavailable
from oncelog.handle import Handle, closes_anywhere
from oncelog.queue import inspect
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.deliver.consumer import Consumer, check_consume
from oncelog.queue.deliver.dead_letters import GROUP as RETURNED
from oncelog.queue.deliver.dead_letters import Burials, DeadLetters, Undertaker, name_of_letters
from oncelog.queue.deliver.settling import LeaseName, SettlementRequest, settle_leases
from oncelog.queue.deliver.trimming import Trimming
from oncelog.queue.inspect import Peeked, QueueStats
from oncelog.queue.rules import message, settings
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.sender import OnPending, Sender, SendStatus, Sent
from oncelog.queue.send.submissions import Submissions
from oncelog.queue.send.topic import DEAD_LETTERS, Topic
from oncelog.queue.state import statements
from oncelog.queue.state.database import StateDatabase
from oncelog.settings import TIMEOUT_S

OpenSibling = Callable[[str, bool], "Queue"]
"""From the name of another queue of the same database, and whether to create it, to the queue."""


class Queue(Handle):
    """A work queue. Made by ``Database.queue``; safe to share between threads.

    Every message is delivered to each group until it is acknowledged there, or lies among the dead letters.

    >>> import oncelog
    >>> with oncelog.connect("memory://") as db:
    ...     emails = db.queue("emails", create=True)
    ...     sent = emails.send(b"welcome", id="user-7")
    ...     with emails.consume("mailer") as deliveries:
    ...         [delivery] = deliveries.receive()
    ...         delivery.ack()
    >>> delivery.value, delivery.attempts
    (b'welcome', 1)
    """

    _what = "queue"

    def __init__(
        self, topic: Topic, row: statements.QueueRow, database: StateDatabase, clock: Clock, sibling: OpenSibling
    ) -> None:
        """Take what is stored, and the way to other queues of the same database."""
        super().__init__()
        self.name = topic.name
        self._row = row
        self._topic = topic
        self._database = database
        self._clock = clock
        self._sibling = sibling
        self._sending = Sender(topic, row.id, database, clock, row.settings)
        self._submissions = Submissions(self._sending, clock, self._sent)
        self._lock = threading.Lock()
        self._brokers: dict[str, Broker] = {}
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._letters: DeadLetters | None = None
        self._trimming = Trimming(self.trim, clock)

    @property
    def partitions(self) -> int:
        """How many logs the queue is spread over: fixed when it is made."""
        return self._row.partitions

    @property
    def settings(self) -> QueueSettings:
        """The settings as they are stored now."""
        return self._stored().settings

    def _is_stored(self) -> bool:
        try:
            self._stored()
        except NotFound:
            return False
        except Unavailable:
            return True
        return True

    def _stored(self) -> statements.QueueRow:
        self._check_usable()
        with self._database.reading() as transaction:
            row = statements.queue(transaction, self.name)
        if row is None or row.id != self._row.id or row.deleting:
            error = f"queue {self.name!r} was deleted: open it again"
            raise NotFound(error)
        if row.damage is not None:
            error = f"queue {self.name!r}: its settings cannot be read any more ({row.damage}): configure() it"
            raise CorruptionError(error)
        self._row = row
        return row

    # Sending.

    def send(
        self,
        value: bytes,
        *,
        id: str = "",
        key: str = "",
        tenant: str = "",
        headers: Mapping[str, bytes] | None = None,
        delay_s: float = 0.0,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        on_pending: OnPending = "join",
        timeout_s: float = TIMEOUT_S,
    ) -> Sent:
        """Send one message: durable on return. With an id it is in the queue once, however often it is sent.

        ``on_pending``: what an attempt does that meets another one of the same identity on its way: wait for its
        outcome, or be refused (``Unavailable``). Raises ``IdConflict`` when the id is taken by other content, and
        ``Unavailable`` when it could not be stored; ``outcome`` tells whether that is known.
        """
        one = Message(value, id, key, tenant, headers, delay_s, deadline_s, retry)
        return self.send_many([one], on_pending=on_pending, timeout_s=timeout_s)[0]

    def send_many(
        self, messages: Iterable[Message], *, on_pending: OnPending = "join", timeout_s: float = TIMEOUT_S
    ) -> list[Sent]:
        """Send messages, one commit for those of a partition, each decided on its own.

        ``InvalidArgument`` if one of them cannot be sent, and then none is; ``AppendErrors``, with the answer to each,
        if some were refused.
        """
        self._check_usable()
        within_s = arguments.seconds("timeout_s", timeout_s)
        sent = self._sending.send_messages(message.listed(messages), within_s, on_pending)
        self._sent()
        return sent

    def submit(
        self,
        value: bytes,
        *,
        id: str = "",
        key: str = "",
        tenant: str = "",
        headers: Mapping[str, bytes] | None = None,
        delay_s: float = 0.0,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        on_pending: OnPending = "join",
        timeout_s: float = TIMEOUT_S,
    ) -> Pending[Sent]:
        """Send one message without waiting for it: the future has what ``send`` returns, or its error.

        Messages that come together are sent together, in their order. Blocks only while too many wait, and never on an
        event loop.
        """
        try:
            self._check_usable()
            outgoing = self._sending.outgoing(Message(value, id, key, tenant, headers, delay_s, deadline_s, retry))
            within_s = arguments.seconds("timeout_s", timeout_s)
            return self._submissions.submit(outgoing, on_pending, within_s)
        except OncelogError as error:
            return failed(error)

    def _sent(self) -> None:
        for broker in list(self._brokers.values()):
            broker.wake()

    @arguments.checked
    def status(self, id: str, *, key: str = "", tenant: str = "") -> SendStatus | None:
        """Return how the sending of an id ended, or how far it is; ``None`` if it is not known (any more)."""
        self._check_usable()
        return self._sending.status(message.check_identity(tenant, key, id))

    def _take_writers(self, timeout_s: float) -> None:
        self._check_usable()
        self._sending.take_writers(timeout_s)

    # Consuming.

    @arguments.checked
    def consume(
        self,
        group: str = "default",
        *,
        prefetch: int = 1,
        ack_timeout_s: float | None = None,
        ordered: bool | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> Consumer:
        """Return a consumer of a group, which is made when it is not there, beginning at ``start``.

        ``prefetch``: how many messages are claimed at once. ``ordered``: messages with one key are delivered one after
        the other, in the order in which they were sent; a group is ordered or not from its beginning.
        """
        timeout_s = ack_timeout_s if ack_timeout_s is not None else self._row.settings.ack_timeout_s
        check_consume(prefetch, timeout_s, ordered, start)
        broker = self._broker(group, ordered=ordered, start=start)
        consumer = Consumer(
            broker, self._clock, prefetch=prefetch, ack_timeout_s=timeout_s, leave=self._consumers.discard
        )
        self._consumers.add(consumer)
        return consumer

    def _settle_leases(self, group: str, leases: Iterable[LeaseName], settlement: SettlementRequest) -> list[LeaseName]:
        self._check_usable()
        with self._lock:
            known = group in self._brokers
        if not known and group not in (groups := self.groups()):
            raise inspect.no_group(self.name, group, groups)
        broker = self._broker(group, ordered=None, start="earliest")
        lost = settle_leases(broker, leases, settlement)
        broker.wake()
        return lost

    def _broker(self, group: str, *, ordered: bool | None, start: str) -> Broker:
        self._check_usable()
        names.check(group, "group")
        with self._lock:
            if group not in self._brokers:
                self._make_group(group, start, ordered=bool(ordered))
                self._brokers[group] = self._new_broker(group)
            broker = self._brokers[group]
        if ordered is not None and broker.ordered != ordered:
            error = (
                f"group {group!r} of queue {self.name!r} is {'' if broker.ordered else 'not '}ordered, since it began"
            )
            raise InvalidArgument(error)
        return broker

    def _make_group(self, group: str, start: str, *, ordered: bool) -> None:
        with self._database.reading() as transaction:
            there = statements.group(transaction, self._row.id, group) is not None
        if not there:
            self._stored()  # a group of a deleted queue would belong to no queue
            starts = self._topic.starts(start)
            with self._database.writing() as transaction:
                statements.add_group(transaction, self._row.id, group, starts, ordered=ordered)

    def _new_broker(self, group: str) -> Broker:
        broker = Broker(
            self._topic, self._database, self._clock, queue_id=self._row.id, name=group, settings=self._row.settings
        )
        if not self.name.startswith(DEAD_LETTERS):
            undertaker = Undertaker(broker, self._clock, lambda: self._dead_letter_queue()._sending)  # noqa: SLF001
            broker.bury = undertaker.bury
        broker.trim = self._trimming.look
        return broker

    # Dead letters.

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be delivered: to be looked at, and sent back. It is the queue ``dlq.<name>``."""
        name = self._name_of_letters()
        with self._lock:
            if self._letters is None:
                self._letters = DeadLetters(name, self._burials, self._database, self._sending, self.groups)
        return self._letters

    def _burials(self) -> Burials | None:
        """Return where the dead letters are, if there are any: looking at them creates nothing."""
        name = self._name_of_letters()
        try:
            letters = self._sibling(name, False)
        except NotFound:
            return None
        return Burials(letters._topic, letters._row.id)  # noqa: SLF001

    def _dead_letter_queue(self) -> Queue:
        return self._sibling(self._name_of_letters(), True)

    def _name_of_letters(self) -> str:
        name = name_of_letters(self.name)
        self._stored()  # those of a queue that was deleted went with it
        return name

    # Operating.

    @arguments.checked
    def pause(self, group: str | None = None) -> None:
        """Deliver nothing until ``resume``: to anybody, or to one group. Sending goes on, and so do deliveries made."""
        self._set_paused(group, paused=True)

    @arguments.checked
    def resume(self, group: str | None = None) -> None:
        """Deliver again."""
        self._set_paused(group, paused=False)

    def _set_paused(self, group: str | None, *, paused: bool) -> None:
        self._check_usable()
        with self._database.writing() as transaction:
            if group is not None and statements.group(transaction, self._row.id, group) is None:
                raise inspect.no_group(self.name, group, statements.groups(transaction, self._row.id))
            statements.pause(transaction, self._row.id, group, paused=paused)
        for broker in list(self._brokers.values()):
            broker.wake()

    def groups(self) -> list[str]:
        """Return the names of the groups there are."""
        self._check_usable()
        with self._database.reading() as transaction:
            return statements.groups(transaction, self._row.id)

    @arguments.checked
    def remove_group(self, group: str, *, force: bool = False) -> None:
        """Forget a group: what it has not settled is kept for it no longer. A group of that name that is made later is
        another one, and begins at the ``start`` of its first consumer.

        Raises ``NotFound``, and ``LogBusy`` while workers hold messages of it, unless ``force`` is given.
        """
        self._check_usable()
        if group == RETURNED and self.name.startswith(DEAD_LETTERS):
            error = f"group {group!r} of queue {self.name!r} remembers which dead letters were sent back: it stays"
            raise InvalidArgument(error)
        inspect.remove_group(self._topic.name, self._database, self._row.id, group, self._clock, force=force)
        with self._lock:
            broker = self._brokers.pop(group, None)
        for consumer in list(self._consumers):
            if consumer.is_of(broker):
                consumer.close()

    def stats(self) -> QueueStats:
        """Return what an operator would ask: positions, and for each group its lag and what became of its messages."""
        row = self._stored()
        return inspect.stats(self._topic, self._database, row, self.groups())

    @arguments.checked
    def lag(self, group: str = "default") -> int:
        """Return how many messages a group has yet to settle."""
        row, groups = self._stored(), self.groups()
        if group not in groups:
            raise inspect.no_group(self.name, group, groups)
        return inspect.stats(self._topic, self._database, row, [group]).groups[group].lag

    @arguments.checked
    def peek(self, group: str = "default", *, limit: int = 10) -> list[Peeked]:
        """Return the first messages that a group has not settled, and how each stands, without delivering them."""
        self._check_usable()
        wanted = arguments.count("limit", limit)
        return inspect.peek(
            self._topic, self._database, self._row.id, group, wanted, steady_us=self._clock.elapsed_us()
        )

    @arguments.checked
    def configure(self, changed: QueueSettings) -> None:
        """Change the stored settings, but for those of its logs."""
        checked = settings.check(changed)
        if checked.log != self._row.settings.log:
            error = "settings: log cannot change here: configure() each of the queue's logs"
            raise InvalidArgument(error)
        self._check_usable()
        with self._database.writing() as transaction:
            statements.configure(transaction, self._row.id, checked)
        self._row = self._stored()

    def trim(self) -> list[int]:
        """Remove what every group has settled, as far as the dedup window does not need it; return where each
        partition begins now. Without a group nothing is removed. Consumers do this by themselves, every ``trim_s``.
        """
        self._check_usable()
        groups = self.groups()
        if self.name.startswith(DEAD_LETTERS) and RETURNED not in groups:
            groups = []  # nobody has sent a letter back: all of them are kept
        keep = inspect.kept_from(self._topic, self._database, self._row.id, groups)
        return [log.truncate(before=before).first_position for log, before in zip(self._topic.logs, keep, strict=True)]

    @closes_anywhere
    def close(self) -> None:
        """Close the consumers and let the writers go."""
        if not self._closes_now():
            return
        with contextlib.ExitStack() as ending:  # all are ended, also if one of them fails
            ending.callback(self._sending.close)
            ending.callback(self._submissions.close)
            for broker in self._brokers.values():
                ending.callback(broker.close)
            for consumer in list(self._consumers):
                ending.callback(consumer.close)

    def __enter__(self) -> Self:
        """Return the queue itself."""
        return self
