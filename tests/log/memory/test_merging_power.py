"""A power cut, a full disk or a failed system call in any moment of building and merging runs.

A rung is one n: in the nth system call the machine loses its power, or the call fails. Every run that was returned
before is there, whole.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from oncelog.errors import Unavailable
from oncelog.format.runs.run import Digest, Run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.storage.base import LogHome
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import Keep, SimulatedDisk
from oncelog.testing.faults import Killed
from tests.log.memory.ids import Ids

MANY = [Ids.random(seed, 30 * seed, 30) for seed in range(2)]


def home_on(disk: SimulatedDisk) -> LogHome:
    """Return the log's home on a disk, for a process that starts now."""
    return LocalStorage(Path("/db"), disk, SimulatedClock()).home("shop")


def work(home: LogHome, told: list[Run]) -> None:
    """Build two runs and merge them; note each run when it was returned."""
    for number, ids in enumerate(MANY):
        told.append(ids.stored(home, f"sealed/{number}"))
    told.append(merge_runs(RunObjects(home), "log", "sealed/merged", told[:2]))


def check_told(home: LogHome, told: list[Run]) -> None:
    """See that every run that was returned is there, to the last byte."""
    for run in told:
        covered = MANY[run.first_position // 30 : run.next_position // 30]
        expected = sum((ids.entries().digest().moved(ids.first) for ids in covered), Digest())
        assert check_run(RunObjects(home), run) == expected


@pytest.mark.parametrize("keep", ["none", "all", "some"])
def test_power_may_go_in_any_system_call(keep: Keep) -> None:
    """Whatever of the page cache reached the disk."""
    for number in itertools.count(1, 3):
        disk = SimulatedDisk()
        told: list[Run] = []
        disk.faults.kill_at(number, "during")
        try:
            work(home_on(disk), told)
            died = False
        except Killed:
            died = True
        disk.power_cut(keep, seed=number)
        disk.faults.heal()
        home = home_on(disk)
        check_told(home, told)
        again: list[Run] = []
        if not died:
            break
        for key in home.list("sealed/"):
            home.delete(key)  # as a sweep does, a day later
        work(home, again)
        check_told(home, again)
    assert number > 30
    assert len(told) == 3


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_system_call_may_fail(error: int) -> None:
    """A named error, or none; what was returned is whole; a second attempt under other names succeeds."""
    failures = 0
    for number in itertools.count(1):
        disk = SimulatedDisk()
        home = home_on(disk)
        told: list[Run] = []
        disk.faults.fail_at(number, OSError(error, os.strerror(error)), "during")
        try:
            work(home, told)
        except Unavailable:
            failures += 1
        calls = disk.faults.calls
        disk.faults.heal()
        check_told(home, told)
        if calls < number:
            break
        merged = merge_runs(RunObjects(home), "log", "sealed/again", told[:2]) if len(told) >= 2 else None
        check_told(home, [merged] if merged is not None else [])
    assert failures > 20
