"""Readers whose position and result are one transaction: nothing is counted twice, and nothing is left out."""

# ruff: noqa: PT012  (what is raised comes out of a `with`, and its body is what leads to it)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import Inbox, LeaseLost, Unsupported
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


def test_a_reader_that_was_overtaken_changes_nothing(database: AnyPlace, log: Log) -> None:
    """Whoever moved the position meanwhile has had the effect: the other's is taken back."""
    with database.inbox() as inbox, pytest.raises(LeaseLost), inbox.reader(log, "sum").step(10) as step:
        statement = "UPDATE oncelog_position SET position = 20"
        assert isinstance(database, Place)
        database.run(step.connection, statement)
        database.act(step.connection)
    assert database.effects() == []


def test_a_position_needs_a_transaction(redis_socket: Path, log: Log) -> None:
    """Redis has none: that is said, instead of a promise that does not hold."""
    place = RedisPlace(redis_socket)
    with place.inbox() as inbox, pytest.raises(Unsupported), inbox.reader(log, "sum").step():
        pass
    place.close()
