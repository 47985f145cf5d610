"""Every call to the disk fails, or is a process's last, one after the other: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import pytest

from oncelog.errors import Unavailable
from oncelog.limits import MIB
from oncelog.storage.local.home import LocalHome, LocalStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import Keep, SimulatedDisk
from oncelog.testing.faults import Killed, When
from oncelog.testing.writing import read_all

P = ParamSpec("P")
T = TypeVar("T")
ROOT = Path("/data/shop")
OBJECTS = {"manifest/1": b"one", "manifest/2": b"two" * 5000, "deep/down/here": b""}


def open_home(disk: SimulatedDisk) -> LocalHome:
    """Open the log as a process does that was just started."""
    return LocalStorage(ROOT, disk, SimulatedClock(auto_advance=True)).home("orders")


class Run:
    """A writer at work: makes objects, fills a segment, fences it, fills the next. Remembers what it was promised."""

    def __init__(self, disk: SimulatedDisk, attempts: int = 1) -> None:
        self.home = open_home(disk)
        self.chains = [BlockChain(0), BlockChain(1)]
        self.acknowledged = [0, 0]
        self.created: set[str] = set()
        self.attempts = attempts

    def work(self) -> None:
        """Do it all, each step as often as it takes."""
        objects = iter(OBJECTS)
        self.create(next(objects))
        claim = self.persistently(self.home.claim, 0, force=False)
        for segment, chain in enumerate(self.chains):
            writer = self.persistently(self.home.start_segment, segment, 1)
            for number in range(3):
                chain.block(b"value %d" % number, b"x" * 700 * number)
                block = [chain.made[-1]]
                if number:
                    writer.begin(number, block)
                self.persistently(writer.append, number, block)
                self.acknowledged[segment] += 1
            tail = self.persistently(self.home.fence, segment, 1)
            assert (tail.blocks, tail.checksum, tail.torn_bytes) == (3, chain.checksum, 0)
            writer.close()
            self.create(next(objects))
        claim.release()

    def create_all(self) -> None:
        """Create the objects."""
        for key in OBJECTS:
            self.create(key)

    def create(self, key: str) -> None:
        """Create an object; one that is there was created by an attempt whose answer was lost."""
        self.persistently(self.home.create, key, [OBJECTS[key]])
        self.created.add(key)

    def persistently(self, attempt: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Try again while storage is unavailable."""
        for _ in range(self.attempts - 1):
            with contextlib.suppress(Unavailable):
                return attempt(*arguments, **named)
        return attempt(*arguments, **named)

    def check(self, disk: SimulatedDisk) -> None:
        """Look at what a new process finds: all that was promised, and nothing that was not offered."""
        home = open_home(disk)
        for key, content in OBJECTS.items():
            assert home.exists(key) or key not in self.created
            assert not home.exists(key) or home.read(key).to_pybytes() == content
        assert set(home.list("")) <= set(OBJECTS)
        visible = [read_all(home, segment, None) for segment in (0, 1)]
        claim = home.claim(0, force=False)
        tails = []
        for segment, chain in enumerate(self.chains):
            tail = home.fence(segment, 2)
            assert self.acknowledged[segment] <= tail.blocks <= len(chain.made)
            assert read_all(home, segment, tail.end) == chain.made[: tail.blocks]
            assert visible[segment] == chain.made[: len(visible[segment])]
            assert len(visible[segment]) <= tail.blocks
            assert home.fence(segment, 2) == tail
            tails.append(tail)
        claim.release()
        disk.power_cut("none")
        home = open_home(disk)
        claim = home.claim(0, force=False)
        assert [home.fence(segment, 3) for segment in (0, 1)] == tails
        temporary = ROOT / "logs" / "orders" / "temporary"
        assert not disk.is_directory(temporary) or disk.list_directory(temporary) == []


def calls_of_a_whole_run() -> int:
    """Return how many calls there are to fail."""
    disk = SimulatedDisk()
    Run(disk).work()
    return disk.faults.calls


CALLS = calls_of_a_whole_run()


@pytest.mark.parametrize(
    ("keep", "when"), [("cache", "during"), ("none", "after"), ("some", "during"), ("some", "after")]
)
def test_killed_in_the_nth_call(keep: Keep | Literal["cache"], when: When) -> None:
    """Whichever call is a process's last, and whatever the machine loses then, what was acknowledged is there.

    To die before a call is to die after the one before it.
    """
    for number in range(1, CALLS + 1):
        disk = SimulatedDisk()
        disk.faults.kill_at(number, when)
        run = Run(disk)
        with pytest.raises(Killed):
            run.work()
        if keep == "cache":
            disk.crash()
        else:
            disk.power_cut(keep, seed=number)
        run.check(disk)


def test_visible_means_durable() -> None:
    """What a reader sees after the writer's death is still there when the machine loses its power next."""
    for number in range(1, CALLS + 1):
        disk = SimulatedDisk()
        disk.faults.kill_at(number, "after")
        run = Run(disk)
        with pytest.raises(Killed):
            run.work()
        disk.crash()
        home = open_home(disk)
        visible = [len(read_all(home, segment, None)) for segment in (0, 1)]
        disk.power_cut("none")
        run.acknowledged = [max(pair) for pair in zip(visible, run.acknowledged, strict=True)]
        run.check(disk)


@pytest.mark.parametrize(
    ("number", "when"), [(errno.ENOSPC, "during"), (errno.EIO, "before"), (errno.EIO, "during"), (errno.EIO, "after")]
)
def test_the_nth_call_fails(number: int, when: When) -> None:
    """Whichever call fails, the next attempt succeeds, and what is then acknowledged survives a power cut."""
    for call in range(1, CALLS + 1):
        disk = SimulatedDisk()
        disk.faults.fail_at(call, OSError(number, os.strerror(number)), when)
        run = Run(disk, attempts=4)
        run.work()
        assert run.acknowledged == [3, 3]
        disk.power_cut("none")
        run.check(disk)


def test_the_next_process_relies_on_nothing_that_is_not_durable() -> None:
    """What a process finds, made by one that died, it makes durable before it answers for what depends on it."""
    for number in range(1, CALLS + 1):
        disk = SimulatedDisk()
        disk.faults.kill_at(number, "after")
        with pytest.raises(Killed):
            Run(disk).work()
        disk.crash()
        home = open_home(disk)
        for key, content in OBJECTS.items():
            home.create(key, [content])
        home.claim(0, force=False)
        tails = [home.fence(segment, 2) for segment in (0, 1)]
        writer, chain = home.start_segment(2, 2), BlockChain(2)
        for block in range(2):
            writer.append(block, chain.block(b"later"))
        disk.power_cut("none")
        home = open_home(disk)
        assert {key: home.read(key).to_pybytes() for key in home.list("")} == OBJECTS
        home.claim(0, force=False)
        assert [home.fence(segment, 3) for segment in (0, 1)] == tails
        assert home.fence(2, 3).blocks == 2


def test_a_failed_sync_is_not_believed_the_second_time() -> None:
    """A sync that succeeds after one that failed stored nothing: only the block written again is there."""
    disk = SimulatedDisk()
    home = open_home(disk)
    home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"first"))
    second = chain.block(b"second")
    disk.faults.fail_forever(lambda operation, _: OSError(errno.EIO, "worn out") if operation == "sync" else None)
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            writer.append(1, second)
        assert caught.value.outcome == "unknown"
        assert len(read_all(home, 0, None)) == 1
    disk.faults.heal()
    writer.append(1, second)
    disk.power_cut("none")
    home = open_home(disk)
    home.claim(0, force=False)
    assert home.fence(0, 2).blocks == 2


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_a_block_that_was_begun_is_written_again_after_a_failure(failing: str) -> None:
    """Once a write or a sync has failed, that a block was begun counts for nothing; nor is it visible before."""
    disk = SimulatedDisk()
    home = open_home(disk)
    home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"first"))
    chain.block(b"second")
    second = [chain.made[-1]]
    disk.faults.fail_forever(lambda operation, _: OSError(errno.EIO, "worn out") if operation == failing else None)
    for _ in range(2):
        writer.begin(1, second)
        assert len(read_all(home, 0, None)) == 1
        with pytest.raises(Unavailable) as caught:
            writer.append(1, second)
        assert caught.value.outcome == "unknown"
    disk.faults.heal()
    writer.append(1, second)
    disk.power_cut("none")
    home = open_home(disk)
    home.claim(0, force=False)
    assert home.fence(0, 2).blocks == 2


def test_a_block_in_the_page_cache_only_is_made_durable_by_the_fence() -> None:
    """Killed between write and sync, recovered, then a power cut: the tail that recovery told of stands."""
    disk = SimulatedDisk()
    home = open_home(disk)
    home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"first"))
    disk.faults.fail_forever(lambda operation, _: Killed() if operation == "sync" else None)  # type: ignore[arg-type,return-value]
    with pytest.raises(Killed):
        writer.append(1, chain.block(b"second"))
    disk.crash()
    home = open_home(disk)
    assert len(read_all(home, 0, None)) == 1
    home.claim(0, force=False)
    tail = home.fence(0, 2)
    assert tail.blocks == 2
    assert len(read_all(home, 0, None)) == 2
    disk.power_cut("none")
    home = open_home(disk)
    home.claim(0, force=False)
    assert home.fence(0, 2) == tail


def test_recovery_writes_the_last_block_again() -> None:
    """A block that a failed sync left in the page cache, marked clean, is on disk once recovery has counted it."""
    disk = SimulatedDisk()
    home = open_home(disk)
    home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"first"))
    disk.faults.fail_forever(lambda operation, _: OSError(errno.EIO, "worn out") if operation == "sync" else None)
    with pytest.raises(Unavailable):
        writer.append(1, chain.block(b"second"))
    disk.crash()
    home = open_home(disk)
    home.claim(0, force=False)
    tail = home.fence(0, 2)
    assert tail.blocks == 2
    disk.power_cut("none")
    home = open_home(disk)
    home.claim(0, force=False)
    assert home.fence(0, 2) == tail


def test_what_was_deleted_stays_deleted() -> None:
    """The manifest forgets what was deleted, so that nobody would ever find it if a power cut brought it back."""
    disk = SimulatedDisk()
    home = open_home(disk)
    home.create("doomed", [b"x"])
    claim = home.claim(0, force=False)
    writer = home.start_segment(0, 1)
    writer.append(0, BlockChain(0).block(b"v"))
    writer.close()
    home.delete("doomed")
    home.remove_segment(0)
    claim.release()
    disk.power_cut("none")
    assert not open_home(disk).exists("doomed")
    assert open_home(disk).blocks(0, 0, None, 1 << 20) == ([], 0)


def nameless_disk() -> SimulatedDisk:
    """Return a disk on which a new object has no name until it is whole."""
    return SimulatedDisk(file_bytes_max=MIB, nameless=True)


def calls_of_the_creates() -> int:
    """Return how many calls there are to fail when objects are created without a temporary name."""
    disk = nameless_disk()
    Run(disk).create_all()
    assert disk.faults.operations.count("name") == len(OBJECTS)
    assert not disk.is_directory(ROOT / "logs" / "orders" / "temporary")
    return disk.faults.calls - 1


CREATE_CALLS = calls_of_the_creates()


def check_created(disk: SimulatedDisk, created: set[str]) -> None:
    """Look for what was promised: whole, and nothing in part. Then create all, and look again after a power cut."""
    home = open_home(disk)
    found = set(home.list(""))
    assert created <= found <= set(OBJECTS)
    assert all(home.read(key).to_pybytes() == OBJECTS[key] for key in found)
    for key, content in OBJECTS.items():
        assert home.create(key, [content]) is (key not in found)
    disk.power_cut("none")
    assert {key: open_home(disk).read(key).to_pybytes() for key in OBJECTS} == OBJECTS


@pytest.mark.parametrize(
    ("keep", "when"), [("cache", "during"), ("none", "after"), ("some", "during"), ("some", "after")]
)
def test_killed_in_the_nth_call_of_a_create_without_a_name(keep: Keep | Literal["cache"], when: When) -> None:
    """An object that was acknowledged is there, and one that was not is whole or not there."""
    for number in range(1, CREATE_CALLS + 1):
        disk = nameless_disk()
        disk.faults.kill_at(number, when)
        run = Run(disk)
        with pytest.raises(Killed):
            run.create_all()
        if keep == "cache":
            disk.crash()
        else:
            disk.power_cut(keep, seed=number)
        check_created(disk, run.created)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_the_nth_call_of_a_create_without_a_name_fails(when: When) -> None:
    """The next attempt succeeds, and what is then acknowledged survives a power cut."""
    for number in range(1, CREATE_CALLS + 1):
        disk = nameless_disk()
        disk.faults.fail_at(number, OSError(errno.EIO, os.strerror(errno.EIO)), when)
        run = Run(disk, attempts=4)
        run.create_all()
        disk.power_cut("none")
        check_created(disk, set(OBJECTS))
