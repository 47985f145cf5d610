"""The nth call kills, or fails, while staged files are adopted under a bounded window and their ids become runs.

The version of the manifest that names a run dooms the identities beside the files it covers; they are deleted behind
it. Killed between the two, reopened, or read by a reader with an older manifest: no id is stored twice.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import partial
from itertools import product

import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.errors import NotFound, Unavailable
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.testing.faults import When
from tests.crash import rungs
from tests.crash.rungs import MakeWorld
from tests.crash.test_log_ladder import ENDINGS, WHENS, climb, few, patiently
from tests.log.worlds import LOG, BucketWorld, DiskWorld, Ending, MemoryWorld, World, living

SETTINGS = LogSettings(
    window=Window(duration_s=1e6, max_keys=8), segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6
)
FILES = (range(3), range(3, 6), range(8, 20), range(20, 22), range(22, 25))
"""Three files that have few ids, of which runs are made later, and one with many, which brings a run."""

APPENDED = range(6, 8)
IDS = 25


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a run of every six ids."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 6)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)


class Work:
    """What a process does to a log, so that another that comes after its end can do it again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.places: dict[str, int] = {}

    def run(self, born: Callable[[Writer], Writer]) -> None:
        """Bring files in, have their ids put into runs, reopen, and bring everything in again."""
        log, writer = self.open(born)
        for numbers in FILES:
            self.bring(log, writer, numbers)
            if numbers.stop == APPENDED.start:
                self.append(writer, APPENDED)
        self.remember(writer)
        patiently(lambda: writer.close(timeout_s=None))
        log, writer = self.open(born)
        self.append(writer, range(IDS))
        self.bring(log, writer, range(IDS))
        self.remember(writer)
        patiently(lambda: writer.close(timeout_s=None))

    def open(self, born: Callable[[Writer], Writer]) -> tuple[Log, Writer]:
        """Open the log, or make it, and become its writer."""
        database = self.world.database()
        try:
            log = patiently(lambda: database.log(LOG))
        except NotFound:
            log = patiently(lambda: database.log(LOG, SETTINGS, create=True))
        writer = born(patiently(lambda: log.writer(wait_s=0)))
        writer._keeper._housekeeper.stop()
        return log, writer

    def remember(self, writer: Writer) -> None:
        """Have runs built and merged, in this thread, so that the nth call is the same each time."""
        patiently(writer._keeper._memory.work)

    def bring(self, log: Log, writer: Writer, numbers: range) -> None:
        """Bring a file in; a writer that does not know what became of it ends, and the next one is asked."""
        values = pa.array([f"order {n}".encode() for n in numbers], pa.binary())
        staged = patiently(lambda: log.stage([pa.table({"id": [f"o-{n}" for n in numbers], "value": values})]))
        patiently(partial(writer.ingest, [staged], timeout_s=None))

    def append(self, writer: Writer, numbers: range) -> None:
        """Append ids one by one; whatever was acknowledged before is acknowledged again as it was."""
        for n in numbers:
            ack = patiently(partial(writer.append, f"order {n}".encode(), id=f"o-{n}", timeout_s=None))
            assert ack.position is not None
            assert self.places.setdefault(f"o-{n}", ack.position) == ack.position

    def check(self) -> None:
        """See that each id is there once, where its ack says, and that the log finds nothing wrong with itself."""
        log = self.world.database().log(LOG)
        with log.read() as entries:
            found = {str(entry.id): entry.position for entry in entries}
        assert log.info().last_position + 1 == len(found) == IDS, "an id is there twice, or not at all"
        assert {id: found[id] for id in self.places} == self.places
        assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
        manifest = log._manifest()
        assert manifest.memory
        kept = [segment.identities for segment in manifest.segments if segment.identities is not None]
        left = [key for key in kept if log._home.exists(key)]
        assert len(left) <= 2, "identities stay beside files of which a run has them"


killed = partial(rungs.killed, Work)


@pytest.mark.parametrize(("index", "when", "ending"), [(i, w, e) for i, (w, e) in enumerate(product(WHENS, ENDINGS))])
def test_killed_at_a_call_on_a_disk(index: int, when: When, ending: Ending) -> None:
    """Wherever a machine loses its power: no id is there twice, and runs have what is not beside files any more."""
    top = climb(lambda n: killed(DiskWorld, n, when, ending), *few(index * 41, 601))
    assert top > 500, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_an_operation_of_a_home(when: When) -> None:
    """It holds on every home."""
    climb(lambda n: killed(lambda seed: MemoryWorld(seed, in_flight_max=3), n, when, "crash"), *few(3, 37))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_request_of_a_bucket(when: When) -> None:
    """It holds in a bucket."""
    climb(lambda n: killed(BucketWorld, n, when, "crash"), *few(5, 67))


def failed(make: MakeWorld, number: int, when: When, error: int) -> bool:
    """Let the nth call fail, once; who asked asks again, of another writer if the first one does not know."""
    world = make(number)
    work = Work(world)
    before = world.faults.calls
    with living(world) as born:
        world.fail_at(number, when, error)
        with contextlib.suppress(Unavailable):
            work.run(born)
        came = world.faults.calls - before >= number
    world.end("crash", number)
    with living(world) as born:
        work.run(born)
    world.end("crash", number)
    work.check()
    return came


@pytest.mark.parametrize(("index", "error"), list(enumerate((errno.EIO, errno.ENOSPC))))
def test_a_call_on_a_disk_that_fails_once(index: int, error: int) -> None:
    """A full disk, or one that fails, in the midst of an adoption or of a run costs time, and nothing else."""
    climb(lambda n: failed(DiskWorld, n, "before", error), *few(index * 113, 701))
