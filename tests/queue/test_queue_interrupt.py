"""Ctrl-C in the midst of a call: at each point where Python heeds a signal, no message is lost, and no lock is left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from oncelog import Message, Queue, QueueSettings, RetryPolicy
from oncelog.queue.deliver.consumer import Consumer
from tests.crash.test_append_interrupt import interrupted_at
from tests.log.watched import LONG_S
from tests.queue.conftest import World

SENDS = 3
MESSAGES = 4
"""Of each send, which is a block of the log: rows of several blocks are read at once."""
LEASE_S = 10.0
STRIDE = 1 if os.environ.get("ONCELOG_SOAK") == "1" else 11
POINTS_MIN = 100
BURIAL_POINTS = 60 if STRIDE == 1 else 8
SEATING_POINTS = 6

Work = Callable[[Queue, Consumer], Callable[[], object]]


def receiving(_: Queue, consumer: Consumer) -> Callable[[], object]:
    """Return what receives."""
    return consumer.receive


def acknowledging(_: Queue, consumer: Consumer) -> Callable[[], object]:
    """Return what acknowledges messages that were received before."""
    held = consumer.receive()
    return lambda: consumer.ack(held)


def sending(queue: Queue, _: Consumer) -> Callable[[], object]:
    """Return what sends the last message again."""
    return lambda: queue.send(b"0", id="last")


def sent(world: World, number: int) -> Queue:
    """Return a queue of its own with messages."""
    settings = QueueSettings(retry=RetryPolicy(max_attempts=9, backoff_s=0, max_backoff_s=0))
    queue = world.open().queue(f"work{number}", settings, create=True)
    for first in range(0, SENDS * MESSAGES, MESSAGES):
        queue.send_many([Message(b"%d" % (first + one)) for one in range(MESSAGES)])
    return queue


def pressed(world: World, work: Work, number: int) -> bool:
    """Press Ctrl-C at the nth point of some work, and check what comes after it; tell whether it was pressed at all."""
    with sent(world, number) as queue, queue.consume("g", prefetch=5, ack_timeout_s=LEASE_S) as consumer:
        act = work(queue, consumer)
        with interrupted_at(number) as where:
            act()
        world.clock.advance(LEASE_S + 1)  # what was claimed, and never handed out, is delivered again
        with ThreadPoolExecutor(1) as another:  # a lock that was left taken would keep it waiting
            another.submit(queue.send, b"0", id="last").result(LONG_S)
            done = another.submit(received, consumer).result(LONG_S)
        assert queue.stats().ends == [SENDS * MESSAGES + 1], "the last message is there once"
        assert queue.lag("g") == 0, "nothing is left"
        if work is not acknowledging:
            assert sorted(done) == [0, *range(SENDS * MESSAGES)], "each was delivered"
    return bool(where)


def received(consumer: Consumer) -> list[int]:
    """Receive and acknowledge messages, as often as can be needed."""
    done: list[int] = []
    for _ in range(SENDS * MESSAGES):  # one after Ctrl-C may only find that its leases are over
        found = consumer.receive()
        consumer.ack(found)
        done += [int(one.value) for one in found]
    return done


@pytest.mark.parametrize("work", [receiving, acknowledging, sending])
def test_no_message_is_lost_by_ctrl_c(tmp_path: Path, work: Work) -> None:
    """What was read when Ctrl-C came was taken for delivered, and a transaction was left that never ended."""
    world = World(tmp_path / "db", None)
    last = next(number for number in count(1, STRIDE) if not pressed(world, work, number))
    world.close()
    assert last > POINTS_MIN


def test_ctrl_c_in_a_burial_keeps_no_message_from_the_dead_letters(tmp_path: Path) -> None:
    """Ctrl-C as a burial began left its lock taken: nothing was buried any more, and what was dying stayed."""
    world = World(tmp_path / "db", None)
    for number in range(1, BURIAL_POINTS):
        with sent(world, number) as queue, queue.consume("g", prefetch=2) as consumer:
            held = consumer.receive()
            with interrupted_at(number, "Undertaker.bury"):
                consumer.nack(held, "no", retry=False)
            world.clock.advance(LEASE_S)
            received(consumer)
            assert [letter.value for letter in queue.dead_letters.list()] == [b"0", b"1"]
            assert queue.lag("g") == 0
    world.close()


def test_ctrl_c_in_a_send_keeps_no_other_process_from_sending(tmp_path: Path) -> None:
    """A send that was interrupted counted as one that goes on: the writer was never let go to another process."""
    world = World(tmp_path / "db", None)

    def step(number: int) -> bool:
        with sent(world, number) as queue:
            with interrupted_at(number) as where:
                queue.send(b"0", id="last")
            seats = queue._sending._turns._seats
            assert not any(seat.users or seat.taking for seat in seats), where
            world.clock.advance(LEASE_S)  # a block whose sync was interrupted is offered again
        return bool(where)

    last = next(number for number in count(1, STRIDE) if not step(number))
    world.close()
    assert last > POINTS_MIN


def test_ctrl_c_as_a_writer_was_taken_does_not_keep_it(tmp_path: Path) -> None:
    """Also while somebody has the exception, as an interactive Python does: its log stayed taken, for everybody."""
    world = World(tmp_path / "db", None)
    for number in range(1, SEATING_POINTS):
        with sent(world, number) as queue:
            turns, kept = queue._sending._turns, list[BaseException]()
            [seat], writer = turns._seats, turns._seats[0].writer
            assert writer is not None
            turns.drop(0, writer)
            with interrupted_at(number, "WriterTurns._seat"), keeping(kept):
                queue.send(b"0", id="last")
            assert kept
            if seat.writer is None:
                turns._logs[0].writer(wait_s=0).close()
    world.close()


@contextlib.contextmanager
def keeping(kept: list[BaseException]) -> Iterator[None]:
    """Keep what is raised, with the frames that it came from."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept.append(error)
        raise
