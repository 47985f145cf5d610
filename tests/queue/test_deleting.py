"""A queue that is deleted, or whose state is lost: what is gone, what is not, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncelog
from oncelog import InvalidArgument, LeaseLost, LogBusy, LogSettings, Message, NotFound, OncelogError, QueueSettings
from oncelog.connect import Database
from tests.queue.conftest import World


def test_a_deleted_queue_is_gone_with_all_that_belongs_to_it(world: World) -> None:
    """Its logs, its dead letters, and what was remembered: one that is made anew under its name is empty."""
    db = world.open()
    queue = db.queue("work", partitions=2, create=True, state=world.state)
    queue.send_many([Message(b"%d" % number, id=str(number)) for number in range(4)])
    db.queue("other", create=True, state=world.state).send(b"stays")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no", retry=False)
    db.delete_queue("work", state=world.state)
    assert db.queues(state=world.state) == ["other"]
    assert db.logs() == ["queue/other/0"]
    with pytest.raises(NotFound):
        db.queue("work", state=world.state)
    with pytest.raises(NotFound):
        db.delete_queue("work", state=world.state)
    again = db.queue("work", partitions=3, create=True, state=world.state)
    assert (again.groups(), again.stats().ends, again.dead_letters.list()) == ([], [0, 0, 0], [])
    assert again.status("1") is None
    assert not again.send(b"1", id="1").duplicate


def test_a_queue_in_use_is_deleted_only_by_force(world: World) -> None:
    """Workers that hold messages are asked for, unless one says not to; they are told when they answer."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a")
    consumer = queue.consume("g")
    [held] = consumer.receive()
    other = world.open()
    with pytest.raises(LogBusy, match="workers hold 1"):
        other.delete_queue("work", state=world.state)
    assert queue.lag("g") == 1
    world.clock.auto_advance = True  # the one that sends looks now and then whether it is asked to let go
    other.delete_queue("work", force=True, state=world.state)
    for use in (held.ack, consumer.receive, lambda: queue.send(b"b"), queue.stats):
        with pytest.raises(NotFound):
            use()
    assert other.logs() == []


def test_a_queue_that_another_writes_by_hand_is_not_deleted(world: World) -> None:
    """Who does not let go of a log keeps it, and the queue is as it was."""
    db, other = world.open(), oncelog.connect(world.folder.as_uri())
    queue = db.queue("work", create=True, state=world.state)
    with other, other.log("queue/work/0").writer():
        world.clock.auto_advance = True
        with pytest.raises(LogBusy, match="in use"):
            db.delete_queue("work", force=True, state=world.state)
        world.clock.auto_advance = False
    queue.send(b"a")
    assert queue.stats().ends == [1]


def test_a_deletion_that_was_cut_short_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In between, the queue is there for nobody; what is left of it does not come back to life."""
    db = world.open()
    db.queue("work", partitions=2, create=True, state=world.state).send_many([Message(b"a"), Message(b"b")])
    deleted: list[str] = []

    def delete_one(database: Database, name: str) -> None:
        if deleted:
            message = "the process ended here"
            raise OncelogError(message)
        deleted.append(name)
        delete(database, name)

    delete = Database.delete
    monkeypatch.setattr(Database, "delete", delete_one)
    with pytest.raises(OncelogError, match="ended here"):
        db.delete_queue("work", state=world.state)
    monkeypatch.undo()
    other = world.open()
    assert other.queues(state=world.state) == []
    with pytest.raises(NotFound, match="delete it again"):
        other.queue("work", create=True, state=world.state)
    other.delete_queue("work", state=world.state)
    assert other.logs() == []
    assert other.queue("work", create=True, state=world.state).stats().ends == [0]


def test_dead_letters_go_with_their_queue(world: World) -> None:
    """They are not deleted alone by mistake."""
    db = world.open()
    _ = db.queue("work", create=True, state=world.state).dead_letters
    with pytest.raises(InvalidArgument, match="discard"):
        db.delete_queue("dlq.work", state=world.state)


def test_a_lost_state_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Who asks for the queue is told, and chooses to have all delivered again; no partition is forgotten, and neither
    are the ids that were sent, nor the dead letters.
    """
    with oncelog.connect(tmp_path.as_uri()) as db:
        queue = db.queue("work", partitions=3, create=True)
        queue.send_many([Message(b"%d" % number, id=str(number)) for number in range(9)])
        with queue.consume("g", prefetch=9) as consumer:
            first, *others = consumer.receive()
            first.nack("no", retry=False)
            consumer.ack(others)
    for left in (tmp_path / "queues").iterdir():
        left.unlink()
    with oncelog.connect(tmp_path.as_uri()) as db:
        with pytest.raises(NotFound, match="3 logs"):
            db.queue("work")
        with pytest.raises(InvalidArgument, match="adopt"):
            db.queue("work", create=True)
        with pytest.raises(InvalidArgument, match="3 partitions"):
            db.queue("work", partitions=2, create=True, adopt=True)
        queue = db.queue("work", create=True, adopt=True)
        assert queue.send(b"4", id="4").duplicate
        assert [letter.value for letter in queue.dead_letters.list()] == [first.value]
        with queue.consume("g", prefetch=9) as consumer:
            again = consumer.receive()
            assert sorted(delivery.value for delivery in again) == [b"%d" % number for number in range(9)]
            consumer.nack(again, "still not", retry=False)
        assert len(queue.dead_letters.list()) == 9


def test_settings_of_a_log_may_be_changed_there(world: World) -> None:
    """A queue opens its logs as they are stored."""
    db = world.open()
    db.queue("work", create=True, state=world.state)
    db.log("queue/work/0").configure(LogSettings(block_records=7))
    queue = world.open().queue("work", QueueSettings(), state=world.state)
    queue.send(b"a")
    with queue.consume("g") as consumer:
        [delivery] = consumer.receive()
        delivery.ack()
        with pytest.raises(LeaseLost):
            delivery.ack()
