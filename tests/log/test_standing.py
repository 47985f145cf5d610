"""A writer that is closed: what it tells of its window is not what the next writer does with the table."""

from __future__ import annotations

import pytest

from oncelog import LogSettings, Window
from oncelog.connect import Database
from oncelog.storage.memory import MemoryStorage

IDS = 5


@pytest.mark.parametrize("window", [Window(), Window(duration_s=600, max_keys=7)], ids=["without bounds", "bounded"])
def test_a_closed_writer_tells_its_own_last_state(window: Window) -> None:
    """The table of a closed writer is the next one's: what that one stored was shown as the closed one's."""
    log = Database(MemoryStorage()).log("orders", LogSettings(window=window), create=True)
    with log.writer() as first:
        for number in range(IDS):
            first.append(b"v", id=str(number))
        state, counts = dict(first.window_state), first.counts()
    before = dict(first.window_state)
    assert {**before, "horizon_s": 0} == {**state, "horizon_s": 0}
    with log.writer() as second:
        for number in range(IDS):
            second.append(b"v", id=f"another {number}")
        assert (second.window_state["keys"] or 0) > IDS
    assert dict(first.window_state) == before
    assert first.counts().forgotten == counts.forgotten == 0
    assert second.counts().attempts == IDS
