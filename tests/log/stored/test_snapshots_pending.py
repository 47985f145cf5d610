"""A snapshot taken while storage is away tells what the log tells, not what might have come to be in it."""

from __future__ import annotations

import pytest

from oncelog.errors import Unavailable
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.shop import Shop, in_memory, plain

STORED = plain(range(4))


def left_behind(batch: int) -> Shop:
    """Return a shop whose writer stored four ids, took a snapshot while three batches were on their way, and died."""
    clock = SimulatedClock(auto_advance=True)
    storage = FaultyStorage(MemoryStorage(clock=clock))
    shop = Shop(storage, clock)
    log = shop.log(LogSettings(window=Window(duration_s=1e6, max_keys=4), seal="off", snapshot_interval_s=1e6))
    writer = log.writer()
    writer.append_many(STORED)
    away = Unavailable("away", outcome="not written")
    storage.faults.fail_forever(lambda operation, _: away if operation == "append" else None)
    for first in (100, 200, 300):
        with pytest.raises(Unavailable):
            writer.append_many(plain(range(first, first + batch)), timeout_s=0)
    writer.snapshot()
    assert log.info().snapshots
    with pytest.raises(Unavailable):
        writer.close(timeout_s=0)
    storage.faults.heal()
    return shop


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_what_never_came_to_be_stored_made_no_room(batch: int) -> None:
    """Ids went out of the window for those that were pending. Their writer died with these: so the ids are back."""
    shop = left_behind(batch)
    log = shop.log()
    assert log.verify().findings == ()
    with log.writer() as writer:
        assert [ack.duplicate for ack in writer.append_many(STORED)] == [True] * 4
        assert not writer.append(b"new", id="new").duplicate
    assert len(list(log.read())) == 5
    assert log.verify().findings == ()


@pytest.mark.parametrize("batch", [1, 4])
def test_others_in_their_place_make_no_room_either(batch: int) -> None:
    """A snapshot that counted on records which never came is not believed once others stand at their positions."""
    shop = left_behind(batch)
    with shop.log().writer() as writer:
        writer.append_many([Record(b"without an id") for _ in range(3 * batch + 1)])
    log = shop.log()
    assert log.truncate(5).first_position == 0, "nor by a truncation"
    with log.writer() as writer:
        assert [ack.duplicate for ack in writer.append_many(STORED)] == [True] * 4
    assert log.verify().findings == ()


def test_a_snapshot_whose_pending_records_came_is_believed() -> None:
    """The usual case: what was on its way arrives, and the snapshot saves the next writer its time."""
    shop = in_memory(auto_advance=True)
    log = shop.log(LogSettings(window=Window(duration_s=1e6, max_keys=4), seal="off", snapshot_interval_s=1e6))
    with log.writer() as writer:
        writer.append_many(STORED)
        with pytest.raises(Unavailable):
            writer.append_many(plain(range(100, 103)), timeout_s=0)
        writer.snapshot()
        writer.flush(timeout_s=None)
    (key,) = log.info().snapshots
    with shop.log().writer() as writer:
        assert [ack.duplicate for ack in writer.append_many(plain([3, 100, 101, 102]))] == [True] * 4
        assert not writer.append_many(plain([0]))[0].duplicate
    assert key in log.info().snapshots
    assert log.verify().findings == ()


def test_the_window_goes_back_to_its_size_when_they_are_stored() -> None:
    """Once all that was pending is stored the oldest go, as if it had come one by one."""
    clock = SimulatedClock(auto_advance=True)
    shop = Shop(MemoryStorage(clock=clock), clock)
    log = shop.log(LogSettings(window=Window(duration_s=1e6, max_keys=4), seal="off", block_records=2))
    with log.writer() as writer:
        writer.append_many(plain(range(10)))
        assert not writer.append(b"last", id="last").duplicate
        assert [writer.append(each.value, id=each.id).duplicate for each in plain(range(7, 10))] == [True] * 3
        assert not writer.append_many([Record(b"6:......", id="id-6")])[0].duplicate
        keys = writer.window_state["keys"]
        assert keys is not None
        assert keys <= 5
    assert log.verify().findings == ()
