"""The nth call fails, or kills, while ids become runs, runs are merged, the log is truncated, opened, and retried.

A rung is one n, as in ``test_log_ladder.py``. Whatever happens, no id is stored twice, and every ack that was given
before is given again, with the same position, segment, entry and timestamp.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from oncelog import limits
from oncelog.errors import NotFound
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.testing.faults import When
from oncelog.types import Ack, Record
from tests.crash import rungs
from tests.crash.rungs import MakeWorld
from tests.crash.test_log_ladder import ENDINGS, WHENS, climb, few, patiently
from tests.log.worlds import LOG, BucketWorld, DiskWorld, Ending, MemoryWorld, World, living

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
IDS = 48
CUT = 16


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after four ids, and make a run of every four."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 4)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 4)


class Work:
    """What a process does to a log, so that another that comes after its end can do it again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acks: dict[int, Ack] = {}
        self.cut = False

    def run(self, born: Callable[[Writer], Writer]) -> None:
        """Append ids, have them put into runs, truncate, reopen, and append all of them again."""
        log, writer = self.open(born)
        self.send(writer, range(CUT))
        if not self.cut:
            self.world.clock.advance(601)
        self.send(writer, range(CUT, IDS))
        self.remember(writer)
        self.cut = True  # it may be cut from here on
        patiently(lambda: log.truncate(before=CUT))
        self.send(writer, range(CUT, IDS))
        patiently(lambda: writer.close(timeout_s=None))
        log, writer = self.open(born)
        self.send(writer, range(CUT, IDS))
        self.remember(writer)
        self.send(writer, range(CUT, IDS))
        patiently(lambda: writer.close(timeout_s=None))

    def open(self, born: Callable[[Writer], Writer]) -> tuple[Log, Writer]:
        """Open the log, or make it, and become its writer."""
        database = self.world.database()
        try:
            log = patiently(lambda: database.log(LOG))
        except NotFound:
            log = patiently(lambda: database.log(LOG, SETTINGS, create=True))
        return log, born(patiently(lambda: log.writer(wait_s=0)))

    def remember(self, writer: Writer) -> None:
        """Have runs built and merged, in this thread, so that the nth call is the same each time."""
        writer._keeper._housekeeper.stop()
        patiently(writer._keeper._memory.work)

    def send(self, writer: Writer, numbers: range) -> None:
        """Append ids two at a time; whatever was acknowledged before is acknowledged again as it was."""
        for number in range(numbers.start, numbers.stop, 2):
            if self.cut and number < CUT:
                continue
            pair = (number, number + 1)
            records = [Record(f"order {n}".encode(), id=f"o-{n}") for n in pair]
            acks = patiently(partial(writer.append_many, records, timeout_s=None))
            for n, ack in zip(pair, acks, strict=True):
                before = self.acks.setdefault(n, ack)
                told = (ack.position, ack.segment, ack.entry, ack.timestamp)
                assert told == (before.position, before.segment, before.entry, before.timestamp), n

    def check(self) -> None:
        """See that each id is there once, where its ack says, and that the log finds nothing wrong with itself."""
        log = self.world.database().log(LOG)
        with log.read() as entries:
            found = [(entry.id, entry.position) for entry in entries]
        assert len({id for id, _ in found}) == len(found), "an id is there twice"
        assert {f"o-{n}" for n in range(CUT, IDS)} <= {id for id, _ in found}
        places = {f"o-{n}": ack.position for n, ack in self.acks.items()}
        assert all(places[str(id)] == position for id, position in found)
        assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


killed = partial(rungs.killed, Work)


@pytest.mark.parametrize(("index", "when", "ending"), [(i, w, e) for i, (w, e) in enumerate(product(WHENS, ENDINGS))])
def test_killed_at_a_call_on_a_disk(index: int, when: When, ending: Ending) -> None:
    """Wherever a machine loses its power: no id is there twice, and acks stay as they were."""
    top = climb(lambda n: killed(DiskWorld, n, when, ending), *few(index * 37, 509))
    assert top > 1000, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_an_operation_of_a_home(when: When) -> None:
    """It holds on every home, with several blocks in flight."""
    climb(lambda n: killed(lambda seed: MemoryWorld(seed, in_flight_max=3), n, when, "crash"), *few(3, 41))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_request_of_a_bucket(when: When) -> None:
    """It holds in a bucket."""
    climb(lambda n: killed(BucketWorld, n, when, "crash"), *few(5, 61))


def failed(make: MakeWorld, number: int, when: When, error: int) -> bool:
    """Let the nth call fail, once; who asked asks again, of the same writer. Return whether it came to that."""
    world = make(number)
    work = Work(world)
    before = world.faults.calls
    with living(world) as born:
        world.fail_at(number, when, error)
        work.run(born)
        came = world.faults.calls - before >= number
    world.end("crash", number)
    work.check()
    return came


@pytest.mark.parametrize(
    ("index", "when", "error"), [(i, w, e) for i, (w, e) in enumerate(product(WHENS, (errno.EIO, errno.ENOSPC)))]
)
def test_a_call_on_a_disk_that_fails_once(index: int, when: When, error: int) -> None:
    """Building, merging, truncating and opening end with ``Unavailable`` at worst, and are done when asked again."""
    climb(lambda n: failed(DiskWorld, n, when, error), *few(index * 113, 691))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_operation_of_a_home_that_fails_once(when: When) -> None:
    """The same of every home: an operation that failed, or whose answer was lost."""
    climb(lambda n: failed(lambda seed: MemoryWorld(seed, in_flight_max=3), n, when, 0), *few(7, 83))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_of_a_bucket_that_fails_once(when: When) -> None:
    """The same of a bucket."""
    climb(lambda n: failed(BucketWorld, n, when, 0), *few(11, 127))
