"""A snapshot taken while storage is away tells what the log tells, not what might have come to be in it."""

from __future__ import annotations

import pytest

from oncelog.errors import Unavailable
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.life.shop import Shop, plain


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_what_never_came_to_be_stored_pushes_nothing_out_of_a_snapshot(batch: int) -> None:
    """Ids that are pending, however many, take the place of none that is stored: their writer may die with them."""
    clock = SimulatedClock(auto_advance=True)
    storage = FaultyStorage(MemoryStorage(clock=clock))
    shop = Shop(storage, clock)
    log = shop.log(LogSettings(window=Window(duration_s=1e6, max_keys=4), seal="off", snapshot_interval_s=1e6))
    writer = log.writer()
    stored = plain(range(4))
    writer.append_many(stored)
    away = Unavailable("away", outcome="not written")
    storage.faults.fail_forever(lambda operation, _: away if operation == "append" else None)
    for first in (100, 200, 300):
        with pytest.raises(Unavailable):
            writer.append_many(plain(range(first, first + batch)), timeout_s=0)
    writer.snapshot()
    with pytest.raises(Unavailable):
        writer.close(timeout_s=0)
    storage.faults.heal()
    log = shop.log()
    assert log.verify().findings == ()
    with log.writer() as writer:
        assert [ack.duplicate for ack in writer.append_many(stored)] == [True] * 4
        assert not writer.append(b"new", id="new").duplicate
    assert len(list(log.read())) == 5
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
