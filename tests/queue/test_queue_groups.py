"""Groups: listed, removed, and what they keep in the logs."""

from __future__ import annotations

import pytest

from oncelog import InvalidArgument, LogBusy, LogSettings, Message, NotFound, QueueSettings, Window
from tests.queue.conftest import World

SHORT = QueueSettings(log=LogSettings(window=Window(duration_s=1.0, max_keys=1), segment_bytes=65_536))


def test_a_group_that_was_removed_keeps_nothing(world: World) -> None:
    """A misspelt group would hold all messages for ever: without it, what the others have settled can go."""
    queue = world.open().queue("work", SHORT, create=True, state=world.state)
    for number in range(4):
        queue.send(b"x" * 60_000, id=str(number))
    with queue.consume("mailer", prefetch=10) as consumer:
        consumer.ack(consumer.receive())
    queue.consume("mailr").close()
    world.clock.advance(10)
    queue.send(b"last", id="last")
    assert queue.trim() == [0]
    queue.remove_group("mailr")
    assert queue.groups() == ["mailer"]
    assert queue.trim()[0] > 0
    with pytest.raises(NotFound, match="mailr"):
        queue.remove_group("mailr")


def test_a_group_in_use_is_removed_only_by_force(world: World) -> None:
    """Workers that hold messages are told that their group is gone, here and in other processes."""
    queue = world.open().queue("work", create=True, state=world.state)
    elsewhere = world.open().queue("work", state=world.state)
    queue.send_many([Message(b"a"), Message(b"b")])
    [here] = queue.consume("g").receive()
    other = elsewhere.consume("g")
    [there] = other.receive()
    with pytest.raises(LogBusy, match="workers hold 2"):
        queue.remove_group("g")
    queue.remove_group("g", force=True)
    for use in (here.ack, there.ack, other.receive):
        with pytest.raises(NotFound):
            use()
    [again] = queue.consume("g").receive()
    assert (again.value, again.attempts) == (b"a", 1)
    for use in (there.ack, other.receive):  # also of a group that was made again under its name
        with pytest.raises(NotFound):
            use()
    again.ack()


def test_what_is_remembered_of_letters_cannot_be_removed(world: World) -> None:
    """Without it, letters that were sent back would be there again."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no", retry=False)
    queue.dead_letters.redrive()
    with pytest.raises(InvalidArgument, match="sent back"):
        db.queue("dlq.work", state=world.state).remove_group("redrive")


def test_consumers_trim_by_themselves(world: World) -> None:
    """What every group has settled goes after a while, without anybody asking."""
    queue = world.open().queue("work", SHORT, create=True, state=world.state)
    with queue.consume("g", prefetch=10) as consumer:
        for number in range(4):
            queue.send(b"x" * 60_000, id=str(number))
        consumer.ack(consumer.receive())
        world.clock.advance(601)
        queue.send(b"last", id="last")
        consumer.receive()
        first = queue._topic.starts("earliest")[0]
    assert first > 0


def test_letters_that_nobody_sent_back_are_not_trimmed(world: World) -> None:
    """Somebody who consumes the dead-letter topic settles them for a group of that topic, not for the queue."""
    db = world.open()
    queue = db.queue("work", SHORT, create=True, state=world.state)
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no", retry=False)
    letters = db.queue("dlq.work", state=world.state)
    with letters.consume("looks") as consumer:
        consumer.receive()[0].ack()
    world.clock.advance(601)
    assert letters.trim() == [0]
    assert [letter.value for letter in queue.dead_letters.list()] == [b"a"]


def test_looking_at_dead_letters_creates_nothing(world: World) -> None:
    """Neither a queue of dead letters nor a group of it."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    assert queue.dead_letters.list() == []
    assert queue.dead_letters.redrive() == 0
    with pytest.raises(NotFound):
        queue.dead_letters.show(0)
    assert (db.queues(state=world.state), db.logs()) == (["work"], ["queue/work/0"])
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no", retry=False)
    assert len(queue.dead_letters.list()) == 1
    assert queue.dead_letters.show(0).value == b"a"
    assert db.queue("dlq.work", state=world.state).groups() == []
