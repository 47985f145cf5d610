"""Whatever is done to a log, in whatever order, and sealed, adopted into and truncated meanwhile, it says what a
dictionary says.

The machine is that of ``tests/models/test_log.py``; here the front of the log may go, files come in from elsewhere,
and readers hold leases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from oncelog.errors import Closed, IdConflict, NotFound, PartialOverlap
from oncelog.log.upkeep import retention
from oncelog.log.upkeep.retention import Truncation
from oncelog.settings import Idempotence
from oncelog.testing.faults import Killed, When
from oncelog.types import Record
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import stage
from tests.log.worlds import BucketWorld, DiskWorld, Ending, MemoryWorld
from tests.models.control import assert_noticed
from tests.models.model import Model, Outcome, Stored, Together
from tests.models.test_log import LogMachine, ask_one, endings, seeds, whens

LEASE_S = 30.0
adoptable = st.lists(
    st.builds(
        lambda name: Record(f"{name} from elsewhere".encode(), id=name), st.sampled_from(["x0", "x1", "x2", "x3"])
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda record: record.id,
)
fractions = st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0])


@dataclass
class LifeModel(Model):
    """The dictionary of a log that has adopted files: their ids count by time alone, and spend no keys."""

    adopted: list[Together] = field(default_factory=list)
    adoptions: list[Together] = field(default_factory=list)
    """All that were ever adopted: with the snapshot that told of it, up-time is lost, and ids are within it again."""

    def copy(self) -> LifeModel:
        """Return a model that goes its own way."""
        return LifeModel(
            self.settings,
            self.log_id,
            self.stored[:],
            self.written[:],
            self.remembered[:],
            self.adopted[:],
            self.adoptions[:],
        )

    def reopen(self, now_us: int) -> None:
        """Rebuild the window, and take the adopted files up whose ids are within it at this up-time."""
        super().reopen(now_us)
        self.adopted = [together for together in self.adoptions if self.is_recent(together, now_us)]

    def known(self) -> dict[str, int]:
        """Return the ids that are known, with their positions."""
        if self.idempotence == "off":
            return {}
        places = [place for together in self.adopted for place in together.positions]
        return {str(self.stored[place].id): place for place in places} | super().known()

    def evict(self, now_us: int) -> None:
        """Forget what is too old or too much."""
        super().evict(now_us)
        self.adopted = [together for together in self.adopted if self.is_recent(together, now_us)]

    def is_recent(self, together: Together, now_us: int) -> bool:
        """Tell whether keys are within the window's duration."""
        return together.tick_us > now_us - self.settings.window.duration_us

    def needed_from(self, now_us: int) -> int:
        """Return the first position that the window needs."""
        if self.idempotence == "off":
            return len(self.stored)
        kept = [together for together in (*self.remembered, *self.adopted) if self.is_recent(together, now_us)]
        return min((together.positions[0] for together in kept), default=len(self.stored))

    def adopt(self, records: Sequence[Record], now_us: int) -> int:
        """Store records that were adopted, and return the position of the first."""
        first = len(self.stored)
        self.stored += [Stored(record.id, record.value) for record in records]
        self.adoptions.append(Together(tuple(range(first, len(self.stored))), now_us))
        self.adopted.append(self.adoptions[-1])
        return first


class Held(NamedTuple):
    """A lease on everything from a position on, until a moment of wall time."""

    position: int
    until_us: int


class LifeMachine(LogMachine):
    """One log through its whole life. Wall time does not jump here: leases are told by it."""

    def __init__(self) -> None:
        super().__init__()
        self.model: LifeModel = LifeModel(self.model.settings)
        self.first = 0
        self.held: list[Held] = []

    @initialize(idempotence=st.sampled_from(["explicit", "explicit", "content"]))
    def create(self, idempotence: Idempotence) -> None:
        """Make the log and open it."""
        super().create(idempotence)

    @rule()
    def move_the_clock(self) -> None:
        """Leave wall time alone."""

    @rule(idempotence=st.sampled_from(["explicit", "content"]))
    def configure(self, idempotence: Idempotence) -> None:
        """Idempotence is switched, but not off: a window that is not kept holds nothing back."""
        super().configure(idempotence)

    def found(self) -> list[Stored]:
        """Return what can be read, behind what was truncated away."""
        with self.log.read() as entries:
            found = list(entries)
        first = self.log._manifest().first_position
        assert first == self.first, f"begins at {first}, expected {self.first}"
        assert [entry.position for entry in found] == list(range(first, first + len(found)))
        return [*self.model.stored[:first], *(Stored(entry.id, entry.value) for entry in found)]

    # Files from elsewhere.

    @rule(records=adoptable)
    def adopt(self, records: list[Record]) -> None:
        """Adopt a file whose ids are all new, or be refused and change nothing."""
        now_us = self.now_us()
        staged = stage(self.log, records)
        self.model.evict(now_us)
        known = self.model.known()
        repeated = [row for row, record in enumerate(records) if record.id in known]
        assert overlap(self.writer, [staged])[0].tolist() == repeated
        if repeated:
            with pytest.raises(PartialOverlap):
                adopt(self.writer, [staged])
            return
        assert adopt(self.writer, [staged]) == [self.model.adopt(records, now_us)]

    @rule(record=adoptable.map(lambda records: records[0]))
    def retry_what_was_adopted(self, record: Record) -> None:
        """Append a record that may have come in a file: within the window it is a duplicate at its place there."""
        now_us = self.now_us()
        self.model.evict(now_us)
        place = self.model.known().get(str(record.id))
        if place is None:
            expected = [Outcome("new", self.model._store([record], now_us))]
        else:
            expected = [Outcome("duplicate", place)]
        assert ask_one(self.writer, record) == expected
        self.quiet()

    @precondition(lambda self: self.model.adopted)
    @rule(number=st.integers(0, 3))
    def conflict_with_what_was_adopted(self, number: int) -> None:
        """Other content under an id that came in a file is a conflict with what is there."""
        self.model.evict(self.now_us())
        name = f"x{number}"
        place = self.model.known().get(name)
        if place is None:
            return
        with pytest.raises(IdConflict) as conflict:
            self.writer.append(b"something else", id=name, timeout_s=None)
        assert conflict.value.position == place

    @rule(records=adoptable, call=st.integers(1, 40), when=whens, ending=endings, seed=seeds)
    def crash_while_adopting(self, records: list[Record], call: int, when: When, ending: Ending, seed: int) -> None:
        """End in the midst of an adoption: it was made as a whole, or not at all."""
        now_us = self.now_us()
        self.model.evict(now_us)
        if any(record.id in self.model.known() for record in records):
            return
        self.world.faults.kill_at(call, when)
        with contextlib.suppress(Killed, Closed):
            first = adopt(self.writer, [stage(self.log, records)])
            if not self.world.faults.is_killed:
                self.world.faults.heal()
                assert first == [self.model.adopt(records, now_us)]
                return
        self.end(ending, seed)
        self.begin()
        if len(self.found()) > len(self.model.stored):
            self.model.adopt(records, now_us)
        self.model.settle(None, now_us, self.found())
        self.model.reopen(self.uptime_us)

    # Truncation.

    def allowed_to(self) -> int:
        """Return the position that nothing may be truncated behind: what the window, or a lease, needs."""
        now_us = self.world.clock.now_us()
        held = [lease.position for lease in self.held if lease.until_us >= now_us]
        return max(self.first, min([self.model.needed_from(self.now_us()), *held]))

    def truncated(self, done: Truncation, before: int) -> None:
        """Check how far a truncation went."""
        assert self.first <= done.first_position <= max(self.first, min(before, self.allowed_to()))
        if done.held_by is None:
            assert done.first_position == max(self.first, before)
        self.first = done.first_position

    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        """Let go of the front, as far as nobody needs it."""
        before = round(len(self.model.stored) * fraction)
        self.truncated(self.log.truncate(before), before)

    @rule(bytes_max=st.sampled_from([0, 50_000]))
    def retain(self, bytes_max: int) -> None:
        """Keep so much, and what is needed."""
        self.log.configure(msgspec.structs.replace(self.model.settings, retention_bytes=bytes_max))
        done = self.log.retain()
        self.log.configure(self.model.settings)
        assert self.first <= done.first_position <= self.allowed_to()
        self.first = done.first_position

    @rule(fraction=fractions, call=st.integers(1, 40), when=whens, ending=endings, seed=seeds)
    def crash_while_truncating(self, fraction: float, call: int, when: When, ending: Ending, seed: int) -> None:
        """End in the midst of a truncation: it was made, or not, and what is needed is there."""
        before = round(len(self.model.stored) * fraction)
        allowed = max(self.first, min(before, self.allowed_to()))
        self.world.faults.kill_at(call, when)
        with contextlib.suppress(Killed):
            done = self.log.truncate(before)
            if not self.world.faults.is_killed:
                self.world.faults.heal()
                self.truncated(done, before)
                return
        self.forget(ending, seed, allowed)

    @rule(call=st.integers(1, 40), when=whens, ending=endings, seed=seeds)
    def crash_while_sealing(self, call: int, when: When, ending: Ending, seed: int) -> None:
        """End in the midst of a sealing: nobody can tell."""
        self.world.faults.kill_at(call, when)
        with contextlib.suppress(Killed):
            self.log.seal()
            if not self.world.faults.is_killed:
                self.world.faults.heal()
                return
        self.forget(ending, seed, self.first)

    def forget(self, ending: Ending, seed: int, allowed: int) -> None:
        """End, and see how far the log was truncated."""
        until_us = self.now_us()
        self.end(ending, seed)
        self.begin()
        first = self.log._manifest().first_position
        assert self.first <= first <= allowed
        self.first = first
        self.model.settle(None, until_us, self.found())
        self.model.reopen(self.uptime_us)

    @precondition(lambda self: self.first > 0)
    @rule(back=st.integers(1, 5))
    def read_what_is_gone(self, back: int) -> None:
        """Say clearly that a position was truncated away, and where the log begins."""
        with pytest.raises(NotFound) as gone:
            self.log.read(max(0, self.first - back))
        assert gone.value.first == self.first

    # Leases.

    @rule(fraction=fractions)
    def take_a_lease(self, fraction: float) -> None:
        """Let a process begin to read and die: its lease is there until it runs out."""
        position = self.first + int((len(self.model.stored) - self.first) * fraction)
        tail = self.world.database().log(self.log.name).tail(position, lease_s=LEASE_S)
        self.held.append(Held(position, self.world.clock.now_us() + round(LEASE_S * 1e6)))
        tail._lease = None

    @rule(fraction=fractions)
    def read_with_a_lease(self, fraction: float) -> None:
        """Let a reader read on from a position to the end while everything before is truncated, and then leave."""
        position = self.first + int((len(self.model.stored) - self.first) * fraction)
        with self.log.read(position, lease_s=LEASE_S) as reader:
            self.held.append(Held(position, self.world.clock.now_us() + round(LEASE_S * 1e6)))
            self.truncated(self.log.truncate(len(self.model.stored)), len(self.model.stored))
            assert [Stored(entry.id, entry.value) for entry in reader] == self.model.stored[position:]
        self.held.pop()

    # All of it.

    @rule()
    def verify(self) -> None:
        """Find nothing wrong."""
        verified = self.log.verify()
        assert verified.ok, verified.findings
        assert verified.records == len(self.model.stored) - self.first


class DiskMachine(LifeMachine):
    """A log on a simulated disk."""

    make_world = staticmethod(lambda: DiskWorld(auto_advance=False))


class MemoryMachine(LifeMachine):
    """A log in memory."""

    make_world = staticmethod(lambda: MemoryWorld(auto_advance=False))


class BucketMachine(LifeMachine):
    """A log in a bucket."""

    make_world = staticmethod(lambda: BucketWorld(auto_advance=False))


@pytest.mark.parametrize("machine", [DiskMachine, MemoryMachine, BucketMachine])
def test_a_log_that_is_looked_after_says_what_a_dictionary_says(machine: type[LifeMachine]) -> None:
    """Positions, duplicates and reads are as told whatever upkeep is done or cut short, and it never goes too far."""
    steps = settings(
        max_examples=settings().max_examples // 2,
        stateful_step_count=40,
        phases=[Phase.generate],  # to make a life shorter takes longer than a test may
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=steps)


def test_a_truncation_past_the_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: where truncation does not ask what the window needs, the machine finds it out."""

    def greedy(manifest: object, before: int, window_from: object) -> tuple[int, None]:
        return min(before, int(manifest.next_position)), None  # type: ignore[attr-defined]

    monkeypatch.setattr(retention, "_allowed", greedy)
    assert_noticed(MemoryMachine)
