"""The way out: consumers, and the deliveries that they hand to workers."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.concurrency.feeding import Fed
from oncelog.concurrency.pending import Pending, mapped
from oncelog.errors import Closed, InvalidArgument
from oncelog.handle import closes_anywhere
from oncelog.limits import QUEUE_PREFETCH_MAX
from oncelog.queue.deliver import settling
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.deliver.settling import SettlementRequest
from oncelog.queue.rules import message
from oncelog.queue.rules.delivery import MessageRun
from oncelog.queue.rules.message import Envelope
from oncelog.queue.send.plain_run import PlainPlace, PlainRun
from oncelog.queue.state.database import StateBusy
from oncelog.types import Entry

_STEP_S = 1.0


class Delivery:
    """One message in a worker's hands: ``ack()`` when it is done, ``nack(reason)`` when it could not be.

    Neither within the ack timeout: it is delivered again, with ``last_error = "ack_timeout"``. What is not this
    delivery's to decide any more is ``LeaseLost``: the message has gone to another, whose result stands.
    """

    if not TYPE_CHECKING:  # mypy would hold those who inherit to it
        __slots__ = ()

    _broker: Broker
    lease: MessageRun
    """The run of messages that share this delivery's lease."""
    until_us: int
    """When the lease ends, in queue time."""
    _read: Entry | PlainPlace
    """The message as it was read; of a plain one, its place alone."""

    @property
    def _entry(self) -> Entry:
        read = self._read
        return read if isinstance(read, Entry) else read.entry(self.position, self.value)

    @property
    def _envelope(self) -> Envelope:
        return message.envelope_of(self._entry)

    @property
    def partition(self) -> int:
        """The partition it is in."""
        return self.lease.partition

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        return self.lease.attempts

    @property
    def last_error(self) -> str | None:
        """Why the delivery before was not acknowledged."""
        return self.lease.last_error

    @property
    def token(self) -> int:
        """The number of this lease: it grows from one to the next."""
        return self.lease.token

    @property
    def value(self) -> bytes:
        """What was sent."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The id that its producer gave it; empty without one."""
        return message.id_of(self._entry, self._envelope)

    @property
    def key(self) -> str:
        """What picks its partition and keeps it in order; empty without one."""
        return self._entry.stream or ""

    @property
    def tenant(self) -> str:
        """Whose it is; empty is a tenant too."""
        return self._entry.tenant or ""

    @property
    def topic(self) -> str:
        """The queue it came from."""
        return self._broker.topic.name

    @property
    def group(self) -> str:
        """The group it was delivered to."""
        return self._broker.name

    @property
    def position(self) -> int:
        """Where it stands in its partition's log."""
        raise NotImplementedError

    @property
    def headers(self) -> Mapping[str, bytes]:
        """What was sent along."""
        return message.user_headers(self._entry)

    @property
    def sent_at(self) -> datetime:
        """When it was stored."""
        return self._entry.timestamp

    @property
    def inbox_key(self) -> str:
        """What its effects are known by: the same at every delivery, and when it comes back from the dead letters."""
        return message.inbox_key_of(self._entry, self._envelope, self.partition)

    @property
    def redriven(self) -> int:
        """How often it was sent back from the dead letters."""
        return self._envelope.redriven

    def ack(self) -> None:
        """Say that it is done: it is not delivered again. Durable on return; ``LeaseLost`` if it is another's now."""
        self._settle(SettlementRequest("acked"))

    def nack(self, reason: str, *, retry: bool = True) -> None:
        """Say why it could not be done: it is delivered again after a rest, or with ``retry=False``, or when its
        attempts are used up, goes to the dead letters.
        """
        self._settle(SettlementRequest.refusal(reason, retry=retry))

    def extend(self, seconds: float) -> None:
        """Have so many seconds more, from now."""
        span_us = message.span_us("seconds", seconds)
        self._settle(SettlementRequest("extended", extend_us=span_us))
        self._ends(self._in_us(span_us))

    def submit_ack(self) -> Pending[None]:
        """Say that it is done, without waiting: the future ends when that is durable, or has the error of ``ack``."""
        return self._submit(SettlementRequest("acked"))

    def submit_nack(self, reason: str, *, retry: bool = True) -> Pending[None]:
        """Say why it could not be done, without waiting, as ``nack`` does."""
        return self._submit(SettlementRequest.refusal(reason, retry=retry))

    def submit_extend(self, seconds: float) -> Pending[None]:
        """Have so many seconds more, without waiting, as ``extend`` does."""
        span_us = message.span_us("seconds", seconds)

        def extended(_: None) -> None:
            self._ends(self._in_us(span_us))

        return mapped(self._submit(SettlementRequest("extended", extend_us=span_us)), extended)

    def _settle(self, settlement: SettlementRequest) -> None:
        settling.settle(self._broker, [self], settlement)

    def _submit(self, settlement: SettlementRequest) -> Pending[None]:
        return settling.submit(self._broker, [self], settlement)

    def _in_us(self, span_us: int) -> int:
        return self._broker.now_us() + span_us

    def _ends(self, until_us: int) -> None:
        """Note when the lease ends now."""
        self.until_us = until_us

    def __repr__(self) -> str:
        """Show what it is."""
        return f"<Delivery {self.topic}/{self.partition}:{self.position} attempts={self.attempts}>"


class HeldDelivery(Delivery, msgspec.Struct, eq=False, gc=False, frozen=True):
    """A delivery of this process. There are many, and a struct is made in a third of the time. Nothing that it refers
    to refers to it.
    """

    _broker: Broker
    lease: MessageRun
    until_us: int
    position: int
    value: bytes
    _read: Entry | PlainPlace

    def _ends(self, until_us: int) -> None:
        msgspec.structs.force_setattr(self, "until_us", until_us)


def _held(broker: Broker, run: MessageRun, entries: Sequence[Entry]) -> Iterator[HeldDelivery]:
    """Return deliveries of messages that are leased: of plain ones no entry is made."""
    lease = repeat(broker), repeat(run), repeat(run.at_us)
    if isinstance(entries, PlainRun):
        return map(HeldDelivery, *lease, entries.positions, entries.values, repeat(entries.place))
    return map(HeldDelivery, *lease, [one.position for one in entries], [one.value for one in entries], entries)


def lease_left_s(delivery: Delivery) -> float:
    """Return how long the lease of a delivery lasts from now."""
    return max(0.0, (delivery.until_us - delivery._broker.now_us()) / 1e6)  # noqa: SLF001


class Consumer(Fed[Delivery]):
    """Messages of a group, for ever: iterate it (``for``, or in a task ``async for``), or ``receive`` some at a time.
    Used by one thread at a time.

    What was claimed ahead and not handed out goes back when it is closed, and does not count as an attempt.
    """

    _what = "consumer"

    def __init__(
        self, broker: Broker, clock: Clock, *, prefetch: int, ack_timeout_s: float, leave: Callable[[Consumer], None]
    ) -> None:
        super().__init__()
        self._broker = broker
        self._clock = clock
        self._prefetch = check_prefetch(prefetch)
        self._lease_us = message.span_us("ack_timeout_s", ack_timeout_s)
        self._on_leave = leave
        self._held: deque[Delivery] = deque()
        self._receiving = threading.Lock()
        self._patient = False  # whether who receives now asks again and again
        self._heard = 0

    @property
    def group(self) -> str:
        """The group's name."""
        return self._broker.name

    @property
    def terms(self) -> tuple[float, bool]:
        """How long a lease lasts, in seconds, and whether messages of one key come one after the other."""
        return self._lease_us / 1e6, self._broker.ordered

    def __iter__(self) -> Iterator[Delivery]:
        """Yield deliveries as they come, until the consumer is closed."""
        while True:
            try:
                found = self.receive(1, timeout_s=_STEP_S)
            except Closed:
                if self.closed:
                    return
                raise
            yield from found

    def receive(self, limit: int | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Return up to ``limit`` deliveries (by default ``prefetch``), waiting for the first up to ``timeout_s``.

        They are stored as delivered before this returns. A message that its last worker did not answer for comes alone.
        """
        self._check_usable()
        self._check_unfed()
        wanted = self._prefetch if limit is None else check_prefetch(limit, "limit")
        if self._unread:
            return self._left_unread(wanted)
        deadline_us = self._clock.elapsed_us() + round(arguments.seconds("timeout_s", timeout_s) * 1e6)
        with self._receiving:
            while True:
                heard = self._broker.rings
                left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
                self._patient = timeout_s > 0
                found = self._claimed(wanted, left_s)
                left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
                if found or left_s <= 0:
                    return found
                self._broker.wait(heard, left_s)

    def _claimed(self, wanted: int, left_s: float) -> list[Delivery]:
        """Return up to so many deliveries that there are now."""
        self._check_usable()
        if not self._held:
            self._fill(max(wanted, self._prefetch), left_s)
        return self._hand_out(wanted)

    def _look(self) -> list[Delivery]:
        self._heard = self._broker.rings
        with self._receiving:
            self._patient = True
            return self._claimed(1, 0.0)

    def _await_more(self, timeout_s: float) -> None:
        self._broker.wait(self._heard, timeout_s)

    def _end_wait(self) -> None:
        self._broker.wake()

    def _source(self) -> object:
        return self._broker

    def _fill(self, count: int, left_s: float) -> None:
        """Claim what there is. While another process keeps the group to itself there is nothing for this one."""
        if self._broker.may_be_dying:
            self._broker.bury()
        self._broker.trim(self._broker.settings.trim_s)
        with contextlib.suppress(StateBusy):
            for run, entries in self._broker.claim(count, self._lease_us, left_s, patiently=self._patient):
                self._held += _held(self._broker, run, entries)
        if self._broker.may_be_dying and not self._held:  # seen just now; nobody waits for what was claimed
            self._broker.bury()
        if self._closed:  # meanwhile, by another thread
            self._give_back()

    def _hand_out(self, wanted: int) -> list[Delivery]:
        if self._held and self._are_old():
            self._renew()
        if wanted >= len(self._held):
            found, self._held = list(self._held), deque()
            return found
        return [self._held.popleft() for _ in range(wanted)]

    def _are_old(self) -> bool:
        """Tell whether messages waited here for so long that their leases have to be renewed."""
        return self._held[0].until_us < self._in_us(self._lease_us // 2)

    def _renew(self) -> None:
        """Renew the leases of messages that waited here; leave out those whose lease another consumer has taken."""
        lost = self._lost_of(list(self._held), SettlementRequest("extended", extend_us=self._lease_us))
        self._keep(lost, self._in_us(self._lease_us))

    def _keep(self, lost: Sequence[Delivery], until_us: int) -> None:
        """Keep what was renewed, and drop what was lost to others."""
        gone = set(map(id, lost))
        self._held = deque(one for one in self._held if id(one) not in gone)
        for one in self._held:
            one._ends(until_us)  # noqa: SLF001

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many in one commit. ``LeaseLost`` if some were not this consumer's any more; the others are."""
        self._settle(self._own(deliveries), SettlementRequest("acked"))

    def submit_ack(self, deliveries: Iterable[Delivery]) -> Pending[None]:
        """Acknowledge many without waiting: the future ends when that is durable, or has the error of ``ack``."""
        return self._submit(self._own(deliveries), SettlementRequest("acked"))

    def nack(self, deliveries: Iterable[Delivery], reason: str, *, retry: bool = True) -> None:
        """Refuse many in one commit, as ``Delivery.nack`` does one."""
        self._settle(self._own(deliveries), SettlementRequest.refusal(reason, retry=retry))

    def _own(self, deliveries: object) -> list[Delivery]:
        """Return deliveries of this group as a list: the tokens of another say nothing here."""
        self._check_process()
        listed = arguments.items("deliveries", deliveries, "Delivery")
        others = self._others(listed)
        if others:
            topic, one = self._topic, others[0]
            error = f"deliveries: {arguments.shown(one)} did not come from group {self.group!r} of {topic!r} here"
            raise InvalidArgument(error)
        return listed

    @property
    def _topic(self) -> str:
        return self._broker.topic.name

    def _others(self, listed: Sequence[object]) -> list[object]:
        """Return what did not come from this group."""
        broker = self._broker
        return [one for one in listed if not isinstance(one, Delivery) or one._broker is not broker]  # noqa: SLF001

    def _settle(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
        settling.settle(self._broker, deliveries, settlement)

    def _submit(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Pending[None]:
        return settling.submit(self._broker, deliveries, settlement)

    def _lost_of(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Sequence[Delivery]:
        """Settle deliveries; return those whose lease another consumer has taken."""
        return settling.lost_of(self._broker, deliveries, settlement)

    def _in_us(self, span_us: int) -> int:
        """Return when so much time has passed from now, in the time of leases."""
        return self._broker.now_us() + span_us

    def is_of(self, broker: Broker | None) -> bool:
        """Tell whether this is a consumer of a broker."""
        return self._broker is broker

    @closes_anywhere
    def close(self) -> None:
        """Give back what was not handed out. What was handed out stays leased: its worker may still acknowledge it."""
        if not self._closes_now():
            return
        self._on_leave(self)
        self._broker.wake()
        with self._receiving:
            self._give_back()

    def _give_back(self) -> None:
        held, self._held = list(self._held), deque()
        iterator = self._fed() if self._fed is not None else None
        if iterator is not None:  # claimed for a task that was cancelled
            held += iterator.ready
            iterator.ready.clear()
        if held:
            self._lost_of(held, SettlementRequest("returned"))


def check_consume(prefetch: object, ack_timeout_s: float, ordered: object, start: object) -> None:
    """Raise ``InvalidArgument`` for what no consumer can be asked to do."""
    check_prefetch(prefetch)
    if message.span_us("ack_timeout_s", ack_timeout_s) <= 0:
        error = f"ack_timeout_s is {ack_timeout_s}, must be more than 0"
        raise InvalidArgument(error)
    if not isinstance(ordered, bool | None):
        error = f"ordered is {ordered!r}, must be True, False, or None for as it is"
        raise InvalidArgument(error)
    if start not in ("earliest", "latest"):
        error = f"start is {start!r}, must be 'earliest' or 'latest'"
        raise InvalidArgument(error)


def check_prefetch(count: object, name: str = "prefetch") -> int:
    """Return a number of messages to hold at once, or raise ``InvalidArgument``."""
    checked = arguments.count(name, count)
    if not 1 <= checked <= QUEUE_PREFETCH_MAX:
        error = f"{name} is {count}, must be from 1 to {QUEUE_PREFETCH_MAX}"
        raise InvalidArgument(error)
    return checked
