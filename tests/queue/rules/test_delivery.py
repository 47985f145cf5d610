"""The delivery machine under any sequence of events, held against rules that do not know how it works."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncelog.queue.rules import delivery, retry
from oncelog.queue.rules.delivery import Change, Condition, Fresh, Lease, MessageRun, Rules
from oncelog.queue.rules.retry import RetryPolicy

SECOND_US = 1_000_000
POLICY = RetryPolicy(max_attempts=3, backoff_s=2, max_backoff_s=5, jitter=0.5)
KEYS = (None, None, "a", "b")


class Group:
    """A group that keeps its runs in a dictionary: what a broker does, without a database."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.next = 0
        self.token = 0
        self.runs: dict[int, MessageRun] = {}

    def apply(self, change: Change) -> None:
        """Store a change. A run that goes was there, and one that comes covers nobody's positions."""
        for run in change.gone:
            assert self.runs.pop(run.first) == run
        for run in change.come:
            assert not any(run.first < other.end and other.first < run.end for other in self.runs.values())
            self.runs[run.first] = run
        for key in change.settled_keys:
            first = min((run for run in self.runs.values() if run.key == key), key=lambda run: run.first, default=None)
            if first is not None and first.condition is Condition.PARKED:
                self.runs[first.first] = delivery.freed(first)

    def in_order(self) -> list[MessageRun]:
        """Return the runs in the order of their positions."""
        return sorted(self.runs.values(), key=lambda run: run.first)

    @property
    def watermark(self) -> int:
        """The first position that is not settled."""
        return min([*self.runs, self.next])


class DeliveryMachine(RuleBasedStateMachine):
    """Any sequence of claims, acks, nacks, timeouts, extensions and jumps of time."""

    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(ordered=self.ordered)
        self.log: list[Fresh] = []
        self.now_us = 1_000 * SECOND_US
        # What the rules below know, from what was handed out and answered alone.
        self.holders: dict[int, tuple[int, int]] = {}
        self.deliveries: dict[int, int] = {}
        self.settled: set[int] = set()
        self.passed_over: set[int] = set()
        self.not_before_us: dict[int, int] = {}
        self.watermark = 0

    def go_by(self, chance: float = 0.5) -> Rules:
        """Return the rules of now."""
        return Rules(self.now_us, POLICY, lambda: chance)

    # Events.

    @rule(
        count=st.integers(1, 6), key=st.sampled_from(KEYS), delay_s=st.sampled_from([0, 0, 0, 4]), others=st.booleans()
    )
    def send(self, count: int, key: str | None, delay_s: int, *, others: bool) -> None:
        """Messages come."""
        for _ in range(count):
            ordering = key if self.ordered else None
            for_others = others and delay_s > 0
            self.log.append(Fresh(0, len(self.log), 1, ordering, delay_s * SECOND_US, None, None, for_others))

    @rule(limit=st.integers(1, 8), lease_s=st.integers(1, 10), chance=st.floats(0, 1, exclude_max=True))
    def claim(self, limit: int, lease_s: int, chance: float) -> None:
        """Claim messages, as a consumer does that has nothing left."""
        rules = self.go_by(chance)
        group = self.group
        expired = delivery.expire(group.runs.values(), rules)
        group.apply(expired)
        for run in expired.gone:
            for position in run.positions:
                assert self.holders.pop(position)[1] <= self.now_us, "nobody's lease ends early"
                self.not_before_us[position] = self.now_us
        group.token += 1
        lease = Lease(group.token, self.now_us + lease_s * SECOND_US)
        change = delivery.deliver(group.in_order(), lease, limit, rules)
        group.apply(change)
        leased = [run for run in change.come if run.token == lease.token]
        suspects = [run for run in leased if run.last_error == "ack_timeout"]
        if suspects:
            assert sum(run.count for run in leased) == 1, "a suspect comes alone"
        else:
            left = limit - sum(run.count for run in leased)
            held = {run.key for run in group.runs.values() if run.key is not None}
            admitted = delivery.admit(self.fresh(), lease, left, rules, held)
            group.apply(Change([], admitted.come))
            until = group.next if admitted.until is None else admitted.until
            seen = self.log[group.next : until]
            self.passed_over |= {message.position for message in seen if message.for_others}
            for message in seen:
                self.not_before_us[message.position] = self.now_us + message.delay_us
            group.next = until
            leased += [run for run in admitted.come if run.token == lease.token]
        assert sum(run.count for run in leased) <= limit
        for run in leased:
            for position in run.positions:
                self.delivered(position, run, lease)

    def fresh(self) -> list[Fresh]:
        """Return what is behind the cursor, plain neighbours as one, as a broker does."""
        found: list[Fresh] = []
        for message in self.log[self.group.next :]:
            if found and message == Fresh(0, message.position) and found[-1][3:] == message[3:]:
                found[-1] = found[-1]._replace(length=found[-1].length + 1)
            else:
                found.append(message)
        return found

    def delivered(self, position: int, run: MessageRun, lease: Lease) -> None:
        """Check a delivery against what is known."""
        assert position not in self.settled, "what is settled is never delivered again"
        assert position not in self.holders, "nothing is delivered while it is leased"
        assert self.not_before_us.get(position, 0) <= self.now_us, "nothing is delivered before its time"
        self.deliveries[position] = self.deliveries.get(position, 0) + 1
        assert run.attempts == self.deliveries[position], "attempts are truthful"
        assert run.attempts <= (POLICY.max_attempts or 0)
        key = self.log[position].key
        if self.ordered and key is not None:
            before = [one.position for one in self.log[:position] if one.key == key and not one.for_others]
            assert all(one in self.settled for one in before), "order is kept per key"
        self.holders[position] = lease

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), kind=st.sampled_from(["ack", "nack", "end", "extend", "return", "stale"]))
    def answer(self, data: st.DataObject, kind: str) -> None:
        """Answer for some of what one consumer holds, perhaps too late, perhaps with a token that is not its own."""
        token, _ = data.draw(st.sampled_from(sorted(self.holders.values())))
        mine = sorted(position for position, lease in self.holders.items() if lease[0] == token)
        positions = data.draw(st.sets(st.sampled_from(mine), min_size=1))
        if kind == "stale":
            token -= 1
        live = {position for position in positions if self.holders[position][1] > self.now_us and kind != "stale"}
        rules = self.go_by()
        becomes = {
            "ack": lambda _: None,
            "nack": lambda run: delivery.refused(run, "no", rules),
            "end": lambda run: delivery.refused(run, "no", rules, again=False),
            "extend": lambda run: delivery.extended(run, self.now_us + 7 * SECOND_US),
            "return": lambda run: delivery.returned(run, self.now_us),
            "stale": lambda _: None,
        }
        found = delivery.settle(self.group.runs.values(), token, positions, self.now_us, becomes[kind])
        self.group.apply(found.change)
        assert set(found.lost) == positions - live, "late or foreign answers change nothing, and are told so"
        for position in live:
            _, until_us = self.holders.pop(position)
            if kind == "ack":
                self.settled.add(position)
            elif kind == "extend":
                self.holders[position] = (token, self.now_us + 7 * SECOND_US)
            elif kind == "return":
                self.deliveries[position] -= 1
            else:
                rest_us = retry.rest_us(POLICY, self.deliveries[position], 0.5)
                self.not_before_us[position] = self.now_us + rest_us
            del until_us

    @rule(seconds=st.one_of(st.integers(1, 12), st.just(100_000)))
    def time_passes(self, seconds: int) -> None:
        """Time goes on, now and then by a day: all leases end at once."""
        self.now_us += seconds * SECOND_US

    @rule()
    def bury(self) -> None:
        """Have the dead letters take what is dying."""
        dying = [run for run in self.group.runs.values() if run.condition is Condition.DYING]
        self.group.apply(Change(dying, []))
        for run in dying:
            for position in run.positions:
                assert position not in self.holders
                self.settled.add(position)

    # What always holds.

    @invariant()
    def none_is_lost(self) -> None:
        """Every message is to come, unsettled, or settled; none is two of these."""
        unsettled = {position for run in self.group.runs.values() for position in run.positions}
        done = self.settled | self.passed_over
        assert unsettled.isdisjoint(done)
        assert unsettled | done == set(range(self.group.next))

    @invariant()
    def leases_are_as_consumers_know_them(self) -> None:
        """Compare the machine's leases with those that were handed out and not answered."""
        held = {
            position: (run.token, run.at_us)
            for run in self.group.runs.values()
            if run.condition is Condition.LEASED
            for position in run.positions
        }
        assert held == self.holders

    @invariant()
    def nothing_is_parked_behind_nothing(self) -> None:
        """See that the first unsettled message of a key waits for nobody: nothing would ever let it go."""
        firsts: dict[str, MessageRun] = {}
        for run in self.group.in_order():
            if run.key is not None:
                firsts.setdefault(run.key, run)
        assert all(run.condition is not Condition.PARKED for run in firsts.values())

    @invariant()
    def watermark_only_moves_forward(self) -> None:
        """Compare it with the one before: what was settled below it stays settled."""
        assert self.group.watermark >= self.watermark
        self.watermark = self.group.watermark

    @invariant()
    def a_jump_of_time_is_no_storm(self) -> None:
        """However many leases end at once, one claim delivers no more than one suspect: checked in ``claim``. And no
        message has more attempts than its policy allows.
        """
        assert all(run.attempts <= (POLICY.max_attempts or 0) for run in self.group.runs.values())

    def teardown(self) -> None:
        """Let everything come to its end: it does, in a bounded number of rounds."""
        for _ in range(40 * (len(self.log) + 1)):
            if len(self.settled | self.passed_over) == len(self.log):
                break
            self.time_passes(100_000)
            self.claim(8, 1, 0.5)
            self.bury()
        assert self.settled | self.passed_over == set(range(len(self.log)))


class OrderedDeliveryMachine(DeliveryMachine):
    """The same, with messages that have keys, kept in order."""

    ordered = True


TestDeliveryMachine = DeliveryMachine.TestCase
TestOrderedDeliveryMachine = OrderedDeliveryMachine.TestCase


_ranges = st.builds(range, st.integers(0, 90), st.integers(0, 90), st.integers(1, 3))


@given(st.integers(0, 50), st.integers(1, 30), st.sets(st.integers(0, 90)) | _ranges)
def test_cut_takes_exactly_what_is_asked(first: int, count: int, positions: set[int] | range) -> None:
    """Parts and rest are the whole, without overlap, and neighbours are together."""
    run = MessageRun(0, first, count, Condition.LEASED, 5, 1, 7)
    taken, left = delivery.cut(run, positions)
    in_taken = [position for part in taken for position in part.positions]
    in_left = [position for part in left for position in part.positions]
    assert sorted(in_taken + in_left) == list(run.positions)
    assert set(in_taken) == set(run.positions) & set(positions)
    for parts in (taken, left):
        assert all(before.end < after.first for before, after in pairwise(parts))


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5), st.sets(st.integers(0, 40)) | _ranges
)
def test_what_a_step_does_not_hold_is_lost(parts: list[tuple[int, bool]], positions: set[int] | range) -> None:
    """Each position of a step is acknowledged, or told to be lost; no other is touched."""
    runs, first = [], 3
    for count, mine in parts:
        runs.append(MessageRun(0, first, count, Condition.LEASED, 5, 1, 7 if mine else 8))
        first += count + 1
    settled = delivery.settle(runs, 7, positions, 1, lambda _: None)
    held = {position for run in runs if run.token == 7 for position in run.positions}
    assert settled.lost == sorted(set(positions) - held)
    assert {position for run in settled.taken for position in run.positions} == held & set(positions)
    left = {position for run in settled.change.come for position in run.positions}
    assert left == {position for run in settled.change.gone for position in run.positions} - set(positions)


@given(
    attempts=st.integers(1, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
    backoff_s=st.floats(0, 1e4),
    more_s=st.floats(0, 1e4),
    jitter=st.floats(0, 1),
)
def test_max_backoff_holds_with_jitter(
    attempts: int, chance: float, backoff_s: float, more_s: float, jitter: float
) -> None:
    """However often and whatever chance says, a rest is no longer than the longest, nor shorter than jitter allows."""
    policy = RetryPolicy(max_attempts=None, backoff_s=backoff_s, max_backoff_s=backoff_s + more_s, jitter=jitter)
    full_s = min(backoff_s * 2.0 ** min(attempts - 1, 64), policy.max_backoff_s)
    rest_us = retry.rest_us(policy, attempts, chance)
    assert full_s * (1 - jitter) * 1e6 - 1 <= rest_us <= policy.max_backoff_s * 1e6 + 1


def test_jitter_spreads_rests() -> None:
    """Messages that failed together do not all come back together."""
    policy = RetryPolicy(backoff_s=10, jitter=0.5)
    rests = {retry.rest_us(policy, 1, chance / 10) for chance in range(10)}
    assert len(rests) == 10
    assert min(rests) > 5 * SECOND_US
    assert max(rests) == 10 * SECOND_US


@pytest.mark.parametrize(("attempts", "end"), [(2, False), (3, True), (4, True)])
def test_attempts_are_used_up(attempts: int, *, end: bool) -> None:
    """The last delivery that the policy allows is the last."""
    assert retry.exhausted(POLICY, attempts) == end
    assert not retry.exhausted(RetryPolicy(max_attempts=None), attempts)
