"""What a log does when there is less than it would like: no thread to be had, no writer to follow, no second file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import LogSettings, Record, Window
from oncelog.connect import Database
from oncelog.errors import InvalidArgument, NotFound, Unavailable, WriterFenced
from oncelog.format.payload import columns
from oncelog.log.append import committer
from oncelog.log.ingest import staging
from oncelog.log.ingest.adopter import FILES_AT_ONCE
from oncelog.log.log import Log
from oncelog.log.stored import secrets
from oncelog.log.stored.staged import Staged
from oncelog.storage.local.home import LocalHome
from oncelog.storage.memory import MemoryStorage
from tests.log.ingest.adoption import adopt


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let no thread of the log's own start, until undone."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("oncelog"):
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def test_a_submit_without_a_thread_is_refused_and_the_next_goes_on(no_threads: pytest.MonkeyPatch) -> None:
    """No future is handed out that nobody will ever answer, and threads are tried again."""
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        with pytest.raises(Unavailable):
            writer.submit(b"a", id="a")
        no_threads.undo()
        assert writer.submit(b"b", id="b").result(timeout=60).position == 0


@pytest.mark.usefixtures("no_threads")
def test_an_append_to_a_home_that_takes_several_blocks_is_stored_without_a_thread() -> None:
    """At exit Python 3.12 starts no thread, and those of the writer had ended: the thread that waits stores."""
    with Database(MemoryStorage(in_flight_max=4)) as db, db.log("orders", create=True).writer() as writer:
        assert [writer.append(b"a", id=str(number)).position for number in range(3)] == [0, 1, 2]


def test_a_thread_that_was_not_counted_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside ``Thread.start`` left a thread that ran and was not counted. When it ended, one less than none was
    counted, which passed for some: a future was handed out that nobody answered.
    """
    monkeypatch.setattr(committer, "REST_S", 0.01)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if not thread.name.startswith("oncelog-committer"):
            start(thread)
            return
        if started:
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.submit(b"a", id="a")
            started[0].join(60)
            with pytest.raises(Unavailable):
                writer.submit(b"b", id="b")
        assert writer.submit(b"b", id="b").result(timeout=60).position == 0


@pytest.mark.usefixtures("no_threads")
def test_an_append_is_acknowledged_though_its_snapshot_must_wait() -> None:
    """What is durable is answered for, and the writer closes, when nothing can be done off the append path."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", LogSettings(snapshot_records=1), create=True)
        with log.writer() as writer:
            assert [writer.append(b"a", id=str(number)).position for number in range(3)] == [0, 1, 2]
        assert len(list(log.read())) == 3


def test_a_call_of_several_blocks_that_is_fenced_halfway_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last block was never offered, but the first is stored: that is not "not written"."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", LogSettings(block_records=2), create=True)
        loser = log.writer()
        append = loser._run.append
        offered = []

        def taken_before_the_second(group: Any) -> int:
            offered.append(group)
            if len(offered) == 2:
                log.writer(takeover="force")
            return append(group)

        monkeypatch.setattr(loser._run, "append", taken_before_the_second)
        with pytest.raises(WriterFenced) as caught:
            loser.append_many([Record(str(number).encode()) for number in range(8)])
        assert caught.value.outcome == "unknown"
        assert [entry.value for entry in log.read()] == [b"0", b"1"]
        loser.close()


def test_a_tail_of_a_log_without_a_writer_waits_idly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks now and then, not all the time, and sees what the next writer stores."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"a")
        looks = []
        wait = LocalHome.wait

        def counted(home: LocalHome, seen: tuple[int, int], timeout_s: float) -> None:
            looks.append(seen)
            wait(home, seen, timeout_s)

        monkeypatch.setattr(LocalHome, "wait", counted)
        with log.tail(start="latest") as entries:
            assert entries.poll(timeout_s=0.2) is None
            assert len(looks) < 5
            with log.writer() as writer:
                writer.append(b"b")
                entry = entries.poll(timeout_s=60)
        assert entry is not None
        assert entry.value == b"b"


def stage(log: Log, *values: bytes) -> Staged:
    """Stage records without ids."""
    hasher = secrets.hasher_of(log._home, log._known.manifest)
    return staging.stage(log._home, hasher, log._clock, [columns.from_records([Record(value) for value in values])])


def test_a_file_is_adopted_once_ids_or_not() -> None:
    """Two segments of one file would lose it when the first is truncated."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", LogSettings(idempotence="off", seal="off"), create=True)
        with log.writer() as writer:
            file = stage(log, b"a", b"b")
            adopt(writer, [file])
            writer.append(b"c")
            with pytest.raises(InvalidArgument):
                adopt(writer, [file])
        with log.writer() as writer, pytest.raises(InvalidArgument):
            adopt(writer, [file])
        log.truncate(2)
        assert [entry.value for entry in log.read()] == [b"c"]
        with log.writer() as writer, pytest.raises(NotFound):
            adopt(writer, [file])


def test_a_file_that_is_not_there_is_not_adopted() -> None:
    """A log does not come to refer to what nobody can read."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            with pytest.raises(NotFound):
                adopt(writer, [Staged(key="sealed/gone.parquet", records=1, size_bytes=1, checksum=1)])
            assert writer.append(b"a").position == 0
        assert [entry.value for entry in log.read()] == [b"a"]


@pytest.mark.parametrize("count", [1, FILES_AT_ONCE, 3 * FILES_AT_ONCE])
def test_many_files_are_adopted_in_their_order(count: int) -> None:
    """However many are looked at at once."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        files = [stage(log, b"%d" % number) for number in range(count)]
        with log.writer() as writer:
            assert adopt(writer, files) == list(range(count))
        assert [entry.value for entry in log.read()] == [b"%d" % number for number in range(count)]


@pytest.mark.usefixtures("no_threads")
def test_many_files_are_adopted_though_no_thread_is_to_be_had() -> None:
    """They are looked at one by one."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        files = [stage(log, b"%d" % number) for number in range(FILES_AT_ONCE)]
        with log.writer() as writer:
            assert adopt(writer, files) == list(range(FILES_AT_ONCE))


def test_one_of_many_files_that_is_not_there_is_named() -> None:
    """And none of the others is adopted."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        files = [stage(log, b"%d" % number) for number in range(FILES_AT_ONCE)]
        files.insert(5, Staged(key="sealed/gone.parquet", records=1, size_bytes=1, checksum=1))
        with log.writer() as writer:
            with pytest.raises(NotFound, match="gone"):
                adopt(writer, files)
            assert writer.append(b"a").position == 0


def test_a_window_that_was_made_larger_holds_truncation_back() -> None:
    """The snapshot of the smaller window knows less than the next writer will remember."""
    small, large = (LogSettings(window=Window(max_keys=keys), seal="off") for keys in (2, 1000))
    with oncelog.connect("memory://") as db:
        log = db.log("orders", small, create=True)
        with log.writer() as writer:
            for number in range(10):
                writer.append(b"a", id=str(number))
            writer.snapshot()
        log.configure(large)
        assert log.truncate(9).held_by == "window"
        with log.writer() as writer:
            assert writer.append(b"a", id="5").duplicate
