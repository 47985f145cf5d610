"""Tails and subscriptions of one connection: one stream and one thread for all, and nothing skipped or twice."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import oncelog
from oncelog import CorruptionError, NotFound, OncelogError, Record, Unavailable
from oncelog.client import following
from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.following import Follower, SharedTails
from oncelog.connect import Database
from oncelog.wire import failures, frames, messages, values
from oncelog.wire.frames import FOLLOW_BYTES, Kind, Raw
from oncelog.wire.methods import METHODS
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 120.0


def _threads() -> set[threading.Thread]:
    """Return the threads of this process that take what comes for tails, of whatever connection."""
    return {thread for thread in threading.enumerate() if thread.name == "oncelog-following"}


def _streams(database: Database) -> list[SharedTails]:
    """Return the streams of a connection on which tails are."""
    tails: list[SharedTails] = database._channel.tails  # type: ignore[attr-defined]
    return tails


def test_the_number_of_threads_does_not_grow_with_tails(remote: Database) -> None:
    """Sixty tails and subscriptions of two logs take one thread, and one stream."""
    before = _threads()
    streams = [remote.streams(name, create=True) for name in ("orders", "bills")]
    for one in streams:
        one.append("s", [Record(b"first", type="t")])
    logs = [remote.log(one.name) for one in streams]
    tails = [log.tail("earliest") for log in logs]
    assert [tail.poll(LONG_S) is not None for tail in tails] == [True] * 2
    subscriptions = [one.subscribe("s") for one in streams for _ in range(10)]
    tails += [log.tail("earliest") for log in logs for _ in range(20)]
    found = [*(tail.poll(LONG_S) for tail in tails[2:]), *(one.poll(LONG_S) for one in subscriptions)]
    assert [getattr(one, "value", None) for one in found] == [b"first"] * 60
    [stream] = _streams(remote)
    assert _threads() - before == {stream._thread}
    for tail in (*tails, *subscriptions):
        tail.close()


@pytest.mark.soak
def test_tails_of_hundreds_of_logs_share_the_threads(remote: Database) -> None:
    """Every one has what is appended to its log, before and after it was idle, and few threads wait for all."""
    logs = [remote.log(f"log-{n}", create=True) for n in range(200)]
    before = _threads()
    tails = [log.tail("earliest") for log in logs]
    for value in (b"first", b"second"):
        for log in logs:
            with log.writer() as writer:
                writer.append(value)
        assert [getattr(tail.poll(LONG_S), "value", None) for tail in tails] == [value] * 200
        assert _threads() - before == {stream._thread for stream in _streams(remote)}
        assert len(_streams(remote)) == math.ceil(200 / frames.FOLLOWERS_MAX)
    for tail in tails:
        tail.close()


def test_the_thread_ends_with_the_last_tail_and_begins_again_with_the_next(remote: Database) -> None:
    """No tail, no thread; a tail that comes later is served like the first."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"first")
    for _ in range(3):
        with log.tail("earliest") as tail:
            assert getattr(tail.poll(LONG_S), "value", None) == b"first"
            [stream] = _streams(remote)
            thread = stream._thread
        assert thread is not None
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_tails_beyond_the_room_of_a_stream_get_another(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server bounds what one stream may follow."""
    monkeypatch.setattr(following, "FOLLOWERS_MAX", 2)
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"first")
    tails = [log.tail("earliest") for _ in range(5)]
    assert [getattr(tail.poll(LONG_S), "value", None) for tail in tails] == [b"first"] * 5
    threads = {stream._thread for stream in _streams(remote)}
    assert len(threads) == 3
    assert threads <= _threads()
    for tail in tails:
        tail.close()


def test_a_tail_that_is_not_read_is_sent_no_more_and_holds_up_no_other(remote: Database) -> None:
    """What waits for it in this process is bounded. Later it goes on where it was, and skips nothing."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        for _ in range(12):
            writer.append(bytes(1 << 20))
        slow, quick = log.tail("earliest"), log.tail("earliest")
        assert slow.poll(LONG_S) is not None
        assert [quick.poll(LONG_S).position for _ in range(12)] == list(range(12))  # type: ignore[union-attr]
        writer.append(b"last")
        assert getattr(quick.poll(LONG_S), "value", None) == b"last"
        follower = slow._follower  # type: ignore[attr-defined]
        assert follower.ready_bytes <= FOLLOW_BYTES + (2 << 20)
        assert [slow.poll(LONG_S).position for _ in range(12)] == list(range(1, 13))  # type: ignore[union-attr]
    for tail in (slow, quick):
        tail.close()


def test_a_log_that_is_deleted_ends_its_tails_alone(remote: Database) -> None:
    """The other tails of the stream go on."""
    gone, stays = (remote.log(name, create=True) for name in ("gone", "stays"))
    for log in (gone, stays):
        with log.writer() as writer:
            writer.append(b"first")
    ending, going_on = gone.tail("earliest"), stays.tail("earliest")
    for tail in (ending, going_on):
        assert tail.poll(LONG_S) is not None
    remote.delete("gone")
    with pytest.raises(NotFound):
        ending.poll(LONG_S)
    with stays.writer() as writer:
        writer.append(b"second")
    assert getattr(going_on.poll(LONG_S), "value", None) == b"second"
    for tail in (ending, going_on):
        tail.close()


def test_tails_go_on_behind_their_last_record_however_often_connections_break(shared_server: Serving) -> None:
    """Each tail of a connection that is cut again and again has every record once, in order."""
    with oncelog.connect(f"oncelog://{shared_server.grpc}") as direct:
        log = direct.log("cut", create=True)
        with log.writer() as writer:
            for n in range(40):
                writer.append(b"%04d" % n + bytes(400))
        proxy = Proxy(shared_server.grpc, seed=3, bytes_max=60_000)
        with oncelog.connect(f"oncelog://{proxy.address}") as db:
            tails = [db.log("cut").tail("earliest") for _ in range(6)]
            for n in range(40):
                if n == 20:
                    proxy.restore()  # cuts what is open
                found = [tail.poll(LONG_S) for tail in tails]
                assert [entry.value[:4] for entry in found if entry is not None] == [b"%04d" % n] * 6
        assert proxy.connections > 1
        proxy.close()
        direct.delete("cut")


# A server that says what it likes.


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[Raw, int], list[bytes]]], Channel]]:
    """Yield what makes a channel to a server that answers each request as a function says."""
    made: list[Any] = []

    def serve(answer: Callable[[Raw, int], list[bytes]], servers: int = 1) -> Channel:
        streams = [0]

        def follow(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
            streams[0] += 1
            for request in requests:
                yield from answer(frames.unpack(request), streams[0])

        service, method = METHODS["Log.Follow"].path.strip("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(follow)
        ports = []
        for _ in range(servers):
            server = grpc.server(futures.ThreadPoolExecutor(2))
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            server.start()
            made.append(lambda server=server: server.stop(0).wait())
        channel = Channel(parse("oncelog://" + ",".join(f"127.0.0.1:{port}" for port in ports), {}))
        made.insert(0, channel.close)
        return channel

    yield serve
    for end in made:
        end()


def _error(number: int, error: OncelogError) -> bytes:
    return frames.pack(Raw(Kind.ERROR, failures.to_message(error).SerializeToString(), number))


def _follower(channel: Channel) -> Follower[bytes]:
    return Follower(channel, Kind.FOLLOW, messages.ReadRequest, lambda body: [body])


def test_a_tail_that_cannot_be_served_now_is_asked_for_again(scripted: Any) -> None:
    """An error that passes does not end a tail; one that stays does, and no other tail of the stream."""
    asked: list[int] = []

    def answer(raw: Raw, _: int) -> list[bytes]:
        if raw.kind is not Kind.FOLLOW:
            return []
        asked.append(raw.tag)
        if len(asked) < 3:
            return [_error(raw.tag, Unavailable("not now"))]
        if raw.tag == 1:
            return [frames.pack(Raw(Kind.ENTRIES, b"came", raw.tag))]
        return [_error(raw.tag, NotFound("gone"))]

    channel = scripted(answer)
    first, second = _follower(channel), _follower(channel)
    assert first.next(LONG_S) == [b"came"]
    with pytest.raises(NotFound):
        second.next(LONG_S)
    assert asked == [1, 1, 1, 2]
    first.close()


def test_a_tail_that_no_server_can_serve_holds_up_no_other(scripted: Any) -> None:
    """Of several servers none has the log of one tail: the stream of all is opened anew now and then, not each time."""
    refusing: list[int] = []

    def answer(raw: Raw, stream: int) -> list[bytes]:
        if raw.kind is not Kind.FOLLOW:
            return []
        if raw.tag == 1:
            return [frames.pack(Raw(Kind.ENTRIES, b"came", raw.tag))]
        refusing.append(stream)
        return [_error(raw.tag, Unavailable("not now"))]

    channel = scripted(answer, servers=2)
    served, refused = _follower(channel), _follower(channel)
    assert served.next(LONG_S) == [b"came"]
    assert refused.next(0.0) == []
    while len(refusing) < 5:
        served.next(0.01)
    assert refusing[:5] == [1, 1, 1, 1, 2]
    for follower in (served, refused):
        follower.close()


def test_an_error_of_what_one_tail_was_sent_ends_that_tail_alone(scripted: Any) -> None:
    """The others go on, on the same stream."""

    def refuse(_: bytes) -> list[bytes]:
        message = "a value that is none"
        raise CorruptionError(message)

    channel = scripted(
        lambda raw, stream: [frames.pack(Raw(Kind.ENTRIES, b"%d" % stream, raw.tag))] if raw.kind is Kind.FOLLOW else []
    )
    bad = Follower(channel, Kind.FOLLOW, messages.ReadRequest, refuse)
    with pytest.raises(CorruptionError):
        bad.next(LONG_S)
    good = _follower(channel)
    assert good.next(LONG_S) is not None
    good.close()


def test_a_connection_that_was_closed_is_not_kept(scripted: Any) -> None:
    """A program that connects again and again keeps nothing of the connections before, also if they had tails."""
    came = frames.pack(Raw(Kind.ENTRIES, b"came", 1))
    channel = scripted(lambda raw, _: [came] if raw.kind is Kind.FOLLOW else [])
    follower = _follower(channel)
    assert follower.next(LONG_S) == [b"came"]
    [shared] = channel.tails
    thread = shared._thread
    follower.close()
    thread.join(LONG_S)
    del follower
    assert not [one for one in gc.get_referrers(shared) if one is not channel.tails and isinstance(one, list | dict)]


def test_a_message_that_cannot_be_decoded_is_not_passed_over(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail asks for the records of such a message again: it skips none of them."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"0"), Record(b"1")])
    entry, failures_left = values.entry, [1]

    def decoded(found: Any) -> Any:
        if failures_left:
            failures_left.pop()
            raise OverflowError
        return entry(found)

    monkeypatch.setattr(values, "entry", decoded)
    with log.tail("earliest") as tail:
        assert [getattr(tail.poll(LONG_S), "value", None) for _ in range(2)] == [b"0", b"1"]


def test_bytes_that_are_no_answer_end_the_stream_and_the_next_one_goes_on(scripted: Any) -> None:
    """A message that cannot be read was not taken: it is asked for again."""

    def answer(raw: Raw, stream: int) -> list[bytes]:
        if raw.kind is not Kind.FOLLOW:
            return []
        return [b"?" if stream == 1 else frames.pack(Raw(Kind.ENTRIES, b"came", raw.tag))]

    follower = _follower(scripted(answer))
    assert follower.next(LONG_S) == [b"came"]
    follower.close()


def test_a_closed_connection_ends_tails(scripted: Any) -> None:
    """A thread that waits for more returns with the error, and not at the end of its time."""
    came = frames.pack(Raw(Kind.ENTRIES, b"came", 1))
    channel = scripted(lambda raw, _: [came] if raw.kind is Kind.FOLLOW else [])
    follower = _follower(channel)
    assert follower.next(LONG_S) == [b"came"]
    channel.close()
    with pytest.raises(oncelog.Closed):
        follower.next(LONG_S)


def test_messages_that_cannot_be_taken_do_not_use_up_the_room_of_a_tail(scripted: Any) -> None:
    """A tail whose messages cannot be read asks again; its room is as large as before, however often that happens."""
    wrong = [ValueError("no entries")] * 3

    def take(body: bytes) -> list[bytes]:
        if wrong:
            raise wrong.pop()
        return [body]

    came = frames.pack(Raw(Kind.ENTRIES, b"came", 1))
    channel = scripted(lambda raw, _: [came] if raw.kind is Kind.FOLLOW else [])
    follower = Follower(channel, Kind.FOLLOW, messages.ReadRequest, take)
    assert follower.next(LONG_S) == [b"came"]
    assert follower.ready_bytes == 0
    follower.close()
