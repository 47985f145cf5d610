"""What all calls of a server share."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from oncelog.errors import OncelogError, Outcome, Unavailable, WriterFenced
from oncelog.log.log import Log
from oncelog.server.fleet.fleet import Fleet
from oncelog.server.server import READERS, WRITERS, Server
from oncelog.server.sessions import FrameAnswer
from oncelog.server.tails import ENTRIES
from oncelog.types import Record
from tests.server.inside import serving


@pytest.mark.parametrize("outcome", ["not written", "unknown"])
def test_a_log_that_was_taken_meanwhile_is_a_call_to_be_made_again(outcome: Outcome) -> None:
    """A client of a fleet cannot help that another server took the log: it asks again, and reaches that one. A stream
    append that was told ``WriterFenced`` gave up instead.
    """

    def fenced() -> None:
        message = "log 'a': another writer took it"
        raise WriterFenced(message, outcome=outcome)

    async def work(server: Server) -> None:
        with pytest.raises(Unavailable) as found:
            await server.write(fenced, "a")
        assert found.value.outcome == outcome

    serving(work)


def test_a_log_whose_storage_hangs_leaves_threads_to_read_the_others() -> None:
    """Every reader of one log may wait for its storage: who reads another log is answered."""
    goes_on = threading.Event()

    async def work(server: Server) -> None:
        for name in ("hung", "other"):
            server.database.log(name, create=True)
            await server.seats[name].append([Record(b"v")])
        open_log, hanging = server.open_log, asyncio.Event()

        def hangs(name: str) -> Log:
            if name == "hung":
                server.loop.call_soon_threadsafe(hanging.set)
                goes_on.wait()
            return open_log(name)

        server.open_log = hangs  # type: ignore[method-assign]
        reading = [asyncio.ensure_future(_first(server, "hung")) for _ in range(2 * READERS)]
        reading += [asyncio.ensure_future(_followed(server, "hung")) for _ in range(2 * READERS)]
        try:
            await hanging.wait()
            assert await _first(server, "other") == b"v"
            assert await _followed(server, "other") == b"v"
        finally:
            goes_on.set()
        assert set(await asyncio.gather(*reading)) == {b"v"}

    serving(work)


@pytest.mark.parametrize(("face", "threads"), [("read", READERS), ("write", WRITERS)])
def test_clients_that_give_up_and_try_again_get_no_more_threads(face: str, threads: int) -> None:
    """A thread that hangs stays taken when its caller is gone: retries of one log took all threads, one by one."""
    goes_on = threading.Event()

    async def work(server: Server) -> None:
        run = getattr(server, face)
        try:
            for _ in range(threads + 1):
                trying = [asyncio.ensure_future(run(goes_on.wait, "hung")) for _ in range(2)]
                assert await run(lambda: "answered", "other") == "answered"
                for one in trying:
                    one.cancel()
                await asyncio.wait(trying)
        finally:
            goes_on.set()
        assert await run(lambda: "answered", "hung") == "answered"

    serving(work)


async def _first(server: Server, name: str) -> bytes:
    """Return the first value of a log, as a client reads it."""
    async with contextlib.aclosing(server.tails.read(name, 0, ENTRIES)) as pieces:  # type: ignore[type-var]
        async for _, entries in pieces:
            return entries[0].value
    raise AssertionError(name)


async def _followed(server: Server, name: str) -> bytes:
    """Return the first value of a log, as a client that follows it gets it."""
    async with contextlib.aclosing(server.tails.follow(name, 0, ENTRIES)) as pieces:
        async for piece, entries in pieces:
            if piece is not None:
                return entries[0].value  # type: ignore[index]
    raise AssertionError(name)


def test_a_server_that_lost_its_bucket_refuses_and_cuts_its_streams() -> None:
    """The others have its logs by then. Frames without an answer are told nothing: they may be stored yet."""

    class Stream:
        def __init__(self) -> None:
            self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        def send(self, tag: int, answer: FrameAnswer) -> None:
            raise AssertionError(tag, answer)

        def end(self, error: Exception) -> None:
            self.ended.set_result(error)

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        stream = Stream()
        server.sessions.attach(bytes(16), "a", stream)
        fleet = SimpleNamespace(is_cut_off=False)
        server.fleet = cast("Fleet", fleet)
        server.check_serving()
        fleet.is_cut_off = True
        with pytest.raises(Unavailable) as found:
            server.check_serving()
        assert found.value.outcome == "not written"
        assert not isinstance(await stream.ended, OncelogError), "an error of ours would tell of the frames"
        server.fleet = None

    serving(work)
