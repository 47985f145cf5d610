"""A writer that is paused, or whose storage is away, for longer than its window: no retry afterwards is a second
write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from oncelog.connect import Database
from oncelog.errors import Unavailable
from oncelog.log.append.uptime import Uptime
from oncelog.log.log import Log
from oncelog.log.takeover import handover
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.logs.fixtures import values
from tests.log.retries import ROOT
from tests.log.watched import LONG_S, until

WINDOW_S = 60
AWAY_S = 3600
SETTINGS = LogSettings(window=Window(duration_s=WINDOW_S), commit_interval_s=0)


def in_memory(clock: SimulatedClock) -> Database:
    """Return a database in memory."""
    return Database(MemoryStorage(clock=clock), clock)


def on_disk(clock: SimulatedClock) -> Database:
    """Return a database on a simulated disk."""
    return Database(LocalStorage(ROOT, SimulatedDisk(), clock), clock)


def in_bucket(clock: SimulatedClock) -> Database:
    """Return a database in a bucket."""
    return Database(ObjectStorage(Bucket(MemoryStore(), "s3://memory"), clock), clock)


@pytest.fixture(params=[in_memory, on_disk, in_bucket])
def place(request: pytest.FixtureRequest) -> Callable[[SimulatedClock], Database]:
    """Return where the log is."""
    return request.param  # type: ignore[no-any-return]


def live(clock: SimulatedClock, writer: Writer, seconds: int) -> None:
    """Let an idle writer live so long by its own up-time: in a bucket it looks once a second."""
    uptime = writer._uptime
    over_us = uptime.at(clock.elapsed_us()) + seconds * 1_000_000

    def is_over() -> bool:
        clock.advance(0.5)
        return uptime.at(clock.elapsed_us()) >= over_us

    until(is_over)


def check_once(log: Log, *expected: bytes) -> None:
    """Assert that every record is there once, and that the log says so too."""
    assert values(log) == list(expected)
    assert log.verify().ok


def test_a_paused_writer_forgets_nothing(place: Callable[[SimulatedClock], Database]) -> None:
    """A pause of an hour ages no id: the retry that waited for its end is a duplicate."""
    clock = SimulatedClock()
    log = place(clock).log("orders", SETTINGS, create=True)
    writer = log.writer()
    first = writer.append(b"paid", id="order-42")
    clock.pause(AWAY_S)
    again = writer.append(b"paid", id="order-42")
    assert (again.position, again.duplicate) == (first.position, True)
    check_once(log, b"paid")
    writer.close()


def test_a_pause_is_not_counted_by_the_next_writer(place: Callable[[SimulatedClock], Database]) -> None:
    """What the paused writer stores and leaves behind says nothing of the pause: the next one remembers as much."""
    clock = SimulatedClock()
    database = place(clock)
    log = database.log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        writer.append(b"paid", id="order-42")
        clock.pause(AWAY_S)
        writer.append(b"other", id="order-43")
        writer.snapshot()
    with log.writer() as writer:
        assert writer.append(b"paid", id="order-42").duplicate
    check_once(log, b"paid", b"other")


def test_a_writer_that_lives_forgets_when_the_window_is_over(place: Callable[[SimulatedClock], Database]) -> None:
    """The control: with signs of life in every second, time counts, and an id may be used again."""
    clock = SimulatedClock()
    log = place(clock).log("orders", SETTINGS, create=True)
    writer = log.writer()
    writer.append(b"paid", id="order-42")
    live(clock, writer, WINDOW_S)
    assert not writer.append(b"paid", id="order-42").duplicate
    check_once(log, b"paid", b"paid")
    writer.close()


def test_ctrl_c_as_storage_is_asked_does_not_stop_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reports what came of such a request. Once all is stored it counts no more, and ids age as before."""
    clock = SimulatedClock()
    log = in_memory(clock).log("orders", SETTINGS, create=True)
    writer = log.writer()
    writer.append(b"first", id="order-41")
    ask = Uptime.ask

    def ask_in_vain(self: Uptime, elapsed_us: int) -> int:
        ask(self, elapsed_us)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Uptime, "ask", ask_in_vain)
    with pytest.raises(KeyboardInterrupt):
        writer.append(b"paid", id="order-42")
    before_us = writer._uptime.at(clock.elapsed_us())
    clock.advance(1)
    assert writer.append(b"paid", id="order-42").duplicate
    clock.advance(WINDOW_S)
    assert writer._uptime.at(clock.elapsed_us()) >= before_us + WINDOW_S * 1_000_000
    assert not writer.append(b"paid", id="order-42").duplicate
    writer.close()


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_an_outage_of_a_bucket_ages_no_id(*, busy: bool) -> None:
    """An hour without storage: neither a writer that had records on their way nor one that was idle forgets."""
    clock = SimulatedClock()
    bucket = FaultyBucket(Bucket(MemoryStore(), "s3://memory"))
    log = Database(ObjectStorage(bucket, clock), clock).log("orders", SETTINGS, create=True)
    writer = log.writer()
    first = writer.append(b"paid", id="order-42")
    bucket.cut_off()
    pending = writer.submit(b"later", id="order-43") if busy else None
    if busy:
        until(lambda: writer.counts().storage_failures > 0)
    for _ in range(AWAY_S // 10):
        until(lambda: clock.waiting() > 0)
        clock.advance(10)
    bucket.faults.heal()
    until(lambda: clock.waiting() > 0)
    clock.advance(handover.LOOK_S)
    if pending is not None:
        clock.auto_advance = True
        pending.result(LONG_S)
    again = writer.append(b"paid", id="order-42")
    assert (again.position, again.duplicate) == (first.position, True)
    check_once(log, *([b"paid", b"later"] if busy else [b"paid"]))
    clock.auto_advance = True
    writer.close()


def test_a_disk_that_is_away_ages_no_id() -> None:
    """A sync that hangs for an hour is no up-time, nor is what comes of it."""
    clock = SimulatedClock()
    disk = SimulatedDisk()
    log = Database(LocalStorage(ROOT, disk, clock), clock).log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        writer.append(b"paid", id="order-42")
        disk.faults.fail_forever(lambda _operation, _what: OSError(5, "away"))
        with pytest.raises(Unavailable):
            writer.append(b"later", id="order-43", timeout_s=0)
        clock.advance(AWAY_S)
        disk.faults.heal()
        clock.auto_advance = True
        assert writer.append(b"later", id="order-43", timeout_s=None).duplicate
        assert writer.append(b"paid", id="order-42").duplicate
    check_once(log, b"paid", b"later")


@pytest.mark.parametrize(("window", "asks"), [(Window(duration_s=WINDOW_S), True), (Window(), False)])
def test_an_idle_writer_on_a_disk_asks_for_signs_where_ids_age(tmp_path: Path, window: Window, *, asks: bool) -> None:
    """The pulse of the process asks the disk every second, where an outage would age ids."""
    asked: list[str] = []

    class Watched(RealDisk):
        def identity(self, path: Path) -> tuple[int, int] | None:
            asked.append(path.name)
            return super().identity(path)

    with Database(LocalStorage(tmp_path, Watched())) as db:
        writer = db.log("orders", LogSettings(window=window), create=True).writer()
        asked.clear()
        writer._uptime.beat()
        assert ("lock" in asked) == asks
        assert writer._uptime.looks == asks
        writer.close()
