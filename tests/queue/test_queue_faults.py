"""What a queue does when what it stands on is damaged, away, forked, or named strangely."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

import oncelog
from oncelog import (
    Closed,
    CorruptionError,
    InvalidArgument,
    LeaseLost,
    LogSettings,
    Message,
    Queue,
    QueueSettings,
    Record,
    RetryPolicy,
    Unavailable,
)
from oncelog.limits import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    LABEL_BYTES_MAX,
    QUEUE_HEADER_BYTES_MAX,
    QUEUE_HEADERS_MAX,
    REASON_BYTES_MAX,
)
from oncelog.queue.deliver.dead_letters import synthetic_id
from oncelog.queue.send.sender import Outgoing
from oncelog.queue.send.topic import Topic
from oncelog.types import Entry
from tests.log.watched import until
from tests.queue.conftest import World


def test_a_damaged_state_is_told_and_the_messages_are_in_the_logs(tmp_path: Path) -> None:
    """Garbage where the state was is no empty state; nobody is delivered everything again."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.queue("work", create=True).send(b"a")
    for left in (tmp_path / "queues").glob("state.sqlite*"):
        left.write_bytes(b"this is no database" * 1_000)
    with oncelog.connect(tmp_path.as_uri()) as db:
        with pytest.raises(CorruptionError, match="damaged"):
            db.queue("work")
        assert [entry.value for entry in db.log("queue/work/0").read()] == [b"a"]


def test_a_state_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    """A file where the folder of states should be."""
    (tmp_path / "queues").write_text("in the way")
    with oncelog.connect(tmp_path.as_uri()) as db, pytest.raises(Unavailable):
        db.queue("work", create=True)


def test_postgresql_that_lost_a_connection_is_asked_again(tmp_path: Path, postgres_state: str) -> None:
    """The call in hand fails as unavailable, the next one goes through, and nothing is lost or done twice."""
    with oncelog.connect(tmp_path.as_uri()) as db, psycopg.connect(postgres_state, autocommit=True) as admin:
        queue = db.queue("work", create=True, state=postgres_state)
        queue.send_many([Message(b"a", id="a"), Message(b"b", id="b")])
        consumer = queue.consume("g")
        [first] = consumer.receive()
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state IS NOT NULL"
        )
        with pytest.raises(Unavailable):
            first.ack()
        first.ack()
        [second] = consumer.receive()
        second.ack()
        assert (second.value, queue.lag("g")) == (b"b", 0)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_postgresql_with_a_stricter_isolation_level_by_default(tmp_path: Path, postgres_state: str, level: str) -> None:
    """A role or a server may give every session such a level. Who settles still waits for others, and gets through."""
    strict = f"%20-cdefault_transaction_isolation%3D{level.replace(' ', '%5C%20')}"
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oncelog_group%'"
    with (
        oncelog.connect(tmp_path.as_uri()) as db,
        psycopg.connect(postgres_state) as other,
        psycopg.connect(postgres_state, autocommit=True) as admin,
        ThreadPoolExecutor(1) as pool,
    ):
        queue = db.queue("work", create=True, state=postgres_state + strict)
        queue.send(b"a")
        [delivery] = queue.consume("g").receive()
        other.execute("UPDATE oncelog_group SET delivered = delivered + 1")
        acknowledged = pool.submit(delivery.ack)
        until(lambda: admin.execute(waits).fetchone())
        other.commit()
        acknowledged.result()
        assert queue.lag("g") == 0


def test_a_message_that_cannot_be_read_now_spends_no_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that is away for longer than all attempts brings nobody to the dead letters: nobody saw the message."""

    def away(*_: object) -> list[Entry]:
        message = "the storage is away"
        raise Unavailable(message)

    settings = QueueSettings(retry=RetryPolicy(max_attempts=3, backoff_s=0, max_backoff_s=0))
    queue = world.open().queue("work", settings, create=True, state=world.state)
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no")
        with monkeypatch.context() as patched:
            patched.setattr(Topic, "read", away)
            for _ in range(5):
                with pytest.raises(Unavailable, match="the storage is away"):
                    consumer.receive()
        [delivery] = consumer.receive()
        assert (delivery.attempts, delivery.last_error) == (2, "no")


def test_a_damaged_message_spends_no_attempt_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were claimed with it come at once, and do not die unseen."""
    read = Topic.read

    def damaged(self: Topic, partition: int, first: int, *more: int) -> list[Entry]:
        if first == 1:
            message = "a block is damaged"
            raise CorruptionError(message)
        return read(self, partition, first, *more)

    settings = QueueSettings(retry=RetryPolicy(max_attempts=2, backoff_s=0, max_backoff_s=0))
    queue = world.open().queue("work", settings, create=True, state=world.state)
    queue.send_many([Message(b"%d" % number, key=str(number)) for number in range(4)])
    monkeypatch.setattr(Topic, "read", damaged)
    received = []
    with queue.consume("g", prefetch=4, ordered=True) as consumer:
        consumer.nack(consumer.receive(), "no")
        received += consumer.receive()
        with pytest.raises(CorruptionError, match="damaged"):
            consumer.receive()
        received += consumer.receive()
        assert sorted((one.value, one.attempts) for one in received) == [(b"0", 2), (b"2", 2), (b"3", 2)]


def test_postgresql_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """A wrong URL is told, and what is wrong with it."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        with pytest.raises(Unavailable):
            db.queue("work", create=True, state=f"postgresql://nobody@/none?host={tmp_path}")
        with pytest.raises(InvalidArgument):
            db.queue("work", create=True, state="mysql://here")


@pytest.mark.parametrize("name", ["", "..", "a/../b", "a\nb", "\ud800", "n" * 241])
def test_strange_names_are_refused(name: str) -> None:
    """Before anything is made."""
    with oncelog.connect("memory://") as db:
        with pytest.raises(InvalidArgument):
            db.queue(name, create=True)
        assert db.queues() == []
        assert db.logs() == []


@pytest.mark.parametrize("name", ["ünï/cödé", "n" * 240, "a b", ".hidden", "dlq.x"])
def test_other_names_work_to_the_dead_letters(world: World, name: str) -> None:
    """Whatever is allowed can be sent to, consumed and, but for dead letters themselves, buried."""
    queue = world.open().queue(name, create=True, state=world.state)
    queue.send(b"a")
    with queue.consume("grüppe/1") as consumer:
        consumer.receive()[0].nack("no", retry=False)
    if not name.startswith("dlq."):
        assert [letter.value for letter in queue.dead_letters.list()] == [b"a"]
        return
    assert queue.lag("grüppe/1") == 1
    with pytest.raises(InvalidArgument):
        _ = queue.dead_letters


@pytest.mark.parametrize("name", ["id", "key", "tenant"])
def test_names_that_postgresql_cannot_store_are_refused(world: World, name: str) -> None:
    """A NUL in a key would stop an ordered group for ever: it is found out before anything is stored."""
    queue = world.open().queue("work", create=True, state=world.state)
    with pytest.raises(InvalidArgument, match="NUL"):
        queue.send(b"a", **{name: "a\0b"})  # type: ignore[arg-type]
    assert queue.stats().ends == [0]


def test_any_reason_can_be_given(world: World) -> None:
    """Also one that PostgreSQL could not store as it is: the message rests, or dies, as its worker said."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("bad byte \0 in line \ud800", retry=False)
    assert [letter.last_error for letter in queue.dead_letters.list()] == ["bad byte \\0 in line \\ud800"]


def test_whatever_can_be_sent_can_be_buried_and_sent_back(world: World) -> None:
    """What a dead letter says of itself has its room in every message; else it, and all behind it, never left."""
    queue = world.open().queue("work", create=True, state=world.state)
    most = {f"{number:03}": b"x" * (HEADER_BYTES_MAX // HEADERS_MAX - 3) for number in range(HEADERS_MAX)}
    for headers in (most, {"a": b"x" * (HEADER_BYTES_MAX - 1)}, {str(number): b"" for number in range(HEADERS_MAX)}):
        with pytest.raises(InvalidArgument, match="headers"):
            queue.send(b"a", headers=headers)
    room = QUEUE_HEADER_BYTES_MAX - 3 * QUEUE_HEADERS_MAX
    headers = {f"{number:03}": b"" for number in range(QUEUE_HEADERS_MAX)} | {"000": b"x" * room}
    policy = RetryPolicy(max_attempts=7, backoff_s=1.5, max_backoff_s=100.5, jitter=0.25)
    key, tenant = "k" * LABEL_BYTES_MAX, "t" * LABEL_BYTES_MAX
    queue.send(b"a", id="i" * 255, key=key, tenant=tenant, headers=headers, retry=policy, delay_s=0, deadline_s=1e6)
    with queue.consume("g") as consumer:
        for _ in range(2):
            consumer.receive()[0].nack("\N{SNOWMAN}" * REASON_BYTES_MAX, retry=False)
            assert [letter.headers for letter in queue.dead_letters.list()] == [headers]
            assert queue.dead_letters.redrive() == 1
        assert consumer.receive()[0].headers == headers


def test_a_letter_that_is_there_already_is_buried(world: World) -> None:
    """A state that was restored from a copy buries a message again, with another story: the first letter stands."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a")
    queue.send(b"b")
    letters = queue._dead_letter_queue()
    broker = queue._broker("g", ordered=None, start="earliest")
    log_id = queue._topic.logs[0].log_id
    earlier = Record(b"a", id=synthetic_id("dead", broker.generation, broker.id, log_id, 0, 1))
    letters._sending.send([Outgoing(0, earlier)], 5.0, "join")
    with queue.consume("g", prefetch=2) as consumer:
        consumer.nack(consumer.receive(), "no", retry=False)
    assert queue.lag("g") == 0
    assert [found.value for found in letters._topic.read(0, 0, 5)] == [b"a", b"b"]


def test_what_was_sent_to_the_dead_letters_by_hand_is_in_nobodys_way(world: World) -> None:
    """It has no queue to go back to, and stays; the letters around it are listed and sent back."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    with queue.consume("g") as consumer:
        for value in (b"a", b"b"):
            queue.send(value)
            consumer.receive()[0].nack("no", retry=False)
            db.queue("dlq.work", state=world.state).send(b"by hand")
        assert [letter.value for letter in queue.dead_letters.list()] == [b"a", b"b"]
        with pytest.raises(InvalidArgument, match="by hand"):
            queue.dead_letters.show(1)
        assert queue.dead_letters.redrive([0, 0]) == 1
        assert queue.dead_letters.redrive() == 1
        assert [delivery.value for delivery in consumer.receive(2)] == [b"a", b"b"]


def test_what_is_settled_is_settled(world: World) -> None:
    """Whatever a worker says after its ack or its nack changes nothing, and it is told."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send_many([Message(b"a"), Message(b"b")])
    acked, nacked = queue.consume("g", prefetch=2).receive()
    acked.ack()
    nacked.nack("later")
    for delivery in (acked, nacked):
        for again in (delivery.ack, lambda one=delivery: one.nack("no"), lambda one=delivery: one.extend(9)):
            with pytest.raises(LeaseLost):
                again()
    assert (queue.lag("g"), queue.stats().groups["g"].refused) == (1, 1)


def test_a_delivery_of_another_group_is_not_taken_for_ones_own(world: World) -> None:
    """Its token and position are those of another message here, which would be lost."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send_many([Message(b"a"), Message(b"b")])
    one, other = queue.consume("one"), queue.consume("other")
    mine, theirs = one.receive(), other.receive()
    for wrong in (theirs, mine + theirs, [b"a"], None):
        for use in (one.ack, lambda given: one.nack(given, "no")):
            with pytest.raises(InvalidArgument, match="deliveries"):
                use(wrong)  # type: ignore[arg-type]
    assert (queue.lag("one"), queue.lag("other")) == (2, 2)


def test_letters_that_several_send_back_at_once_come_back_once(world: World) -> None:
    """And each is counted once."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send_many([Message(b"%d" % number) for number in range(8)])
    with queue.consume("g", prefetch=8) as consumer, ThreadPoolExecutor(4) as pool:
        consumer.nack(consumer.receive(), "no", retry=False)
        counts = list(pool.map(lambda _: queue.dead_letters.redrive(), range(4)))
        assert sum(counts) == 8
        assert sorted(delivery.value for delivery in consumer.receive(20)) == [b"%d" % number for number in range(8)]


WRONG: list[Callable[[Queue], object]] = [
    lambda queue: queue.send_many(None),  # type: ignore[arg-type]
    lambda queue: queue.send_many(Message(b"a")),  # type: ignore[arg-type]
    lambda queue: queue.send(b"a", delay_s=None),  # type: ignore[arg-type]
    lambda queue: queue.status(3),  # type: ignore[arg-type]
    lambda queue: queue.consume("g", ordered="yes"),  # type: ignore[arg-type]
    lambda queue: queue.dead_letters.redrive(3),  # type: ignore[arg-type]
    lambda queue: queue.dead_letters.redrive("0"),  # type: ignore[arg-type]
    lambda queue: queue.dead_letters.show("0"),  # type: ignore[arg-type]
    lambda queue: queue.dead_letters.list(limit=-1),
]


def test_wrong_calls_are_told_so() -> None:
    """None ends in an error of Python's, and none does anything."""
    with oncelog.connect("memory://") as db:
        queue = db.queue("work", create=True)
        for wrong in WRONG:
            with pytest.raises(InvalidArgument):
                wrong(queue)
        with pytest.raises(InvalidArgument):
            db.queue("work", state=3)  # type: ignore[arg-type]
        assert (queue.groups(), queue.stats().ends) == ([], [0])


@pytest.mark.parametrize(
    ("ordered", "envelope"),
    [(False, b"not msgpack"), (True, b"not msgpack"), (False, b"\x81\xa2id\xa1\xff")],
    ids=["any order", "ordered", "an id that is no UTF-8"],
)
def test_what_was_written_by_hand_and_cannot_be_read_stops_nobody(
    world: World, envelope: bytes, *, ordered: bool
) -> None:
    """It lies among the dead letters, with the reason, and what is behind it is delivered."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    with db.log("queue/work/0").writer() as writer:
        writer.append(b"bad", headers={"oncelog-envelope": envelope})
    queue.send(b"good")
    with queue.consume("g", ordered=ordered) as consumer:
        assert [one.value for one in queue.peek("g")] == [b"bad", b"good"]
        assert [delivery.value for delivery in consumer.receive()] == [b"good"]
        assert consumer.receive() == []
    [letter] = queue.dead_letters.list()
    assert (letter.value, letter.last_error, letter.attempts) == (b"bad", "unreadable_envelope", 0)
    assert queue.dead_letters.redrive() == 1


def test_retention_would_lose_messages() -> None:
    """A log's own retention does not ask whether a message was delivered."""
    with oncelog.connect("memory://") as db, pytest.raises(InvalidArgument, match="trim"):
        db.queue("work", QueueSettings(log=LogSettings(retention_s=60)), create=True)


def is_closed(use: Callable[[], object]) -> bool:
    """Tell whether a call says that its handle is closed."""
    try:
        use()
    except Closed:
        return True
    return False


def test_handles_do_not_survive_a_fork(tmp_path: Path) -> None:
    """A child that uses its parent's queue is told; the parent goes on."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        queue = db.queue("work", create=True)
        queue.send(b"a")
        consumer = queue.consume("g")
        [delivery] = consumer.receive()
        letters = queue.dead_letters
        uses = (lambda: queue.send(b"b"), consumer.receive, delivery.ack, queue.stats, letters.list)
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(sum(is_closed(use) for use in uses))
            finally:
                os._exit(100)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 5
        delivery.ack()
        assert queue.lag("g") == 0


@pytest.mark.parametrize("left", [0, 1])
def test_a_log_that_is_behind_its_state_is_told(tmp_path: Path, left: int) -> None:
    """New messages would lie where groups have been already, and reach nobody; the queue can still be deleted."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        queue = db.queue("work", create=True)
        queue.send_many([Message(b"a"), Message(b"b")])
        with queue.consume("g", prefetch=2) as consumer:
            consumer.ack(consumer.receive(2))
        queue.close()
        db.delete("queue/work/0")
        for _ in range(left):
            with db.log("queue/work/0", create=True).writer() as writer:
                writer.append(b"a")
        with pytest.raises(CorruptionError, match=f"ends at {left}, and a group of its queue was at 2"):
            db.queue("work")
        assert len(db.logs()) == left
        db.delete_queue("work")
        assert db.queue("work", create=True).send(b"a").position == 0
