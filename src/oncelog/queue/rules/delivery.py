"""What becomes of messages between their first delivery and their end: a pure state machine.

A group has looked at every position below its cursor (``next``). Of those, a message is *unsettled* while a run holds
it, and settled, for good, once none does: acknowledgements are a set, and nothing is ever "the highest offset". Behind
the cursor every message is yet to come. The watermark is the first unsettled position, or the cursor: it only moves
forward, because runs come to be at the cursor or out of other runs.

Time is an argument. Nothing here reads a clock, a log or a database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from oncelog.queue.rules import retry
from oncelog.queue.rules.retry import RetryPolicy

ACK_TIMEOUT = "ack_timeout"
DEADLINE = "deadline_exceeded"
UNREADABLE = "unreadable_envelope"


class Condition(IntEnum):
    """What a run waits for. Stored: the numbers never change their meaning."""

    WAITING = 0  # for ``at_us``, to be delivered
    LEASED = 1  # for its consumer, until ``at_us``
    DYING = 2  # for the dead-letter topic to have it
    PARKED = 3  # for all before it that have its key, in an ordered group; ``at_us`` comes after that


class MessageRun(msgspec.Struct, frozen=True):
    """Neighbouring messages of one partition in one condition.

    ``attempts`` counts deliveries, this one included. ``token`` is that of the lease, 0 without one. ``policy`` and
    ``deadline_us`` are the messages' own; ``key`` is what keeps them in order (then the run has one message).
    """

    partition: int
    first: int
    count: int
    condition: Condition
    at_us: int
    attempts: int = 0
    token: int = 0
    last_error: str | None = None
    key: str | None = None
    policy: RetryPolicy | None = None
    deadline_us: int | None = None

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.first + self.count

    @property
    def positions(self) -> range:
        """The positions of its messages."""
        return range(self.first, self.end)


class Rules(NamedTuple):
    """The inputs of the state machine: the time, the policy of messages that have none, and randomness."""

    now_us: int
    policy: RetryPolicy
    chance: Callable[[], float]
    mortal: bool = True
    """Whether messages may die: those of a dead-letter topic may not."""


class Lease(NamedTuple):
    """A right to messages: a number that is higher than any before it, and when it ends."""

    token: int
    until_us: int


class Fresh(NamedTuple):
    """A message that a group has not looked at yet; times are what is left of them.

    ``length`` neighbours of which nothing but their positions is to be known are one.
    """

    partition: int
    position: int
    length: int = 1
    key: str | None = None
    delay_us: int = 0
    deadline_us: int | None = None
    policy: RetryPolicy | None = None
    for_others: bool = False
    unreadable: bool = False


# Parts of runs.


def cut(run: MessageRun, positions: Collection[int]) -> tuple[list[MessageRun], list[MessageRun]]:
    """Return the parts of a run that are among the positions, and those that are not, as few runs as can be.

    >>> run = MessageRun(0, 5, 4, Condition.WAITING, 0)
    >>> [[(part.first, part.count) for part in parts] for parts in cut(run, {5, 6, 8})]
    [[(5, 2), (8, 1)], [(7, 1)]]
    """
    if isinstance(positions, range) and positions.step == 1:
        return _cut_between(run, positions)
    chosen = positions if isinstance(positions, set | frozenset) else set(positions)
    if chosen.issuperset(run.positions):
        return [run], []
    taken: list[MessageRun] = []
    left: list[MessageRun] = []
    start, inside = run.first, run.first in chosen
    for position in range(run.first + 1, run.end + 1):
        if position < run.end and (position in chosen) == inside:
            continue
        (taken if inside else left).append(_part(run, start, position))
        start, inside = position, not inside
    return taken, left


def _cut_between(run: MessageRun, positions: range) -> tuple[list[MessageRun], list[MessageRun]]:
    start, end = max(run.first, positions.start), min(run.end, positions.stop)
    if start >= end:
        return [], [run]
    left = [_part(run, *ends) for ends in ((run.first, start), (end, run.end)) if ends[0] < ends[1]]
    return [_part(run, start, end)], left


def first_of(run: MessageRun, count: int) -> MessageRun:
    """Return the first messages of a run, at most so many."""
    return _part(run, run.first, min(run.end, run.first + count))


def _part(run: MessageRun, start: int, end: int) -> MessageRun:
    if start == run.first and end == run.end:
        return run
    return msgspec.structs.replace(run, first=start, count=end - start)


# From one condition to another.


def leased(run: MessageRun, lease: Lease) -> MessageRun:
    """Return the run as delivered once more: the attempt counts before anybody sees the message."""
    return msgspec.structs.replace(
        run, condition=Condition.LEASED, token=lease.token, at_us=lease.until_us, attempts=run.attempts + 1
    )


def refused(run: MessageRun, reason: str, rules: Rules, *, again: bool = True) -> MessageRun:
    """Return the run as not acknowledged: it rests and comes again, or has come to its end."""
    policy = run.policy or rules.policy
    late = run.deadline_us is not None and run.deadline_us <= rules.now_us
    if rules.mortal and (not again or late or retry.exhausted(policy, run.attempts)):
        return dying(run, reason, rules.now_us)
    rest_us = retry.rest_us(policy, run.attempts, rules.chance())
    return msgspec.structs.replace(
        run, condition=Condition.WAITING, token=0, at_us=rules.now_us + rest_us, last_error=reason
    )


def dying(run: MessageRun, reason: str, now_us: int) -> MessageRun:
    """Return the run on its way to the dead letters; it stays until they have it."""
    return msgspec.structs.replace(run, condition=Condition.DYING, token=0, at_us=now_us, last_error=reason)


def returned(run: MessageRun, now_us: int) -> MessageRun:
    """Return the run as it was before a delivery that nobody saw: it does not count."""
    return msgspec.structs.replace(
        run, condition=Condition.WAITING, token=0, at_us=now_us, attempts=max(0, run.attempts - 1)
    )


def extended(run: MessageRun, until_us: int) -> MessageRun:
    """Return the run leased until another moment."""
    return msgspec.structs.replace(run, at_us=until_us)


def freed(run: MessageRun) -> MessageRun:
    """Return a parked run as the first of its key: it waits for its own time only."""
    return msgspec.structs.replace(run, condition=Condition.WAITING)


def is_suspect(run: MessageRun) -> bool:
    """Tell whether a message may have taken its worker with it: it is delivered alone, so that only it pays."""
    return run.last_error == ACK_TIMEOUT


# What happens to a group.


class Change(NamedTuple):
    """Runs that are no more, and runs that have come to be."""

    gone: list[MessageRun]
    come: list[MessageRun]

    @property
    def settled_keys(self) -> set[str]:
        """The keys that messages have left for good: what is parked behind them may be free now."""
        return {run.key for run in self.gone if run.key is not None} - {run.key for run in self.come if run.key}


def expire(runs: Iterable[MessageRun], rules: Rules) -> Change:
    """End the leases whose time is over."""
    gone = [run for run in runs if run.condition is Condition.LEASED and run.at_us <= rules.now_us]
    return Change(gone, [refused(run, ACK_TIMEOUT, rules) for run in gone])


def deliver(runs: Sequence[MessageRun], lease: Lease, limit: int, rules: Rules) -> Change:
    """Lease what is due, in the order given, at most ``limit`` messages; a suspect goes alone.

    The runs of an ordered group are heads of their keys: nothing before them with the same key is unsettled.
    """
    gone: list[MessageRun] = []
    come: list[MessageRun] = []
    due = [run for run in runs if run.condition is Condition.WAITING and run.at_us <= rules.now_us]
    suspect = next((run for run in due if is_suspect(run)), None)
    if suspect is not None:
        due, limit = [suspect], min(limit, 1)
    for run in due:
        if rules.mortal and run.deadline_us is not None and run.deadline_us <= rules.now_us:
            gone.append(run)
            come.append(dying(run, DEADLINE, rules.now_us))
            continue
        if limit <= 0:
            break
        taken, left = cut(run, range(run.first, run.first + limit))
        gone.append(run)
        come += [leased(part, lease) for part in taken] + left
        limit -= sum(part.count for part in taken)
    return Change(gone, come)


class Admission(NamedTuple):
    """What became of fresh messages: runs that have come to be, and up to where they were looked at, if any was."""

    come: list[MessageRun]
    until: int | None
    leased: int


def admit(fresh: Sequence[Fresh], lease: Lease, limit: int, rules: Rules, held: Collection[str] = ()) -> Admission:
    """Look at fresh messages in their order: lease at most ``limit``, let the delayed wait, pass over those for others.

    ``held``: the keys of an ordered group that have an unsettled message already.
    """
    come: list[MessageRun] = []
    keys = set(held)
    until: int | None = None
    left = limit
    for message in fresh:
        if left <= 0:
            break
        count = min(message.length, left)
        until = message.position + count
        if message.for_others:
            continue
        run = _admitted(message, count, lease, rules, blocked=message.key in keys)
        if message.key is not None:
            keys.add(message.key)
        if run.condition is Condition.LEASED:
            left -= count
        come.append(run)
    return Admission(come, until, limit - left)


def _admitted(message: Fresh, count: int, lease: Lease, rules: Rules, *, blocked: bool) -> MessageRun:
    late = rules.mortal and message.deadline_us is not None and message.deadline_us <= rules.now_us
    wait = MessageRun(
        message.partition,
        message.position,
        count,
        Condition.WAITING,
        rules.now_us + message.delay_us,
        key=message.key,
        policy=message.policy,
        deadline_us=message.deadline_us,
    )
    if message.unreadable or late:
        return dying(wait, UNREADABLE if message.unreadable else DEADLINE, rules.now_us)
    if blocked:
        return msgspec.structs.replace(wait, condition=Condition.PARKED)
    return wait if message.delay_us > 0 else leased(wait, lease)


class Settlement(NamedTuple):
    """The change that a consumer made, and the positions that were not its own any more."""

    change: Change
    taken: list[MessageRun]
    lost: list[int]


def settle(
    runs: Iterable[MessageRun],
    token: int,
    positions: Collection[int],
    now_us: int,
    become: Callable[[MessageRun], MessageRun | None],
) -> Settlement:
    """Let leased messages become something else (``None``: they are acknowledged), if the lease still stands.

    A lease whose time is over is lost, also while nobody else has taken it.
    """
    wanted = positions if isinstance(positions, range) else set(positions)
    gone: list[MessageRun] = []
    come: list[MessageRun] = []
    taken: list[MessageRun] = []
    for run in runs:
        if run.condition is not Condition.LEASED or run.token != token or run.at_us <= now_us:
            continue
        parts, left = cut(run, wanted)
        if not parts:
            continue
        gone.append(run)
        come += left
        taken += parts
        come += [after for part in parts if (after := become(part)) is not None]
    has_all = sum(part.count for part in taken) == len(wanted)
    lost = [] if has_all else sorted(set(wanted).difference(*(part.positions for part in taken)))
    return Settlement(Change(gone, come), taken, lost)
