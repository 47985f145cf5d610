"""A broker: what it asks of the state for each claim, and what it leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from oncelog import Consumer, Delivery, LogSettings, Message, Queue, QueueSettings, Unavailable, Window
from oncelog.log.read.reader import Tail
from oncelog.log.read.scan import Scan
from oncelog.log.stored.rows import Rows
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.rules.delivery import MessageRun
from oncelog.queue.send.topic import Topic
from oncelog.queue.state import postgresql, sqlite, statements
from tests.queue.conftest import World

TRANSACTIONS = sqlite._StateFile, postgresql._Statements
LONG_S = 3_600.0
Counting = Callable[[Callable[[], Any]], list[str]]


@pytest.fixture
def statements_of(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Return what tells the first words of the statements that a call runs, in its own thread.

    Other threads of the process look at the state from time to time (a group's seats, its trimming).
    """
    ran: list[str] = []
    caller = threading.get_ident()

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def running(self: object, statement: str, *values: object) -> Any:
            if threading.get_ident() == caller:
                ran.append(statement.split(maxsplit=1)[0])
            return run(self, statement, *values)

        return running

    for kind in TRANSACTIONS:
        for name in ("all", "many"):
            monkeypatch.setattr(kind, name, watched(getattr(kind, name)))

    def of(act: Callable[[], Any]) -> list[str]:
        ran.clear()
        act()
        return list(ran)

    return of


def made(world: World) -> Queue:
    """Return a queue with messages."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send_many([Message(b"%d" % number) for number in range(20)])
    return queue


def test_a_claim_and_an_ack_take_few_statements(world: World, statements_of: Counting) -> None:
    """Each statement is a round trip to PostgreSQL, and to a claim of one message it is most of the time."""
    wall = [] if world.state is None else ["SELECT"]  # the server's time
    held: list[Delivery] = []
    with made(world).consume("g", prefetch=5) as consumer:
        consumer.ack(consumer.receive())
        look_and_claim = statements_of(lambda: held.extend(consumer.receive()))
        ack = statements_of(lambda: consumer.ack(held))
        claim = statements_of(consumer.receive)
    assert claim == ["SELECT", "SELECT", *wall, "INSERT", "UPDATE", "UPDATE"]
    assert look_and_claim == ["SELECT", *claim]
    assert ack == ["SELECT", "SELECT", "DELETE", "UPDATE"]


def received(consumer: Consumer, claims: int) -> list[bytes]:
    """Return the values of so many claims."""
    return [delivery.value for _ in range(claims) for delivery in consumer.receive()]


def test_a_claim_without_a_look_sees_that_another_process_was_there(world: World, statements_of: Counting) -> None:
    """Whoever was alone counts on it that nobody claimed since: it finds out, stores nothing, and looks again."""
    queue, other = made(world), world.open().queue("work", state=world.state)
    with queue.consume("g", prefetch=3) as one, other.consume("g", prefetch=4) as another:
        assert received(one, 3) == [b"%d" % number for number in range(9)]
        assert received(another, 1) == [b"9", b"10", b"11", b"12"]
        found: list[bytes] = []
        ran = statements_of(lambda: found.extend(received(one, 1)))
        assert found == [b"13", b"14", b"15"]
        assert ran.count("INSERT") == 1
        assert received(one, 2) == [b"%d" % number for number in range(16, 20)]


def test_a_claim_without_a_look_passes_over_nothing(world: World) -> None:
    """A state that went back to an earlier one (a standby that took over) has messages to deliver once more."""
    with made(world).consume("g", prefetch=3) as consumer:
        for _ in range(3):
            consumer.ack(consumer.receive())
        with consumer._broker._database.writing() as transaction:
            transaction.all("UPDATE oncelog_cursor SET next = 6")
        assert received(consumer, 2) == [b"%d" % number for number in range(6, 12)]


def test_a_claim_without_a_look_sees_that_the_group_was_paused(world: World) -> None:
    """Nothing is delivered after a pause, also by a process that would not have looked."""
    queue, other = made(world), world.open().queue("work", state=world.state)
    with queue.consume("g", prefetch=3) as one:
        assert received(one, 3) == [b"%d" % number for number in range(9)]
        other.pause("g")
        assert received(one, 2) == []
        other.resume("g")
        assert received(one, 1) == [b"9", b"10", b"11"]


def test_a_group_that_is_paused_is_looked_at_once(world: World, statements_of: Counting) -> None:
    """A claim without a look found the pause, and tried again fifty times, in a transaction each time."""
    queue = made(world)
    with queue.consume("g", prefetch=3) as consumer:
        assert len(received(consumer, 3)) == 9
        queue.pause("g")
        assert statements_of(consumer.receive) in (["SELECT"] * 3, ["SELECT"] * 4)  # the claim, and a look
        assert statements_of(consumer.receive) == ["SELECT"]


def test_a_partition_that_was_not_read_again_passes_over_nothing(world: World) -> None:
    """A state went back, and one partition had enough to look at. Of the other, what was read ahead begins too late."""
    queue = world.open().queue("work", create=True, state=world.state, partitions=2)
    delayed = queue.send(b"", key="a", delay_s=LONG_S).partition
    key = next(key for key in "bcdefghi" if queue.send(b"", key=key, delay_s=LONG_S).partition != delayed)
    queue.send_many([Message(b"", key="a", delay_s=LONG_S) for _ in range(600)])
    queue.send_many([Message(b"%d" % number, key=key) for number in range(50)])
    with queue.consume("g", prefetch=3) as consumer:
        for claims in range(1, 5):  # one partition has the first turn, then the other
            assert received(consumer, claims) == [b"%d" % number for number in range(3 * claims)]
            with consumer._broker._database.writing() as transaction:
                transaction.all("UPDATE oncelog_cursor SET next = 0")
                transaction.all("DELETE FROM oncelog_run")


def test_a_claim_that_was_not_stored_leaves_no_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read ahead for it is behind the stored cursor: the next claim begins at the cursor."""
    with made(world).consume("g", prefetch=3) as consumer:
        assert received(consumer, 3) == [b"%d" % number for number in range(9)]
        with monkeypatch.context() as patched:
            patched.setattr(statements, "note", refuse)
            with pytest.raises(Unavailable, match="no disk"):
                consumer.receive()
        assert received(consumer, 4) == [b"%d" % number for number in range(9, 20)]


def refuse(*_: object, **__: object) -> None:
    """Fail as a state that cannot be written does."""
    message = "no disk"
    raise Unavailable(message)


def test_an_idle_look_is_one_statement(world: World, statements_of: Counting) -> None:
    """A consumer that waits looks many times a second."""
    with made(world).consume("g", prefetch=20) as consumer:
        consumer.ack(consumer.receive())
        assert statements_of(consumer.receive) == ["SELECT"]


def test_dead_letters_are_looked_for_when_there_may_be_some(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that another process left dying is brought to the dead letters by whoever consumes next."""
    queue = made(world)
    looks: list[int] = []
    dying = Broker.dying

    def watched(self: Broker, limit: int) -> list[MessageRun]:
        looks.append(limit)
        return dying(self, limit)

    monkeypatch.setattr(Broker, "dying", watched)
    with queue.consume("g") as consumer:
        consumer.ack(consumer.receive())  # the first look is for what was left before
        looks.clear()
        consumer.ack(consumer.receive())
        assert not looks
        left_dying(world)
        consumer.ack(consumer.receive())
        consumer.ack(consumer.receive())
        assert looks
    assert [letter.value for letter in queue.dead_letters.list()] == [b"2"]


def test_a_message_that_was_left_dying_is_buried_by_the_first_claim_that_sees_it(world: World) -> None:
    """If there is nothing to deliver: the program may end after it, and in an ordered group others wait behind it."""
    queue = made(world)
    with queue.consume("g") as consumer:
        consumer.ack(consumer.receive())
        left_dying(world)
        while found := consumer.receive():
            consumer.ack(found)
        queue.send(b"last")
        left_dying(world)
        assert not consumer.receive()
    assert queue.stats().groups["g"].dying == 0
    assert [letter.value for letter in queue.dead_letters.list()] == [b"1", b"last"]


def left_dying(world: World) -> None:
    """Have another process die of the end of a message: before it can bring it to the dead letters."""
    other = world.open().queue("work", state=world.state)
    with other.consume("g") as consumer:
        consumer._broker.bury = lambda: None
        consumer.receive()[0].nack("no", retry=False)


@pytest.mark.parametrize("hidden", [0, 3])
def test_a_message_that_is_not_to_be_seen_now_is_not_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """A group lets a message go that was truncated away. It did so, too, when only the end of the log was not seen."""
    queue = made(world)
    with queue.consume("g", prefetch=3) as consumer:
        consumer.receive()
        left = consumer.receive()
        consumer.nack(left, "again")
        world.clock.advance(60)
        with monkeypatch.context() as patch:
            patch.setattr(Scan, "end", lambda _: hidden)
            with pytest.raises(Unavailable, match="ends at"):
                consumer.receive()
        assert [one.value for one in consumer.receive()] == [one.value for one in left]


def test_a_message_that_is_not_to_be_seen_now_is_buried_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message left its queue without a dead letter when only the end of the log was not seen."""
    queue = made(world)
    with queue.consume("g", prefetch=3) as consumer:
        held = consumer.receive()
        with monkeypatch.context() as patch:
            patch.setattr(Scan, "end", lambda _: 0)
            consumer.nack(held, "no", retry=False)
        assert queue.stats().groups["g"].dying == len(held)
        world.clock.advance(60)
        consumer.receive()
    assert [letter.value for letter in queue.dead_letters.list()] == [one.value for one in held]


def test_what_another_process_settled_and_trimmed_need_not_be_read(world: World) -> None:
    """A consumer that had read up to there got an error: its tail could not go on where nothing is any more."""
    small = LogSettings(window=Window(max_keys=1), segment_bytes=64 * 1024, block_records=10)
    queue = world.open().queue("work", QueueSettings(log=small), create=True, state=world.state)
    other = world.open().queue("work", state=world.state)
    queue.send(b"first")
    with queue.consume("g", prefetch=100) as one, other.consume("g", prefetch=100) as another:
        one.ack(one.receive())
        queue.send_many([Message(bytes(5_000)) for _ in range(100)])
        another.ack(another.receive())
        assert queue.trim()[0] > 1
        assert one.receive() == []
        queue.send(b"next")
        assert received(one, 1) == [b"next"]


def test_what_was_read_ahead_is_handed_out_whoever_claims_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read again, although another thread has gone on with what was read ahead."""
    queue = made(world)
    monkeypatch.setattr(Topic, "read", None)
    broker = queue.consume("g")._broker
    first = broker._leased(3, 10**9, 1.0, patiently=False)
    second = broker._leased(3, 10**9, 1.0, patiently=False)
    found = [entry for leased in (second, first) for claimed in broker._claimed(*leased) for entry in claimed.entries]
    assert [entry.value for entry in found] == [b"3", b"4", b"5", b"0", b"1", b"2"]


def test_a_claim_takes_no_message_that_another_process_took(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the same messages ahead, and the other one claims them first; each is leased once."""
    queue, other = made(world), world.open().queue("work", state=world.state)
    found: list[Delivery] = []
    with queue.consume("g", prefetch=3) as one, other.consume("g", prefetch=3) as another:
        read_ahead = one._broker._read_ahead

        def overtaken(limit: int, *, patiently: bool) -> bool:
            answer = read_ahead(limit, patiently=patiently)
            found.extend(another.receive())
            return answer

        monkeypatch.setattr(one._broker, "_read_ahead", overtaken)
        for _ in range(3):
            found += one.receive()
    assert [delivery.value for delivery in found] == [b"%d" % number for number in range(18)]
    assert all(before.token <= after.token for before, after in pairwise(found))


def test_the_log_is_not_looked_at_while_enough_was_read_ahead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that claims one message at a time does not ask each time whether there are more behind the last."""
    queue = made(world)
    looks: list[int] = []
    look_for_rows = Tail._look_for_rows

    def watched(self: Tail) -> list[Rows]:
        looks.append(1)
        return look_for_rows(self)

    monkeypatch.setattr(Tail, "_look_for_rows", watched)
    with queue.consume("g") as consumer:
        found = [delivery.value for _ in range(20) for delivery in consumer.receive()]
        assert (len(found), len(looks)) == (20, 1)
        assert consumer.receive() == []
        assert len(looks) == 2
