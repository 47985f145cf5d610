"""Large messages: a process that takes one at a time has room for few, also when others have left many to be buried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

import oncelog
from oncelog import Message, Queue, QueueSettings, RetryPolicy, Unavailable, limits
from oncelog.limits import MIB
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.deliver.settler import ConsumerStep
from oncelog.queue.deliver.settling import SettlementRequest
from oncelog.queue.rules.delivery import MessageRun
from oncelog.queue.send.sender import Outgoing, Sender, Sent
from oncelog.queue.send.topic import Topic
from oncelog.types import Entry

COUNT = 40
LARGE = [b"%d" % number + bytes(MIB) for number in range(COUNT)]
ROOM_BYTES = 18 * MIB
AHEAD_BYTES = 26 * MIB


@pytest.fixture
def jobs() -> Iterator[Queue]:
    """Return a queue with large messages."""
    with oncelog.connect("memory://") as db:
        queue = db.queue("jobs", QueueSettings(retry=RetryPolicy(max_attempts=1)), create=True)
        for value in LARGE:
            queue.send(value)
        yield queue


@pytest.fixture
def sent_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many bytes each later call of a sender was given."""
    found: list[int] = []
    send = Sender.send

    def watched(self: Sender, outgoing: Sequence[Outgoing], *more: object) -> list[Sent]:
        found.append(sum(len(one.record.value) for one in outgoing))
        return send(self, outgoing, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Sender, "send", watched)
    return found


def test_few_large_messages_are_read_ahead(jobs: Queue) -> None:
    """Who takes one message at a time does not hold hundreds of large ones."""
    with jobs.consume("g") as consumer:
        for value in LARGE:
            [delivery] = consumer.receive()
            assert sum(len(entry.value) for entry in consumer._broker._ahead[0].entries) < AHEAD_BYTES
            assert delivery.value == value
            delivery.ack()
        assert consumer.receive() == []


def test_few_large_messages_are_read_ahead_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordered group looks at all partitions. Each has its turn, and not all of them are read at once."""
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 2_000)
    with oncelog.connect("memory://") as db:
        queue = db.queue("jobs", partitions=16, create=True)
        for number in range(100):
            queue.send(b"%d" % number + bytes(1_000), key=str(number))
        received = []
        with queue.consume("g", ordered=True) as consumer:
            while found := consumer.receive():
                ahead = consumer._broker._ahead
                assert sum(len(entry.value) for part in ahead for entry in part.entries) < 25_000
                received += [int(one.value.rstrip(b"\0")) for one in found]
                consumer.ack(found)
        assert sorted(received) == list(range(100))


def test_large_messages_are_buried_and_sent_back_a_few_at_a_time(jobs: Queue, sent_bytes: list[int]) -> None:
    """Each is among the dead letters once, and comes back once, in order."""
    with jobs.consume("g", prefetch=COUNT) as consumer:
        consumer.nack(_all(jobs), "no", retry=False)
        assert [letter.value for letter in jobs.dead_letters.list()] == LARGE
        assert jobs.stats().groups["g"].buried == COUNT
        assert jobs.dead_letters.redrive() == COUNT
        assert max(sent_bytes) < ROOM_BYTES
        assert [delivery.value for delivery in _all(jobs)] == LARGE


def test_a_part_of_a_run_that_is_buried_twice_is_one_letter_each(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state could not be told at first that the letters are there."""
    buried = Broker.buried
    failed: list[Sequence[MessageRun]] = []

    def fail_once(self: Broker, parts: Sequence[MessageRun]) -> None:
        if not failed:
            failed.append(parts)
            message = "the state is away"
            raise Unavailable(message)
        buried(self, parts)

    monkeypatch.setattr(Broker, "buried", fail_once)
    monkeypatch.setattr("oncelog.queue.deliver.dead_letters._REST_US", 0)
    with jobs.consume("g", prefetch=COUNT) as consumer:
        consumer.nack(_all(jobs), "no", retry=False)
        assert jobs.stats().groups["g"].dying == COUNT
        assert consumer.receive() == []
        assert jobs.lag("g") == 0
        assert [letter.value for letter in jobs.dead_letters.list()] == LARGE


def test_many_small_messages_of_one_run_are_all_buried() -> None:
    """More than are buried at once."""
    count = 2_500
    with oncelog.connect("memory://") as db:
        queue = db.queue("jobs", create=True)
        queue.send_many([Message(b"%d" % number) for number in range(count)])
        with queue.consume("g", prefetch=count) as consumer:
            consumer.nack(consumer.receive(), "no", retry=False)
            assert queue.lag("g") == 0
        assert [letter.value for letter in queue.dead_letters.list()] == [b"%d" % number for number in range(count)]


def test_many_messages_that_are_too_much_go_back_together(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads the whole lease: one step a message took minutes for ten thousand, and their lease ran out."""
    steps: list[tuple[str, int]] = []
    settle = Broker.settle

    def watched(self: Broker, given: Sequence[ConsumerStep]) -> list[list[int]]:
        steps.extend((step.kind, len(step.positions)) for step in given)
        return settle(self, given)

    jobs.send_many([Message(b"", key=str(number)) for number in range(60)])
    with jobs.consume("h", prefetch=100, ordered=True) as consumer:
        held = []
        while more := consumer.receive():
            held += more
        consumer._lost_of(held, SettlementRequest("returned"))
        monkeypatch.setattr(Broker, "settle", watched)
        found = consumer.receive()
        assert 0 < len(found) < 100
        assert steps == [("returned", 100 - len(found))]
        assert jobs.stats().groups["h"].delivered == len(found)


def test_messages_that_are_gone_hide_no_others(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for one message gets the next that is there, and is not told that there is none."""
    read = Topic.read

    def without_the_first(self: Topic, partition: int, first: int, *more: int) -> list[Entry]:
        return [entry for entry in read(self, partition, first, *more) if entry.position >= 5]

    with jobs.consume("g", prefetch=8) as consumer:
        held = consumer.receive()
    consumer._lost_of(held, SettlementRequest("returned"))
    monkeypatch.setattr(Topic, "read", without_the_first)
    with jobs.consume("g") as consumer:
        [delivery] = consumer.receive()
        assert (delivery.position, delivery.attempts) == (5, 1)
        assert jobs.lag("g") == COUNT - 5


def _all(queue: Queue) -> list[oncelog.Delivery]:
    """Claim all messages of the queue."""
    consumer = queue.consume("g", prefetch=COUNT)
    found = []
    while more := consumer.receive():
        found += more
    return found
