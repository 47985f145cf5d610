"""Ctrl-C in the midst of an append: at every point where Python heeds a signal, what is acknowledged is stored."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import LogSettings, Window
from oncelog.errors import Closed
from oncelog.log.append.absorber import COLUMNS_MIN
from oncelog.log.append.alone import Alone
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.ingest.adopter import Adopter
from oncelog.log.writer import Writer
from oncelog.types import Ack, Record
from tests.log.watched import orders
from tests.log.worlds import DiskWorld

SOURCES = str(Path(oncelog.__file__).parent)
SIMULATED = str(Path(oncelog.__file__).parent / "testing")
CONDITIONS = threading.__file__
"""``Condition.__enter__`` and ``__exit__`` are Python: Ctrl-C is heeded in them, too, and must leave no lock held."""
POINTS_MIN = 50
FUTURES_MAX = 100

Work = Callable[[Writer, str], Ack]


def append(writer: Writer, id: str) -> Ack:
    """Append one plain record."""
    return writer.append(id.encode(), id=id, timeout_s=None)


def append_labelled(writer: Writer, id: str) -> Ack:
    """Append one record that is stored in steps."""
    return writer.append(id.encode(), id=id, type="t", timeout_s=None)


def append_many(writer: Writer, id: str) -> Ack:
    """Append one record among many."""
    return writer.append_many([Record(id.encode(), id=id), Record(b"", id=f"{id}, another")], timeout_s=None)[0]


def append_batch(writer: Writer, id: str) -> Ack:
    """Append one record of a batch."""
    return writer.append_batch([Record(id.encode(), id=id), Record(b"", id=f"{id}, another")], timeout_s=None)[0]


@contextlib.contextmanager
def interrupted_at(number: int, inside: str | None = None) -> Iterator[list[str]]:
    """Press Ctrl-C at the nth point where Python looks for signals: when a function begins, and when one in C is over.

    Points count from the first call of the function ``inside`` on, if it is given. Yield a list that then has where
    that was.
    """
    left = number
    begun = inside is None
    where: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal begun, left
        begun = begun or frame.f_code.co_qualname == inside
        file = frame.f_code.co_filename
        ours = file == CONDITIONS or (file.startswith(SOURCES) and not file.startswith(SIMULATED))
        if begun and event in ("call", "c_return") and ours:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                where.append(f"{file}:{frame.f_lineno}, after {argument}")
                raise KeyboardInterrupt

    gc.disable()  # an interrupt of another writer's ``__del__`` would be dropped by Python
    sys.setprofile(note)
    try:
        yield where
    except KeyboardInterrupt:
        assert where
    finally:
        sys.setprofile(None)
        gc.enable()


class Shop:
    """Appends as one does who wants the ack, to a writer that is replaced when it has ended; and checks what it got."""

    def __init__(self) -> None:
        self.log = orders(DiskWorld().database())
        self.acks: dict[str, Ack] = {}
        self.has_reopened = False
        self.open()

    def open(self) -> None:
        """Open a writer that has stored something: the first record begins a segment."""
        self.writer = self.log.writer()
        self.writer.append(b"first", timeout_s=None)

    def insist(self, work: Work, id: str) -> None:
        """Append, if need be by another writer."""
        try:
            self.acks[id] = work(self.writer, id)
        except Closed:
            self.writer.close()
            self.has_reopened = True
            self.open()
            self.acks[id] = work(self.writer, id)

    def close(self) -> None:
        """Close the writer, and find every record once, where its ack says."""
        self.writer.close()
        stored = [entry for entry in self.log.read() if entry.id in self.acks]
        assert [entry.id for entry in stored] == sorted(self.acks, key=lambda name: self.acks[name].position or 0)
        assert [entry.position for entry in stored] == sorted(ack.position or 0 for ack in self.acks.values())
        assert all(bytes(entry.value) == str(entry.id).encode() for entry in stored)


@pytest.mark.parametrize(("work", "every"), [(append, 1), (append_labelled, 1), (append_many, 5), (append_batch, 5)])
def test_nothing_is_acknowledged_that_is_not_stored(work: Work, every: int) -> None:
    """An id that is known and in no block would have its retry answered as a duplicate, and be lost; a lock that is
    held by nobody would have it wait for ever.
    """
    shop = Shop()
    for number in itertools.count(1, every):
        with interrupted_at(number) as where:
            work(shop.writer, f"order {number}")
        if not where:
            break
        shop.insist(append, f"another after {number}")
        shop.insist(work, f"order {number}")
        if shop.has_reopened:  # what is opened again is read again
            shop.close()
            shop = Shop()
    shop.close()
    assert number > POINTS_MIN


@pytest.mark.parametrize("count", [1, COLUMNS_MIN + 1])
def test_who_waits_for_what_was_submitted_is_told(count: int) -> None:
    """Whatever is interrupted, every future has its ack or its error in the end, and an ack tells the truth."""
    shop = Shop()
    futures: dict[str, Future[Ack]] = {}
    for number in itertools.count(1, count):
        committer = shop.writer._committer
        committer.start_threads = lambda: None  # type: ignore[method-assign] # all is done where it is interrupted
        with interrupted_at(number) as where:
            for one in range(count):
                name = f"order {number}, {one}"
                futures[name] = shop.writer.submit(name.encode(), id=name, timeout_s=None)
            shop.writer.flush(timeout_s=None)
        del committer.start_threads
        if not where:
            break
        shop.insist(append, f"another after {number}")
        if shop.has_reopened or len(futures) > FUTURES_MAX:
            shop.acks |= acknowledged(futures)
            shop.close()
            shop, futures = Shop(), {}
    shop.acks |= acknowledged(futures)
    shop.close()
    assert number > POINTS_MIN


def acknowledged(futures: dict[str, Future[Ack]]) -> dict[str, Ack]:
    """Return the acks of those that have one; the others have an error."""
    ended = {name: future.exception(timeout=30) for name, future in futures.items()}
    return {name: futures[name].result() for name, error in ended.items() if error is None}


@pytest.mark.parametrize("window", [Window(), Window(max_keys=1000)], ids=["all", "bounded"])
@pytest.mark.parametrize(("inside", "every"), [(Adopter._commit, 23), (SegmentRun._let_go, 5), (Adopter._remember, 1)])
def test_a_file_is_adopted_and_known_or_the_writer_has_ended(inside: Any, every: int, window: Window) -> None:
    """Between the manifest that adopts a file and the writer's note of it the writer knows too little: it gave the
    file's positions to other records, and did not know the file's ids.
    """
    for number in itertools.count(1, every):
        log = DiskWorld().database().log("orders", LogSettings(window=window), create=True)
        writer = log.writer()
        writer.append(b"first", id="first", timeout_s=None)
        staged = log.stage([pa.table({"value": [b"0", b"1"], "id": ["order-0", "order-1"]})])
        with interrupted_at(number, inside.__qualname__) as where:
            writer.ingest([staged], timeout_s=None)
        if not where:
            break
        if _ended(writer):
            writer.close()
            writer = log.writer()
        ack = writer.append(b"after", id="after", timeout_s=None)
        is_adopted = writer.append(b"1", id="order-1", timeout_s=None).duplicate
        assert ack.position == (3 if is_adopted else 1), where
        writer.close()
        ids = ["first", "order-0", "order-1", "after"] if is_adopted else ["first", "after", "order-1"]
        assert [entry.id for entry in log.read()] == ids, where
    assert number > 10 * every


def _ended(writer: Writer) -> bool:
    """Tell whether a writer has ended, as it says itself when it is asked to flush."""
    try:
        writer.flush(timeout_s=None)
    except Closed:
        return True
    return False


def test_another_threads_lock_is_not_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the lock is waited for, behind a write: who holds it goes on holding it."""
    stored, taken, left = threading.Event(), threading.Event(), threading.Event()
    held: list[bool] = []
    store = SegmentRun.append

    def append_while_locked(run: SegmentRun, *given: Any) -> int:
        end = store(run, *given)
        stored.set()
        assert taken.wait(30)
        return end

    with oncelog.connect(tmp_path.as_uri()) as db, orders(db).writer() as writer:
        writer.append(b"first")
        lock = writer._committer.lock
        monkeypatch.setattr(SegmentRun, "append", append_while_locked)
        waiting = threading.main_thread().ident or 0

        def decide() -> None:
            assert stored.wait(30)
            with lock:
                taken.set()
                while sys._current_frames()[waiting].f_code is not Alone.append.__code__:
                    pass
                os.kill(os.getpid(), signal.SIGINT)
                left.wait(0.5)  # for ever, if all is well: it is waited for no longer than a mistake takes to show
                held.append(lock.locked() and not left.is_set())

        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests may have it ignored
        try:
            deciding = threading.Thread(target=decide)
            deciding.start()
            writer.append(b"x", id="x", timeout_s=None)
        except KeyboardInterrupt:
            left.set()
        finally:
            signal.signal(signal.SIGINT, before)
        deciding.join()
        assert left.is_set()
        assert held == [True]
        monkeypatch.undo()
        assert writer.append(b"x", id="x").duplicate


def test_a_judge_that_fails_ends_nothing() -> None:
    """It is asked before anything is noted: its own mistakes are its caller's, and the writer goes on."""

    def judge(_: object) -> None:
        message = "a mistake"
        raise ZeroDivisionError(message)

    with orders(DiskWorld().database()).writer() as writer:
        with pytest.raises(ZeroDivisionError):
            writer.append_batch([Record(b"x", id="x")], judge=judge)
        assert not writer.append_batch([Record(b"x", id="x")])[0].duplicate
