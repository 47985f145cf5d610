"""Connections: streams have room, however many there are, and give it back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

import oncelog
from oncelog import OncelogError, QueueSettings, Unavailable, WriterFenced
from oncelog.client import channel as channel_module
from oncelog.client.address import parse
from oncelog.connect import Database
from tests.server.proxy import Proxy
from tests.servers import Serving


def test_streams_beyond_a_connections_room_get_another(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that a connection has no room for would wait for ever: writers do not end by themselves."""
    monkeypatch.setattr(channel_module, "STREAMS_MAX", 2)
    log = remote.log("orders", create=True)
    channel = remote._channel  # type: ignore[attr-defined]
    writers = [log.writer() for _ in range(6)]
    assert [writer.append(b"same", id="same").duplicate for writer in writers] == [False] + [True] * 5
    assert channel._streams == [2, 2, 2], "a session for each writer"
    for writer in writers:
        writer.close()
    pause = threading.Event()
    while sum(channel._streams):  # a thread of gRPC's gives the room of a stream back, some time after its end
        pause.wait(0.01)
    for _ in range(3):  # calls that end give their room back: no connection is added for the next ones
        assert [entry.value for entry in log.read()] == [b"same"]
    assert len(channel._streams) == 3


def test_a_call_goes_on_after_its_server_lost_the_log() -> None:
    """What may be done again is: the server takes the log again. Out of time, the error says what is known."""
    channel = channel_module.Channel(parse("oncelog://127.0.0.1:1", {}))
    errors: list[OncelogError] = [WriterFenced("lost", outcome="unknown"), WriterFenced("lost", outcome="not written")]

    def call(_: float | None) -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert channel.again(call, 60.0, write=True) == "done"
    errors += [WriterFenced("lost", outcome="not written")]
    with pytest.raises(Unavailable) as lost:
        channel.again(call, 0.0, write=True)
    assert lost.value.outcome == "not written"
    errors += [WriterFenced("lost", outcome="unknown")]
    with pytest.raises(Unavailable) as unknown:
        channel.again(call, 0.0, write=True)
    assert unknown.value.outcome == "unknown"
    channel.close()


def test_a_change_without_an_answer_is_unknown(serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does what it is asked to, and the answer is lost: the error does not say that nothing was done. A
    question changes nothing.
    """
    server = serve()
    proxy = Proxy(server.grpc, seed=0, bytes_max=1 << 30)
    with contextlib.closing(proxy), oncelog.connect(f"oncelog://{proxy.address}") as there:
        log, queue = there.log("orders", create=True), there.queue("emails", create=True)
        monkeypatch.setattr(channel_module, "TIMEOUT_S", 0.2)
        changes: list[Callable[[], object]] = [
            lambda: there.log("others", create=True),
            lambda: there.delete("orders"),
            lambda: log.configure(oncelog.LogSettings()),
            lambda: log.truncate(0),
            lambda: queue.configure(QueueSettings()),
            queue.pause,
            queue.resume,
            queue.trim,
            queue.dead_letters.redrive,
            lambda: there.delete_queue("emails"),
        ]
        proxy.hold_answers()
        for change in changes:
            with pytest.raises(Unavailable) as lost:
                change()
            assert lost.value.outcome == "unknown"
        for question in (there.logs, log.info, queue.stats, lambda: there.log("orders")):
            with pytest.raises(Unavailable) as unanswered:
                question()
            assert unanswered.value.outcome == "not written"
        proxy.answer()
