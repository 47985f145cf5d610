"""Lines about trouble in the background."""

from __future__ import annotations

import logging

import pytest

from oncelog.concurrency.trouble import Trouble


def test_trouble_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """What is tried a thousand times is two lines, not a thousand; the next outage is told again."""
    caplog.set_level(logging.INFO, "oncelog.log")
    trouble = Trouble("oncelog.log", "storing a block of 'orders'")
    trouble.end()
    for _ in range(1000):
        trouble.begin(OSError("disk full"))
    trouble.end()
    trouble.end()
    trouble.begin(OSError("again"))
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("WARNING", "storing a block of 'orders' fails, and is tried again: disk full"),
        ("INFO", "storing a block of 'orders' works again"),
        ("WARNING", "storing a block of 'orders' fails, and is tried again: again"),
    ]
