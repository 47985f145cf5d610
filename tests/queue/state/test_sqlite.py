"""The files of a queue's state: what happens to them from outside while a process has them open."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import CorruptionError, Database, Message, Queue, Unavailable
from oncelog.queue.state.database import STATE_TABLES
from oncelog.queue.state.sqlite import STATE_FILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a database."""
    return tmp_path / "db"


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    """Return a database on a disk."""
    with oncelog.connect(folder) as opened:
        yield opened


@pytest.fixture
def queue(db: Database) -> Queue:
    """Return a queue with messages."""
    made = db.queue("work", create=True)
    made.send_many([Message(b"%d" % number) for number in range(3)])
    return made


def test_nothing_is_acknowledged_into_a_file_that_was_removed(queue: Queue, folder: Path) -> None:
    """SQLite goes on with a file that has no name any more: what it stores there is gone with the process."""
    with queue.consume("g") as consumer:
        [delivery] = consumer.receive()
        shutil.rmtree(folder / "queues")
        for act in (delivery.ack, consumer.receive, queue.stats, lambda: queue.send(b"", id="x")):
            with pytest.raises(CorruptionError, match="removed or replaced"):
                act()


def test_nothing_is_delivered_by_a_state_that_was_replaced(queue: Queue, folder: Path) -> None:
    """Whoever opens the queue now has the restored state, in which nobody has a lease: one of the two must stop."""
    with queue.consume("g") as consumer:
        shutil.copytree(folder / "queues", folder / "copy")
        [delivery] = consumer.receive()
        shutil.rmtree(folder / "queues")
        (folder / "copy").rename(folder / "queues")
        with oncelog.connect(folder) as other, other.queue("work").consume("g") as another:
            assert [one.value for one in another.receive()] == [b"0"]
        for act in (delivery.ack, consumer.receive):
            with pytest.raises(CorruptionError, match="removed or replaced"):
                act()


def test_tables_of_before_are_used_as_they_are(folder: Path) -> None:
    """Tables that were made with a hidden row number keep it, and a file its pages: their messages are delivered and
    acknowledged.
    """
    (folder / "queues").mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(folder / "queues" / STATE_FILE)) as before:
        for table in STATE_TABLES:
            identity = table.replace("/* identity */", "INTEGER PRIMARY KEY AUTOINCREMENT")
            before.execute(identity.replace("/* clustered */", ""))
    with oncelog.connect(folder) as db:
        queue = db.queue("work", create=True)
        queue.send_many([Message(b"%d" % number) for number in range(3)])
        with queue.consume("g", prefetch=3) as consumer:
            first, *others = consumer.receive()
            consumer.ack(others)
            first.nack("no", retry=False)
            assert (queue.lag("g"), queue.dead_letters.list()[0].value) == (0, b"0")
    assert page_bytes(folder) == 4_096


def page_bytes(folder: Path) -> int:
    """Return how large the pages of a state are."""
    with contextlib.closing(sqlite3.connect(folder / "queues" / STATE_FILE)) as state:
        found: int = state.execute("PRAGMA page_size").fetchone()[0]
    return found


def test_a_commit_writes_small_pages(queue: Queue, folder: Path) -> None:
    """A claim writes five pages to the journal, and an ack four: each is summed up, copied and brought to the disk."""
    journal = folder / "queues" / f"{STATE_FILE}-wal"
    with queue.consume("g") as consumer:
        consumer.ack(consumer.receive())
        before_bytes = journal.stat().st_size
        consumer.ack(consumer.receive())
        assert journal.stat().st_size - before_bytes <= 9 * (24 + 2_048)
    assert page_bytes(folder) == 2_048


def test_the_journal_begins_again_before_it_is_long(queue: Queue, folder: Path) -> None:
    """A commit that makes the journal longer takes more time than one that writes over what was there."""
    with queue.consume("g") as consumer:
        for _ in range(200):
            [delivery] = consumer.receive()
            delivery.nack("again")
            queue.send(b"")
    size_bytes = (folder / "queues" / f"{STATE_FILE}-wal").stat().st_size
    assert size_bytes < 300 * 2_100


def test_a_state_that_was_put_back_is_used_again(queue: Queue, folder: Path) -> None:
    """Moved away for a moment, it is the same file: what was leased is still its consumer's."""
    with queue.consume("g") as consumer:
        [delivery] = consumer.receive()
        (folder / "queues").rename(folder / "away")
        with pytest.raises(CorruptionError):
            delivery.ack()
        (folder / "away").rename(folder / "queues")
        delivery.ack()
        assert queue.lag("g") == 2


def test_ctrl_c_behind_the_begin_of_a_transaction_ends_it(folder: Path, queue: Queue) -> None:
    """A transaction that nobody ends keeps every process of the machine waiting."""
    state = queue._database._state  # type: ignore[attr-defined]
    begin = state._begin

    def interrupted(wait_s: float) -> None:
        begin(wait_s)
        raise KeyboardInterrupt

    state._begin = interrupted
    with pytest.raises(KeyboardInterrupt), state.writing():
        pass
    state._begin = begin
    with oncelog.connect(folder) as other, other.queue("work").consume("g") as consumer:
        assert [one.value for one in consumer.receive(timeout_s=0)] == [b"0"]


def test_a_call_inside_a_transaction_leaves_the_transaction_as_it_is(queue: Queue) -> None:
    """A signal handler that uses the queue gets an error: the transaction that it interrupted is not its own."""
    state = queue._database._state  # type: ignore[attr-defined]
    with state.writing() as transaction:
        transaction.all("UPDATE oncelog_queue SET paused = 1")
        with pytest.raises(Unavailable, match="within a transaction"), state.writing():
            pass
    with state.reading() as transaction:
        assert transaction.all("SELECT paused FROM oncelog_queue") == [(1,)]
