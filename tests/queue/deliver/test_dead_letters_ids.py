"""Ids that a queue makes up, for dead letters and for what is sent back: none of them ever comes again.

A log answers a known id with "there already". A message that dies under an id of another death leaves its queue and is
nowhere, and so does a letter that is sent back under an id of another one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oncelog import Database, Queue, Unavailable
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.state import statements
from tests.queue.conftest import World


def bury_all(queue: Queue) -> list[bytes]:
    """Have a group refuse all that comes, for good; return what came."""
    with queue.consume("g", prefetch=10) as consumer:
        found = consumer.receive()
        consumer.nack(found, "no", retry=False)
    return [delivery.value for delivery in found]


def values(queue: Queue) -> list[bytes]:
    """Return the values of the dead letters."""
    return [letter.value for letter in queue.dead_letters.list()]


def test_a_message_dies_again_in_a_group_that_was_made_again(world: World) -> None:
    """Group name, partition, position and attempts are those of the first death: the group is another one."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a", id="a")
    assert bury_all(queue) == [b"a"]
    assert queue.dead_letters.discard([0]) == 1
    queue.remove_group("g")
    assert bury_all(queue) == [b"a"]
    assert values(queue) == [b"a"]
    assert queue.lag("g") == 0


def test_a_message_dies_again_in_a_state_that_was_lost(tmp_path: Path) -> None:
    """Rows are numbered from 1 again, so that the group has the number of the first one, too."""
    world = World(tmp_path / "db", None)
    db = world.open()
    queue = db.queue("work", create=True)
    queue.send(b"a")
    assert bury_all(queue) == [b"a"]
    db.close()
    shutil.rmtree(tmp_path / "db" / "queues")
    again = world.open().queue("work", create=True, adopt=True)
    assert bury_all(again) == [b"a"]
    assert values(again) == [b"a", b"a"]
    world.close()


def test_a_message_of_a_queue_that_was_made_again_dies_for_itself(world: World) -> None:
    """The queue was deleted without its dead letters' log going: names and positions are the same, its log is not."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    queue.send(b"a")
    assert bury_all(queue) == [b"a"]
    db.close()
    db = world.open()
    with db._state_of(world.state).writing() as transaction:
        row = statements.queue(transaction, "work")
        assert row is not None
        statements.remove_queue(transaction, row.id)
    db.delete("queue/work/0")
    again = db.queue("work", create=True, state=world.state)
    again.send(b"a")
    assert bury_all(again) == [b"a"]
    assert values(again) == [b"a", b"a"]


def _forget_letters(db: Database, world: World) -> None:
    """Delete the dead letters of the queue, and begin them again at 0."""
    with db._state_of(world.state).writing() as transaction:
        row = statements.queue(transaction, "dlq.work")
        assert row is not None
        statements.remove_queue(transaction, row.id)
    db.delete("queue/dlq.work/0")


def test_letters_that_begin_again_at_0_are_sent_back(world: World) -> None:
    """The letter at 0 is another one than the letter at 0 that was sent back before."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    queue.send(b"a")
    assert bury_all(queue) == [b"a"]
    assert queue.dead_letters.redrive() == 1
    with queue.consume("g") as consumer:
        consumer.receive()[0].ack()
    db.close()
    db = world.open()
    _forget_letters(db, world)
    queue = db.queue("work", state=world.state)
    queue.send(b"b")
    assert bury_all(queue) == [b"b"]
    assert [letter.position for letter in queue.dead_letters.list()] == [0]
    assert queue.dead_letters.redrive() == 1
    with queue.consume("g") as consumer:
        assert [delivery.value for delivery in consumer.receive()] == [b"b"]


def test_a_letter_that_is_buried_twice_is_there_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends between the letter and the note that it was stored buries the message again."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a")

    def ended(_: Broker, __: object) -> None:
        text = "the process ended here"
        raise Unavailable(text)

    with queue.consume("g") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(Broker, "buried", ended)
            consumer.receive()[0].nack("no", retry=False)
        assert (queue.lag("g"), values(queue)) == (1, [b"a"])
        world.clock.advance(2)
        assert consumer.receive() == []
    assert (queue.lag("g"), values(queue)) == (0, [b"a"])
