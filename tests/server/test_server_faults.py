"""A server that is cut off, killed, paused, drained, flooded and sent garbage: 0 lost, 0 doubled, every ack true."""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import oncelog
from oncelog.errors import OncelogError, Unavailable
from oncelog.types import Ack
from oncelog.wire import failures, messages
from oncelog.wire.methods import METHODS
from tests.server.clients import Wire, WriteSession, error_of, record
from tests.server.proxy import Proxy
from tests.servers import Serving


def _create(server: Serving, *names: str) -> None:
    with Wire(server.grpc) as wire:
        for name in names:
            wire.call("Database.Create", name=name, kind="log", create=True)


def _stored(server: Serving, log: str) -> list[Any]:
    """Return the records of a log, straight from its files."""
    with oncelog.connect(server.url) as db:
        return list(db.log(log).read())


def _threads(count: int, work: Callable[[int], None]) -> None:
    """Run a function in several threads; raise what one of them raised."""
    errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001
            errors.put(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not errors.empty():
        raise errors.get()


class _Persistent:
    """A client that sends its frames by a session, over as many streams as it takes."""

    def __init__(self, address: str, log: str) -> None:
        self._address = address
        self._log = log
        self._session = os.urandom(16)
        self.answers: dict[int, Any] = {}

    def send(self, frames: dict[int, list[Any]]) -> None:
        """Return when every frame has an answer."""
        while len(self.answers) < len(frames):
            try:
                with Wire(self._address) as wire:
                    self._send(wire, frames)
            except (grpc.RpcError, OncelogError, StopIteration):
                continue

    def _send(self, wire: Wire, frames: dict[int, list[Any]]) -> None:
        stream = WriteSession(wire, self._log, self._session)
        missing = [tag for tag in frames if tag not in self.answers]
        assert stream.welcome.resumed or not self.answers, "the server forgot a session that lives"
        try:
            for tag in missing:
                stream.send(tag, *frames[tag], answered=self._answered())
            for _ in missing:
                tag, answer = stream.answer()
                self.answers[tag] = answer
        finally:
            stream.cut()

    def _answered(self) -> int:
        return next(tag - 1 for tag in range(1, len(self.answers) + 2) if tag not in self.answers)


def test_frames_survive_a_network_that_cuts_delays_and_halves(serve: Callable[..., Serving]) -> None:
    """Sessions over many broken connections: frames with and without ids are stored once, in order, acks are true."""
    server = serve()
    _create(server, "log")
    proxy = Proxy(server.grpc, seed=7, bytes_max=6_000)
    clients = [_Persistent(proxy.address, "log") for _ in range(3)]

    def work(number: int) -> None:
        frames = {
            tag: [
                record(b"%d-%d-a" % (number, tag)),
                record(b"%d-%d-b" % (number, tag), id=f"{number}-{tag}"),
            ]
            for tag in range(1, 25)
        }
        clients[number].send(frames)

    try:
        _threads(len(clients), work)
    finally:
        proxy.close()
    assert proxy.connections > 6, "the proxy cut nothing: this test tests nothing"
    assert server.stop() == 0, server.errors()
    entries = _stored(server, "log")
    at = {entry.value: entry.position for entry in entries}
    assert max(Counter(entry.value for entry in entries).values()) == 1, "a record was stored twice"
    for number, client in enumerate(clients):
        for tag, answer in client.answers.items():
            assert not isinstance(answer, OncelogError), answer
            assert [ack.position for ack in answer] == [at[b"%d-%d-%s" % (number, tag, end)] for end in (b"a", b"b")]
        order = [at[b"%d-%d-a" % (number, tag)] for tag in range(1, 25)]
        assert order == sorted(order), "a frame overtook one before it"
    assert len(entries) == 3 * 24 * 2


@pytest.mark.parametrize("harms", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_what_was_acknowledged_survives_kills_and_pauses(serve: Callable[..., Serving], harms: int) -> None:
    """A server is killed, and paused for longer than its clients wait, while they retry: each id is stored once, at the
    position that its ack has.
    """
    started = [serve()]
    _create(started[0], "log")
    address = started[0].grpc
    acks: dict[str, int] = {}
    progress = threading.Semaphore(0)

    def append(number: int) -> None:
        for count in range(harms * 12 + 5):
            id = f"{number}-{count}"
            acks[id] = _until_acked(address, id)
            progress.release()

    def harm() -> None:
        for _ in range(harms):
            _acquire(progress, 12)
            started[-1].kill()
            started.append(serve(started[-1].url, "--grpc", address))
            _acquire(progress, 12)
            started[-1].process.send_signal(signal.SIGSTOP)
            threading.Event().wait(2 * _CALL_S)
            started[-1].process.send_signal(signal.SIGCONT)

    _threads(4, lambda number: harm() if number == 3 else append(number))
    assert started[-1].stop() == 0, started[-1].errors()
    entries = _stored(started[-1], "log")
    assert {entry.id: entry.position for entry in entries} == acks
    assert len(entries) == len(acks) == 3 * (harms * 12 + 5)


_CALL_S = 0.5
"""How long a client of the test above waits for an answer."""


def _acquire(progress: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        assert progress.acquire(timeout=300), "the clients make no progress"


def _until_acked(address: str, id: str) -> int:
    while True:
        try:
            with Wire(address) as wire:
                call = wire._method("Log.Append")
                [result] = call(
                    messages.AppendRequest(log="log", records=[record(b"v", id=id)]), timeout=_CALL_S
                ).results
                answer = failures.from_result(result)
                assert isinstance(answer, Ack), answer
                assert answer.position is not None
                return answer.position
        except grpc.RpcError as error:
            known = error_of(error)
            assert not isinstance(known, OncelogError) or isinstance(known, Unavailable), known


def test_a_drain_under_load_answers_what_it_took_and_tells_every_stream(serve: Callable[..., Serving]) -> None:
    """SIGTERM while streams write and tails read: every stream is told, everything acknowledged is there, exit 0."""
    server = serve()
    _create(server, "log")
    writing = threading.Barrier(5)
    acked: dict[bytes, int] = {}
    told: list[str] = []

    def write(number: int) -> None:
        with Wire(server.grpc) as wire:
            stream = WriteSession(wire, "log")
            for tag in range(1, 33):
                stream.send(tag, record(b"%d-%d" % (number, tag)))
            writing.wait()
            _write_on(stream, number, acked, told)

    def follow(_: int) -> None:
        with Wire(server.grpc) as wire:
            tail = wire.answers("Log.Read", log="log", follow=True)
            next(tail)
            writing.wait()
            with pytest.raises(grpc.RpcError) as ended:
                list(tail)
            assert isinstance(error_of(ended.value), Unavailable)
            told.append("tail")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    threads.append(threading.Thread(target=follow, args=(0,)))
    for thread in threads:
        thread.start()
    writing.wait()
    assert server.stop() == 0, server.errors()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["tail", "writer 0", "writer 1", "writer 2"]
    entries = _stored(server, "log")
    at = {entry.value: entry.position for entry in entries}
    assert acked
    assert {value: at[value] for value in acked} == acked
    assert len(at) == len(entries)


def _write_on(stream: WriteSession, number: int, acked: dict[bytes, int], told: list[str]) -> None:
    """Send a frame for each answer, until the stream ends.

    What the client sends to a server that has ended resets the connection, and the notice may be lost with it: then
    gRPC tells the client.
    """
    tag = 32
    while (response := _next(stream)) is not None:
        if isinstance(response, OncelogError | grpc.RpcError):
            if told.count(f"writer {number}") == 0:
                told.append(f"writer {number}")
            return
        if response.WhichOneof("response") == "draining":
            told.append(f"writer {number}")
            continue
        answer = response.answer
        for result in answer.results.results:
            acked[b"%d-%d" % (number, answer.tag)] = result.ack.position
        tag += 1
        stream.send(tag, record(b"%d-%d" % (number, tag)), answered=answer.tag)


def _next(stream: WriteSession) -> Any | None:
    try:
        return stream.response()
    except StopIteration:
        return None
    except (grpc.RpcError, Unavailable) as error:
        return error


def _resident_bytes(server: Serving) -> int:
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_clients_that_send_and_never_read_take_bounded_memory(serve: Callable[..., Serving]) -> None:
    """Many streams that flood a server and read no answers: its memory stays bounded, and others are served.

    Each could leave 64 frames of 64 KiB in flight, and sends ten times as much.
    """
    server = serve(None, ONCELOG_SERVE_RECEIVED_BYTES_MAX=str(8 << 20))
    _create(server, "flood", "other")
    before = _resident_bytes(server)
    value = bytes(64 << 10)
    with Wire(server.grpc) as wire:
        streams = []
        for _ in range(25):
            stream = WriteSession(wire, "flood")
            streams.append(stream)
            for tag in range(1, 641):
                stream.send(tag, record(value))
        for number in range(20):
            with Wire(server.grpc) as other:
                [result] = other.call("Log.Append", log="other", records=[record(b"%d" % number)]).results
                assert result.ack.position == number
        grown = _resident_bytes(server) - before
        for stream in streams:
            stream.cut()
    assert grown < 400 << 20, f"{grown >> 20} MiB"
    assert server.stop() == 0, server.errors()


def test_garbage_at_the_port_harms_nobody(server: Serving, log: str, wire: Wire) -> None:
    """Bytes that are no HTTP/2, and HTTP/2 that is no gRPC, end their connection and nothing else."""
    chance = random.Random(1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    host, _, port = server.grpc.rpartition(":")
    for number in range(60):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            start = preface if number % 2 else b""
            connection.sendall(start + chance.randbytes(chance.randrange(1, 2000)))
            connection.shutdown(socket.SHUT_WR)
    [result] = wire.call("Log.Append", log=log, records=[record(b"x")]).results
    assert result.ack.position == 0


_FINE = {
    grpc.StatusCode.PERMISSION_DENIED,  # what only servers of a fleet may call
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OK,
}


@pytest.mark.parametrize("key", sorted(METHODS))
def test_mutated_messages_are_refused_by_name(wire: Wire, log: str, key: str) -> None:
    """Bytes that are no message, or a message that makes no sense, are never a traceback or an unknown error."""
    method = METHODS[key]
    chance = random.Random(key)
    kind = {
        (False, False): wire.channel.unary_unary,
        (False, True): wire.channel.unary_stream,
        (True, False): wire.channel.stream_unary,
        (True, True): wire.channel.stream_stream,
    }[method.client_streams, method.server_streams]
    made = kind(method.path)

    def call(*given: Any, **limits: Any) -> Any:
        return made(*given, **limits) if method.server_streams else made.future(*given, **limits)

    for number in range(12):
        data = _mutated(chance, log, number)
        error = _failure(call(iter([data]) if method.client_streams else data, timeout=120), method.server_streams)
        if error is not None and error.code() is not grpc.StatusCode.CANCELLED:
            assert error.code() in _FINE, (error.code(), error.details(), data)
            assert "Traceback" not in error.details()
            assert isinstance(error_of(error), OncelogError)


def _failure(call: Any, is_stream: bool) -> Any | None:  # noqa: FBT001
    """Return how a call failed, if it did; a stream that has no end is left after a few answers."""
    try:
        if not is_stream:
            call.result()
        else:
            for count, _ in enumerate(call):
                if count > 3:
                    call.cancel()
    except grpc.RpcError as error:
        return error
    return None


def _mutated(chance: random.Random, log: str, number: int) -> bytes:
    if number % 3 == 0:
        return chance.randbytes(chance.randrange(64))
    sound = messages.ReadRequest(log=log, start=messages.Start(position=chance.randrange(5))).SerializeToString()
    if number % 3 == 1:
        at = chance.randrange(len(sound))
        return bytes(sound[:at] + chance.randbytes(1) + sound[at + 1 :])
    return bytes(sound[: chance.randrange(len(sound))])
