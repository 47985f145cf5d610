"""Closing in the midst of a call, as signal handlers, callbacks and ``__del__`` do: it ends, and nothing is lost."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import Closed, Unavailable
from oncelog.log.writer import Writer
from oncelog.storage.memory import MemoryStorage
from oncelog.types import Ack, Record
from tests.log.watched import LONG_S, WatchedStorage, orders, until

SOURCES = str(Path(oncelog.__file__).parent)
TESTING = str(Path(oncelog.__file__).parent / "testing")
POINTS_MIN = 30

Work = Callable[[Writer], Ack]


def call_at(number: int, handler: Callable[[], None], work: Callable[[], object]) -> bool:
    """Do work, and call a handler at its nth point where Python looks for signals; tell whether there was one."""
    left = number

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        nonlocal left
        if frame.f_code.co_name == "__del__":
            return  # what is raised in it is raised to nobody
        file = frame.f_code.co_filename
        if event in ("call", "c_return") and file.startswith(SOURCES) and not file.startswith(TESTING):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                handler()

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return left <= 0


def wait_for_closing() -> None:
    """Wait until closing, in a thread of its own, is over."""
    until(lambda: all(thread.name != "oncelog-closing" for thread in threading.enumerate()))


def append(writer: Writer) -> Ack:
    """Append one plain record."""
    return writer.append(b"paid", id="order")


def append_labelled(writer: Writer) -> Ack:
    """Append one record that is stored in steps."""
    return writer.append(b"paid", id="order", type="t")


def append_many(writer: Writer) -> Ack:
    """Append one record among many."""
    return writer.append_many([Record(b"paid", id="order"), Record(b"paid", id="another")])[0]


def submit(writer: Writer) -> Ack:
    """Submit one record, and wait for it."""
    return writer.submit(b"paid", id="order").result(LONG_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # says what is unknown
@pytest.mark.parametrize("leave", [False, True], ids=["returns", "exits"])
@pytest.mark.parametrize(("work", "every"), [(append, 1), (append_labelled, 3), (append_many, 7), (submit, 3)])
def test_a_handler_that_closes_ends_wherever_it_comes(work: Work, every: int, *, leave: bool) -> None:
    """SIGTERM may come at any point of an append, with the lock held or a block half way: the handler returns, the log
    is let go, what was acknowledged is stored, and the retry by the next writer finds it once.
    """
    for number in itertools.count(1, every):
        storage = MemoryStorage()
        db = Database(storage)
        writer = orders(db).writer()
        writer.append(b"first")
        acks: list[Ack] = []

        def handler(db: Database = db) -> None:
            db.close()
            if leave:
                sys.exit(3)

        try:
            was_called = call_at(number, handler, lambda writer=writer, acks=acks: acks.append(work(writer)))  # type: ignore[misc]
        except (SystemExit, Closed, Unavailable):
            was_called = True
        wait_for_closing()
        assert not was_called or writer.closed
        db.close()
        with Database(storage) as again, orders(again).writer() as next_writer:
            ack = work(next_writer)
            assert [(one.position, True) for one in acks] in ([], [(ack.position, ack.duplicate)])
            stored = [entry.id for entry in orders(again).read()]
            assert sorted(filter(None, stored)) == sorted({one for one in stored if one is not None})
        if not was_called:
            break
    assert number > POINTS_MIN


@pytest.mark.parametrize("in_flight_max", [1, 3])
def test_a_callback_may_close(in_flight_max: int) -> None:
    """A callback runs inside the commit that answers its future, with other records behind it."""
    storage = WatchedStorage(in_flight_max=in_flight_max)
    with Database(storage) as db:
        writer = orders(db).writer()
        first = writer.submit(b"1", id="1")
        first.add_done_callback(lambda _: writer.close())
        others: list[Future[Ack]] = []
        while not writer.closed:
            try:
                others.append(writer.submit(b"x"))
            except Closed:
                break
        assert first.result(LONG_S).position == 0
        for future in others:
            future.result(LONG_S)  # what was taken before is stored
        wait_for_closing()
        assert writer.closed


def test_a_callback_that_exits_ends_no_thread_of_the_writer() -> None:
    """SystemExit out of a callback ended the thread that commits, and what was submitted then waited for ever."""
    with Database(WatchedStorage(in_flight_max=2)) as db, orders(db).writer() as writer:
        for _ in range(5):
            future = writer.submit(b"x")
            future.add_done_callback(lambda _: sys.exit(1))
            future.result(LONG_S)
        assert writer.submit(b"last").result(LONG_S).position == 5


def test_two_threads_that_close_both_return_when_it_is_closed() -> None:
    """The second does not tear down what the first is still storing."""
    storage = WatchedStorage()
    with Database(storage) as db:
        writer = orders(db).writer()
        writer.append(b"first")
        storage.hold()
        future = writer.submit(b"x", id="x")
        storage.wait_for_offers(2)
        closers = [threading.Thread(target=writer.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        storage.let_go()
        for closer in closers:
            closer.join(LONG_S)
        assert future.result(LONG_S).position == 1


def test_closing_that_is_interrupted_says_that_the_outcome_is_unknown() -> None:
    """A future whose record may be stored must not say that it is not."""
    storage = WatchedStorage(in_flight_max=2)
    db = Database(storage)
    writer = orders(db).writer()
    writer.append(b"first")
    storage.hold()
    future = writer.submit(b"x", id="x")
    storage.wait_for_offers(2)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    writer._committer.drain = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    storage.let_go()
    error = future.exception(LONG_S)
    assert isinstance(error, Unavailable)
    assert error.outcome == "unknown"
    db.close()


PROGRAM = """
import signal, sys, oncelog
db = oncelog.connect(sys.argv[1])
writer = db.log("orders", create=True).writer()
def stop(number, frame):
    db.close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
number = 0
while True:
    {work}
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize(
    "work",
    ["writer.append(b'x' * 1000, id=str(number))", "writer.submit(b'x', id=str(number)).result()"],
    ids=["append", "submit"],
)
def test_sigterm_ends_a_server_that_appends(tmp_path: Path, work: str) -> None:
    """The handler that every server has, against real signals at chance moments: exit code 0, the lock is free, and
    every acknowledged record is there.
    """
    for turn in range(4):
        url = (tmp_path / str(turn)).as_uri()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.replace("{work}", work), url], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        acked = [process.stdout.readline() for _ in range(turn * 7 + 1)]
        process.send_signal(signal.SIGTERM)
        acked += process.stdout.read().splitlines()
        assert process.wait(LONG_S) == 0
        process.stdout.close()
        with oncelog.connect(url) as db:
            stored = [entry.id for entry in db.log("orders").read()]
            assert len(stored) - len(acked) in (0, 1)
            assert stored == [str(number) for number in range(len(stored))]
            db.log("orders").writer(wait_s=0).close()
