"""Seats: one writer a log, opened once, closed when idle; storage that hangs harms nobody else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.errors import IdConflict, LogBusy, NotFound, Unavailable
from oncelog.log.append import committer
from oncelog.server import budget, desk
from oncelog.server.server import Server
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.local.home import LocalHome, LocalStorage
from oncelog.types import Ack, Record
from tests.server.inside import HangingStorage, serving


def test_many_callers_share_one_writer_and_few_commits() -> None:
    """Concurrent appends are stored by far fewer commits, each once, and each caller has its own answer."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        answers = await asyncio.gather(*(seat.append([Record(b"%d" % n, id=str(n % 100))]) for n in range(200)))
        acks = [answer for [answer] in answers if isinstance(answer, Ack)]
        conflicts = [answer for [answer] in answers if isinstance(answer, IdConflict)]
        assert (len(acks), len(conflicts)) == (100, 100)
        assert sorted(ack.position or 0 for ack in acks) == list(range(100))
        assert seat.writer is not None
        assert seat.writer.counts().commits < 50
        assert server.budget.used_bytes == seat.budget.used_bytes == 0

    serving(work)


def test_a_bad_record_of_one_caller_harms_no_other() -> None:
    """What is refused is refused alone, though many records went to the writer by one call."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        asked = [seat.append([Record(b"good", id=str(n))]) for n in range(20)]
        asked.insert(7, seat.append([Record(b"bad", id="x" * 300)]))
        asked.insert(
            9, seat.append([Record(b"p", producer="p", sequence=1), Record(b"q", id="both", producer="p", sequence=2)])
        )
        answers = await asyncio.gather(*asked)
        assert all(isinstance(answer, Ack) for n, [answer, *_] in enumerate(answers) if n not in (7, 9))
        assert isinstance(answers[7][0], oncelog.InvalidArgument)
        assert isinstance(answers[9][0], Ack)
        assert isinstance(answers[9][1], oncelog.InvalidArgument)

    serving(work)


def test_storage_that_hangs_blocks_neither_the_loop_nor_another_log() -> None:
    """While one log's storage does not answer, its callers get unknown in their time, and others are served."""
    storage = HangingStorage("a")

    async def work(server: Server) -> None:
        for name in ("a", "b"):
            server.database.log(name, create=True)
        await server.seats["a"].append([Record(b"first")])
        storage.goes_on.clear()
        begun = asyncio.create_task(server.seats["a"].append([Record(b"hangs", id="h")], timeout_s=30))
        await asyncio.to_thread(storage.hanging.wait)
        queued = server.seats["a"].append([Record(b"queued", id="q")], timeout_s=0.05)
        with pytest.raises(Unavailable) as late:
            await queued
        assert late.value.outcome == "not written"
        for number in range(5):
            [ack] = await server.seats["b"].append([Record(b"%d" % number)])
            assert isinstance(ack, Ack)
        assert not begun.done()
        storage.goes_on.set()
        [ack] = await begun
        assert isinstance(ack, Ack)
        assert ack.position == 1
        [again] = await server.seats["a"].append([Record(b"hangs", id="h")])
        assert isinstance(again, Ack)
        assert again.duplicate
        assert server.budget.used_bytes == 0

    serving(work, storage)


def test_a_deadline_that_passes_while_it_is_stored_is_unknown_and_the_write_goes_on() -> None:
    """The caller learns that the outcome is unknown; the record is stored when storage answers."""
    storage = HangingStorage("a")

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        await server.seats["a"].append([Record(b"first")])
        storage.goes_on.clear()
        asked = asyncio.create_task(server.seats["a"].append([Record(b"slow", id="s")], timeout_s=1.0))
        await asyncio.to_thread(storage.hanging.wait)
        with pytest.raises(Unavailable) as late:
            await asked
        assert late.value.outcome == "unknown"
        storage.goes_on.set()
        [ack] = await server.seats["a"].append([Record(b"slow", id="s")])
        assert isinstance(ack, Ack)
        assert (ack.position, ack.duplicate) == (1, True)

    serving(work, storage)


def test_an_idle_seat_is_closed_and_opens_again() -> None:
    """A log that nobody writes is let go; the next append takes it again, and nothing is lost between."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        await seat.append([Record(b"one", id="1")])
        first = seat.generation
        while seat.writer is not None:
            await asyncio.to_thread(server.seats.tidy)
        assert server.database.log("a").info().open_segment is None
        [again, new] = await server.seats["a"].append([Record(b"one", id="1"), Record(b"two", id="2")])
        assert isinstance(again, Ack)
        assert isinstance(new, Ack)
        assert (again.duplicate, new.position) == (True, 1)
        assert server.seats["a"].generation != first or server.seats["a"] is not seat

    serving(work, seat_idle_s=0.001)


def test_the_least_used_seat_goes_when_there_are_too_many() -> None:
    """The number of open writers is bounded."""

    async def work(server: Server) -> None:
        for number in range(6):
            server.database.log(str(number), create=True)
            await server.seats[str(number)].append([Record(b"x")])
        while server.seats.open_count() > 2:
            await asyncio.to_thread(server.seats.tidy)
        assert [seat.name for seat in server.seats.all() if seat.writer is not None] == ["4", "5"]

    serving(work, seats_max=2)


def test_a_log_that_another_process_holds_is_busy_and_names_it(tmp_path: Path) -> None:
    """An embedded writer keeps its log: the server says who has it, and serves other logs."""
    held = (
        "import oncelog, sys\n"
        f"w = oncelog.connect({tmp_path.as_uri()!r}).log('held', create=True).writer()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"

        async def work(server: Server) -> None:
            with pytest.raises(LogBusy) as busy:
                await server.seats["held"].append([Record(b"x")])
            assert busy.value.pid == holder.pid
            server.database.log("free", create=True)
            [ack] = await server.seats["free"].append([Record(b"x")])
            assert isinstance(ack, Ack)

        serving(work, LocalStorage(tmp_path))
        holder.stdin.close()


def test_a_log_that_is_not_there_is_not_found() -> None:
    """Asking for a seat makes no log."""

    async def work(server: Server) -> None:
        with pytest.raises(NotFound):
            await server.seats["none"].append([Record(b"x")])
        assert server.database.logs() == []

    serving(work)


def test_without_room_appends_are_refused_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that wait for storage that hangs are bounded by the budget; what is refused is surely not written."""
    monkeypatch.setattr(budget, "WAIT_S", 0.2)
    storage = HangingStorage("a")

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        await server.seats["a"].append([Record(b"first")])
        storage.goes_on.clear()
        asked = [asyncio.create_task(server.seats["a"].append([Record(bytes(1000), id=str(n))])) for n in range(50)]
        await asyncio.to_thread(storage.hanging.wait)
        done, waiting = await asyncio.wait(asked, timeout=30, return_when=asyncio.FIRST_EXCEPTION)
        assert server.budget.used_bytes <= 10_000
        refused = [task for task in done if isinstance(task.exception(), Unavailable)]
        assert refused
        storage.goes_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        stored = [answer for answer in answers if isinstance(answer, list)]
        values = [entry.value for entry in server.database.log("a").read()]
        assert len(values) == 1 + len(stored)
        assert len(waiting) >= 1

    serving(work, storage, received_bytes_max=10_000)


def test_log_streams_and_queue_share_the_one_writer_of_a_log() -> None:
    """Each face borrows the seat's writer: a second one would be refused on a disk, and fence the first in a bucket."""

    async def work(server: Server) -> None:
        database = server.database
        streams = database.streams("shop", create=True)
        queue = database.queue("emails", create=True)
        await server.write(lambda: streams.append("s", Record(b"event", id="e")))
        await server.seats["shop"].append([Record(b"record", stream="s")])
        await server.write(lambda: streams.append("s", Record(b"event", id="f"), expected=1))
        await server.write(lambda: queue.send(b"welcome", id="1"))
        await server.seats["queue/emails/0"].append([Record(b"more")])
        await server.write(lambda: queue.send(b"again", id="2"))
        for name, records in (("shop", 3), ("queue/emails/0", 3)):
            seat = server.seats[name]
            assert seat.generation == 1
            assert seat.writer is not None
            assert seat.writer.counts().stored == records

    serving(work)


def test_a_drain_ends_though_storage_hangs() -> None:
    """A log whose storage does not answer is left to the next writer; what other logs have is stored and closed."""
    storage = HangingStorage("a")

    async def work(server: Server) -> None:
        for name in ("a", "b"):
            server.database.log(name, create=True)
            await server.seats[name].append([Record(b"first")])
        storage.goes_on.clear()
        hanging = asyncio.create_task(server.seats["a"].append([Record(b"hangs")]))
        await asyncio.to_thread(storage.hanging.wait)
        server.begin_drain()
        await server.leave_logs()
        assert server.database.log("b").info().open_segment is None
        assert server.database.log("a").info().open_segment is not None
        with pytest.raises(Unavailable):
            await server.seats.all()[-1].append([Record(b"late")])
        storage.goes_on.set()
        await asyncio.wait({hanging})

    serving(work, storage, drain_s=0.2)


def test_a_log_that_is_deleted_is_not_opened_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who wrote between the close of the seat's writer and the delete made the delete fail with LogBusy."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        await server.seats["a"].append([Record(b"first")])
        claim, came = LocalHome.claim, []

        def claimed_late(home: LocalHome, wait_s: float, *, force: bool) -> Any:
            came.append(wait_s)
            if len(came) == 1:  # the delete's own: the seat's writer is closed by now
                with pytest.raises(Unavailable, match="being deleted"):
                    server.seats["a"].warm()
            return claim(home, wait_s, force=force)

        monkeypatch.setattr(LocalHome, "claim", claimed_late)
        await server.delete_log("a")
        assert came == [0]
        with pytest.raises(NotFound):
            server.seats["a"].warm()
        server.database.log("a", create=True)
        assert [type(ack) for ack in await server.seats["a"].append([Record(b"again")])] == [Ack]

    serving(work, LocalStorage(tmp_path))


def _await_threads(count: int) -> None:
    """Return when there are no more threads than this; within minutes there must be."""
    pause, ends_s = threading.Event(), time.monotonic() + 120
    while threading.active_count() > count:
        assert time.monotonic() < ends_s, sorted(thread.name for thread in threading.enumerate())
        pause.wait(0.05)


def _await_none(name: str) -> None:
    """Return when no thread has this name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(120)
            assert not thread.is_alive()


IDLE_LOGS = [pytest.param(40, 0.3), pytest.param(2000, 20.0, marks=pytest.mark.soak)]
"""How many logs, and for how many seconds nothing may be asked of the bucket."""


@pytest.mark.parametrize("held", [False, True], ids=["let go", "held"])
@pytest.mark.parametrize(("count", "idle_s"), IDLE_LOGS)
def test_idle_logs_in_a_bucket_cost_neither_requests_nor_threads(
    count: int, idle_s: float, memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, held: bool
) -> None:
    """Each request is paid for. A log that is not written any more is let go, and then nothing is asked for it, however
    many there are. As long as logs are held, one request a second is made for all of them.
    """
    monkeypatch.setattr(desk, "IDLE_S", 0.01)
    monkeypatch.setattr(committer, "REST_S", 0.01)

    async def work(server: Server) -> None:
        before = threading.active_count()
        for number in range(count):
            await asyncio.to_thread(server.database.log, str(number), create=True)
            [ack] = await server.seats[str(number)].append([Record(b"x", id="x")])
            assert isinstance(ack, Ack)
        while not held and server.seats.open_count():
            await asyncio.to_thread(server.seats.tidy)
        await asyncio.to_thread(_await_threads, before + 30)
        await asyncio.to_thread(_await_none, "oncelog-housekeeping")
        began_s, asked = 0.0, -1
        while asked != memory_bucket.requests.total():  # what was begun comes to its end
            began_s, asked = time.monotonic(), memory_bucket.requests.total()
            await asyncio.sleep(0.1)
        await asyncio.sleep(idle_s)
        more = memory_bucket.requests.total() - asked
        assert more <= 2 + time.monotonic() - began_s  # of the server itself, whatever it holds

    serving(work, ObjectStorage(memory_bucket), seat_idle_s=600.0 if held else 0.001, seats_max=count)
