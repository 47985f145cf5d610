"""What a queue and its log tell through a server: groups that are removed, and files that are elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest

import oncelog
from oncelog import (
    AppendErrors,
    Closed,
    InvalidArgument,
    LogBusy,
    LogSettings,
    NotFound,
    Record,
    Unavailable,
    Unsupported,
    limits,
)
from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.queue import SEND_MESSAGES, MadeQueue, RemoteQueue
from oncelog.connect import Database
from oncelog.limits import MIB, SEGMENT_BYTES_MIN
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.sender import Sent
from tests.server.proxy import Proxy
from tests.servers import Serving


def test_a_group_is_removed_through_the_server(remote: Database) -> None:
    """A misspelt group keeps every message for ever; one that is in use is kept, unless that is forced."""
    queue = remote.queue("emails", create=True)
    queue.send(b"x", id="1")
    with queue.consume("mailr") as deliveries:
        assert deliveries.receive()
        with pytest.raises(LogBusy):
            queue.remove_group("mailr")
        assert queue.groups() == ["mailr"]
        queue.remove_group("mailr", force=True)
        with pytest.raises(Closed):
            deliveries.receive()
    assert queue.groups() == []
    with pytest.raises(NotFound, match="mailr"):
        queue.remove_group("mailr")
    with queue.consume("mailr") as deliveries:
        assert [one.attempts for one in deliveries.receive()] == [1], "another group of that name begins anew"


def test_large_messages_and_dead_letters_are_shown_in_several_answers(remote: Database) -> None:
    """One answer with all of them would be larger than a client takes: nobody could look at them, or prune by them."""
    values = [b"%d" % number + bytes(4 * MIB) for number in range(15)]
    queue = remote.queue("emails", create=True)
    for value in values:
        queue.send(value)
    with queue.consume("mailer") as deliveries:
        peeked = [one.value for one in queue.peek("mailer", limit=15)]
        assert peeked == values[: len(peeked)] != []
        for _ in values:
            deliveries.receive(timeout_s=60)[0].nack("no", retry=False)
    assert [letter.value for letter in queue.dead_letters.list()] == values
    assert [letter.value for letter in queue.dead_letters.list(limit=5)] == values[:5]
    queue.dead_letters.discard([0, 3])
    assert [letter.position for letter in queue.dead_letters.list()] == [1, 2, *range(4, 15)]
    assert queue.dead_letters.list(limit=0) == []


def test_files_on_the_servers_disk_are_not_local(remote: Database) -> None:
    """A path that only the server can open is said to be one: DuckDB here would not find it, or find another."""
    log = remote.log("orders", LogSettings(segment_bytes=SEGMENT_BYTES_MIN), create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"%0100000d" % number) for number in range(3)])
        writer.append(b"in the next segment")
    log.seal()
    assert log.files()
    assert not any(file.local for file in log.files())


def test_what_needs_the_disk_says_so(remote: Database) -> None:
    """A copy moves the log's secret: it is made where the database is."""
    remote.log("orders", create=True)
    with oncelog.connect("memory://") as other, pytest.raises(Unsupported):
        remote.copy("orders", other)


def test_messages_that_were_sent_keep_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later part of a large send that fails is an error of its own messages: those before it are in the queue."""
    channel = Channel(parse("oncelog://127.0.0.1:1", {}))
    queue = RemoteQueue(channel, MadeQueue("q", 1, QueueSettings()), oncelog.connect("memory://").log)
    sent = [Sent(0, n, None) for n in range(SEND_MESSAGES)]
    away = Unavailable("away")

    def sends(run: Sequence[Message], *_: object) -> Sequence[Sent]:
        if len(run) == 1:
            raise away
        return sent

    monkeypatch.setattr(queue, "_sent_run", sends)
    with pytest.raises(AppendErrors) as raised:
        queue.send_many([Message(b"x")] * (SEND_MESSAGES + 1))
    assert raised.value.results == (*sent, away)


def test_the_time_of_a_large_send_is_that_of_the_call(serve: Callable[..., Serving]) -> None:
    """A server does not answer. When the time of ``send_many`` is over, what was not sent yet is not sent any more, and
    the errors tell the two apart.
    """
    server = serve()
    proxy = Proxy(server.grpc, seed=0, bytes_max=1 << 30)
    with contextlib.closing(proxy), oncelog.connect(f"oncelog://{proxy.address}") as there:
        queue = there.queue("emails", create=True)
        proxy.hold_answers()
        with pytest.raises(AppendErrors, match="5000 of 5000 messages failed") as raised:
            queue.send_many([Message(b"x", id=str(number)) for number in range(5000)], timeout_s=1.0)
        outcomes = [error.outcome for error in raised.value.results if isinstance(error, Unavailable)]
        assert set(outcomes[:SEND_MESSAGES]) == {"unknown"}
        assert (len(outcomes), outcomes[-1]) == (5000, "not written")
        proxy.answer()
    with oncelog.connect(f"oncelog://{server.grpc}") as here:
        assert here.log("queue/emails/0").end_position() < 5000


def test_large_messages_are_delivered_and_shown_in_answers_that_fit(remote: Database) -> None:
    """Many of them at once were more than a message of gRPC may be: the consumer failed, and they died unseen."""
    queue = remote.queue("emails", create=True)
    values = [bytes([number]) * (4 * limits.MIB) for number in range(20)]
    queue.send_many([Message(value) for value in values])
    with queue.consume("mailer", prefetch=20) as consumer:
        assert 0 < len(queue.peek("mailer", limit=20)) < 20
        received: list[bytes] = []
        while found := consumer.receive():
            received += [one.value for one in found]
            assert {one.attempts for one in found} == {1}
            consumer.nack(found, "no", retry=False)
    assert sorted(received) == values
    assert sorted(one.value for one in queue.dead_letters.list()) == values
    assert [one.value for one in queue.dead_letters.list(limit=7)] == received[:7]


def test_messages_that_no_server_takes_are_refused_before_any_is_sent(remote: Database) -> None:
    """Else gRPC refuses them, in words of its own, after others of the same call were sent."""
    queue = remote.queue("emails", create=True)
    large = Message(b"x" * (5 * limits.MIB))
    with pytest.raises(InvalidArgument, match="5 MiB"):
        queue.send_many([Message(b"small"), large])
    assert queue.stats().ends == [0]
    with pytest.raises(InvalidArgument, match="5 MiB"):
        queue.submit(large.value).result()
    with pytest.raises(InvalidArgument, match="5 MiB"):
        remote.streams("carts", create=True).append("cart", [Record(large.value)])


def test_messages_with_large_headers_are_sent_in_several_calls(remote: Database) -> None:
    """Their values alone are no measure: together they were more than a server takes, and all of them were refused."""
    queue = remote.queue("emails", create=True)
    headers = {"trace": b"x" * (50 * limits.KIB)}
    assert len(queue.send_many([Message(b"", headers=headers)] * 200)) == 200
