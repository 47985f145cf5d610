"""A queue that is deleted, or whose state is lost: what is gone, what is not, and who is told."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import InvalidArgument, LeaseLost, LogBusy, LogSettings, Message, NotFound, OncelogError, QueueSettings
from oncelog.connect import Database
from tests.queue.conftest import World


def test_a_deleted_queue_is_gone_with_all_that_belongs_to_it(world: World) -> None:
    """Its logs, its dead letters, and what was remembered: one that is made again under its name is empty."""
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
        assert len(queue.dead_letters.list()) == 10  # the first one stands, and all have died since


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


def between_logs(
    world: World, db: Database, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> list[object]:
    """Have something happen once while a queue of two partitions is deleted: between its first log and its second."""
    done: list[object] = []
    log = db.log

    def opened(name: str, *given: Any, **named: Any) -> object:
        if name == "queue/work/1" and not done and db.queues(state=world.state) == []:
            done.append(None)
            with ThreadPoolExecutor(1) as pool:  # somebody else's thread: this one is in the midst of a call
                done.append(pool.submit(act).result())
        return log(name, *given, **named)

    monkeypatch.setattr(db, "log", opened)
    return done


def test_who_deletes_late_does_not_delete_what_was_made_since(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two who delete a queue one ends first; a new queue of that name, and its messages, are not the other's."""
    db, other = world.open(), world.open()
    db.queue("work", partitions=2, create=True, state=world.state).close()

    def overtake() -> None:
        other.delete_queue("work", state=world.state)
        with other.queue("work", partitions=2, create=True, state=world.state) as made:
            made.send_many([Message(b"new", key=str(number)) for number in range(6)])

    done = between_logs(world, db, overtake, monkeypatch)
    with pytest.raises(NotFound, match="another"):
        db.delete_queue("work", state=world.state)
    assert done
    assert sum(other.queue("work", state=world.state).stats().ends) == 6


def test_who_dies_while_the_queue_is_deleted_goes_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue for dead letters that is made meanwhile would be nobody's, and the next queue of that name would have
    them.
    """
    db, other = world.open(), world.open()
    with db.queue("work", partitions=2, create=True, state=world.state) as queue:
        queue.send_many([Message(b"old", key=str(number)) for number in range(6)])
    with other.queue("work", state=world.state).consume("g", prefetch=6) as consumer:
        last = next(delivery for delivery in consumer.receive(6) if delivery.partition == 1)
        done = between_logs(world, db, lambda: last.nack("boom", retry=False), monkeypatch)
        db.delete_queue("work", force=True, state=world.state)
        assert done
        assert (db.queues(state=world.state), db.logs()) == ([], [])


def test_a_handle_of_a_deleted_queue_does_not_meet_the_next_of_its_name(world: World) -> None:
    """Who has it open is told, and has the new one by opening it again: nothing is sent to, or taken from, a queue
    that is not the one that was opened.
    """
    db, other = world.open(), world.open()
    old = other.queue("work", create=True, state=world.state)
    db.delete_queue("work", state=world.state)
    with db.queue("work", create=True, state=world.state) as new:
        new.send(b"new")
    uses: list[Callable[[], object]] = [
        lambda: old.send(b"zombie"),
        lambda: old.consume("g").receive(),
        lambda: old.dead_letters,
        old.stats,
    ]
    for use in uses:
        with pytest.raises(NotFound, match="open it again"):
            use()
    again = other.queue("work", state=world.state)
    assert (again.stats().ends, again.groups()) == ([1], [])
    with again.consume("g") as consumer:
        assert [delivery.value for delivery in consumer.receive()] == [b"new"]


def test_who_sends_all_the_time_does_not_keep_a_queue_from_being_deleted(tmp_path: Path) -> None:
    """Senders are asked for the log until it is gone, and get an error then; none of them makes it again."""
    ended: list[OncelogError] = []
    begun = threading.Event()
    with oncelog.connect(tmp_path.as_uri()) as db, oncelog.connect(tmp_path.as_uri()) as other:
        queue = other.queue("work", partitions=4, create=True)

        def send() -> None:
            keys = map(str, itertools.count())
            while not ended:
                try:
                    queue.send(b"a", key=next(keys))
                except OncelogError as error:
                    ended.append(error)
                begun.set()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            begun.wait()
            db.delete_queue("work")
            thread.join(30)
        finally:
            ended.append(OncelogError("enough"))
            thread.join()
        assert isinstance(ended[0], NotFound)
        assert db.logs() == []


def test_leases_that_are_over_are_nobodys(world: World) -> None:
    """A worker that died does not keep a queue from being deleted when the time of its lease has passed."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    queue.send(b"a")
    consumer = queue.consume("g", ack_timeout_s=5)
    consumer.receive()
    world.clock.advance(4)
    with pytest.raises(LogBusy, match="workers hold 1"):
        db.delete_queue("work", state=world.state)
    world.clock.advance(2)
    db.delete_queue("work", state=world.state)
    assert db.logs() == []


def test_a_queue_has_one_state(tmp_path: Path, postgres_state: str) -> None:
    """Also one without messages yet: two states would deliver each message twice."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.queue("work", create=True, state=postgres_state)
        with pytest.raises(InvalidArgument, match="the state that its brokers share"):
            db.queue("work", create=True)
        assert db.queues() == []


def test_a_partition_that_is_lost_is_not_adopted_away(tmp_path: Path) -> None:
    """With fewer partitions than before, the messages behind the gap would be forgotten."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.queue("work", partitions=3, create=True).close()
        for lost in (1, 0):
            db.delete(f"queue/work/{lost}")
            for left in (tmp_path / "queues").iterdir():
                left.unlink()
            with (
                oncelog.connect(tmp_path.as_uri()) as other,
                pytest.raises(InvalidArgument, match=f"queue/work/{lost}' is missing"),
            ):
                other.queue("work", create=True, adopt=True)


def test_a_queue_whose_state_is_lost_is_not_said_to_be_away(tmp_path: Path) -> None:
    """Its messages are there: who deletes it learns so, and no empty state is made."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.queue("emails", create=True).send(b"hello", id="1")
    shutil.rmtree(tmp_path / "queues")
    with oncelog.connect(tmp_path.as_uri()) as db, pytest.raises(NotFound, match="its 1 logs are there"):
        db.delete_queue("emails")
    assert not (tmp_path / "queues").exists()
