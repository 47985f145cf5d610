"""The append core without threads: random steps, planted mistakes that must be noticed, Ctrl-C at every bytecode."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.errors import Closed
from oncelog.types import Record
from tests.log.append.core_world import World, load

STEPS = 12_000
SOAK_STEPS = 300_000
WAYS = [(1, 0), (4, 0), (1, 50_000), (4, 50_000)]
"""How many blocks may be in flight, and the group-commit interval in microseconds."""

MISTAKES = {
    "a block is settled before the one before it": (
        "core.py",
        'while self.offered and self.offered[0].state == "landed":\n            self._settle(self.offered[0], now_us)',
        "self._settle(group, now_us)",
    ),
    "a settled group ends where it begins": (
        "core.py",
        "self.stored_position = group.next_position",
        "self.stored_position = group.first_position",
    ),
    "stored bytes stay pending": ("core.py", "self.pending_bytes -= group.size_bytes", "pass"),
    "an outage never ends": ("core.py", "self.failures -= group.attempts", "pass"),
    "a formed group waits on": ("core.py", "        self.waiting.popleft()\n", ""),
    "a block is formed before the one before has its bytes": (
        "core.py",
        "(self.offered[-1].block is not None and not self.tail.is_full(now_us))",
        "not self.tail.is_full(now_us)",
    ),
    "a segment closes while a block of it is on its way": (
        "core.py",
        "(self.offered[-1].block is not None and not self.tail.is_full(now_us))",
        "self.offered[-1].block is not None",
    ),
    "one block more is in flight than may be": (
        "core.py",
        "len(self.offered) >= self.in_flight_max",
        "len(self.offered) > self.in_flight_max",
    ),
    "a fenced writer tries again": (
        "core.py",
        "if group.block is None or not _is_survivable(error):",
        "if group.block is None:",
    ),
    "a writer that ends owes answers to what was submitted": (
        "core.py",
        "self.unanswered.append(self._unsubmitted)",
        "pass",
    ),
    "a writer that ends owes answers to what was in groups": (
        "core.py",
        "if crowd not in self.unanswered:\n                self.unanswered.append(crowd)",
        "pass",
    ),
    "a record that was decided stays submitted": (
        "core.py",
        "del self.submitted[:count]",
        "del self.submitted[1:count]",
    ),
    "the id of a record that was decided stays": ("core.py", "        del self.submitted_ids[:count]\n", ""),
    "the token of a record that was decided stays": ("core.py", "        del self.submitted_tokens[:count]\n", ""),
    "the first of what was submitted cost as much as all": ("core.py", "if count == len(self.submitted):", "if True:"),
    "what was submitted is never decided": ("core.py", "if self.submitted and not self.absorbing:", "if False:"),
    "what was told is told again": ("core.py", "if crowd not in answered]", "]"),
    "an id stays pending": (
        "core.py",
        "self.window.commit(group.next_position,",
        "self.window.commit(group.first_position,",
    ),
    "a group grows beyond a block": (
        "core.py",
        "and newest.count + records <= self.settings.block_records",
        "",
    ),
    "more is pending than may be": (
        "core.py",
        "and pending + records <= self.settings.pending_records",
        "",
    ),
    "an interrupt while a block is formed is not noticed": (
        "core.py",
        "self.error = TORN\n        group = self.waiting[0]",
        "group = self.waiting[0]",
    ),
    "the window knows another position": (
        "decider.py",
        "window.find_or_add_one(high, low, self._core.next_position, fingerprint)",
        "window.find_or_add_one(high, low, self._core.next_position + 1, fingerprint)",
    ),
    "a sequence is not noted": (
        "decider.py",
        "record = self._sequences.push(record, position, group, core.stored_position)",
        "pass",
    ),
    "a duplicate of a pending record is answered at once": (
        "decider.py",
        "group = self._core.group_of(position) if pending else None",
        "group = None",
    ),
    "time goes back": (
        "tail.py",
        "if wall_us > self._last_timestamp_us:",
        "if True:",
    ),
    "time goes back for a record that is alone": (
        "tail.py",
        "wall_us if wall_us > last_us else last_us",
        "wall_us",
    ),
    "a record that is alone takes no entry": ("tail.py", "self.entries = entry + 1", "pass"),
    "the id of a record that is alone is not counted": ("tail.py", "            self.ids += 1\n", ""),
    "a segment is closed before its last block": (
        "core.py",
        "if end > self.tail.end:",
        "if True:",
    ),
}
"""One-line mistakes: where, what stands there, and what is put in its place."""

SWEPT_MISTAKES = {
    "a block without bytes is offered again": (
        "core.py",
        "if group.block is None or not _is_survivable(error):",
        "if not _is_survivable(error):",
    ),
    "an interrupt while a record is decided is not noticed": (
        "decider.py",
        "core.error = TORN\n        self._counters.attempts += 1\n        uptime_us",
        "self._counters.attempts += 1\n        uptime_us",
    ),
}
"""Mistakes that only an interrupt at one of a few bytecodes shows."""


@pytest.mark.parametrize(("in_flight_max", "interval_us"), WAYS)
def test_nothing_is_lost_or_stored_twice(in_flight_max: int, interval_us: int) -> None:
    """Lost answers, fencing, torn events and takeovers in any order: every invariant holds after every step."""
    World(in_flight_max, in_flight_max, load(), interval_us=interval_us).run(STEPS // len(WAYS))


@pytest.mark.soak
@pytest.mark.parametrize(("in_flight_max", "interval_us"), WAYS)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_stored_twice_for_long(seed: int, in_flight_max: int, interval_us: int) -> None:
    """The same, for hundreds of thousands of steps."""
    for part in range(10):
        world = World(100 * seed + part, in_flight_max, load(), interval_us=interval_us)
        world.run(SOAK_STEPS // len(WAYS) // 10)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake: str) -> None:
    """A control: each of these one-line mistakes breaks an invariant that the model looks at."""
    modules = load(*MISTAKES[mistake])
    with pytest.raises((AssertionError, LookupError, TypeError, AttributeError)):
        _live_often(modules)


def _live_often(modules: tuple[Any, Any, Any]) -> None:
    for seed in range(20):
        World(seed, 1 if seed % 2 else 4, modules).run(2000)


@pytest.mark.parametrize(("mistake", "how"), [*zip(SWEPT_MISTAKES, ["one", "alone"], strict=True)])
def test_a_planted_mistake_is_noticed_by_ctrl_c(mistake: str, how: str) -> None:
    """A control: the sweep notices what random steps hardly ever meet."""
    modules = load(*SWEPT_MISTAKES[mistake])
    with pytest.raises(AssertionError):
        _sweep(how, 5, modules)


class Swept(World):
    """A world in which one record or more is appended, with Ctrl-C at one bytecode of the core."""

    def __init__(self, number: int, in_flight_max: int, modules: tuple[Any, Any, Any]) -> None:
        super().__init__(0, in_flight_max, modules, tears=False)
        self._outcome = lambda: "stored"  # type: ignore[method-assign]
        self.given = [Record(b"first", id="i1")]
        self.one()
        self.rest()
        self.tear_at = number

    def record(self) -> Record:
        """Return the next record that the sweep appends."""
        return self.given.pop(0)

    def _named(self, _: int) -> list[Record]:
        taken, self.given = self.given, []
        return taken

    def settle(self) -> bool:
        """Come to rest, append all again, and see that everything is there once; tell whether Ctrl-C came."""
        if self.core.ended is None:
            self.rest()
        is_over = self.tear_at > 0
        self.tear_at = 0
        self.core.end(Closed("closed"))
        self.finish()
        self.check()
        return is_over


RECORDS = [Record(b"two", id="i2"), Record(b"first", id="i1"), Record(b"three", id="i3"), Record(b"two", id="i2")]


def _append(world: Swept, how: str) -> None:
    """Append the records of the sweep in one way; what was interrupted is tried again, as a caller would."""
    world.given = list(RECORDS)
    if how == "sequences":
        world.given = [Record(b"a", producer="p", sequence=1), Record(b"b", producer="p", sequence=2)]
    for _ in range(len(world.given)):
        if not world.given or world.core.ended is not None:
            break
        if how == "rows":
            world.rows()
        elif how == "submit":
            world.submit()
        elif how == "alone":
            world.alone()
        else:
            world.one()
        if how == "alone":
            world.rest()


@pytest.mark.parametrize(
    ("how", "every"), [("alone", 13), ("one", 29), ("sequences", 29), ("rows", 97), ("submit", 29)]
)
def test_ctrl_c_at_a_bytecode_loses_nothing(how: str, every: int) -> None:
    """An interrupt inside an event ends the core, and leaves no id that is known and nowhere stored, and no token
    without an answer. Every so many bytecodes here, all of them in the soak tests.
    """
    _sweep(how, every, load())


@pytest.mark.soak
@pytest.mark.parametrize("how", ["alone", "one", "sequences", "rows", "submit"])
def test_ctrl_c_at_every_bytecode_loses_nothing(how: str) -> None:
    """The same, at each of them."""
    _sweep(how, 1, load())


def _sweep(how: str, every: int, modules: tuple[Any, Any, Any]) -> None:
    number = 1
    while True:
        world = Swept(number, 1 if how == "alone" else 4, modules)
        _append(world, how)
        if world.settle():
            break
        for record in RECORDS:
            world.given = [record]
            world.one()
        world.rest()
        world.check()
        assert {bytes(record.value) for record in world.log} >= {b"first", b"two", b"three"}
        number += every
    assert number > 200, "the core was not interrupted"
