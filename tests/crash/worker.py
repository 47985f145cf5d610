"""The programs that are killed: run as ``worker.py <program> <url> …``, they talk in lines on their standard streams.

Every line is one write of less than a pipe takes at once, so that a kill cuts between lines and never through one.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

import oncelog
from oncelog import Ack, LogBusy, OncelogError, Unavailable, WriterFenced
from oncelog.clock import SystemClock
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.log.takeover import handover
from oncelog.log.writer import Writer
from oncelog.settings import Idempotence
from oncelog.storage.base import Chunk
from oncelog.storage.local.disk import Identity, RealDisk
from oncelog.storage.local.home import LocalStorage
from tests.crash.work import LOG, Step, checksum, next_step, number_of, path_of, record

POLL_S = 0.02


class Life(msgspec.Struct):
    """What one writer does until it is killed: sends ``resend`` again, then ``steps`` new ones, then closes."""

    idempotence: Idempotence
    resend: list[Step]
    first: int
    steps: int
    seed: int
    force: bool = False


def say(*words: object) -> None:
    """Print a line, at once and whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


# The zygote, and the writers it bears.


def zygote(url: str) -> None:
    """Bear a writer for each line: a fork of a process that has everything imported and nothing open."""
    pa.array([b"pyarrow imports pandas, if it is there, when it makes its first array of objects"])
    for line in sys.stdin:
        life = msgspec.json.decode(line, type=Life)
        pid = os.fork()
        if pid == 0:
            _live(url, life)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def fighter(url: str) -> None:
    """Bear writers that ask for the log, and let it go, sooner than usual."""
    handover.TENURE_S, handover.LOOK_S, handover.ANSWER_S, handover.POLL_S = 0.2, 0.05, 0.5, 0.02
    zygote(url)


def _live(url: str, life: Life) -> None:
    say("born", os.getpid())
    try:
        how: Literal["polite", "force"] = "force" if life.force else "polite"
        with oncelog.connect(url) as db, db.log(LOG).writer(wait_s=60, takeover=how) as writer:
            say("open")
            for step in life.resend:
                send(writer, step, life.idempotence)
            chance = random.Random(life.seed)
            for _ in range(life.steps):
                step = next_step(chance, life.first)
                send(writer, step, life.idempotence)
                life.first += step.size
        say("closed")
    except WriterFenced:
        say("fenced")
    except BaseException:  # noqa: BLE001  whatever it is, the test must hear of it
        say("error", repr(traceback.format_exc()[-2_000:]))
    finally:
        os._exit(0)


def send(writer: Writer, step: Step, idempotence: Idempotence) -> None:
    """Say what is about to be sent, send it, and say what the answers are."""
    say("send", *step)
    records = [record(number, idempotence) for number in step.numbers]
    if step.kind == "submit":
        futures = [writer.submit(each.value, id=each.id) for each in records]
        for number, future in zip(step.numbers, futures, strict=True):
            future.add_done_callback(_reporter(number))
        return
    if step.kind == "append":
        acks = [writer.append(records[0].value, id=records[0].id)]
    else:
        acks = writer.append_many(records) if step.kind == "many" else writer.append_batch(records)
    for number, ack in zip(step.numbers, acks, strict=True):
        _report(number, ack)


def _reporter(number: int) -> Callable[[Future[Ack]], None]:
    """Return what reports an answer; a writer that lost its log has none to report."""
    return lambda future: None if isinstance(future.exception(), WriterFenced) else _report(number, future.result())


def _report(number: int, ack: Ack) -> None:
    say("ack", number, ack.position, ack.segment, ack.entry, int(ack.duplicate))


# Readers.


def reader(url: str) -> None:
    """Report every entry as it becomes visible, by tailing and at times by reading, until told the last position."""
    last: list[int] = []
    threading.Thread(target=lambda: last.append(int(sys.stdin.readline() or -1)), daemon=True).start()
    with oncelog.connect(url) as db:
        log = db.log(LOG)
        with log.tail("earliest") as entries:
            position = -1
            while not last or position < last[0]:
                entry = entries.poll(POLL_S)
                if entry is None:
                    continue
                position = entry.position
                say("saw", position, number_of(entry.value), checksum(entry.value))
                if position % 100 == 0:
                    _read_again(log, position - 150)


def _read_again(log: Log, start: int) -> None:
    for entry in log.read(max(0, start)):
        say("saw", entry.position, number_of(entry.value), checksum(entry.value))


# A process that does as it is told.


class _Announcing(SystemClock):
    """A clock that tells when somebody begins to wait."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Say so once, then wait."""
        if not self.announced:
            self.announced = True
            say("waiting")
        super().wait(condition, timeout_s)

    announced = False


def puppet(url: str) -> None:
    """Take and let go of the log, and append to it, line by line as told."""
    db = Database(LocalStorage(path_of(url), clock=(clock := _Announcing())), clock)
    log = db.log(LOG)
    writer: Writer | None = None
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "hold":
            try:
                writer = log.writer(wait_s=float(rest))
                say("held")
            except LogBusy as error:
                say("busy", error.pid, str(error))
        elif word == "append":
            assert writer is not None
            say("ack", writer.append(rest.encode(), id=rest).position)
        elif word == "release":
            assert writer is not None
            writer.close()
            say("released")


# Pauses and outages.


class _CutDisk(RealDisk):
    """The machine's own disk, which fails as long as a file says so."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self._flag = flag

    def _check(self) -> None:
        if self._flag.exists():
            raise OSError(errno.EIO, "cut off")

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Write, or fail."""
        self._check()
        super().write(descriptor, chunks, offset)

    def sync(self, descriptor: int) -> None:
        """Sync, or fail."""
        self._check()
        super().sync(descriptor)

    def identity(self, path: Path) -> Identity | None:
        """Look a name up, or fail."""
        self._check()
        return super().identity(path)


def sleeper(url: str, flag: str, busy: str) -> None:
    """Append what is told, and answer where it is; when ``busy``, append other records all the time besides."""
    on_disk = url.startswith("file:")
    db = Database(LocalStorage(path_of(url), _CutDisk(Path(flag)))) if on_disk else oncelog.connect(url)
    ended = threading.Event()
    with db, db.log(LOG).writer() as writer:
        say("ready")

        def append(record_id: str) -> Ack:
            while True:
                try:
                    return writer.append(record_id.encode(), id=record_id, timeout_s=5)
                except Unavailable:
                    continue  # sent again, for as long as it takes

        def append_others() -> None:
            for number in itertools.count():
                append(f"other-{number}")
                if ended.wait(0.05):
                    return

        others = threading.Thread(target=append_others)
        if busy == "busy":
            others.start()
        for line in sys.stdin:
            ack = append(line.strip())
            say("ack", ack.position, ack.duplicate)
        ended.set()
        if others.ident is not None:
            others.join()


# Forks.


def forker(url: str) -> None:
    """Hold a log, fork while every handle is in use, and report what they do in the child and in the parent."""
    db = oncelog.connect(url)
    log = db.log(LOG)
    writer = log.writer()
    writer.append(b"before", id="before")
    reader = log.read()
    tail = log.tail("earliest")
    turn, give_turn = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(give_turn)
        say("child", os.getpid())
        _try_all(db, log, writer, {"reader": lambda: list(reader), "poll": tail.poll, "next": lambda: next(tail)})
        for handle in (tail, reader, writer, log, db):
            handle.close()
        say("child closed all")
        os.read(turn, 1)  # both have one standard input: what the parent is told is not for the child
        sys.stdin.readline()
        os._exit(0)
    sys.stdin.readline()
    say("parent", writer.append(b"after", id="after").position, len(list(log.read())))
    writer.close()
    say("parent released")
    os.write(give_turn, b"x")
    sys.stdin.readline()


def _try_all(db: Database, log: Log, writer: Writer, more: dict[str, Callable[[], object]]) -> None:
    uses: dict[str, Callable[[], object]] = {
        "database.log": lambda: db.log(LOG),
        "database.logs": db.logs,
        "log.read": log.read,
        "log.read_arrow": lambda: list(log.read_arrow()),
        "log.tail": log.tail,
        "log.info": log.info,
        "log.settings": lambda: log.settings,
        "log.writer": lambda: log.writer(wait_s=0),
        "append": lambda: writer.append(b"x", id="x"),
        "submit": lambda: writer.submit(b"x", id="x"),
        "append_many": lambda: writer.append_many([record(1, "explicit")]),
        "append_batch": lambda: writer.append_batch([record(1, "explicit")]),
        "flush": writer.flush,
        "snapshot": writer.snapshot,
        "counts": writer.counts,
        "window_state": lambda: writer.window_state,
        **more,
    }
    for name, use in uses.items():
        try:
            use()
            say("use", name, "worked")
        except OncelogError as error:
            say("use", name, type(error).__name__)


def fork_with_locks_held(url: str) -> None:
    """Fork while other threads are inside the handles' locks, and close everything in the child."""
    db = oncelog.connect(url)
    log = db.log(LOG)
    writer = log.writer()
    tail = log.tail()
    home = log._home
    assert isinstance(db._storage, LocalStorage)
    locks: list[threading.Lock | threading.Condition] = [
        db._storage._lock,
        home._bell._condition,  # type: ignore[attr-defined]
        home._reader._lock,  # type: ignore[attr-defined]
        writer._committer.lock,
    ]
    holding, done = threading.Semaphore(0), threading.Event()

    def hold(lock: threading.Lock | threading.Condition) -> None:
        with lock:
            holding.release()
            done.wait()

    for lock in locks:
        threading.Thread(target=hold, args=[lock]).start()
        holding.acquire()
    pid = os.fork()
    if pid == 0:
        say("child", os.getpid())
        _try_all(db, log, writer, {"poll": tail.poll})
        for handle in (tail, writer, log, db):
            handle.close()
        say("child closed all")
        os._exit(0)
    sys.stdin.readline()
    done.set()
    os.waitpid(pid, 0)
    db.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
