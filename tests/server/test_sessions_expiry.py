"""How long a session, its answers and its producer's name are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from oncelog.errors import LogBusy, Unavailable
from oncelog.server.desk import Lane
from oncelog.server.server import WRITERS, Server
from oncelog.server.sessions import FrameAnswer
from oncelog.types import Record
from tests.server.clients import WAIT_S
from tests.server.inside import serving


class _Stream:
    """A stream that notes what it is told."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.ended: Exception | None = None

    def send(self, tag: int, answer: FrameAnswer) -> None:  # noqa: ARG002
        self.sent.append(tag)

    def end(self, error: Exception) -> None:
        self.ended = error


def test_a_session_is_kept_for_a_while_after_its_stream_and_its_producer_as_long() -> None:
    """Before the time is over the session is resumed, and its producer's name is taken; then both are free."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat, stream = server.seats["a"], _Stream()
        await seat.append([Record(b"x")])
        assert seat.writer is not None
        session, resumed = server.sessions.attach(bytes(16), "a", stream)
        assert not resumed
        session.lane = Lane(seat.generation)
        session.lane.producer = seat.writer.as_producer("importer")
        server.sessions.detach(session, stream)
        kept_us = int(server.settings.session_s * 1e6)
        server.sessions.tidy(session.ended_us + kept_us - 1)
        again, resumed = server.sessions.attach(bytes(16), "a", stream)
        assert (again is session, resumed) == (True, True)
        with pytest.raises(LogBusy):
            seat.writer.as_producer("importer")
        server.sessions.tidy(session.ended_us + 2 * kept_us)  # a stream is open: nothing is forgotten
        server.sessions.detach(session, stream)
        session.receive(1)
        server.sessions.tidy(session.ended_us + 2 * kept_us)  # a frame is being decided: nothing is forgotten
        assert len(server.sessions) == 1
        session.settle(1, FrameAnswer.of_error(Unavailable("x")))
        server.sessions.tidy(session.ended_us + kept_us)
        assert len(server.sessions) == 0
        del session, again
        await server.writers.run(lambda: None)
        seat.writer.as_producer("importer").close()

    serving(work)


class _Closing:
    """A producer that notes when it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def _leaving(server: Server) -> tuple[Coroutine[Any, Any, None], _Closing]:
    """Return a client on its way out, and its producer."""
    stream, producer = _Stream(), _Closing()
    session, _ = server.sessions.attach(bytes(16), "a", stream)
    session.lane = Lane(1)
    session.lane.producer = producer  # type: ignore[assignment]
    return server.sessions.leave(bytes(16), "a", stream), producer


def test_the_producer_of_a_client_that_leaves_is_closed_though_the_server_drains() -> None:
    """A server that drains takes no calls. The session is forgotten by then: nobody else would close the producer."""

    async def work(server: Server) -> None:
        leaving, producer = _leaving(server)
        server.begin_drain()
        await leaving
        assert len(server.sessions) == 0
        assert await asyncio.to_thread(producer.closed.wait, WAIT_S)

    serving(work)


def test_the_producer_of_a_client_that_leaves_is_closed_though_its_call_is_cancelled() -> None:
    """The call waits for a thread when the connection goes: it is taken back, and the producer is closed later."""

    async def work(server: Server) -> None:
        goes_on = threading.Event()
        for _ in range(WRITERS):
            server.writers.post(goes_on.wait)
        leaving, producer = _leaving(server)
        call = asyncio.ensure_future(leaving)
        await asyncio.sleep(0)
        assert len(server.sessions) == 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not producer.closed.is_set()
        goes_on.set()
        assert await asyncio.to_thread(producer.closed.wait, WAIT_S)

    serving(work)


def test_sessions_are_bounded_and_a_new_one_waits_for_room() -> None:
    """Sessions whose time is over make room; while none is, a new one is refused and nothing was written."""

    async def work(server: Server) -> None:
        stream = _Stream()
        session, _ = server.sessions.attach(bytes(16), "a", stream)
        with pytest.raises(Unavailable) as refused:
            server.sessions.attach(bytes(15) + b"1", "a", _Stream())
        assert refused.value.outcome == "not written"
        server.sessions.detach(session, stream)
        session.ended_us -= int(server.settings.session_s * 1e6)
        server.sessions.attach(bytes(15) + b"1", "a", _Stream())
        assert len(server.sessions) == 1

    serving(work, sessions_max=1)


def test_the_stream_that_had_a_session_is_ended_by_the_next_one() -> None:
    """Answers go to the newest stream alone."""

    async def work(server: Server) -> None:
        old, new = _Stream(), _Stream()
        session, _ = server.sessions.attach(bytes(16), "a", old)
        session.receive(1)
        server.sessions.attach(bytes(16), "a", new)
        assert isinstance(old.ended, Unavailable)
        server.sessions.detach(session, old)
        session.settle(1, FrameAnswer.of_error(Unavailable("x")))
        assert (old.sent, new.sent) == ([], [1])

    serving(work)
