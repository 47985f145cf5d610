"""A writer that nobody closes: what was submitted is stored all the same, the log is let go, and a warning says so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import LogSettings
from oncelog.connect import Database
from oncelog.log.append.core import Core
from oncelog.storage.memory import MemoryStorage
from tests.log.watched import LONG_S, WatchedStorage, orders, until

RECORDS = 5000
PROGRAM = f"""
import sys, oncelog
db = oncelog.connect(sys.argv[1])
log = db.log("orders", oncelog.LogSettings(commit_interval_s=60), create=True)
writer = log.writer()
writer.append(b"first")
for number in range({RECORDS}):
    writer.submit(b"x" * 100, id=str(number))
"""

NO_THREADS = """
import atexit, threading
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, threading.Thread, "start", refuse)
"""
"""Makes any Python do what Python 3.12 does: at exit no thread can be started."""


@pytest.fixture
def without_gc() -> Iterator[None]:
    """Collect no garbage meanwhile: a writer is not a part of a cycle, so nobody has to wait for a collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the messages of the warnings that are given, in whatever thread."""
    found: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda message, *_, **__: found.append(message))
    return found


def check_exit(url: str, ending: str) -> None:
    """Run a program that does not close its writer: all is stored, and the next writer opens at once."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM + ending, url], capture_output=True, text=True, check=True
    )
    expected = f"ResourceWarning: the writer of log 'orders' was left open until exit, with {RECORDS} records pending"
    assert expected in done.stderr
    with oncelog.connect(url) as db:
        assert db.log("orders").info().last_position == RECORDS
        db.log("orders").writer(wait_s=0).close()


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "import atexit\natexit.register(db.logs)", NO_THREADS])
def test_what_was_submitted_is_stored_at_exit(tmp_path: Path, ending: str) -> None:
    """A program that ends without closing its writer lost what it had submitted, without a word."""
    check_exit(tmp_path.as_uri(), ending)


def test_records_that_are_being_decided_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit a warning says how much is pending. A thread that decided records meanwhile had them counted twice."""
    asked, counts = threading.Event(), list[int]()
    with oncelog.connect(tmp_path) as db:
        writer = db.log("orders", LogSettings(commit_interval_s=60), create=True).writer()
        writer.append(b"first")
        ending, locked = writer._ending, writer._committer.locked

        def count() -> None:
            counts.append(ending._pending)
            asked.set()

        def asking(*given: Any) -> Any:
            asked.set()
            return locked(*given)

        counting = threading.Thread(target=count)

        def cut(core: Core, number: int) -> None:
            if not asked.is_set():
                monkeypatch.setattr(writer._committer, "locked", asking)
                counting.start()
                asked.wait(LONG_S)
            cut_submitted(core, number)

        cut_submitted = Core.cut_submitted
        monkeypatch.setattr(Core, "cut_submitted", cut)
        writer.submit(b"second")
        until(asked.is_set)
        counting.join(LONG_S)
        assert counts == [1]


def test_what_was_submitted_to_a_bucket_is_stored_at_exit(bucket_url: str) -> None:
    """A bucket is written to by threads of the writer's own: they still run when the program ends."""
    check_exit(bucket_url, "")


def test_what_was_submitted_is_stored_when_all_is_dropped_before_the_exit(tmp_path: Path) -> None:
    """Nobody has the writer any more, and the program ends at once: the thread that closes it is waited for."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM + "del writer, log, db", tmp_path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"the writer of log 'orders' was dropped without close(), with {RECORDS} records pending" in done.stderr
    with oncelog.connect(tmp_path.as_uri()) as db:
        assert db.log("orders").info().last_position == RECORDS
        db.log("orders").writer(wait_s=0).close()


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("producer", [None, "importer"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_dropped_writer_lets_its_log_go(tmp_path: Path, warned: list[str], scheme: str, producer: str | None) -> None:
    """The writer held its lock for as long as its log lived, though nobody could use the writer any more."""
    with oncelog.connect(tmp_path.as_uri() if scheme == "file" else "memory://") as db:
        log = db.log("orders", LogSettings(commit_interval_s=60), create=True)
        writer = log.writer(producer=producer)
        writer.append(b"first")
        future = writer.submit(b"second")
        del writer
        assert future.result(LONG_S).position == 1
        with log.writer(wait_s=LONG_S) as after:
            assert after.last_position == 1
    assert warned == [
        "the writer of log 'orders' was dropped without close(), with 1 records pending: close it, or use it in a with"
    ]


@pytest.mark.usefixtures("without_gc")
def test_a_dropped_database_lets_its_logs_go(tmp_path: Path, warned: list[str]) -> None:
    """Who drops the database, with all that came of it, can open its logs again."""
    db = oncelog.connect(tmp_path)
    log = db.log("orders", create=True)
    log.writer().append(b"first", id="1")
    del db, log
    gc.collect()
    with oncelog.connect(tmp_path) as again, again.log("orders").writer(wait_s=LONG_S) as writer:
        assert writer.append(b"first", id="1").duplicate
    assert len(warned) == 1


@pytest.mark.usefixtures("without_gc")
def test_a_writer_is_not_dropped_while_a_producer_of_it_is_there(tmp_path: Path, warned: list[str]) -> None:
    """A producer's handle keeps its writer."""
    with oncelog.connect(tmp_path) as db:
        producer = db.log("orders", create=True).writer().as_producer("importer")
        assert [producer.append(b"x").position for _ in range(3)] == [0, 1, 2]
    assert warned == []


def test_a_log_that_is_closed_waits_for_a_writer_that_was_dropped() -> None:
    """Closing the database stores what is pending, whether its writer is still there or not."""
    storage = WatchedStorage()
    db = Database(storage)
    log = orders(db)
    log.writer().append(b"first")
    db.close()
    with Database(storage) as again, orders(again).writer(wait_s=0) as writer:
        assert writer.last_position == 0


def test_a_writer_of_the_process_before_a_fork_is_not_closed_by_the_child() -> None:
    """A child that drops its copy of a writer must not touch the log: the writer is its parent's."""
    storage = MemoryStorage()
    with Database(storage) as db:
        holder = [orders(db).writer()]
        child = os.fork()
        if child == 0:
            before = threading.active_count()
            holder.clear()
            os._exit(0 if threading.active_count() == before else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert holder[0].append(b"x").position == 0


def test_a_dropped_writer_whose_storage_is_away_holds_nobody_up(warned: list[str]) -> None:
    """Closing it waits for storage, in a thread of its own: another that is dropped then is closed at once."""
    storage, other = WatchedStorage(), MemoryStorage()
    with Database(storage) as db, Database(other) as beside:
        stuck = orders(db, commit_interval_s=60).writer()
        stuck.append(b"first")
        storage.hold()
        stuck.submit(b"second")
        del stuck
        orders(beside).writer().append(b"x")
        with orders(beside).writer(wait_s=LONG_S) as writer:
            assert writer.last_position == 0
        storage.let_go()
        until(lambda: orders(db).info().last_position == 1)
    assert len(warned) == 2


def test_a_log_keeps_no_tables_of_a_writer_that_is_closed() -> None:
    """A server has written thousands of logs since it was started: a closed writer of each must not stay in memory."""
    log = Database(MemoryStorage()).log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"v", id="1")
        core = weakref.ref(writer._ending._session.core)
    del writer
    gc.collect()
    assert core() is None
    with log.writer() as again:
        assert again.append(b"v", id="1").duplicate
