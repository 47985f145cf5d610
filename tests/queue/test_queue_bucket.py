"""A queue whose messages are in a bucket and whose state is in PostgreSQL: brokers on several machines share it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog import InvalidArgument, LeaseLost, Message, QueueSettings, RetryPolicy
from oncelog.connect import Database
from oncelog.log.read import reader
from oncelog.log.takeover import handover
from oncelog.queue.deliver import broker
from oncelog.storage import looks
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.clock import SimulatedClock

NO_REST = QueueSettings(retry=RetryPolicy(max_attempts=2, backoff_s=0, max_backoff_s=0))


@pytest.fixture(params=["memory", pytest.param("seaweedfs", marks=pytest.mark.soak)])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Yield a bucket in memory, as the client itself has it, or one on a real server."""
    monkeypatch.setattr(handover, "TENURE_S", 0.01)
    monkeypatch.setattr(handover, "LOOK_S", 0.01)
    if request.param == "memory":
        yield Bucket(MemoryStore(), "s3://memory")
        return
    server = SeaweedFS(tmp_path)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield Bucket.connect(f"s3://{BUCKET}/queue", {})
    server.end()


def test_two_brokers_share_a_queue_in_a_bucket(bucket: Bucket, postgres_state: str) -> None:
    """Sent by both, each is there once, and delivered to one of them; what died is sent back; all can be deleted."""
    with Database(ObjectStorage(bucket)) as one, Database(ObjectStorage(bucket)) as two:
        here = one.queue("work", NO_REST, partitions=2, create=True, state=postgres_state)
        there = two.queue("work", state=postgres_state)
        here.send_many([Message(b"%d" % number, id=str(number)) for number in range(10)])
        sent = there.send_many([Message(b"%d" % number, id=str(number)) for number in range(5, 15)])
        assert [answer.duplicate for answer in sent] == [True] * 5 + [False] * 5
        first, second = here.consume("g", prefetch=7), there.consume("g", prefetch=20)
        mine, yours = first.receive(), second.receive()
        assert sorted(int(delivery.value) for delivery in mine + yours) == list(range(15))
        second.ack(yours)
        with pytest.raises(LeaseLost):
            second.ack(yours)
        first.nack(mine, "no", retry=False)
        assert here.lag("g") == 0
        assert there.dead_letters.redrive() == 7
        again = second.receive()
        assert {delivery.value for delivery in again} == {delivery.value for delivery in mine}
        second.ack(again)
        one.delete_queue("work", state=postgres_state)
        assert (two.queues(state=postgres_state), two.logs()) == ([], [])


def test_an_idle_consumer_asks_the_bucket_now_and_then(
    bucket: Bucket, postgres_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at every partition fifty times a second, and each look is paid for; a send of this process wakes it."""
    monkeypatch.setattr(handover, "LOOK_S", 3_600.0)
    monkeypatch.setattr(looks, "IDLE_POLL_S", 3_600.0)
    monkeypatch.setattr(looks, "POLL_S", 3_600.0)
    monkeypatch.setattr(reader, "LOOK_S", 3_600.0)
    with Database(ObjectStorage(bucket)) as db:
        queue = db.queue("work", partitions=4, create=True, state=postgres_state)
        with queue.consume("g") as consumer:
            queue.send(b"first", id="1")
            consumer.ack(consumer.receive(timeout_s=60))
            consumer.receive(timeout_s=0.1)
            before = Counter(bucket.requests)
            assert consumer.receive(timeout_s=0.5) == []
            assert (bucket.requests - before).total() == 0
            queue.send(b"second", id="2")
            (found,) = consumer.receive(timeout_s=60)
            assert found.value == b"second"


def test_an_idle_consumer_of_many_partitions_asks_once_a_second(
    postgres_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition cost as much as a tail of its own. What comes at last, in any of them, is seen all the same."""
    monkeypatch.setattr(broker, "POLL_S", 0.25)
    store, clock = MemoryStore(), SimulatedClock(auto_advance=True)
    mine = Bucket(store, "s3://memory")
    with contextlib.ExitStack() as stack:
        elsewhere = stack.enter_context(Database(ObjectStorage(Bucket(store, "s3://memory"))))
        away = elsewhere.queue("work", partitions=8, create=True, state=postgres_state)
        db = stack.enter_context(Database(ObjectStorage(mine, clock), clock))
        consumer = stack.enter_context(db.queue("work", state=postgres_state).consume("g"))
        away.send(b"first", id="1")
        consumer.ack(consumer.receive(timeout_s=60))
        consumer.receive(timeout_s=20)
        before = Counter(mine.requests)
        assert consumer.receive(timeout_s=100) == []
        assert 50 <= (mine.requests - before).total() <= 110
        for number in range(8):
            away.send(b"later", id=str(number), key=str(number))
        came = 0
        while came < 8:
            found = consumer.receive(timeout_s=60)
            assert found
            came += len(found)


def test_a_bucket_needs_a_state_that_brokers_share() -> None:
    """SQLite beside a bucket would be another one on each machine: said before anything is made."""
    storage = ObjectStorage(Bucket(MemoryStore(), "s3://memory"))
    with Database(storage) as db, pytest.raises(InvalidArgument, match="postgresql"):
        db.queue("work", create=True)
