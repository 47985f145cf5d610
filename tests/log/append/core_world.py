"""A world without threads for the append core: a driver, a storage that loses answers, and checks after every step.

The driver does what ``committer`` does, one small step at a time and in any order that locks would allow.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from oncelog.clock import Beating, Clock
from oncelog.dedup.producers import ProducerMark, Producers
from oncelog.dedup.window import DedupWindow
from oncelog.errors import Closed, OncelogError, Unavailable, WriterFenced
from oncelog.format import block
from oncelog.format.payload import columns
from oncelog.log.append import core as core_module
from oncelog.log.append import decider as decider_module
from oncelog.log.append import tail as tail_module
from oncelog.log.append.answers import Admitted
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Seen
from oncelog.log.append.groups import Group, Ticket, record_bytes, record_of, submitted_as
from oncelog.log.append.payloads import Keys
from oncelog.log.append.sequences import Sequences
from oncelog.log.append.uptime import Uptime
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.types import Record

SOURCES = str(Path(core_module.__file__).parents[2])
WORDS = 1 << 64
SETTINGS = LogSettings(block_records=4, pending_records=12, segment_bytes=64 * 1024, snapshot_records=500)
LONG_US = 1 << 50
TORN_SHARE = 0.02

Identity = tuple[object, ...]


def load(file: str = "", text: str = "", instead: str = "") -> tuple[Any, Any, Any]:
    """Return the modules ``core``, ``decider`` and ``tail``, one of them with a mistake planted in its text."""
    planted = []
    before = dict(sys.modules)
    try:
        for module in (tail_module, core_module, decider_module):
            source = Path(str(module.__file__)).read_text(encoding="utf-8")
            if Path(str(module.__file__)).name == file:
                assert source.count(text) == 1, f"{file} has {text!r} {source.count(text)} times"
                source = source.replace(text, instead)
            made = types.ModuleType(module.__name__)
            made.__file__ = module.__file__
            sys.modules[module.__name__] = made
            exec(compile(source, str(module.__file__), "exec"), made.__dict__)
            planted.append(made)
    finally:
        for module in (tail_module, core_module, decider_module):
            sys.modules[module.__name__] = before[module.__name__]
    tail, core, decider = planted
    return core, decider, tail


class _Interrupt:
    """Presses Ctrl-C at the nth bytecode that runs in this package."""

    def __init__(self, number: int) -> None:
        self.left = number

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Count bytecodes of frames of the package."""
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


class Token:
    """The place of a future: a record, and what was answered for it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.answered = False
        self.position: int | None = None


class Flight(NamedTuple):
    """A request to storage that is on its way. Without a group it prepares a segment."""

    request: int
    started_us: int
    group: Group | None = None


class Steady:
    """What the up-time reads of a clock: a process that never pauses. It has no lock that an interrupt could leave."""

    pulse = (LONG_US, 0)

    def elapsed_us(self) -> int:
        """Return the beginning."""
        return 0

    def keep_pulse(self, owner: Beating) -> None:
        """Do nothing: the pulse stands."""


class World:
    """One log, with the core of its present writer."""

    def __init__(
        self, seed: int, in_flight_max: int, modules: tuple[Any, Any, Any], *, interval_us: int = 0, tears: bool = True
    ) -> None:
        self.random = random.Random(seed)
        self.in_flight_max = in_flight_max
        self.interval_us = interval_us
        self.tears = tears
        self.core_module, self.decider_module, self.tail_module = modules
        self.now_us, self.wall_us = 1_000, 10_000_000
        self.log: list[Record] = []  # what is durable, by position
        self.at: dict[Identity, int] = {}
        self.segment = self.epoch = self.numbers = 0
        self.last_timestamp_us = 0
        self.tokens: list[Token] = []
        self.sequences = {"p": 0, "q": 0}
        self.steps = self.restarts = 0
        self.tear_at = 0
        self.begin()

    # A writer's life.

    def begin(self) -> None:
        """Take the log over: a core that knows what is durable, and nothing else."""
        self.restarts += 1
        self.epoch += 1
        self.segment += 1
        self.blocks: dict[int, tuple[bytes, block.BlockHeader]] = {}  # of the open segment, by number
        self.landed: dict[int, Sequence[Record]] = {}  # by first position
        self.flights: list[Flight] = []
        self.waits: list[tuple[Ticket, Record]] = []
        self.is_fenced = False
        window = DedupWindow(LONG_US, 1 << 20)
        known = [(position, record) for position, record in enumerate(self.log) if record.id is not None]
        if known:
            keys = [key_of(record) for _, record in known]
            window.add(
                np.array([key[:2] for key in keys], np.uint64),
                np.array([position for position, _ in known]),
                np.array([key[2] for key in keys], np.uint64),
            )
            window.commit(len(self.log), 0, 0)
        tail = self.tail_module.SegmentTail(
            epoch=self.epoch,
            writer=bytes(16),
            settings=SETTINGS,
            last_timestamp_us=self.last_timestamp_us,
            ids_max=20,
        )
        tail.begin(self.segment, len(self.log), self.now_us)
        policy = ProducerPolicy(enabled=True, inactive_s=1e9, max_producers=1000)
        counters = Counters()
        self.core = self.core_module.Core(
            tail=tail,
            uptime=Uptime(cast("Clock", Steady()), 0),
            seen=Seen(window, Adopted(LONG_US)),
            sequences=Sequences(Producers(self._marks()), policy, counters),
            settings=SETTINGS,
            counters=counters,
            next_position=len(self.log),
        )
        self.decider = self.decider_module.Decider(self.core)
        self.stored_position = len(self.log)

    def _marks(self) -> dict[str, ProducerMark]:
        """Return how far producers are; they go on from there."""
        marks: dict[str, ProducerMark] = {}
        for position, record in enumerate(self.log):
            if record.producer is not None and record.sequence is not None:
                marks[record.producer] = ProducerMark(record.sequence, position, 0)
        self.sequences = {name: marks[name].last_sequence + 1 if name in marks else 0 for name in "pq"}
        return marks

    def finish(self) -> None:
        """See that a core which has ended owes nobody an answer, and take the log over."""
        assert self.core.ended is not None
        self.answer()
        assert not self.core.unanswered
        assert all(token.answered for token in self.tokens), "a token of a core that ended has no answer"
        for ticket, _ in self.waits:
            if ticket.group is not None:
                assert ticket.group.state in {"stored", "failed"}
                assert (ticket.group.error is not None) == (ticket.group.state == "failed")
        self.tokens = []
        self.begin()

    def event(self, work: Callable[..., Any], *given: object) -> tuple[bool, Any]:
        """Run an event, perhaps interrupted at some bytecode; tell whether it came to its end, and its result."""
        if not self.tear_at and (not self.tears or self.random.random() > TORN_SHARE):
            return True, work(*given)
        interrupt = _Interrupt(self.tear_at or self.random.randrange(1, self.random.choice((40, 400, 2000))))
        result, done = None, False
        try:
            sys.settrace(interrupt.trace)
            result = work(*given)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            self.tear_at = max(0, interrupt.left) if self.tear_at else 0
        if self.core.error is self.core_module.TORN:
            self._end_torn()
        return done, result

    def _end_torn(self) -> None:
        """End a torn core; sometimes that is interrupted, too."""
        if self.random.random() < 0.5:
            interrupt = _Interrupt(self.random.randrange(1, 200))
            try:
                sys.settrace(interrupt.trace)
                self.core.end(Closed("torn"))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        self.core.end(Closed("torn"))

    # Records.

    def record(self) -> Record:
        """Return a record: new, or one that was sent before, by id, by sequence, or nameless."""
        chance = self.random.random()
        if chance < 0.15:
            self.numbers += 1
            return Record(b"nameless %d" % self.numbers)
        if chance < 0.3:
            name = self.random.choice("pq")
            sequence = max(0, self.sequences[name] - self.random.choice((0, 0, 0, 1, 2, 3)))
            return Record(f"{name} {sequence}".encode(), producer=name, sequence=sequence)
        if chance < 0.75 or not self.numbers:
            self.numbers += 1
            number = self.numbers
        else:
            number = self.random.randrange(max(1, self.numbers - 30), self.numbers + 1)
        return Record(b"named %d" % number, id=f"i{number}")

    def _sent(self, record: Record) -> None:
        """Note that a producer may go on to its next sequence: this one was taken."""
        if record.producer is not None and record.sequence is not None:
            self.sequences[record.producer] = max(self.sequences[record.producer], record.sequence + 1)

    def _named(self, count: int) -> list[Record]:
        records = [self.record() for _ in range(count)]
        return [record for record in records if record.producer is None]

    # Steps.

    def alone(self) -> None:
        """Append one plain record the fast way."""
        record = self.record()
        if record.producer is not None or not self.core.idle(self.now_us):
            return
        id = None if record.id is None else record.id.encode()
        key = None if record.id is None else key_of(record)
        done, met = self.event(self.decider.alone, record.value, id, key, None, self.now_us, self.wall_us)
        if not done:
            return
        if isinstance(met, Ticket):
            self.check_answer(record, met.position)
            return
        self.waits.append((Ticket(met.first_position, met, -1), record))
        self._offer(met)

    def one(self) -> None:
        """Append one record in steps."""
        record = self.record()
        if not self._has_room(record_bytes(record), 1):
            return
        name = None if record.id is None else self.decider_module.Name(*key_of(record))
        done, ticket = self.event(self.decider.one, record, record_bytes(record), name, None, self.now_us)
        if done:
            self._sent(record)
            self.waits.append((ticket, record))

    def rows(self) -> None:
        """Append rows."""
        records = self._named(self.random.randrange(1, 4))
        if not records or not self._has_room(100 * len(records), len(records)):
            return
        piece = payload_of(records)
        done, admitted = self.event(self.decider.rows, piece, keys_of(records), None, self.now_us)
        if done:
            self._wait(admitted, records)

    def batch(self) -> None:
        """Append a batch, which a judge may refuse."""
        records = [record for record in self._named(self.random.randrange(1, 4)) if record.id is not None]
        if len({record.id for record in records}) < len(records):
            return
        if not records or not self._has_room(100 * len(records), len(records)):
            return
        payload = payload_of(records, together=len(records) > 1)
        try:
            done, decision = self.event(self.decider.decide_batch, payload, keys_of(records), None, self.now_us)
        except OncelogError:
            assert self.core.error is None, "a refusal ends nothing"
            return
        if done and self.core.error is None and self.random.random() < 0.9:
            done, admitted = self.event(self.decider.take, decision, self.now_us)
            if done:
                self._wait(admitted, records)

    def _wait(self, admitted: Admitted, records: Sequence[Record]) -> None:
        for position, record in zip(admitted.positions.tolist(), records, strict=True):
            groups = [g for g in admitted.groups if g.first_position <= position < g.next_position]
            self.waits.append((Ticket(position, groups[0] if groups else None, -1), record))

    def _has_room(self, size_bytes: int, records: int) -> bool:
        self.absorb()
        if self.core.error is not None or self.core.leaving is not None:
            return False
        return bool(self.core.has_room(size_bytes, records))

    def submit(self) -> None:
        """Put a record aside."""
        record = self.record()
        core = self.core
        if core.leaving is None and core.error is None and core.has_room(record_bytes(record), 1):
            token = Token(record)
            done, _ = self.event(core.submit, submitted_as(record), record.id, record_bytes(record), token)
            if done or any(given is token for given in core.submitted_tokens):
                self._sent(record)
                self.tokens.append(token)

    def absorb(self) -> None:
        """Decide what was submitted, one by one or in columns; or be unable to."""
        core = self.core
        if not core.submitted or core.error is not None:
            return
        records = list(map(record_of, core.submitted, core.submitted_ids))
        chance = self.random.random()
        if chance < 0.05 and all(record.producer is None for record in records):
            self.event(core.reject, len(records), Unavailable("no run can be read"))
        elif chance < 0.5 and all(record.producer is None for record in records[:4]):
            some = records[:4]
            self.event(self.decider.absorb_rows, payload_of(some), keys_of(some), None, _positions, self.now_us)
        else:
            names = [None if r.id is None else self.decider_module.Name(*key_of(r)) for r in records]
            self.event(self.decider.absorb, names, _position, self.now_us)

    def work(self) -> None:
        """Begin what the core says is to be done."""
        core = self.core
        work = core.work(self.now_us)
        if work is None:
            return
        if work == self.core_module.ABSORB:
            self.absorb()
        elif work == self.core_module.PREPARE:
            assert not core.offered
            core.preparing = True
            self.flights.append(Flight(core.uptime.ask(self.now_us), self.now_us))
        else:
            if work.state == "waiting":
                done, _ = self.event(core.form, self.now_us, self.wall_us)
                if not done:
                    return
            self._offer(work)

    def _offer(self, group: Group) -> None:
        if self.core.error is None:
            group.busy = True
            self.flights.append(Flight(self.core.uptime.ask(self.now_us), self.now_us, group))

    def fly(self) -> None:
        """Let one request to storage go on: its block gets its bytes, or it is answered in one way or another."""
        if not self.flights:
            return
        flight = self.random.choice(self.flights)
        group = flight.group
        if group is not None and group.block is None and group.state == "offered":
            done, _ = self._encoded(group)
            if not done:
                self.flights.remove(flight)
                self._fail(flight, KeyboardInterrupt())
            return
        self.flights.remove(flight)
        if group is None:
            self._prepare(flight)
        elif group.state == "offered":
            self._store(flight, group)

    def _encoded(self, group: Group) -> tuple[bool, Any]:
        """Encode a block. That is no event: ``failed`` ends a core whose block has no bytes."""
        try:
            return self.event(self.core.tail.encode, group)
        finally:
            if self.core.error is None and group.block is None:
                group.busy = False

    def _outcome(self) -> str:
        if self.is_fenced:
            return "fenced"
        return self.random.choices(("stored", "lost", "answer lost", "interrupted", "fenced"), (80, 8, 8, 3, 0.3))[0]

    def _prepare(self, flight: Flight) -> None:
        core, outcome = self.core, self._outcome()
        core.preparing = False
        if outcome != "stored":
            self._fail(flight, _error(outcome))
            return
        if core.tail.segment == self.segment and core.tail.is_full(self.now_us):
            closed = core.tail.closed()
            assert closed.next_position == len(self.log) == core.stored_position
            assert closed.end == max(self.blocks) + 1, "a segment is closed behind its last block"
            ids = sum(record.id is not None for record in self.log[closed.first_position :])
            assert closed.ids == ids, "a segment is closed with the count of its ids"
            self.segment += 1
            self.blocks = {}
        start = (self.segment, len(self.log))
        self.event(core.prepared, flight.request, start, self.in_flight_max, self.interval_us, self.now_us)

    def _store(self, flight: Flight, group: Group) -> None:
        outcome = self._outcome()
        if outcome in {"stored", "answer lost"}:
            self._put(group)
        if outcome != "stored":
            self._fail(flight, _error(outcome))
            return
        group.busy = False
        self.event(self.core.landed, group, flight.request, group.number + 1, flight.started_us, self.now_us)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        core = self.core
        if isinstance(error, WriterFenced):
            self.is_fenced = True
        done = False
        if flight.group is None:
            done, _ = self.event(core.prepare_failed, flight.request, error, self.now_us, self.random.random())
        else:
            flight.group.busy = False
            if core.error is None:
                given = flight.group, flight.request, error, self.now_us, self.random.random()
                done, _ = self.event(core.failed, *given)
        if done and isinstance(error, WriterFenced):
            assert core.ended is not None, "a fenced core goes on"

    def _put(self, group: Group) -> None:
        """Have a block in storage: the same bytes as before, on the block before it, in a place of its own."""
        assert group.block is not None
        data = b"".join(bytes(chunk) for chunk in group.block.chunks)
        found = self.blocks.get(group.number)
        if found is not None:
            assert found[0] == data, "the bytes of a block have changed"
            return
        decoded = block.decode(data)
        header = decoded.header
        assert header.first_position == group.first_position
        assert header.count == group.count <= SETTINGS.block_records
        if group.number == 0:
            assert header.previous == 0
        elif group.number - 1 in self.blocks:
            before = self.blocks[group.number - 1][1]
            assert header.previous == before.checksum, "a block does not name the one before it"
            assert header.first_entry == before.first_entry + before.count
            assert header.timestamp_us >= before.timestamp_us
            assert header.uptime_us >= before.uptime_us
        self.blocks[group.number] = (data, header)
        self.last_timestamp_us = max(self.last_timestamp_us, header.timestamp_us)
        self.landed[header.first_position] = _records(decoded.payload)
        while (records := self.landed.pop(len(self.log), None)) is not None:
            for record in records:
                identity = identity_of(record)
                assert identity not in self.at, f"{identity} is stored twice"
                self.at[identity] = len(self.log)
                self.log.append(record)

    def tick(self) -> None:
        """Let time pass; wall time may jump."""
        self.now_us += self.random.choice((0, 1_000, 60_000, 3_000_000))
        self.wall_us += self.random.choice((-5_000_000, 1_000, 60_000))

    def answer(self) -> None:
        """Answer tokens."""
        core = self.core
        crowds = tuple(core.unanswered)
        for crowd in crowds:
            answers = [None] * len(crowd.tokens) if crowd.error is not None else crowd.answers()
            for token, position in zip(crowd.tokens, answers, strict=True):
                if token.answered:
                    assert core.ended is not None, "a token is answered twice"
                    continue
                token.answered = True
                if position is not None:
                    self.check_answer(token.record, int(position))
        core.told(crowds)
        assert not any(crowd in core.unanswered for crowd in crowds), "what was told is to be told again"
        self.tokens = [token for token in self.tokens if not token.answered]

    def leave(self) -> None:
        """Close the writer, or let another one take the log."""
        chance = self.random.random()
        if chance < 0.05:
            self.event(self.core.end, Closed("closed in the midst"))
        elif chance < 0.1:
            self.core.leaving = Closed("closed")
        if self.core.leaving is not None:
            self.rest()
            self.core.end(Closed("closed"))

    def rest(self) -> None:
        """With a storage that works, everything comes to rest. Who waits drains the core."""
        self.core.draining += 1
        outcome, self._outcome = self._outcome, lambda: "fenced" if self.is_fenced else "stored"  # type: ignore[method-assign]
        try:
            for _ in range(400):
                if self.core.error is not None or not self._pending():
                    return
                wake_us = self.core.wake_us(self.now_us)
                self.now_us = max(self.now_us, wake_us or 0)
                self.work()
                self.fly()
                self.answer()
                self.check()
        finally:
            self._outcome = outcome  # type: ignore[method-assign]
            self.core.draining -= 1
        message = "with a working storage something stays pending"
        raise AssertionError(message)

    def _pending(self) -> bool:
        core = self.core
        return bool(core.offered or core.waiting or core.submitted or core.unanswered)

    def run(self, steps: int) -> None:
        """Do so many steps, and check after each one; come to rest at the end."""
        doing = (self.alone, self.one, self.submit, self.work, self.fly, self.tick, self.answer, self.leave)
        weights = (6, 6, 8, 12, 16, 3, 4, 0.3)
        rare = (self.rows, self.batch, self.absorb)
        for step in self.random.choices((*doing, *rare), (*weights, 2, 1, 1), k=steps):
            self.steps += 1
            step()
            if self.core.ended is not None:
                self.finish()
            self.check()
        self.tears = False
        self.rest()

    # Checks.

    def check_answer(self, record: Record, position: int) -> None:
        """See that what is acknowledged is durable, where the answer says."""
        identity = identity_of(record)
        if position < 0:
            assert record.producer is not None
            assert identity in self.at, f"{identity} is acknowledged and not durable"
            return
        assert position < len(self.log), f"{identity} is acknowledged at {position}, which is not durable"
        assert self.at.get(identity) == position, f"{identity} is acknowledged at {position}"

    def check(self) -> None:
        """See that the invariants of the core hold."""
        core = self.core
        assert core.error is core.ended, "an event left the core torn"
        assert core.stored_position >= self.stored_position
        assert core.stored_position <= len(self.log), "what is settled is not durable"
        self.stored_position = core.stored_position
        if core.error is not None:
            return
        groups = [*core.offered, *core.waiting]
        position = core.stored_position
        for group in groups:
            assert group.first_position == position
            position = group.next_position
            assert group.count == group.next_position - group.first_position
        assert position == core.next_position
        assert all(group.state in {"offered", "landed"} for group in core.offered)
        assert all(group.state == "waiting" for group in core.waiting)
        assert len(core.offered) <= core.in_flight_max
        assert core.pending_bytes == sum(group.size_bytes for group in groups)
        assert core.failures == sum(group.attempts for group in core.offered)
        records = list(map(record_of, core.submitted, core.submitted_ids))
        assert len(records) == len(core.submitted_ids) == len(core.submitted_tokens)
        assert core.submitted_bytes == sum(map(record_bytes, records))
        assert core.window.pending_count == sum(group.ids for group in groups)
        pending = core.next_position - core.stored_position + len(core.submitted)
        assert pending <= SETTINGS.pending_records
        self._check_awake()
        self._check_waits()

    def _check_awake(self) -> None:
        core = self.core
        if (core.offered or core.waiting or core.submitted) and not self.flights:
            awake = core.work(self.now_us) is not None or core.wake_us(self.now_us) is not None
            assert awake, "something is pending, and nobody will ever store it"

    def _check_waits(self) -> None:
        left = []
        for ticket, record in self.waits:
            if ticket.error is not None:
                continue
            if ticket.group is None or ticket.group.state == "stored":
                self.check_answer(record, ticket.position)
            elif ticket.group.error is None:
                left.append((ticket, record))
        self.waits = left


def key_of(record: Record) -> tuple[int, int, int]:
    """Return a key that differs for each id."""
    assert record.id is not None
    number = int(record.id[1:])
    return number * 0x9E3779B97F4A7C15 % WORDS, number * 0xC2B2AE3D27D4EB4F % WORDS, number + 1


def keys_of(records: Sequence[Record]) -> Keys | None:
    """Return the keys of the records that have an id."""
    rows = [row for row, record in enumerate(records) if record.id is not None]
    if not rows:
        return None
    keys = [key_of(records[row]) for row in rows]
    identities = np.array([key[:2] for key in keys], np.uint64)
    fingerprints = np.array([key[2] for key in keys], np.uint64)
    return Keys(None if len(rows) == len(records) else np.array(rows), identities, lambda: fingerprints)


def payload_of(records: Sequence[Record], *, together: bool = False) -> pa.RecordBatch:
    """Return records in columns; ``together``: as one batch."""
    return columns.from_records(records, [not row for row in range(len(records))] if together else None)


def identity_of(record: Record) -> Identity:
    """Return by what a record can be in the log once only."""
    if record.producer is not None:
        return record.producer, record.sequence
    return (bytes(record.value),) if record.id is None else (record.id,)


def _records(payload: pa.RecordBatch) -> list[Record]:
    return [
        Record(
            row["value"],
            id=row.get("id"),
            producer=row.get("producer"),
            sequence=row.get("sequence"),
        )
        for row in payload.to_pylist()
    ]


def _position(ticket: Ticket, _: str | None) -> int | None:
    return None if ticket.error is not None else ticket.position


def _positions(admitted: Admitted, rows: Any = None) -> list[int]:
    return list((admitted.positions if rows is None else admitted.positions[rows]).tolist())


def _error(outcome: str) -> BaseException:
    if outcome == "fenced":
        return WriterFenced("taken")
    return KeyboardInterrupt() if outcome == "interrupted" else Unavailable(outcome)
