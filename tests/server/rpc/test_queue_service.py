"""The service Queue: sent once, delivered until settled, and settlements that are sent again."""

from __future__ import annotations

import json
import os
import queue as queues
from typing import Any

import pytest

from oncelog.errors import IdConflict, NotFound
from oncelog.queue.inspect import QueueStats
from oncelog.wire import failures, messages, values
from tests.server.clients import Wire


@pytest.fixture
def emails(wire: Wire) -> str:
    """Return the name of a new queue."""
    name = f"emails-{os.urandom(8).hex()}"
    wire.call("Database.Create", name=name, kind="queue", create=True, partitions=2)
    return name


def _send(wire: Wire, queue: str, *sent: messages.Message) -> list[Any]:
    return [failures.from_result(one) for one in wire.call("Queue.Send", queue=queue, messages=sent).results]


class _Consuming:
    """One consumer's stream, request by request."""

    def __init__(self, wire: Wire, queue: str, session: bytes | None = None, **opening: Any) -> None:
        self.session = session or os.urandom(16)
        self._requests: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self.call = wire.talk("Queue.Consume", iter(self._requests.get, None))
        opened = messages.OpenConsumer(queue=queue, session=self.session, **opening)
        self._requests.put(messages.ConsumeRequest(open=opened))
        self.opened = next(self.call).opened

    def pull(self, tag: int, limit: int = 10, timeout_s: float = 60.0) -> list[Any]:
        self._requests.put(messages.ConsumeRequest(pull=messages.Pull(tag=tag, limit=limit, timeout_s=timeout_s)))
        pulled = next(self.call).pulled
        assert pulled.tag == tag
        return list(pulled.deliveries)

    def settle(self, tag: int, kind: str, *deliveries: Any, **more: Any) -> list[Any]:
        leases = [messages.Lease(token=d.token, partition=d.partition, position=d.position) for d in deliveries]
        settlement = messages.Settlement(tag=tag, kind=kind, leases=leases, **more)
        self._requests.put(messages.ConsumeRequest(settle=settlement))
        settled = next(self.call).settled
        assert settled.tag == tag
        assert not settled.HasField("error"), settled.error
        return list(settled.lost)

    def end(self) -> None:
        self._requests.put(None)
        assert list(self.call) == []


def test_a_message_is_sent_once_and_delivered_until_it_is_acknowledged(wire: Wire, emails: str) -> None:
    """A second send of an id is a duplicate; a refused delivery comes again with its reason and attempts."""
    message = messages.Message(value=b"welcome", id="user-7", retry=messages.RetryPolicy(max_attempts=5))
    [first], [again] = _send(wire, emails, message), _send(wire, emails, message)
    assert (again.position, again.duplicate) == (first.position, True)
    consumer = _Consuming(wire, emails, group="mailer")
    [delivery] = consumer.pull(1)
    assert (delivery.value, delivery.id, delivery.attempts) == (b"welcome", "user-7", 1)
    assert 0 < delivery.lease_s <= consumer.opened.ack_timeout_s
    assert consumer.settle(2, "refused", delivery, reason="no route", retry=True) == []
    [once_more] = consumer.pull(3)
    assert (once_more.attempts, once_more.last_error) == (2, "no route")
    assert consumer.settle(4, "acked", once_more) == []
    assert consumer.pull(5, timeout_s=0) == []
    consumer.end()


def test_an_ack_that_is_sent_again_has_its_first_answer(wire: Wire, emails: str) -> None:
    """Over a new stream of the session the tag is answered as before; without it the lease would be lost."""
    _send(wire, emails, messages.Message(value=b"x"))
    first = _Consuming(wire, emails)
    [delivery] = first.pull(1)
    assert first.settle(2, "acked", delivery) == []
    first.call.cancel()
    second = _Consuming(wire, emails, first.session)
    assert second.settle(2, "acked", delivery) == []
    assert [lease.position for lease in second.settle(3, "acked", delivery)] == [delivery.position]
    second.end()


def test_a_pull_is_woken_by_a_send(wire: Wire, emails: str) -> None:
    """A consumer that waits gets what is sent meanwhile."""
    consumer = _Consuming(wire, emails)
    pull = messages.Pull(tag=1, limit=1, timeout_s=60)
    consumer._requests.put(messages.ConsumeRequest(pull=pull))
    _send(wire, emails, messages.Message(value=b"late"))
    assert [one.value for one in next(consumer.call).pulled.deliveries] == [b"late"]
    consumer.end()


def test_single_calls_receive_and_settle(wire: Wire, emails: str) -> None:
    """Receive and Settle are for languages and programs without streams."""
    _send(wire, emails, *(messages.Message(value=b"%d" % n, key=str(n)) for n in range(4)))
    found = wire.call("Queue.Receive", queue=emails, limit=10, timeout_s=30).deliveries
    leases = [messages.Lease(token=d.token, partition=d.partition, position=d.position) for d in found]
    settlement = messages.Settlement(kind="acked", leases=leases)
    asked = messages.SettleRequest(queue=emails, group="default", settlement=settlement)
    assert list(wire.call("Queue.Settle", asked).lost) == []
    stats = values.from_document(wire.call("Queue.Stats", queue=emails).json, QueueStats)
    assert stats.groups["default"].acked == len(found) > 0
    assert list(wire.call("Queue.Groups", queue=emails).names) == ["default"]
    with pytest.raises(NotFound):
        wire.call("Queue.Settle", queue=emails, group="nobody", settlement=settlement)


def test_dead_letters_come_back(wire: Wire, emails: str) -> None:
    """A message that is refused for good is a dead letter, can be seen, and is delivered again when redriven."""
    _send(wire, emails, messages.Message(value=b"bad", id="1"))
    consumer = _Consuming(wire, emails)
    [delivery] = consumer.pull(1)
    consumer.settle(2, "refused", delivery, reason="broken", retry=False)
    [letter] = json.loads(wire.call("Queue.DeadLetters", queue=emails).json)
    assert letter["last_error"] == "broken"
    assert wire.call("Queue.Redrive", queue=emails, all=True).value == 1
    [back] = consumer.pull(3)
    assert (back.value, back.redriven, back.inbox_key) == (b"bad", 1, delivery.inbox_key)
    consumer.settle(4, "acked", back)
    consumer.end()


def test_an_operator_can_look_pause_and_trim(wire: Wire, emails: str) -> None:
    """A paused queue delivers nothing; status, peek, info and trim answer."""
    _send(wire, emails, messages.Message(value=b"x", id="x"))
    wire.call("Queue.Receive", queue=emails, group="other", limit=1, timeout_s=0)
    wire.call("Queue.Pause", queue=emails)
    assert not wire.call("Queue.Receive", queue=emails, limit=1, timeout_s=0).deliveries
    wire.call("Queue.Resume", queue=emails)
    assert json.loads(wire.call("Queue.Status", queue=emails, id="x").json)["status"] == "COMMITTED"
    [peeked] = json.loads(wire.call("Queue.Peek", queue=emails, group="default", limit=5).json)
    assert peeked["standing"] == "new"
    info = json.loads(wire.call("Queue.Info", queue=emails).json)
    assert (info["name"], info["partitions"]) == (emails, 2)
    assert json.loads(wire.call("Queue.Trim", queue=emails).json) == [0, 0]
    wire.call("Queue.RemoveGroup", queue=emails, group="other", force=True)
    assert "other" not in wire.call("Queue.Groups", queue=emails).names


def test_a_conflict_is_an_answer_to_its_message_alone(wire: Wire, emails: str) -> None:
    """Of several messages, one whose id is taken is refused, and the others are sent."""
    _send(wire, emails, messages.Message(value=b"a", id="1"))
    conflict, sent = _send(wire, emails, messages.Message(value=b"b", id="1"), messages.Message(value=b"c", id="2"))
    assert isinstance(conflict, IdConflict)
    assert not sent.duplicate


def test_a_stream_that_ends_gives_back_what_it_did_not_send(wire: Wire, emails: str) -> None:
    """A consumer that asks and leaves before the answer takes nothing along, and costs no attempt."""
    consumer = _Consuming(wire, emails)
    consumer._requests.put(messages.ConsumeRequest(pull=messages.Pull(tag=1, limit=1, timeout_s=60)))
    consumer.call.cancel()
    _send(wire, emails, messages.Message(value=b"x"))
    found = wire.call("Queue.Receive", queue=emails, limit=1, timeout_s=60).deliveries
    assert [one.value for one in found] == [b"x"]
