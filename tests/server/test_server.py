"""What all calls of a server share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from oncelog.errors import OncelogError, Outcome, Unavailable, WriterFenced
from oncelog.server.fleet.fleet import Fleet
from oncelog.server.server import Server
from oncelog.server.sessions import FrameAnswer
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
