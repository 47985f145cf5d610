"""The nth call fails, or kills: for n = 1, 2, 3 … until the work runs through untouched, and after each the promises.

A rung is one n. It runs a fixed piece of work in which the nth call goes wrong, lets another process look at what is
visible, ends the process or the machine, opens the log again, sends everything once more under the same ids, and
compares with what was told before: nothing acknowledged is lost, nothing is there twice, every position is as told.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import TypeVar

import pytest

from oncelog.dedup.window import DedupWindow
from oncelog.errors import Closed, Unavailable
from oncelog.limits import KIB, MIB
from oncelog.log.log import Log
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Recovered
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.local.segment_writer import LocalSegmentWriter
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed, When
from oncelog.types import Record
from tests.log.worlds import LOG, DiskWorld, Ending, MemoryWorld, World, living, read
from tests.models.history import History, Kind, Request

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
SETTINGS = LogSettings(
    window=Window(duration_s=1e6, max_keys=10_000),
    segment_bytes=64 * KIB,
    block_bytes=32 * KIB,
    snapshot_interval_s=1e6,
)
ATTEMPTS = 4
WHENS: tuple[When, ...] = ("before", "during", "after")
ENDINGS: tuple[Ending, ...] = ("crash", "none", "all", "some")
T = TypeVar("T")
MakeWorld = Callable[[int], World]


def request(kind: Kind, letter: str, records: int = 1, size_bytes: int = 10, *, ids: bool = True) -> Request:
    """Return a request with as many records, each of a value that no other has."""
    names = [f"{letter}{number}" for number in range(records)]
    return Request(kind, tuple(Record(n.encode().ljust(size_bytes, b"."), id=n if ids else None) for n in names))


FIRST = (
    request("one", "a"),
    request("many", "b", 3, 20 * KIB),
    request("batch", "c", 3),
    request("one", "d", ids=False),
)
SECOND = (
    request("arrow", "e", 3, 14 * KIB),
    request("submit", "f", 4),
    request("one", "g", 2, 30 * KIB),
    request("batch", "h", 2, 25 * KIB),
)
THIRD = (
    request("one", "i", 1, 33 * KIB),
    request("many", "j", 2),
    request("submit", "k", 2, 20 * KIB),
)
EVERYTHING = (*FIRST, *SECOND, *THIRD)
AGAIN = tuple(sent for sent in EVERYTHING if sent.records[0].id is not None)


def patiently(work: Callable[[], T]) -> T:
    """Do something that may fail for the moment, as often as one failure can make that necessary."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Unavailable):
            return work()
    return work()


def opened(world: World, born: Callable[[Writer], Writer]) -> tuple[Log, Writer]:
    """Open the log, or make it, and become its writer."""
    database = world.database()
    log = patiently(lambda: database.log(LOG, SETTINGS, create=True))
    return log, born(patiently(lambda: log.writer(wait_s=0)))


def work_through(world: World, history: History, born: Callable[[Writer], Writer]) -> None:
    """Do all that a log is for: append in every way, roll, snapshot, close, open again, retry, seal and read."""
    log, writer = opened(world, born)
    for sent in FIRST:
        history.send(writer, sent)
    patiently(writer.snapshot)
    for sent in SECOND:
        history.send(writer, sent)
    patiently(writer.snapshot)
    leave(writer)
    log, writer = opened(world, born)
    for sent in (FIRST[1], FIRST[2], SECOND[1], THIRD[0]):
        history.send(writer, sent)
    patiently(log.seal)
    patiently(writer.snapshot)
    history.saw(patiently(lambda: list(log.read())))
    for sent in THIRD:
        history.send(writer, sent)
    leave(writer)


def leave(writer: Writer) -> None:
    """Close the writer; if storage fails then, the next one settles what it left."""
    with contextlib.suppress(Unavailable):
        writer.close(timeout_s=None)


def recovered(world: World, history: History) -> None:
    """Open the log again and send everything once more: then all of it is there, once, where it was told to be."""
    with living(world) as born:
        log, writer = opened(world, born)
        history.found(list(log.read()))
        for sent in AGAIN:
            history.send(writer, sent)
        history.saw(list(log.read()))
        writer.close(timeout_s=None)
    world.end("none", 0)
    history.saw(read(world))


def rung(world: World, number: int, arm: Callable[[], None], ending: Ending) -> bool:
    """Climb one rung, and return whether something went wrong on it at all."""
    history = History()
    before = world.faults.calls
    with living(world) as born:
        arm()
        try:
            work_through(world, history, born)
        except Killed:
            pass
        except Closed:
            assert world.faults.is_killed, "the writer ended although nobody killed it"
        touched = world.faults.calls - before >= number
    history.crashed()
    history.saw(read(world))
    world.end(ending, seed=number)
    history.saw(read(world))
    if number % 3 == 0:
        world.end("none", number)
    recovered(world, history)
    return touched


def killed(make: MakeWorld, number: int, when: When, ending: Ending) -> bool:
    """Climb a rung on which the process is killed."""
    world = make(number)
    return rung(world, number, lambda: world.faults.kill_at(number, when), ending)


def failed(make: MakeWorld, number: int, when: When, error: int, ending: Ending) -> bool:
    """Climb a rung on which a call fails, once."""
    world = make(number)
    return rung(world, number, lambda: world.fail_at(number, when, error), ending)


def climb(step: Callable[[int], bool], first: int = 1, stride: int = 1) -> int:
    """Climb a ladder until a rung goes through untouched; return the number of that one."""
    return next(number for number in count(first, stride) if not step(number))


def few(index: int, stride: int) -> tuple[int, int]:
    """Return where a ladder begins and by how much it goes on: a sample that differs by index, or all under soak."""
    return (1, 1) if SOAK else (1 + index % stride, 2 * stride)


# Appending, rolling, snapshots, closing, opening, retrying, reading: on a disk.


@pytest.mark.parametrize("shard", range(4))
def test_killed_at_every_call(shard: int) -> None:
    """Nothing acknowledged is lost and nothing is there twice, wherever in its work a machine loses its power.

    Under soak at every call, else at every fourth.
    """
    first, stride = (1 + shard, 4) if SOAK else (1 + 5 * shard, 16)
    top = climb(lambda n: killed(DiskWorld, n, WHENS[n // 4 % 3], "some"), first, stride)
    assert top > 300, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize(
    ("index", "when", "ending"), [(i * 5, w, e) for i, (w, e) in enumerate(product(WHENS, ENDINGS))]
)
def test_killed_and_ended_in_every_way(index: int, when: When, ending: Ending) -> None:
    """It holds whether the page cache survives, is lost or is lost in parts, and whether the last call did its work."""
    climb(lambda n: killed(DiskWorld, n, when, ending), *few(index, 41))


@pytest.mark.parametrize(
    ("index", "when", "error"), [(i * 7, w, e) for i, (w, e) in enumerate(product(WHENS, (errno.EIO, errno.ENOSPC)))]
)
def test_a_call_that_fails_once(index: int, when: When, error: int) -> None:
    """A failing disk is waited for: nothing is lost, every append is answered, and what was answered is on the disk."""
    climb(lambda n: failed(DiskWorld, n, when, error, ENDINGS[n % 4]), *few(index, 37))


# The same where the home is anything that keeps the contract.


@pytest.mark.parametrize("in_flight_max", [1, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_an_operation(when: When, in_flight_max: int) -> None:
    """It holds on every home: killed at each operation of its contract, with one block in flight or several."""
    top = climb(
        lambda n: killed(lambda seed: MemoryWorld(seed, in_flight_max=in_flight_max), n, when, "crash"),
        *few(WHENS.index(when) // 2, 2 * in_flight_max),
    )
    assert top > 60, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize("in_flight_max", [1, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_operation_that_fails_once(when: When, in_flight_max: int) -> None:
    """A home that is away for a moment, or whose answer is lost, is offered the same again: once is what is there."""
    climb(
        lambda n: failed(lambda seed: MemoryWorld(seed, in_flight_max=in_flight_max), n, when, 0, "crash"),
        *few(in_flight_max, 4),
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_creates_that_are_sent_twice(when: When) -> None:
    """A client that repeats creates by itself learns that its own object exists: it is still its own."""

    def make(seed: int) -> World:
        return MemoryWorld(seed, duplicate_creates=True)

    climb(lambda n: failed(make, n, when, 0, "crash"), *few(0, 9))
    climb(lambda n: killed(make, n, when, "crash"), *few(0, 9))


# Opening, after all of that.


def abandoned(world: World, number: int, when: When, ending: Ending) -> History:
    """Kill the work at some call, and return its history: the log is as a crash leaves it."""
    history = History()
    with living(world) as born:
        world.faults.kill_at(number, when)
        with contextlib.suppress(Killed, Closed):
            work_through(world, history, born)
    history.crashed()
    history.saw(read(world))
    world.end(ending, number)
    return history


def opening(world: World, history: History, number: int, arm: Callable[[], None], ending: Ending) -> bool:
    """Open the log while the nth call goes wrong, then end; return whether it did go wrong."""
    before = world.faults.calls
    with living(world) as born:
        arm()
        with contextlib.suppress(Killed, Closed):
            opened(world, born)
        touched = world.faults.calls - before >= number
    history.saw(read(world))
    world.end(ending, number)
    history.saw(read(world))
    return touched


STARTS = range(20, 420, 10 if SOAK else 80)


@pytest.mark.parametrize("start", STARTS)
def test_killed_while_opening(start: int) -> None:
    """A recovery that is cut short anywhere is taken up by the next one, from the same crash."""

    def step(number: int) -> bool:
        world = DiskWorld(start)
        history = abandoned(world, start + number % 3, WHENS[number % 3], ENDINGS[(start + number) % 4])
        ending = ENDINGS[number % 4]
        touched = opening(world, history, number, lambda: world.faults.kill_at(number, WHENS[number // 4 % 3]), ending)
        recovered(world, history)
        return touched

    climb(step, *few(start, 11))


@pytest.mark.parametrize("start", STARTS)
def test_killed_again_and_again_while_opening(start: int) -> None:
    """A log that was never opened in peace since its crash, each attempt dying one call later, is still whole."""
    world = DiskWorld(start)
    history = abandoned(world, start, "during", "some")

    def step(number: int) -> bool:
        ending = ENDINGS[(start + number) % 4]
        return opening(world, history, number, lambda: world.faults.kill_at(number, WHENS[number % 3]), ending)

    climb(step)
    recovered(world, history)


@pytest.mark.parametrize("start", STARTS)
def test_a_call_that_fails_while_opening(start: int) -> None:
    """A failure in the midst of a recovery is an error or an opened log, and the next attempt goes through."""

    def step(number: int) -> bool:
        world = DiskWorld(start)
        history = abandoned(world, start, "during", ENDINGS[number % 4])
        error = (errno.EIO, errno.ENOSPC)[number % 2]
        touched = opening(
            world, history, number, lambda: world.fail_at(number, WHENS[number % 3], error), ENDINGS[number % 4]
        )
        recovered(world, history)
        return touched

    climb(step, *few(start, 11))


@pytest.mark.parametrize("start", range(3, 90, 1 if SOAK else 9))
def test_killed_again_and_again_while_opening_any_home(start: int) -> None:
    """The same where the home is anything that keeps the contract."""
    world = MemoryWorld(start, in_flight_max=1 + start % 3)
    history = abandoned(world, start, "after" if start % 2 else "before", "crash")

    def step(number: int) -> bool:
        when: When = "after" if number % 2 else "before"
        return opening(world, history, number, lambda: world.faults.kill_at(number, when), "crash")

    climb(step)
    recovered(world, history)


# Snapshots: saved, and the old ones deleted.


def snapshotting(world: World, number: int, arm: Callable[[], None], ending: Ending) -> bool:
    """Save a snapshot while the nth call goes wrong; return whether it did."""
    history = History()
    with living(world) as born:
        log, writer = opened(world, born)
        for sent in (*FIRST, *SECOND):
            history.send(writer, sent)
            writer.snapshot()
            world.clock.advance(1)
        before = world.faults.calls
        arm()
        try:
            patiently(writer.snapshot)
            history.send(writer, THIRD[0])
            patiently(writer.snapshot)
            assert len(patiently(log.info).snapshots) == 2, "two are kept, and no more once that can be done"
        except Killed:
            pass
        touched = world.faults.calls - before >= number
    history.crashed()
    world.end(ending, number)
    recovered(world, history)
    return touched


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_while_saving_a_snapshot(ending: Ending) -> None:
    """A snapshot that was cut short, or old ones that were half deleted, cost time and nothing else."""

    def step(number: int) -> bool:
        world = DiskWorld(number)
        return snapshotting(world, number, lambda: world.faults.kill_at(number, WHENS[number % 3]), ending)

    climb(step, *few(ENDINGS.index(ending), 4))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_while_saving_a_snapshot(error: int) -> None:
    """A snapshot that cannot be written is an error of its own: the writer goes on, and so does the window."""

    def step(number: int) -> bool:
        world = DiskWorld(number)
        return snapshotting(world, number, lambda: world.fail_at(number, WHENS[number % 3], error), ENDINGS[number % 4])

    climb(step, *few(error, 4))


# That the ladder can tell: each of these breaks one promise, and is found out.


class DeafDisk(SimulatedDisk):
    """A disk that says it has synced a segment, and has not."""

    def sync(self, descriptor: int) -> None:
        """Do nothing for blocks, and say that it was done."""
        if self._path(descriptor).suffix != ".blocks":
            super().sync(descriptor)


class ForgetfulDisk(SimulatedDisk):
    """A disk that does not store names when it is asked to."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing, and say that it was done."""


@pytest.mark.parametrize("kind", [DeafDisk, ForgetfulDisk])
def test_acknowledged_before_it_is_synced_is_noticed(kind: type[SimulatedDisk]) -> None:
    """A control: where a sync does not sync, the ladder finds acknowledged records lost."""

    def step(number: int) -> bool:
        world = DiskWorld(number, disk=kind(file_bytes_max=MIB))
        history = abandoned(world, number, "after", "none")
        history.seen.clear()  # what was seen before it was acknowledged is lost too, and would be told first
        history.check(read(world))
        return True

    with pytest.raises(AssertionError, match=r"told \d+, is at None"):
        climb(step)


def test_visible_before_it_is_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: where readers are let further than the last sync, the ladder finds records taken back."""

    def publish_and_sync(self: LocalSegmentWriter, descriptor: int, end: int, entries: int) -> None:
        self._publisher.publish(self._segment, end, entries)
        self._disk.sync(descriptor)

    monkeypatch.setattr(LocalSegmentWriter, "_sync", publish_and_sync)
    with pytest.raises(AssertionError, match="taken back"):
        climb(lambda n: killed(DiskWorld, n, "before", "none"), 100)


@pytest.mark.parametrize("make", [DiskWorld, MemoryWorld])
def test_a_window_that_is_not_recovered_is_noticed(monkeypatch: pytest.MonkeyPatch, make: MakeWorld) -> None:
    """A control: where a writer opens with an empty window, the ladder finds records written again."""

    def forget(*arguments: object, **options: object) -> Recovered:
        found = recover(*arguments, **options)
        return found._replace(window=DedupWindow(1 << 60, 10_000))

    recover: Callable[..., Recovered] = recovery.recover
    monkeypatch.setattr(recovery, "recover", forget)
    with pytest.raises(AssertionError, match="duplicate"):
        climb(lambda n: killed(make, n, "after", "crash"), 30)
