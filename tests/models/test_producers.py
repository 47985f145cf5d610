"""Whatever producers do, and whatever is done to their log, it says what a list of all they sent says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from oncelog.errors import AppendErrors, InvalidArgument, PartialOverlap
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.stored import bases, snapshots
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record
from tests.log.worlds import LOG, DiskWorld, Ending, MemoryWorld, World, living

SETTINGS = LogSettings(idempotence="off", segment_bytes=64 * KIB, segment_age_s=25.0, snapshot_interval_s=15.0)
names = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 12)
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)
"""A life that goes wrong is told as it is: to make it shorter takes longer than a test may."""

endings = st.sampled_from(["crash", "none", "all", "some"])
Outcome = tuple[str, int | None]


class ProducerMachine(RuleBasedStateMachine):
    """One log and its producers, beside a list. ``stored`` has every record's producer and sequence, by position."""

    make_world: ClassVar[Callable[[], World]]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make_world()
        self.stored: list[tuple[str, int]] = []
        self.first = 0
        self.forgotten: dict[str, int] = {}
        self.floors: dict[str, int] = {}
        self.pushed: dict[str, dict[int, int]] = {}
        self.life: AbstractContextManager[Callable[[Writer], Writer]]
        self.log: Log
        self.writer: Writer

    @initialize()
    def create(self) -> None:
        """Make the log and open it."""
        self.world.database().log(LOG, SETTINGS, create=True)
        self.begin()

    def begin(self) -> None:
        """Start a process that opens the log: every session begins behind what is stored."""
        self.life = living(self.world)
        born = self.life.__enter__()
        self.log = self.world.database().log(LOG)
        self.writer = born(self.log.writer(wait_s=0))
        self.renew()

    def renew(self) -> None:
        """Begin all sessions again."""
        self.floors, self.pushed = self.last(), {}

    def last(self) -> dict[str, int]:
        """Return the last sequence of each producer, as the list has it."""
        found = {}
        for position, (name, sequence) in enumerate(self.stored):
            if position >= self.forgotten.get(name, 0):
                found[name] = sequence
        return found

    def teardown(self) -> None:
        """Let the process go."""
        if hasattr(self, "life"):
            self.life.__exit__(None, None, None)

    def expect(self, name: str, sequence: int) -> Outcome:
        """Return what a sequence must be answered, and be as the log is then."""
        floor, pushed = self.floors.get(name), self.pushed.setdefault(name, {})
        if floor is not None and sequence <= floor:
            return "duplicate", None
        if sequence in pushed:
            return "duplicate", pushed[sequence]
        if pushed and sequence < max(pushed):
            return "refused", None
        pushed[sequence] = len(self.stored)
        self.stored.append((name, sequence))
        return "new", pushed[sequence]

    @rule(name=names, sequence=numbers)
    def append(self, name: str, sequence: int) -> None:
        """Append one."""
        expected = self.expect(name, sequence)
        try:
            ack = self.writer.append(b"x", producer=name, sequence=sequence, timeout_s=None)
        except InvalidArgument:
            assert expected[0] == "refused"
            return
        self.check(expected, ack)

    def check(self, expected: Outcome, ack: Ack) -> None:
        """Hold an ack against what was expected; the position of what lies below H may be told or not."""
        assert ack.duplicate == (expected[0] == "duplicate")
        if expected[1] is not None:
            assert ack.position == expected[1]

    @rule(sent=st.lists(st.tuples(names, numbers), min_size=1, max_size=6), columns=st.booleans())
    def append_many(self, sent: list[tuple[str, int]], *, columns: bool) -> None:
        """Append several at once, as records or in columns."""
        expected = [self.expect(name, sequence) for name, sequence in sent]
        records = [Record(b"x", producer=name, sequence=sequence) for name, sequence in sent]
        try:
            if columns:
                table = {
                    "value": pa.array([b"x"] * len(sent), pa.binary()),
                    "producer": [name for name, _ in sent],
                    "sequence": [sequence for _, sequence in sent],
                }
                acks = self.writer.append_arrow(pa.table(table), timeout_s=None)
                results = [
                    Ack(position if position >= 0 else None, None, None, None, duplicate)
                    for position, duplicate in zip(acks.positions.tolist(), acks.duplicates.tolist(), strict=True)
                ]
            else:
                results = self.writer.append_many(records, timeout_s=None)
        except AppendErrors as errors:
            results = list(errors.results)
        for outcome, result in zip(expected, results, strict=True):
            if outcome[0] == "refused":
                assert isinstance(result, InvalidArgument)
            else:
                self.check(outcome, result)

    @rule(sent=st.lists(st.tuples(names, numbers), min_size=1, max_size=4, unique=True))
    def append_batch(self, sent: list[tuple[str, int]]) -> None:
        """Append several, all or none."""
        before = list(self.stored), {name: dict(pushed) for name, pushed in self.pushed.items()}
        expected = [self.expect(name, sequence) for name, sequence in sent]
        kinds = {outcome for outcome, _ in expected}
        records = [Record(b"x", producer=name, sequence=sequence) for name, sequence in sent]
        if len(kinds) > 1 or kinds == {"refused"}:
            with pytest.raises(InvalidArgument) as refused:
                self.writer.append_batch(records, timeout_s=None)
            assert isinstance(refused.value, PartialOverlap) == ("refused" not in kinds)
            self.stored, self.pushed = before
            return
        acks = self.writer.append_batch(records, timeout_s=None)
        for outcome, ack in zip(expected, acks, strict=True):
            self.check(outcome, ack)

    @rule(name=names)
    def open_anew(self, name: str) -> None:
        """End a session and begin another, behind what is stored."""
        with self.writer.as_producer(name) as producer:
            assert producer.last_sequence == self.last().get(name)
        with self.writer.as_producer(name):
            self.floors.pop(name, None)
            self.pushed.pop(name, None)
            if name in self.last():
                self.floors[name] = self.last()[name]

    @rule(name=names)
    def forget(self, name: str) -> None:
        """Let what a producer stored so far not count any more."""
        assert self.log.forget_producer(name) == (name in self.last())
        self.forgotten[name] = len(self.stored)
        self.floors.pop(name, None)
        self.pushed.pop(name, None)

    @rule(seconds=st.sampled_from([1.0, 20.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        """Segments grow old, snapshots become due."""
        self.world.clock.advance(seconds)

    @rule()
    def snapshot(self) -> None:
        """Take a snapshot."""
        self.writer.snapshot()

    @rule()
    def lose_snapshots(self) -> None:
        """All snapshots are deleted."""
        for key in self.log._home.list(snapshots.prefix(self.log.log_id)):
            self.log._home.delete(key)

    @rule(seal=st.booleans())
    def close_and_open(self, *, seal: bool) -> None:
        """Leave in peace, and come back."""
        self.writer.close(timeout_s=None)
        if seal:
            self.log.seal()
        self.life.__exit__(None, None, None)
        self.begin()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Remove records; nobody forgets anything."""
        done = self.log.truncate(int(share * len(self.stored)))
        self.first = done.first_position

    @rule(ending=endings, seed=st.integers(0, 1000))
    def crash(self, ending: Ending, seed: int) -> None:
        """End the process, or the machine, and start again."""
        self.life.__exit__(None, None, None)
        self.world.end(ending, seed)
        self.begin()

    @invariant()
    def says_what_the_list_says(self) -> None:
        """Read what was stored, once and in order, and know how far everybody got."""
        if not hasattr(self, "log"):
            return
        found = [(entry.producer, entry.sequence) for entry in self.log.read()]
        assert found == self.stored[self.first :]
        assert {name: mark.last_sequence for name, mark in self.log.producers().items()} == self.last()


class DiskMachine(ProducerMachine):
    """Producers on a simulated disk."""

    make_world = staticmethod(lambda: DiskWorld(auto_advance=False))


class MemoryMachine(ProducerMachine):
    """Producers in memory, with several blocks in flight."""

    make_world = staticmethod(lambda: MemoryWorld(auto_advance=False, in_flight_max=3))


def run(machine: type[ProducerMachine], examples: int, phases: Sequence[Phase] = QUICKLY) -> None:
    """Try the machine."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, phases=phases, stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("machine", [DiskMachine, MemoryMachine])
def test_producers_are_remembered_as_a_list_has_them(machine: type[ProducerMachine]) -> None:
    """A sequence is new, known or refused as it must be, whatever happens in between."""
    run(machine, 15)


def test_a_base_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a truncation that writes no base is found out."""
    machine = MemoryMachine()
    machine.create()
    machine.append(name="a", sequence=0)
    machine.snapshot()
    machine.append(name="a", sequence=1)
    machine.crash(ending="crash", seed=0)
    monkeypatch.setattr(bases, "write", lambda *_, **__: None)
    machine.truncate(share=1.0)
    machine.crash(ending="crash", seed=0)
    with pytest.raises(AssertionError):
        machine.says_what_the_list_says()
    machine.teardown()
