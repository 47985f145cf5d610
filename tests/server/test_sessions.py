"""Sessions, frames and answers, cell by cell, as docs/wire.md has them, against a real process."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

import oncelog
from oncelog.errors import InvalidArgument, LogBusy, Unavailable, WriterFenced
from oncelog.server.sessions import KEPT_MAX
from oncelog.wire import frames, messages
from oncelog.wire.frames import Kind, Raw
from tests.server.clients import Wire, WriteSession, record
from tests.servers import Serving


def _values(wire: Wire, log: str) -> list[bytes]:
    return [entry.record.value for part in wire.answers("Log.Read", log=log) for entry in part.entries]


def test_a_frame_is_answered_under_its_tag(wire: Wire, log: str) -> None:
    """Answers carry tag and position; the welcome says that the session is new, and what may be in flight."""
    stream = WriteSession(wire, log)
    assert not stream.welcome.resumed
    assert (stream.welcome.last_tag, stream.welcome.frames_max, stream.welcome.bytes_max) == (0, 64, 8 << 20)
    stream.send(1, record(b"a"), record(b"b", id="x"))
    stream.send(2, record(b"b", id="x"), record(b"c", id="x"))
    tag, [a, b] = stream.answer()
    assert (tag, a.position, b.position, b.duplicate) == (1, 0, 1, False)
    tag, [again, conflict] = stream.answer()
    assert (tag, again.position, again.duplicate) == (2, 1, True)
    assert isinstance(conflict, InvalidArgument)
    stream.finish()
    assert _values(wire, log) == [b"a", b"b"]


def test_a_known_tag_is_answered_and_not_executed_again(wire: Wire, log: str) -> None:
    """A frame without ids that is sent again over a new stream of the session is stored once."""
    first = WriteSession(wire, log)
    first.send(1, record(b"once"))
    _, [ack] = first.answer()
    first.cut()
    second = WriteSession(wire, log, first.session)
    assert (second.welcome.resumed, second.welcome.last_tag) == (True, 1)
    second.send(1, record(b"once"))
    assert second.answer() == (1, [ack])
    second.send(2, record(b"next"))
    assert second.answer()[0] == 2
    second.finish()
    assert _values(wire, log) == [b"once", b"next"]


@pytest.mark.parametrize("tag", [3, 9])
def test_a_tag_behind_a_gap_is_not_executed(wire: Wire, log: str, tag: int) -> None:
    """Its outcome is unknown to the server: the frame before it may have been lost."""
    stream = WriteSession(wire, log)
    stream.send(1, record(b"first"))
    stream.answer()
    stream.send(tag, record(b"far"))
    found, error = stream.answer()
    assert (found, type(error), error.outcome) == (tag, Unavailable, "unknown")
    stream.finish()
    assert _values(wire, log) == [b"first"]


def test_an_answer_that_the_client_has_is_forgotten(wire: Wire, log: str) -> None:
    """A tag below what is kept is not executed, and its outcome is unknown."""
    stream = WriteSession(wire, log)
    stream.send(1, record(b"first"))
    stream.answer()
    stream.send(2, record(b"second"), answered=1)
    stream.answer()
    stream.send(1, record(b"first"))
    tag, error = stream.answer()
    assert (tag, type(error), error.outcome) == (1, Unavailable, "unknown")
    stream.finish()
    assert _values(wire, log) == [b"first", b"second"]


def test_an_unknown_session_begins_with_tag_1(wire: Wire, log: str) -> None:
    """A session that the server does not know is not resumed, and a later tag of it is not executed."""
    stream = WriteSession(wire, log, bytes(16))
    assert not stream.welcome.resumed
    stream.send(7, record(b"lost"))
    tag, error = stream.answer()
    assert (tag, error.outcome) == (7, "unknown")
    stream.finish()
    assert _values(wire, log) == []


def test_the_newest_stream_of_a_session_has_it(wire: Wire, log: str) -> None:
    """A half-open connection must not keep a session: its stream ends when the client opens another one."""
    old = WriteSession(wire, log)
    old.send(1, record(b"first"))
    old.answer()
    new = WriteSession(wire, log, old.session)
    with pytest.raises(Unavailable):
        old.response()
    new.send(2, record(b"second"))
    assert new.answer()[0] == 2
    new.finish()


def test_parts_of_a_frame_are_decided_together(wire: Wire, log: str) -> None:
    """Nothing is decided before the last part; a cut stream leaves nothing of it."""
    stream = WriteSession(wire, log)
    stream.send(1, record(b"a"), more=True)
    stream.send(1, record(b"b"))
    tag, acks = stream.answer()
    assert (tag, [ack.position for ack in acks]) == (1, [0, 1])
    stream.send(2, record(b"half"), more=True)
    stream.cut()
    again = WriteSession(wire, log, stream.session)
    assert again.welcome.last_tag == 1
    again.send(2, record(b"whole"))
    again.answer()
    again.finish()
    assert _values(wire, log) == [b"a", b"b", b"whole"]


def test_a_client_cannot_leave_in_the_midst_of_a_frame(wire: Wire, log: str) -> None:
    """It would take the end of the stream for an answer to all that it sent. The session is kept, and resumed."""
    hello = messages.Hello(version=1, session=bytes(16), log=log, producer="loader")
    records = messages.Records(records=[record(b"half", sequence=0)]).SerializeToString()
    sent = [
        Raw(Kind.HELLO, hello.SerializeToString()),
        Raw(Kind.EACH, records, tag=1, more=True),
        Raw(Kind.LEAVE, b""),
    ]
    call = wire.talk("Log.WriteArrow", map(frames.pack, sent))
    assert frames.unpack(next(call)).kind is Kind.WELCOME
    with pytest.raises(InvalidArgument, match="frame 1"):
        _first(call)
    again = WriteSession(wire, log, bytes(16), producer="loader")
    assert (again.welcome.resumed, again.welcome.last_tag) == (True, 0)
    again.send(1, record(b"whole", sequence=0))
    again.answer()
    again.finish()
    assert _values(wire, log) == [b"whole"]


def test_a_batch_is_stored_whole_or_not_at_all(wire: Wire, log: str) -> None:
    """An atomic frame that overlaps a stored one in part is refused whole, and the stream goes on."""
    stream = WriteSession(wire, log)
    stream.send(1, record(b"a", id="a"))
    stream.send(2, record(b"a", id="a"), record(b"b", id="b"), way=1)
    stream.send(3, record(b"c", id="c"), way=1)
    stream.answer()
    tag, error = stream.answer()
    assert (tag, type(error), error.known, error.new) == (2, oncelog.PartialOverlap, ("a",), ("b",))
    assert stream.answer()[0] == 3
    stream.finish()
    assert _values(wire, log) == [b"a", b"c"]


def test_a_session_that_acknowledges_nothing_is_ended(wire: Wire, log: str) -> None:
    """Kept answers are bounded: a client that never says what it has cannot fill the server's memory."""
    stream = WriteSession(wire, log)
    for tag in range(1, KEPT_MAX + 1):
        stream.send(tag, record(b"", id=str(tag)))
        stream.response()
    stream.send(KEPT_MAX + 1, record(b""))
    with pytest.raises(InvalidArgument, match="answered"):
        stream.response()


@pytest.mark.parametrize(
    "hello", [{"version": 2}, {"session": b"short"}, {"takeover": "maybe"}], ids=["version", "session", "takeover"]
)
def test_a_bad_hello_is_refused(wire: Wire, log: str, hello: dict[str, object]) -> None:
    """Every field of a hello is checked."""
    given = messages.Hello(**{"version": 1, "session": bytes(16), "log": log, **hello})
    call = wire.talk("Log.Write", iter([messages.WriteRequest(hello=given)]))
    with pytest.raises(InvalidArgument):
        _first(call)


def _first(call: object) -> object:
    import grpc

    from tests.server.clients import error_of

    try:
        return next(call)  # type: ignore[call-overload]
    except grpc.RpcError as error:
        raise error_of(error) from None


# Producers.


def test_a_producer_belongs_to_one_session(wire: Wire, log: str) -> None:
    """Two sessions that count from the same sequence would take each other's records for duplicates."""
    first = WriteSession(wire, log, producer="importer")
    first.send(1, record(b"a", sequence=0), record(b"b", sequence=1))
    _, acks = first.answer()
    assert [ack.position for ack in acks] == [0, 1]
    with pytest.raises(LogBusy):
        WriteSession(wire, log, producer="importer")
    first.cut()
    with pytest.raises(LogBusy):  # the session lives on for a while
        WriteSession(wire, log, producer="importer")
    again = WriteSession(wire, log, first.session, producer="importer")
    assert (again.welcome.producer, again.welcome.last_sequence) == ("importer", 1)
    again.send(2, record(b"b", sequence=1), record(b"c", sequence=2))
    _, [known, new] = again.answer()
    assert (known.duplicate, new.duplicate) == (True, False)
    again.finish()
    assert _values(wire, log) == [b"a", b"b", b"c"]


def test_a_hello_waits_for_a_log_that_another_process_has(server: Serving, wire: Wire, log: str) -> None:
    """``wait_s`` is how long the server tries: a client in any language need not try again by itself."""
    with oncelog.connect(server.url) as db:
        with db.log(log).writer(), pytest.raises(LogBusy):
            WriteSession(wire, log)
        # The seat answers with its last error for a second: without waiting this would be busy, too.
        stream = WriteSession(wire, log, wait_s=100.0)
        stream.send(1, record(b"v"))
        assert [ack.position for ack in stream.answer()[1]] == [0]
        stream.finish()


def test_a_producer_can_be_taken_by_force(wire: Wire, log: str) -> None:
    """The session that had the name gets WriterFenced for its next frame, and for all behind that."""
    first = WriteSession(wire, log, producer="importer")
    first.send(1, record(b"a", sequence=0))
    first.answer()
    second = WriteSession(wire, log, producer="importer", takeover="force")
    assert second.welcome.last_sequence == 0
    for tag in (2, 3):
        first.send(tag, record(b"x", sequence=tag))
    for tag in (2, 3):
        found, error = first.answer()
        assert (found, type(error), error.outcome) == (tag, WriterFenced, "not written")
    second.send(1, record(b"b", sequence=1))
    second.answer()
    second.finish()
    assert _values(wire, log) == [b"a", b"b"]


def test_a_producer_without_a_name_is_given_one(wire: Wire, log: str) -> None:
    """The welcome has the name that was assigned."""
    stream = WriteSession(wire, log, producer="")
    assert stream.welcome.producer.startswith("producer-")
    stream.finish()


# Time.


def test_a_deadline_ends_the_wait_and_not_the_write(serve: Callable[..., Serving]) -> None:
    """A frame whose time is over while the server is paused is answered unknown or not written; sent again by its tag
    it has its true answer, and is stored at most once.
    """
    server = serve()
    with Wire(server.grpc) as wire:
        wire.call("Database.Create", name="log", kind="log", create=True)
        stream = WriteSession(wire, "log")
        server.process.send_signal(signal.SIGSTOP)
        stream.send(1, record(b"slow"), timeout_s=0.001)
        server.process.send_signal(signal.SIGCONT)
        _, answer = stream.answer()
        stream.cut()
        again = WriteSession(wire, "log", stream.session)
        again.send(1, record(b"slow"))
        _, settled = again.answer()
        stored = _values(wire, "log")
        if isinstance(settled, Unavailable):
            assert settled.outcome == "not written"
            assert stored == []
        else:
            assert stored == [b"slow"]
            assert isinstance(answer, Unavailable) or answer == settled
        again.finish()


def test_a_restarted_server_does_not_know_the_session(serve: Callable[..., Serving]) -> None:
    """After SIGKILL a session is new: what was acknowledged is there, and a later tag is not executed."""
    server = serve()
    with Wire(server.grpc) as wire:
        wire.call("Database.Create", name="log", kind="log", create=True)
        stream = WriteSession(wire, "log")
        stream.send(1, record(b"kept"))
        _, [ack] = stream.answer()
    server.kill()
    with Wire(serve().grpc) as wire:
        again = WriteSession(wire, "log", stream.session)
        assert not again.welcome.resumed
        again.send(2, record(b"later"))
        assert again.answer()[1].outcome == "unknown"
        assert _values(wire, "log") == [b"kept"]
        assert ack.position == 0
        again.finish()
