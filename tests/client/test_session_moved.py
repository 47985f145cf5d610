"""A server that loses the log: the client sends what can be recognised again, and no caller sees a fenced writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oncelog
from oncelog import OncelogError, Unavailable, WriterFenced
from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.frames_out import Gathered
from oncelog.client.session import Opening, Session
from oncelog.concurrency.pending import Pending, begun
from oncelog.testing.clock import SimulatedClock
from oncelog.types import Ack, Record
from oncelog.wire import failures, frames, messages
from oncelog.wire.failures import LogMoved
from oncelog.wire.frames import Kind, Raw
from tests.servers import Serving

LONG_S = 120.0
Answer = OncelogError | int
"""What a scripted server says to a frame: an error, or a position."""


class Scripted:
    """A connection to a server of which the test has written what it says to one frame after the other."""

    def __init__(self, channel: Channel, script: list[Callable[[], Answer]], producer: str | None) -> None:
        """Begin with the first answer of the script."""
        self.channel = channel
        self.script = script
        self.producer = producer
        self.streams = 0
        self.ids: list[list[str]] = []
        channel.talk = self.talk  # type: ignore[method-assign,assignment]

    def talk(self, _: str, requests: Iterator[bytes]) -> Any:
        """Open a stream."""
        self.streams += 1
        return _Call(self._answers(requests))

    def _answers(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        next(requests)
        welcome = messages.Welcome(
            version=messages.PROTOCOL, log_id="x", resumed=self.streams > 1, producer=self.producer
        )
        yield frames.pack(Raw(Kind.WELCOME, welcome.SerializeToString()))
        for request in requests:
            raw = frames.unpack(request)
            self.ids.append([one.id for one in messages.Records.FromString(bytes(raw.body)).records])
            said = self.script.pop(0)()
            if isinstance(said, OncelogError):
                body, kind = failures.to_message(said).SerializeToString(), Kind.ERROR
            else:
                results = messages.Results(results=[failures.result(Ack(said, 0, 0, None))])
                body, kind = results.SerializeToString(), Kind.RESULTS
            yield frames.pack(Raw(kind, body, raw.tag, raw.tag))


class _Call:
    def __init__(self, answers: Iterator[bytes]) -> None:
        self._answers = answers

    def __iter__(self) -> Iterator[bytes]:
        return self._answers

    def cancel(self) -> None:
        """Do nothing: the stream ends by itself."""


def scripted(
    clock: SimulatedClock, *script: Callable[[], Answer], producer: str | None = None
) -> tuple[Session, Scripted]:
    """Return a session with a server that follows a script."""
    channel = Channel(parse("oncelog://127.0.0.1:1", {}), clock)
    server = Scripted(channel, list(script), producer)
    session = Session(channel, Opening("orders", producer), pending_records=100, pending_bytes=1 << 20)
    return session, server


def submitted(session: Session, *, timeout_s: float, repeatable: bool = True) -> Pending[Ack]:
    """Submit a record."""
    pending: Pending[Ack] = begun()
    deadline_us = session._channel.deadline(timeout_s)
    session.submit(Gathered(Record(b"x", "id" if repeatable else None), pending, 1, deadline_us, repeatable))
    return pending


def moved(outcome: str) -> Callable[[], Answer]:
    """Return what a server says that has lost the log."""
    return lambda: LogMoved("lost", outcome=outcome)  # type: ignore[arg-type]


@pytest.mark.parametrize("producer", [None, "importer"])
@pytest.mark.parametrize("outcome", ["not written", "unknown"])
def test_what_can_be_recognised_is_sent_again(outcome: str, producer: str | None) -> None:
    """The log moved under a frame: the frame goes to the next stream, of a producer too, and is acknowledged there."""
    session, server = scripted(SimulatedClock(auto_advance=True), moved(outcome), lambda: 7, producer=producer)
    assert submitted(session, timeout_s=60).result(LONG_S).position == 7
    assert (server.streams, server.ids) == (2, [["id"], ["id"]])
    session.end(oncelog.Closed("over"))


@pytest.mark.parametrize("outcome", ["not written", "unknown"])
def test_time_that_is_over_is_unavailable_not_fenced(outcome: str) -> None:
    """The answer comes when the caller's time is over: it is not sent again, and the caller learns the outcome."""
    clock = SimulatedClock()

    def late() -> Answer:
        clock.advance(6)
        return LogMoved("lost", outcome=outcome)  # type: ignore[arg-type]

    session, server = scripted(clock, late)
    error = submitted(session, timeout_s=5).exception(LONG_S)
    assert isinstance(error, Unavailable)
    assert error.outcome == outcome
    assert server.streams == 1
    session.end(oncelog.Closed("over"))


def test_what_cannot_be_recognised_is_not_sent_again() -> None:
    """Without an id nobody could tell a second one from the first: the outcome is unknown, and that is said."""
    session, server = scripted(SimulatedClock(auto_advance=True), moved("unknown"), lambda: 7)
    error = submitted(session, timeout_s=60, repeatable=False).exception(LONG_S)
    assert isinstance(error, Unavailable)
    assert error.outcome == "unknown"
    assert len(server.ids) == 1
    session.end(oncelog.Closed("over"))


def test_a_producer_that_was_taken_is_fenced_for_good() -> None:
    """Another session has the name: this one must not count on, or it would lose records as duplicates."""
    session, server = scripted(SimulatedClock(), lambda: WriterFenced("taken"), producer="importer")
    assert isinstance(submitted(session, timeout_s=60).exception(LONG_S), WriterFenced)
    with pytest.raises(WriterFenced):
        submitted(session, timeout_s=60)
    assert server.streams == 1


@pytest.mark.parametrize("late", [False, True])
def test_what_may_be_stored_is_not_said_to_be_unwritten(monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
    """The first server may have stored the frame, and the servers after it cannot: the outcome stays unknown, whether
    the time is over between two attempts or while the last answer is on its way.
    """
    clock = SimulatedClock()

    def full() -> Answer:
        if late:
            clock.advance(6)
        else:
            monkeypatch.setattr(session, "_rest", lambda _: clock.advance(6))
        return Unavailable("the disk is full")

    session, _ = scripted(clock, moved("unknown"), full)
    error = submitted(session, timeout_s=5).exception(LONG_S)
    assert isinstance(error, Unavailable)
    assert error.outcome == "unknown"
    session.end(oncelog.Closed("over"))


def test_the_error_of_a_stream_says_nothing_of_its_frames() -> None:
    """A stream that ends with an unknown outcome, before its welcome, is opened again: the frame was never sent."""
    session, server = scripted(SimulatedClock(auto_advance=True), lambda: 7)
    talk, failing = (
        server.talk,
        [Unavailable("opening failed", outcome="unknown", retry_after_s=0), WriterFenced("lost")],
    )

    def fails_first(key: str, requests: Iterator[bytes]) -> Any:
        if failing:
            raise failing.pop()
        return talk(key, requests)

    server.channel.talk = fails_first  # type: ignore[method-assign]
    assert submitted(session, timeout_s=60).result(LONG_S).position == 7
    session.end(oncelog.Closed("over"))


def test_a_log_that_was_taken_from_a_server_is_written_on(serve: Callable[..., Serving], bucket_url: str) -> None:
    """Another process takes the log from a server by force. Writers and producers of that server go on: nothing is
    lost, nothing is twice, and nobody is told.
    """
    server = serve(bucket_url, ONCELOG_SERVE_NAME="a")
    with oncelog.connect(f"oncelog://{server.grpc}") as db, oncelog.connect(bucket_url) as other:
        log = db.log("orders", create=True)
        with log.writer() as named, log.writer(producer="importer") as counted:
            named.append(b"n0", id="0")
            counted.append(b"c0")
            with other.log("orders").writer(takeover="force") as thief:
                thief.append(b"theft", id="theft")
            appending = threading.Thread(target=lambda: named.append(b"n1", id="1", timeout_s=LONG_S))
            appending.start()
            assert not counted.append(b"c1", timeout_s=LONG_S).duplicate
            appending.join()
            assert counted.last_sequence == 1
        stored = [entry.value for entry in log.read()]
    assert stored[:3] == [b"n0", b"c0", b"theft"]
    assert sorted(stored[3:]) == [b"c1", b"n1"]
