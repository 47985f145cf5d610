"""Readers whose position and result are one transaction: nothing is counted twice, and nothing is left out."""

# ruff: noqa: PT012  (what is raised comes out of a `with`, and its body is what leads to it)

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import oncelog
from oncelog import Inbox, InvalidArgument, LeaseLost, LogSettings, NotFound, Unsupported, Window, limits
from oncelog.log.log import Log
from tests.inbox.places import AnyPlace, Place, RedisPlace


@pytest.fixture
def log() -> Iterator[Log]:
    """Return a log with numbers in it."""
    with oncelog.connect("memory://") as db:
        opened = db.log("numbers", create=True)
        with opened.writer() as writer:
            writer.append_many([oncelog.Record(str(number).encode()) for number in range(25)])
        yield opened


def add_up(inbox: Inbox, log: Log, limit: int = 10) -> int:
    """Add the next numbers to the sum; return how many there were."""
    with inbox.reader(log, "sum").step(limit) as step:
        step.state = (step.state or 0) + sum(int(entry.value) for entry in step.entries)
        return len(step.entries)


def test_position_and_state_go_together(database: AnyPlace, log: Log) -> None:
    """Each step begins where the last ended, also in another inbox; one that fails is as if it had not been."""
    with database.inbox() as inbox:
        assert add_up(inbox, log) == 10
        with pytest.raises(RuntimeError), inbox.reader(log, "sum").step(10) as step:
            database.act(step.connection)
            step.state = -1
            raise RuntimeError
    assert database.effects() == []
    with database.inbox() as inbox:
        assert [add_up(inbox, log) for _ in range(3)] == [10, 5, 0]
        with log.writer() as writer:
            writer.append(b"1000")
        with inbox.reader(log, "sum").step() as step:
            database.act(step.connection)
            assert (step.position, step.state, len(step.entries)) == (25, sum(range(25)), 1)
        with inbox.reader(log, "another", start=24).step() as step:
            assert (step.position, step.state, len(step.entries)) == (24, None, 2)
    assert database.effects() == ["effect"]


def test_a_step_without_entries_changes_nothing(database: AnyPlace, log: Log) -> None:
    """A handler that does not ask whether there are entries does nothing twice: what it did, and its state, are taken
    back.
    """
    with database.inbox() as inbox:
        reader = inbox.reader(log, "idle", start=25)
        for _ in range(2):
            with reader.step() as step:
                assert (step.position, step.state, step.entries) == (25, None, [])
                database.act(step.connection)
                step.state = {"looked": 1}
    assert database.effects() == []


@pytest.mark.parametrize("start", [-1, 2**63, "0"])
def test_a_start_that_is_no_position_is_refused(database: AnyPlace, log: Log, start: object) -> None:
    """The error names the argument, before anything is asked of a database."""
    with database.inbox() as inbox, pytest.raises(InvalidArgument, match="start"):
        inbox.reader(log, "sum", start=start)  # type: ignore[arg-type]


def test_a_reader_that_was_overtaken_changes_nothing(database: AnyPlace, log: Log) -> None:
    """Anybody who moved the position meanwhile has had the effect: the other's is taken back."""
    with database.inbox() as inbox, pytest.raises(LeaseLost), inbox.reader(log, "sum").step(10) as step:
        statement = "UPDATE oncelog_position SET position = 20"
        assert isinstance(database, Place)
        database.run(step.connection, statement)
        database.act(step.connection)
    assert database.effects() == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Return a place in a SQLite file."""
    made = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    yield made
    made.close()


def test_readers_of_two_logs_do_not_meet(place: Place) -> None:
    """Nor does the reader of a log that was deleted meet its successor: it would leave out all that is new."""
    with place.inbox() as inbox, oncelog.connect("memory://") as db:
        for _ in range(2):
            for name in ("numbers", "others"):
                made = db.log(name, create=True)
                with made.writer() as writer:
                    writer.append(b"7")
                assert add_up(inbox, made) == 1
            db.delete("numbers")
            db.delete("others")


def test_two_readers_of_one_name_share_the_work(postgres_url: str, log: Log) -> None:
    """Each entry is one's alone, and the sum is that of all, however they take turns."""
    place = Place("psycopg", postgres_url)
    with place.inbox() as inbox:
        inbox.ping()
        seen: list[int] = []

        def work() -> None:
            while taken := add_up(inbox, log, 1):
                seen.append(taken)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 25
        with inbox.reader(log, "sum").step() as step:
            assert (step.position, step.state) == (25, sum(range(25)))
    place.close()


def test_a_state_that_cannot_be_stored_takes_the_step_back(place: Place, log: Log) -> None:
    """And leaves no transaction open in which it would live on."""
    connection = place.connect()
    inbox = Inbox(connection)
    with pytest.raises(InvalidArgument), inbox.reader(log, "sum").step(10) as step:
        place.act(connection)
        step.state = object()
    assert not connection.in_transaction
    assert place.effects() == []
    for limit in (0, -1, "ten"):
        with pytest.raises(InvalidArgument):
            inbox.reader(log, "sum").step(limit)  # type: ignore[arg-type]


def test_what_is_truncated_away_is_told_and_somebody_decides(place: Place, tmp_path: Path) -> None:
    """Nothing is left out silently: the reader stops until it learns where to go on, and keeps its state."""
    settings = LogSettings(segment_bytes=limits.SEGMENT_BYTES_MIN, window=Window(duration_s=0.001, max_keys=1))
    with oncelog.connect(f"file://{tmp_path}/db") as db, place.inbox() as inbox:
        log = db.log("numbers", settings, create=True)
        reader = inbox.reader(log, "sum")
        with log.writer() as writer:
            for _ in range(4):
                writer.append(b"7" * limits.SEGMENT_BYTES_MIN)
        with reader.step(1) as step:
            step.state = "kept"
        first = log.truncate(before=3).first_position
        assert first > 1
        with pytest.raises(NotFound) as gone, reader.step():
            pass
        assert "move" in gone.value.__notes__[0]
        reader.move(first)
        with reader.step() as step:
            assert (step.position, step.state, len(step.entries)) == (first, "kept", 4 - first)


def test_readers_on_asynchronous_connections(postgres_url: str, log: Log) -> None:
    """The same with ``await``."""
    place = Place("psycopg", postgres_url)

    async def run() -> list[int]:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            reader = Inbox(connection).reader(log, "sum")
            counts = []
            for _ in range(3):
                async with reader.step(20) as step:
                    counts.append(len(step.entries))
                    await step.connection.execute("INSERT INTO effects VALUES ('step')")
            await reader.amove(24)
            async with reader.step() as step:
                counts.append(len(step.entries))
            return counts

    assert asyncio.run(run()) == [20, 5, 0, 1]
    assert place.effects() == ["step", "step"]
    place.close()


def test_a_position_needs_a_transaction(redis_socket: Path, log: Log) -> None:
    """Redis has none: that is said, instead of a promise that does not hold."""
    place = RedisPlace(redis_socket)
    with place.inbox() as inbox, pytest.raises(Unsupported), inbox.reader(log, "sum").step():
        pass
    place.close()
