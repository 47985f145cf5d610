"""Whatever is done to a log, in whatever order, it says what a dictionary says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oncelog.dedup.window import DedupWindow
from oncelog.errors import AppendErrors, Closed, IdConflict, InvalidArgument, PartialOverlap, WriterFenced
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.stored import snapshots
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Recovered
from oncelog.log.writer import Writer
from oncelog.settings import Idempotence, LogSettings, Window
from oncelog.testing.faults import Killed, When
from oncelog.types import Ack, Record
from tests.log.worlds import LOG, BucketWorld, DiskWorld, Ending, MemoryWorld, World, living, read
from tests.models.control import assert_noticed
from tests.models.history import Kind, Request, send
from tests.models.model import Answer, Model, Outcome, Refusal, Stored

SETTINGS = LogSettings(
    window=Window(duration_s=10.0, max_keys=5),
    segment_bytes=64 * KIB,
    segment_age_s=25.0,
    snapshot_interval_s=15.0,
)
BIG = {"i6", "i7"}
BIG_BYTES = 40 * KIB


def value(name: str, variant: int) -> bytes:
    """Return the content that goes with an id, or another; that of some ids is big enough to fill a segment soon."""
    content = f"{name} says {variant}".encode()
    return content.ljust(BIG_BYTES, b".") if name in BIG else content


variants = st.sampled_from([0, 0, 0, 0, 0, 1])
with_id = st.builds(
    lambda name, variant: Record(value(name, variant), id=name),
    st.sampled_from([f"i{number}" for number in range(8)]),
    variants,
)
without_id = st.builds(lambda name: Record(value(name, 0)), st.sampled_from(["p0", "p1", "p2"]))
record = st.one_of(with_id, with_id, with_id, without_id)
endings = st.sampled_from(["crash", "none", "all", "some"])
whens = st.sampled_from(["before", "during", "after"])
seeds = st.integers(0, 1000)


def _distinct(records: list[Record]) -> tuple[Record, ...]:
    return tuple({record.id or record.value: record for record in records}.values())


requests = st.one_of(
    st.builds(lambda r: Request("one", (r,)), record),
    st.builds(lambda r: Request("many", tuple(r)), st.lists(record, min_size=1, max_size=7)),
    st.builds(lambda r: Request("arrow", tuple(r)), st.lists(record, min_size=1, max_size=7)),
    st.builds(lambda r: Request("batch", _distinct(r)), st.lists(with_id, min_size=1, max_size=3)),
    st.builds(lambda r: Request("batch", tuple(r)), st.lists(record, min_size=1, max_size=7)),
    # What is submitted while it is still pending joins, and afterwards may have been forgotten: so no id comes twice.
    st.builds(lambda r: Request("submit", _distinct(r)), st.lists(record, min_size=1, max_size=4)),
)


def ask(writer: Writer, request: Request) -> Answer:
    """Send a request, and return the answer in the model's words."""
    try:
        if request.kind in ("one", "submit"):
            futures = [writer.submit(r.value, id=r.id, timeout_s=None) for r in request.records]
            return [told(future.exception() or future.result()) for future in futures]
        return [Outcome("duplicate" if ack.duplicate else "new", ack.position) for ack in send(writer, request)]
    except AppendErrors as errors:
        return [told(result) for result in errors.results]
    except PartialOverlap as error:
        return Refusal(PartialOverlap, error.known, error.new)
    except IdConflict:
        return Refusal(IdConflict)
    except InvalidArgument:
        return Refusal(InvalidArgument)


def ask_one(writer: Writer, record: Record) -> Answer:
    """Append one record, and return the answer in the model's words."""
    try:
        return [told(writer.append(record.value, id=record.id, timeout_s=None))]
    except IdConflict as error:
        return [told(error)]


def told(result: Ack | BaseException) -> Outcome:
    """Return an ack, or the conflict in its place, in the model's words."""
    if isinstance(result, IdConflict):
        assert result.position is not None
        return Outcome("conflict", result.position)
    if isinstance(result, BaseException):
        raise result
    assert result.position is not None
    return Outcome("duplicate" if result.duplicate else "new", result.position)


class LogMachine(RuleBasedStateMachine):
    """One log, its writer and its machine, beside the model."""

    make_world: ClassVar[Callable[[], World]]
    settings: ClassVar[LogSettings] = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make_world()
        self.model = Model(self.settings)
        self.life: AbstractContextManager[Callable[[Writer], Writer]]
        self.born: Callable[[Writer], Writer]
        self.log: Log
        self.writer: Writer
        self.opened_us = self.uptime_us = 0

    # Being alive.

    @initialize(idempotence=st.sampled_from(["explicit", "explicit", "content"]))
    def create(self, idempotence: Idempotence) -> None:
        """Make the log and open it."""
        self.model.settings = msgspec.structs.replace(self.settings, idempotence=idempotence)
        self.world.database().log(LOG, self.model.settings, create=True)
        self.begin()
        self.model.log_id = self.log.info().log_id

    def begin(self) -> None:
        """Start a process that opens the log."""
        self.life = living(self.world)
        self.born = self.life.__enter__()
        self.log = self.world.database().log(LOG)
        self.open()

    def open(self, **how: str) -> None:
        """Become the writer, and see at which up-time that was."""
        self.writer = self.born(self.log.writer(wait_s=0, **how))  # type: ignore[arg-type]
        self.opened_us = self.world.clock.elapsed_us()
        self.uptime_us = self.writer._uptime.at(self.opened_us)

    def now_us(self) -> int:
        """Return the up-time by the model's own reckoning."""
        return self.uptime_us + self.world.clock.elapsed_us() - self.opened_us

    def found(self) -> list[Stored]:
        """Return what can be read."""
        with self.log.read() as entries:
            found = list(entries)
        assert [entry.position for entry in found] == list(range(len(found)))
        return [Stored(entry.id, entry.value) for entry in found]

    def quiet(self) -> None:
        """Let what the writer does by the way be done: snapshots, sealing."""
        for thread in threading.enumerate():
            if thread.name == "oncelog-housekeeping":
                thread.join()

    def teardown(self) -> None:
        """Let the process and its threads go."""
        if hasattr(self, "life"):
            self.life.__exit__(None, None, None)

    # What may happen.

    @rule(request=requests)
    def append(self, request: Request) -> None:
        """Send something: it is answered as the dictionary says."""
        request = self.allowed(request)
        expected = self.model.apply(request, self.now_us())
        answered = ask_one(self.writer, request.records[0]) if request.kind == "one" else ask(self.writer, request)
        assert answered == expected, f"{request}: told {answered}, expected {expected}"
        self.quiet()

    def allowed(self, request: Request) -> Request:
        """Return a request without ids where ids are refused."""
        if self.model.idempotence != "off":
            return request
        return Request(request.kind, tuple(Record(record.value) for record in request.records))

    @precondition(lambda self: self.model.idempotence == "off")
    @rule(refused=with_id)
    def append_an_id_where_none_is_kept(self, refused: Record) -> None:
        """Refuse an id where its promise cannot be kept."""
        with pytest.raises(InvalidArgument):
            self.writer.append(refused.value, id=refused.id)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 5.0, 9.5, 10.0]))
    def let_time_pass(self, seconds: float) -> None:
        """Ids age, segments grow old."""
        self.world.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-7200.0, -1.0, 3600.0]))
    def move_the_clock(self, seconds: float) -> None:
        """Wall time jumps, and nothing depends on it."""
        self.world.clock.jump(seconds)

    @rule()
    def snapshot(self) -> None:
        """Take a snapshot."""
        self.writer.snapshot()

    @rule()
    def seal(self) -> None:
        """Make files of closed segments."""
        self.log.seal()

    @rule(which=st.sampled_from(["newest", "oldest", "all"]), damage=st.integers(0, 10_000), gone=st.booleans())
    def lose_snapshots(self, which: str, damage: int, *, gone: bool) -> None:
        """Snapshots are deleted, or a byte of each changes."""
        home = self.log._home
        keys = home.list(snapshots.prefix(self.model.log_id))
        for key in {"newest": keys[-1:], "oldest": keys[:1], "all": keys}[which]:
            content = bytearray(home.read(key).to_pybytes())
            home.delete(key)
            if not gone:
                content[damage % len(content)] ^= 1 + damage % 255
                assert home.create(key, [content])

    @rule()
    def close_and_open(self) -> None:
        """Leave in peace and come back: nothing is lost, not even a moment of up-time."""
        before_us = self.now_us()
        self.writer.close(timeout_s=None)
        self.open()
        assert self.uptime_us == before_us
        self.model.reopen(self.uptime_us)

    @rule(idempotence=st.sampled_from(["explicit", "content", "off"]))
    def configure(self, idempotence: Idempotence) -> None:
        """Idempotence is switched, and the window is built from the records that carry ids."""
        self.writer.close(timeout_s=None)
        self.model.settings = msgspec.structs.replace(self.settings, idempotence=idempotence)
        self.log.configure(self.model.settings)
        self.open()
        self.model.reopen(self.uptime_us)

    @rule(ending=endings, seed=seeds)
    def crash(self, ending: Ending, seed: int) -> None:
        """End the process, or the machine, between two requests."""
        self.die(None, ending, seed)

    @rule(request=requests, call=st.integers(1, 60), when=whens, ending=endings, seed=seeds)
    def crash_while_appending(self, request: Request, call: int, when: When, ending: Ending, seed: int) -> None:
        """End in the midst of one: of that, there is what there is, and from then on it stays so."""
        request = self.allowed(request)
        if request.kind == "submit":
            # Threads decide how far a submit has got at a given call: the same steps would not do the same twice.
            request = Request("many", request.records)
        self.world.faults.kill_at(call, when)
        with contextlib.suppress(Killed, Closed):
            before, now_us = self.model.copy(), self.now_us()
            answered = ask(self.writer, request)
            if not self.world.faults.is_killed:
                self.world.faults.heal()
                expected = self.model.apply(request, now_us)
                assert answered == expected, f"{request}: told {answered}, expected {expected}"
                self.quiet()
                return
        self.model = before
        self.die(request, ending, seed)

    @rule(ending=endings, seed=seeds, call=st.integers(1, 60), when=whens)
    def crash_while_opening(self, ending: Ending, seed: int, call: int, when: When) -> None:
        """End, and end again before the log is open."""
        self.end(ending, seed)
        with living(self.world) as born:
            self.world.faults.kill_at(call, when)
            with contextlib.suppress(Killed):
                born(self.world.database().log(LOG).writer(wait_s=0))
        self.world.end(ending, seed + 1)
        self.recover(None, self.now_us())

    def die(self, request: Request | None, ending: Ending, seed: int) -> None:
        """End, start again, and see what is left of a request that was in flight."""
        now_us = self.now_us()
        self.end(ending, seed)
        self.recover(request, now_us)

    def end(self, ending: Ending, seed: int) -> None:
        """End the process or the machine; what another process saw before must be there afterwards."""
        self.life.__exit__(None, None, None)
        seen = read(self.world)
        self.world.end(ending, seed)
        assert read(self.world)[: len(seen)] == seen, "what a reader saw was taken back"

    def recover(self, request: Request | None, until_us: int) -> None:
        """Start again: up-time goes on from where the log, or a snapshot, last told of it."""
        self.begin()
        self.model.settle(request, until_us, self.found())
        assert self.model.last_tick_us <= self.uptime_us <= until_us
        self.model.reopen(self.uptime_us)

    @invariant()
    def reads_as_the_dictionary_says(self) -> None:
        """Read what was stored, in its order, once."""
        assert self.found() == self.model.stored


class DiskMachine(LogMachine):
    """A log on a simulated disk."""

    make_world = staticmethod(lambda: DiskWorld(auto_advance=False))


class MemoryMachine(LogMachine):
    """A log in memory, which another writer may take by force."""

    make_world: ClassVar[Callable[[], World]] = staticmethod(lambda: MemoryWorld(auto_advance=False))

    @rule(kind=st.sampled_from(["one", "many", "batch", "arrow", "submit"]))
    def take_over(self, kind: Kind) -> None:
        """Another writer takes the log: the one before it learns that with its next word, and changes nothing."""
        old, until_us = self.writer, self.now_us()
        self.open(takeover="force")
        assert self.model.last_tick_us <= self.uptime_us <= until_us
        self.model.reopen(self.uptime_us)
        with pytest.raises(WriterFenced):
            ask(old, Request(kind, (Record(b"too late"),)))
        old.close(timeout_s=None)


class PipelinedMachine(MemoryMachine):
    """A log in memory with several blocks in flight."""

    make_world = staticmethod(lambda: MemoryWorld(auto_advance=False, in_flight_max=3))


class BucketMachine(MemoryMachine):
    """A log in a bucket."""

    make_world = staticmethod(lambda: BucketWorld(auto_advance=False))


@pytest.mark.parametrize("machine", [DiskMachine, MemoryMachine, PipelinedMachine, BucketMachine])
def test_a_log_says_what_a_dictionary_says(machine: type[LogMachine]) -> None:
    """Within its window a retry is the original's duplicate, beyond it a new record, whatever happens in between."""
    run_state_machine_as_test(
        machine, settings=settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))
    )


@pytest.mark.parametrize("machine", [DiskMachine, MemoryMachine])
def test_a_window_that_is_not_recovered_is_noticed(monkeypatch: pytest.MonkeyPatch, machine: type[LogMachine]) -> None:
    """A control: a writer that opens with an empty window does not say what the dictionary says."""

    def forget(*arguments: object, **options: object) -> Recovered:
        return recover(*arguments, **options)._replace(window=DedupWindow(10_000_000, 5))

    recover: Callable[..., Recovered] = recovery.recover
    monkeypatch.setattr(recovery, "recover", forget)
    assert_noticed(machine)
