"""The nth call fails, or kills, while a log is sealed, merged, adopted into, truncated and retained.

A rung is one n, as in ``test_log_ladder.py``: a fixed piece of work in which the nth call goes wrong, the end of
the process or the machine, and then the same work once more under the same ids. Nothing acknowledged is lost unless it
was truncated away, nothing is there twice, and every step of upkeep that was cut short can be repeated.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from itertools import product

import msgspec
import pytest

from oncelog.errors import Closed, CorruptionError, NotFound, PartialOverlap, Unavailable
from oncelog.format.manifest import Segment
from oncelog.limits import KIB, MIB
from oncelog.log.log import Log
from oncelog.log.read.reader import Tail
from oncelog.log.stored.staged import Staged
from oncelog.log.upkeep import sealing
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.base import LogHome
from oncelog.testing.faults import Killed, When
from oncelog.types import Record
from tests.crash.test_log_ladder import ENDINGS, WHENS, DeafDisk, climb, few, leave, patiently, request
from tests.crash.upkeep import Upkeep
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import stage
from tests.log.worlds import LOG, BucketWorld, DiskWorld, Ending, MemoryWorld, World, living, read
from tests.models.history import Request

SETTINGS = LogSettings(
    window=Window(duration_s=1e5, max_keys=10_000),
    segment_bytes=64 * KIB,
    block_bytes=32 * KIB,
    snapshot_interval_s=1e6,
    seal="off",
)
RETAINING = msgspec.structs.replace(SETTINGS, retention_bytes=0)
OLD = (request("many", "a", 3, 20 * KIB), request("batch", "b", 3), request("one", "c"))
OLD_FILE = request("many", "old-", 3).records
RECENT = (request("many", "d", 4, 20 * KIB), request("batch", "e", 3), request("submit", "f", 2))
FILES = (request("many", "x", 4).records, request("many", "y", 2, 30 * KIB).records)
LAST = (request("one", "g", 2, 30 * KIB), request("batch", "h", 2))


class Work:
    """What a process does to a log, so that another that comes after its end can do it again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = Upkeep()
        self.aged = False
        self.staged: dict[str, Staged] = {}
        self.log: Log
        self.writer: Writer
        self.born: Callable[[Writer], Writer]
        self.tail: Tail | None = None
        self.reached = 0

    def run(self, born: Callable[[Writer], Writer], *, again: bool = False) -> None:
        """Do, or do again, all that a log goes through in its life."""
        self.born = born
        self.tail = None
        self.open()
        begun = again and self.find()
        if not self.aged:
            self.send(OLD)
            self.seal()
            self.adopt(OLD_FILE)
            self.reopen()  # closes a segment
            self.send(OLD[1:])
        self.aged = True
        if not begun:
            self.world.clock.advance(2e5)
        self.send(RECENT)
        self.snapshot()
        self.history.cut_max = self.recent_from()
        self.truncate()
        self.seal()
        self.adopt(*FILES)
        self.reopen()
        self.send((RECENT[0], LAST[0]))
        self.retain()
        self.seal()
        self.send(LAST)
        self.snapshot()
        self.look(100)
        leave(self.writer)

    def open(self) -> None:
        """Open the log, or make it, and become its writer."""
        database = self.world.database()
        try:
            self.log = patiently(lambda: database.log(LOG))
        except NotFound:
            self.log = patiently(lambda: database.log(LOG, SETTINGS, create=True))
        self.writer = self.born(patiently(lambda: self.log.writer(wait_s=0)))

    def find(self) -> bool:
        """See what the process before has left, and return whether it has got to the recent records."""
        there = list(self.log.read())
        self.history.found(there)
        return any(entry.value == RECENT[0].records[0].value for entry in there)

    def reopen(self) -> None:
        """Close, which closes a segment, and become the writer again."""
        leave(self.writer)
        self.open()

    def send(self, requests: Sequence[Request]) -> None:
        """Append, and go on reading."""
        for sent in requests:
            self.history.send(self.writer, sent)
        self.look()

    def look(self, count: int = 4) -> None:
        """Go on reading where the reader has got to: what it is given follows, unless that was truncated."""
        for _ in range(count):
            try:
                if self.tail is None:
                    self.tail = patiently(lambda: self.log.tail(self.reached))
                entry = patiently(self.tail.poll)
            except NotFound as error:
                self.tail, self.reached = None, self.begin(error.first)
                continue
            if entry is None:
                return
            assert entry.position == self.reached
            self.reached += 1
            self.history.passed([entry])

    def begin(self, first: int | None) -> int:
        """Return where reading goes on after a truncation, which was allowed and is told as it was."""
        assert first is not None
        assert self.reached < first <= self.history.cut_max
        return first

    def seal(self) -> None:
        """Make files, and put small ones together."""
        patiently(self.log.seal)
        self.look()

    def snapshot(self) -> None:
        """Store the window."""
        patiently(self.writer.snapshot)

    def recent_from(self) -> int:
        """Return the position before which nothing is in the window any more."""
        return self.history.acknowledged[RECENT[0].records[0].value]

    def truncate(self) -> None:
        """Let go what the window does not need."""
        before = self.recent_from()
        done = patiently(lambda: self.log.truncate(before))
        assert done.first_position <= before
        self.look()

    def retain(self) -> None:
        """Keep as little as the window allows."""
        patiently(lambda: self.log.configure(RETAINING))
        assert patiently(self.log.retain).first_position <= self.recent_from()
        self.look()

    def adopt(self, *files: Sequence[Record]) -> None:
        """Stage files and adopt them together, once: as often as it takes, with other writers if need be."""
        for records in files:
            self.history.offer(records)
        while True:
            try:
                chosen = [self.stage(records) for records in files]
                firsts = adopt(self.writer, chosen)
            except Unavailable:
                self.reopen()
                continue
            except PartialOverlap:
                firsts = self.found(files)
            break
        for first, records in zip(firsts, files, strict=True):
            self.history.adopted(records, first)
        self.look()

    def stage(self, records: Sequence[Record]) -> Staged:
        """Stage records, unless they are: a retry may use the file that is there, or another."""
        known = str(records[0].id)
        if known not in self.staged:
            self.staged[known] = patiently(lambda: stage(self.log, records))
        return self.staged[known]

    def found(self, files: Sequence[Sequence[Record]]) -> list[int]:
        """Return where files were adopted that are there already: all of them, since they were adopted together."""
        places = {entry.value: entry.position for entry in patiently(lambda: list(self.log.read()))}
        repeated = overlap(self.writer, [self.staged[str(records[0].id)] for records in files])
        assert [list(rows) for rows in repeated] == [list(range(len(records))) for records in files]
        return [places[records[0].value] for records in files]


def upkept(world: World, work: Work) -> None:
    """Do all of it again, as another process: then everything is there, once, and nothing is left to complain of."""
    with living(world) as born:
        work.run(born, again=True)
        work.history.saw(list(work.log.read()))
        assert work.history.first == work.recent_from(), "truncated as far as the window allows"
    check_whole(world, work)
    world.end("none", 0)
    check_whole(world, work)


def check_whole(world: World, work: Work) -> None:
    """Read and verify, as a process that has just started."""
    work.history.saw(read(world))
    log = world.database().log(LOG)
    verified = log.verify()
    assert verified.ok, verified.findings
    assert verified.records == len(list(log.read()))
    manifest = log._manifest()
    assert manifest.first_position == work.history.first
    with pytest.raises(NotFound) as gone:
        log.read(manifest.first_position - 1)
    assert gone.value.first == manifest.first_position


def rung(world: World, number: int, arm: Callable[[], None], ending: Ending) -> bool:
    """Climb one rung, and return whether something went wrong on it at all."""
    work = Work(world)
    before = world.faults.calls
    with living(world) as born:
        arm()
        try:
            work.run(born)
        except Killed:
            pass
        except Closed:
            assert world.faults.is_killed, "the writer ended although nobody killed it"
        touched = world.faults.calls - before >= number
    work.history.crashed()
    # The process knew what it asked for, also where it had no answer yet.
    value = RECENT[0].records[0].value
    work.history.cut_max = work.history.acknowledged.get(value, 0)
    work.history.saw(read(world))
    world.end(ending, seed=number)
    work.history.saw(read(world))
    verified = verify(world)
    assert verified is None or verified
    upkept(world, work)
    return touched


def verify(world: World) -> bool | None:
    """Return whether a log that a crash has left is whole; ``None`` where there is none."""
    try:
        log = world.database().log(LOG)
    except NotFound:
        return None
    return log.verify().ok


def killed(world: World, number: int, when: When, ending: Ending) -> bool:
    """Climb a rung on which the process is killed."""
    return rung(world, number, lambda: world.faults.kill_at(number, when), ending)


def failed(world: World, number: int, when: When, error: int, ending: Ending) -> bool:
    """Climb a rung on which a call fails, once."""
    return rung(world, number, lambda: world.fail_at(number, when, error), ending)


@pytest.mark.parametrize("ending", ["some", "none"])
def test_upkeep_is_killed_at_every_call(ending: Ending) -> None:
    """Wherever the power goes in sealing, merging, adopting, truncating, retaining: it can be done again, and all
    that was acknowledged and not truncated is there, once, at its place.
    """
    top = climb(lambda n: killed(DiskWorld(n), n, WHENS[n // 7 % 3], ending), *few(ENDINGS.index(ending), 71))
    assert top > 400, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize(
    ("index", "when", "error"), [(i * 11, w, e) for i, (w, e) in enumerate(product(WHENS, (errno.EIO, errno.ENOSPC)))]
)
def test_a_call_of_upkeep_that_fails_once(index: int, when: When, error: int) -> None:
    """A step of upkeep that a failing disk has cut short is an error to the caller, and is done when repeated."""
    climb(lambda n: failed(DiskWorld(n), n, when, error, ENDINGS[n % 4]), *few(index, 307))


@pytest.mark.parametrize("when", ["before", "after"])
def test_upkeep_of_any_home(when: When) -> None:
    """The same where the home is anything that keeps the contract: killed, failing, or with its answer lost."""
    climb(lambda n: killed(MemoryWorld(n), n, when, "crash"), *few(1, 53))
    climb(lambda n: failed(MemoryWorld(n, in_flight_max=3), n, when, 0, "crash"), *few(2, 53))


@pytest.mark.parametrize("when", ["before", "after"])
def test_upkeep_in_a_bucket(when: When) -> None:
    """The same request by request."""
    climb(lambda n: killed(BucketWorld(n), n, when, "crash"), *few(1, 101))
    climb(lambda n: failed(BucketWorld(n), n, when, 0, "crash"), *few(2, 101))


# That the ladder can tell.


def test_a_disk_that_does_not_sync_is_noticed() -> None:
    """A control: where blocks are not synced, the ladder finds acknowledged records lost."""
    work = Work(DiskWorld(disk=DeafDisk(file_bytes_max=MIB)))
    with living(work.world) as born:
        work.world.faults.kill_at(150, "after")
        with contextlib.suppress(Killed, Closed):
            work.run(born)
    assert work.history.acknowledged
    work.history.seen.clear()
    work.world.end("none", 0)
    with pytest.raises(AssertionError, match="told"):
        work.history.check(read(work.world))


def test_a_sealing_that_deletes_first_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: where blocks are removed before the manifest points to their file, the ladder finds them missing."""
    world = DiskWorld()

    def hasty(home: LogHome, manifests: object, clock: object, group: list[Segment]) -> None:
        for segment in group:
            home.remove_segment(segment.number)
        world.faults.kill_at(1)
        seal_group(home, manifests, clock, group)

    seal_group: Callable[..., object] = sealing._seal_group
    monkeypatch.setattr(sealing, "_seal_group", hasty)
    with pytest.raises(CorruptionError, match="restore it from a copy"):
        rung(world, 1, lambda: None, "crash")


# What the ladder has found.


def test_a_reader_passes_over_nothing_when_a_sealed_file_cannot_be_read_for_the_moment() -> None:
    """A reader that goes on after ``Unavailable`` gets what it was about to read, not what comes behind it."""
    world = MemoryWorld()
    log = world.database().log(LOG, SETTINGS, create=True)
    with log.writer(wait_s=0) as writer:
        writer.append_many([Record(b"%d" % number) for number in range(3)])
    log.seal()
    with log.writer(wait_s=0) as writer:
        writer.append(b"behind")
    tail = log.tail("earliest")
    world.fail_at(1, "before")
    with pytest.raises(Unavailable):
        tail.poll()
    assert [entry.value for _ in range(4) if (entry := tail.poll()) is not None] == [b"0", b"1", b"2", b"behind"]
