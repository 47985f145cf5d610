"""What is stored of a queue can be read by the next process; what cannot be read can be repaired, or deleted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oncelog import CorruptionError, InvalidArgument, NotFound, QueueSettings, RetryPolicy
from oncelog.queue.state import statements
from oncelog.settings import LogSettings, Window
from tests.queue.conftest import World


class Number(int):
    """An int that is one of its own kind."""


ODD: list[dict[str, Any]] = [
    {"ack_timeout_s": True},
    {"ack_timeout_s": np.float64(7)},
    {"ack_timeout_s": Number(7)},
    {"gate_s": np.int64(60)},
    {"trim_s": float("inf")},
    {"trim_s": False},
    {"retry": RetryPolicy(max_attempts=10**30)},
    {"retry": RetryPolicy(max_attempts=Number(3))},
    {"retry": RetryPolicy(max_attempts=True)},
    {"retry": RetryPolicy(backoff_s=np.float32(1))},  # type: ignore[arg-type]
    {"retry": RetryPolicy(jitter=float("nan"))},
    {"log": LogSettings(window=Window(max_keys=Number(7)))},
    {"log": LogSettings(segment_age_s=float("nan"))},
    {"log": LogSettings(block_records=2**70)},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_settings_are_refused_or_can_be_read_again(world: World, odd: dict[str, Any]) -> None:
    """``ack_timeout_s=True`` was stored, and locked everybody out, deletion included."""
    db = world.open()
    try:
        db.queue("work", QueueSettings(**odd), create=True, state=world.state)
    except InvalidArgument:
        assert db.queues(state=world.state) == []
        return
    again = world.open()
    queue = again.queue("work", state=world.state)
    queue.configure(QueueSettings(log=queue.settings.log))
    again.delete_queue("work", state=world.state)


def damaged(world: World) -> None:
    """Have a queue with a message, whose settings nobody can read."""
    with world.open() as db:
        db.queue("work", create=True, state=world.state).send(b"x", id="x")
        with db._state_of(world.state).writing() as transaction:
            transaction.all("UPDATE oncelog_queue SET settings = ?", '{"ack_timeout_s": true}')


def test_settings_that_cannot_be_read_are_named_and_repaired(world: World) -> None:
    """The error says what to do, and that gives the queue back with its messages."""
    damaged(world)
    with pytest.raises(CorruptionError, match=r"queue 'work': its settings cannot be read .*create=True"):
        world.open().queue("work", state=world.state)
    with pytest.raises(CorruptionError):
        world.open().queue("work", QueueSettings(), state=world.state)
    queue = world.open().queue("work", QueueSettings(ack_timeout_s=7), create=True, state=world.state)
    assert queue.settings.ack_timeout_s == 7
    assert [one.id for one in queue.consume("g").receive()] == ["x"]


def test_a_queue_whose_settings_cannot_be_read_can_be_deleted(world: World) -> None:
    """Nothing of it is left."""
    damaged(world)
    db = world.open()
    assert db.queues(state=world.state) == ["work"]
    db.delete_queue("work", state=world.state)
    assert (db.queues(state=world.state), db.logs()) == ([], [])
    with pytest.raises(NotFound):
        db.queue("work", state=world.state)


def test_a_policy_that_cannot_be_read_is_the_queues(world: World) -> None:
    """A message whose own policy is damaged is delivered by the queue's, and does not stop its group."""
    db = world.open()
    queue = db.queue("work", create=True, state=world.state)
    queue.send(b"x", retry=RetryPolicy(max_attempts=3, backoff_s=0))
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no")
        with db._state_of(world.state).writing() as transaction:
            transaction.all("UPDATE oncelog_run SET policy = ?", "{")
        assert consumer.receive()[0].attempts == 2


def test_an_outlook_tells_all_that_a_claim_has_to_know(world: World) -> None:
    """Where the group is in each partition, when the first message of each condition is due, and whether to deliver."""
    queue = world.open().queue("work", create=True, partitions=2, state=world.state)
    for key in ("a", "b", "c", "d"):
        queue.send(b"", key=key)
    consumer = queue.consume("g", prefetch=4)
    broker = consumer._broker

    def outlook() -> statements.Outlook:
        with queue._database.reading() as transaction:
            found = statements.outlook(transaction, broker.id)
        assert found is not None
        return found

    fresh = outlook()
    assert fresh[1:4] == (None, None, None)
    assert not fresh.is_due(1 << 62)
    one, two, *_ = consumer.receive()
    broker.bury = lambda: None
    one.nack("no")
    two.nack("no", retry=False)
    found = outlook()
    assert found.cursors == queue.stats().ends != fresh.cursors
    assert found.waiting_us is not None
    assert found.leased_us is not None
    assert found.dying_us is not None
    assert found.dying_us < found.waiting_us < found.leased_us
    assert (found.is_due(found.dying_us), found.is_due(found.dying_us - 1)) == (True, False)
    changed = QueueSettings(ack_timeout_s=7.0)
    queue.configure(changed)
    for group in (None, "g"):
        assert (outlook().paused, outlook().settings) == (False, changed)
        queue.pause(group)
        assert outlook().paused
        queue.resume(group)
    with queue._database.reading() as transaction:
        assert statements.outlook(transaction, broker.id + 1) is None
