"""The broker of one group: claims messages for consumers and settles them, each step stored before it counts.

Several processes may each have a broker of the same group: what they share is the state database, and every step is one
transaction of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from oncelog import limits
from oncelog.clock import Clock
from oncelog.errors import CorruptionError, OncelogError
from oncelog.handle import OfOneProcess
from oncelog.queue.deliver.group import ConsumerGroup
from oncelog.queue.deliver.pace import Pace
from oncelog.queue.deliver.settler import ConsumerStep, Ended, Settler
from oncelog.queue.rules import delivery, message
from oncelog.queue.rules.delivery import Change, Condition, Fresh, Lease, MessageRun, Rules
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.topic import (
    Ahead,
    Topic,
    have_headers,
    neighbours,
    position_at,
    position_of,
    total_bytes,
    within,
)
from oncelog.queue.state import statements
from oncelog.queue.state.database import WAIT_S, StateDatabase, Transaction, locked, patience_s
from oncelog.queue.state.statements import Outlook
from oncelog.types import Entry, micros

POLL_S = 0.02
"""How often a broker looks for what another process did."""

_EXPIRED_AT_ONCE = 1_000
_PARKED_MAX = 2_000
"""So many messages of an ordered group wait for others of their keys before more are looked at only if nothing else
can be delivered.
"""
_LOOKED_AT_MIN = 256
"""At least so many new messages are read at once, so that delayed messages do not hide those behind them."""
_LOOKS_MAX = 50


class Claimed(NamedTuple):
    """Messages that are leased to a consumer: a run, and those of it that are still there."""

    run: MessageRun
    entries: Sequence[Entry]


class _Claim(NamedTuple):
    """What a transaction leased, the messages that were looked at for the first time, by partition, whether some were
    too late, and how far the group has looked now.
    """

    leases: list[MessageRun]
    fresh: dict[int, Sequence[Entry]]
    late: bool
    cursors: list[int]


def _steps(kind: str, parts: Iterable[tuple[MessageRun, Iterable[int]]]) -> list[ConsumerStep]:
    """Return the steps for positions of leased runs: one for each partition, as each step reads the whole lease."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for run, positions in parts:
        grouped[run.token, run.partition].extend(positions)
    return [ConsumerStep(token, partition, positions, kind) for (token, partition), positions in grouped.items()]


class _Unreadable(Exception):
    """A leased run whose messages are damaged in their log."""

    def __init__(self, run: MessageRun, error: CorruptionError) -> None:
        super().__init__()
        self.run = run
        self.error = error


class Broker(OfOneProcess):
    """One group of one queue, in this process. Safe to share between threads."""

    _what = "delivery"

    def __init__(
        self, topic: Topic, database: StateDatabase, clock: Clock, *, queue_id: int, name: str, settings: QueueSettings
    ) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self._database = database
        self._clock = clock
        self._group = ConsumerGroup(topic.name, name, queue_id, settings, database, clock)
        self.id, self.ordered, self.generation = self._group.id, self._group.ordered, self._group.generation
        self._settler = Settler(self._group, database, wake=self.wake, bury=lambda: self.bury())  # noqa: PLW0108  it is set later
        self._guard = threading.RLock()  # a ``with`` of the condition could leave it taken after Ctrl-C
        self._changed = threading.Condition(self._guard)
        self._rings = 0
        self._claiming = threading.RLock()
        self._ahead = [Ahead(log) for log in topic.logs]
        self._pace = Pace(clock, topic.partitions)
        self._left_off: list[int] | None = None  # the cursors as the last claim here stored them, if that is known
        self._expected: list[int] = []  # the cursors that a claim counts on
        self._has_looked = True  # whether they were looked up for it
        self._is_alone = False  # whether nobody else claimed since the last claim here, as far as was looked
        self._wall_us = 0
        self._turn = 0
        self.bury: Callable[[], None] = lambda: None
        """Brings what is dying to the dead letters; set by who has them."""
        self.trim: Callable[[float | None], None] = lambda _: None
        """Removes what every group has settled, if that was not done for so many seconds; set by the queue."""

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings when this broker looked last."""
        return self._group.settings

    @property
    def may_be_dying(self) -> bool:
        """Whether messages may be on their way to the dead letters."""
        return self._group.may_be_dying

    def now_us(self) -> int:
        """Return the queue time."""
        return self._group.now_us()

    # Claiming.

    def claim(self, limit: int, lease_us: int, timeout_s: float = WAIT_S, *, patiently: bool = False) -> list[Claimed]:
        """Lease up to ``limit`` messages, which are stored as delivered when this returns; none: there are none now.

        Large messages are fewer: not more than ``QUEUE_CLAIM_BYTES_MAX``, unless the first alone is larger.
        ``patiently``: repeated questions do not make a request to a bucket each time.
        ``StateBusy`` when another keeps the group to itself for ``timeout_s``.
        """
        wait_s = patience_s(timeout_s)
        for _ in range(_LOOKS_MAX):
            leases, fresh = self._leased(limit, lease_us, wait_s, patiently=patiently)
            found = self._claimed(leases, fresh)
            if found or not leases:  # else all were purged or truncated away, and hide those behind them
                return found
        return []

    def _leased(
        self, limit: int, lease_us: int, wait_s: float, *, patiently: bool
    ) -> tuple[list[MessageRun], dict[int, Sequence[Entry]]]:
        """Lease messages; return them, and those that were looked at for the first time."""
        leases: list[MessageRun] = []
        fresh: dict[int, Sequence[Entry]] = {}
        with locked(self._claiming, wait_s):
            for _ in range(_LOOKS_MAX):
                if leases or not self._read_ahead(limit, patiently=patiently):
                    break
                with self._database.writing(wait_s=wait_s) as transaction:
                    claim = self._claim(transaction, limit, lease_us)
                if claim is None:
                    continue
                leases, fresh, late, self._left_off = claim
                for ahead, cursor in zip(self._ahead, claim.cursors, strict=True):
                    ahead.drop(cursor)
                if not (fresh or late):  # nothing made room for others, so looking again shows nothing else
                    break
        return leases, fresh

    def _read_ahead(self, limit: int, *, patiently: bool) -> bool:
        """Read what may be claimed; tell whether there is anything to do at all.

        A broker that was alone, and has read more than it claimed, does not look where the group stands: the claim
        finds out if somebody else was there.
        """
        left_off = self._left_off
        if left_off is not None and self._is_alone and any(ahead.has_more for ahead in self._ahead):
            self._has_looked = False
            if self._fill(left_off, limit, patiently=patiently):
                return True
        self._has_looked = True
        with self._database.reading() as transaction:
            outlook = self._group.outlook(transaction)
        if outlook.paused:
            return False
        self._is_alone = outlook.cursors == left_off
        return self._fill(outlook.cursors, limit, patiently=patiently) or outlook.is_due(self.now_us())

    def _fill(self, cursors: list[int], limit: int, *, patiently: bool) -> bool:
        """Read messages that are new to the group; tell whether there are any."""
        self._expected = cursors
        count = max(limit, _LOOKED_AT_MIN)
        enough = count if self.ordered else limit
        bytes_max = limits.QUEUE_CLAIM_BYTES_MAX // self.topic.partitions
        for ahead, cursor in zip(self._ahead, cursors, strict=True):
            ahead.drop(cursor)
        held_bytes = sum(ahead.size_bytes for ahead in self._ahead)
        found = 0
        for step in range(self.topic.partitions):
            partition = (self._turn + step) % self.topic.partitions
            if found < limit or self.ordered:
                ahead = self._ahead[partition]
                pay = self._pace.of(partition) if patiently else None
                held_bytes -= ahead.size_bytes
                # Of each partition one large message alone would be too much: those that wait have their turn later.
                room_bytes = bytes_max if held_bytes < limits.QUEUE_CLAIM_BYTES_MAX else 0
                ahead.fill(cursors[partition], enough, count, room_bytes, pay)
                held_bytes += ahead.size_bytes
                found += len(ahead.entries)
        if found:
            self._pace.came()
        return found > 0

    def _claim(self, transaction: Transaction, limit: int, lease_us: int) -> _Claim | None:
        """Lease messages. ``None``: the group is paused, or somebody else was there, and it has to be looked again."""
        token, now_us = self._group.begin(transaction)
        outlook = self._group.outlook(transaction)
        was_alone = outlook.cursors == self._expected
        self._is_alone = self._is_alone and was_alone and not outlook.paused
        if outlook.paused or not (was_alone or self._has_looked):
            return None
        self._wall_us = transaction.now_us()
        rules = self._group.rules(now_us)
        lease = Lease(token + 1, now_us + lease_us)
        expired = self._expire(transaction, outlook, rules)
        leases: list[MessageRun] = []
        late = False
        if expired or (outlook.waiting_us is not None and outlook.waiting_us <= now_us):
            leases, late = self._deliver(transaction, lease, limit, rules)
        fresh: dict[int, Sequence[Entry]] = {}
        cursors = [*outlook.cursors]
        if not any(map(delivery.is_suspect, leases)):
            left = limit - sum(run.count for run in leases)
            for ahead, cursor in zip(self._ahead, cursors, strict=True):
                ahead.drop(cursor)
            if not (leases and self._many_parked(transaction)):
                leases += self._admit(transaction, lease, left, rules, fresh, cursors)
        statements.note(
            transaction,
            self.id,
            lease.token,
            self._group.noted(now_us, self._wall_us),
            delivered=sum(run.count for run in leases),
            timed_out=expired,
        )
        return _Claim(leases, fresh, late, cursors)

    def _expire(self, transaction: Transaction, outlook: Outlook, rules: Rules) -> int:
        """End the leases whose time is over; return how many messages they held."""
        if outlook.leased_us is None or outlook.leased_us > rules.now_us:
            return 0
        runs = statements.due(transaction, self.id, Condition.LEASED, rules.now_us, _EXPIRED_AT_ONCE)
        expired = delivery.expire(runs, rules)
        self._group.apply(transaction, expired)
        return sum(run.count for run in expired.gone)

    def _deliver(
        self, transaction: Transaction, lease: Lease, limit: int, rules: Rules
    ) -> tuple[list[MessageRun], bool]:
        """Lease messages that were looked at before, and are due; tell also whether some were too late."""
        delivered = delivery.deliver(self._due(transaction, rules.now_us, limit), lease, limit, rules)
        self._group.apply(transaction, delivered)
        leases = [run for run in delivered.come if run.token == lease.token]
        return leases, any(run.condition is Condition.DYING for run in delivered.come)

    def _due(self, transaction: Transaction, now_us: int, limit: int) -> list[MessageRun]:
        if self.ordered:
            return statements.due_heads(transaction, self.id, now_us, limit)
        return statements.due(transaction, self.id, Condition.WAITING, now_us, limit)

    def _many_parked(self, transaction: Transaction) -> bool:
        return self.ordered and statements.parked(transaction, self.id, _PARKED_MAX) >= _PARKED_MAX

    def _admit(  # noqa: PLR0917
        self,
        transaction: Transaction,
        lease: Lease,
        limit: int,
        rules: Rules,
        fresh: dict[int, Sequence[Entry]],
        cursors: list[int],
    ) -> list[MessageRun]:
        """Look at fresh messages, partition by partition, beginning with another one each time; move the cursors."""
        leases: list[MessageRun] = []
        left_bytes = limits.QUEUE_CLAIM_BYTES_MAX
        for step in range(self.topic.partitions):
            partition = (self._turn + step) % self.topic.partitions
            ahead = self._ahead[partition]
            if limit <= 0 or left_bytes <= 0 or not ahead.entries:
                continue
            entries = ahead.entries
            if ahead.size_bytes > left_bytes:
                entries = list(within(ahead.entries, left_bytes))
            left_bytes -= ahead.size_bytes
            looked_at = self._fresh(partition, entries, rules.now_us)
            held: set[str] = set()
            if self.ordered:
                held = statements.held_keys(transaction, self.id, [one.key for one in looked_at if one.key is not None])
            admitted = delivery.admit(looked_at, lease, limit, rules, held)
            self._group.apply(transaction, Change([], admitted.come))
            assert admitted.until is not None
            cursors[partition] = admitted.until
            statements.move(transaction, self.id, partition, admitted.until)
            fresh[partition] = entries
            leases += [run for run in admitted.come if run.token == lease.token]
            limit -= admitted.leased
        self._turn = (self._turn + 1) % self.topic.partitions
        return leases

    def _fresh(self, partition: int, entries: Sequence[Entry], now_us: int) -> list[Fresh]:
        """Return what the machine has to know of messages: of plain neighbours, where they are."""
        first, end = position_at(entries, 0), position_at(entries, -1) + 1
        if end - first == len(entries) and not self.ordered and not have_headers(entries):
            return [Fresh(partition, first, len(entries))]
        found: list[Fresh] = []
        first = count = 0
        for entry in entries:
            if entry.headers is None and not self.ordered:
                if count and entry.position == first + count:
                    count += 1
                    continue
                if count:
                    found.append(Fresh(partition, first, count))
                first, count = entry.position, 1
                continue
            if count:
                found.append(Fresh(partition, first, count))
                count = 0
            found.append(self._special(partition, entry, now_us))
        if count:
            found.append(Fresh(partition, first, count))
        return found

    def _special(self, partition: int, entry: Entry, now_us: int) -> Fresh:
        """Return what the machine has to know of a message that is not like any other."""
        if not message.is_readable(entry):
            return Fresh(partition, entry.position, unreadable=True)
        envelope = message.envelope_of(entry)
        key = message.order_key(entry.tenant or "", entry.stream or "") if self.ordered else None
        # A span is counted from when the message was stored; a wall clock that was set back does not make it longer.
        age_us = max(0, self._wall_us - micros(entry.timestamp))
        deadline_us = envelope.deadline_us
        return Fresh(
            partition,
            entry.position,
            1,
            key,
            max(0, envelope.delay_us - age_us),
            now_us + max(0, deadline_us - age_us) if deadline_us is not None else None,
            envelope.retry,
            for_others=bool(envelope.group) and envelope.group != self.name,
        )

    def _claimed(self, leases: Sequence[MessageRun], fresh: dict[int, Sequence[Entry]]) -> list[Claimed]:
        """Return what is in leases. What cannot be read now goes back."""
        try:
            return self._handed_out(leases, fresh)
        except _Unreadable as damaged:  # it stays so: these spend their attempts, and others get through meanwhile
            others = ((run, run.positions) for run in leases if run is not damaged.run)
            self._let_go(_steps("returned", others))
            raise damaged.error from None
        except BaseException:
            self._let_go(_steps("returned", ((run, run.positions) for run in leases)))
            raise

    def _handed_out(self, leases: Sequence[MessageRun], fresh: dict[int, Sequence[Entry]]) -> list[Claimed]:
        """Return what is in leases, reading again what was not read just now. What is too much goes back. Messages that
        were truncated away, or purged, are let go: nobody can be given them any more.
        """
        found: list[Claimed] = []
        over: list[tuple[MessageRun, range]] = []
        gone: list[tuple[MessageRun, set[int]]] = []
        left_bytes = limits.QUEUE_CLAIM_BYTES_MAX
        for run in leases:
            if left_bytes <= 0:
                over.append((run, run.positions))
                continue
            entries = neighbours(fresh.get(run.partition, ()), run.first, run.count)
            if entries is None:
                try:
                    entries = self.topic.read_again(run.partition, run.first, run.count, left_bytes)
                except CorruptionError as error:
                    if not found:
                        raise _Unreadable(run, error) from error
                    over.append((run, run.positions))  # a claim that this run begins raises the error
                    continue
            size = total_bytes(entries) if len(leases) > 1 else 0  # one alone is never too much
            if size > left_bytes and found:
                over.append((run, run.positions))
                left_bytes = 0
                continue
            left_bytes -= size
            end = position_at(entries, -1) + 1 if entries else run.end
            if end < run.end:
                over.append((run, range(end, run.end)))
            if len(entries) < end - run.first:
                gone.append((run, {*range(run.first, end)}.difference(map(position_of, entries))))
            if entries:
                found.append(Claimed(run, entries))
        self._let_go(_steps("gone", gone) + _steps("returned", over))
        return found

    def _let_go(self, steps: Sequence[ConsumerStep]) -> None:
        """Let go of messages that were leased and are not handed out: no attempt is counted for those that return."""
        some = [step for step in steps if step.positions]
        if some:
            with contextlib.suppress(OncelogError):  # then their leases run out
                self.settle(some)

    # Settling.

    def settle(self, steps: Sequence[ConsumerStep]) -> list[list[int]]:
        """Store what consumers do with what they hold; return, for each step, the positions that were lost to others.

        Steps of several threads are stored together: one commit for all that have come meanwhile.
        """
        self._check_process()
        return self._settler.settle(steps)

    def submit(self, steps: Sequence[ConsumerStep], ended: Ended) -> None:
        """Have steps stored without waiting for it; ``ended`` has what ``settle`` returns, or raises."""
        self._check_process()
        self._settler.submit(steps, ended)

    def dying(self, limit: int) -> list[MessageRun]:
        """Return messages whose end has come, and that the dead letters do not have for sure yet."""
        with self._database.reading() as transaction:
            return statements.due(transaction, self.id, Condition.DYING, self.now_us(), limit)

    def buried(self, parts: Sequence[MessageRun]) -> None:
        """Let go of messages that the dead letters have: of runs, or parts of them, that were dying."""
        self._settler.buried(parts)

    # Waiting.

    @property
    def rings(self) -> int:
        """How often consumers of this process were woken: to be read before looking, and given to ``wait``."""
        return self._rings

    def wake(self) -> None:
        """Have consumers of this process look again."""
        with self._guard:
            self._rings += 1
            self._changed.notify_all()

    def wait(self, heard: int, timeout_s: float) -> None:
        """Wait until something may have changed; what other processes do is looked for every ``POLL_S``."""
        with self._guard:
            if self._rings == heard:
                self._clock.wait(self._changed, min(POLL_S, timeout_s))

    def close(self) -> None:
        """Settle what was submitted, and stop reading."""
        self._settler.close()
        with self._claiming:
            for ahead in self._ahead:
                ahead.close()
