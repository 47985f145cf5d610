"""Up-time while several blocks are in flight: it stands still in an outage, and never goes back."""

from __future__ import annotations

from oncelog.log.append.uptime import PATIENCE_US, Uptime
from oncelog.testing.clock import SimulatedClock


def test_block_that_was_begun_while_another_failed_is_not_older_than_the_next() -> None:
    """Two are in flight, the first fails: what comes after the second has no smaller up-time than it."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    first = uptime.ask(clock.elapsed_us())
    clock.advance(0.3)
    second_us = uptime.stamp_us()
    uptime.ask(clock.elapsed_us())
    uptime.failed(first)
    clock.advance(60)
    assert uptime.now_us() == uptime.stamp_us() == second_us  # an outage does not age ids


def test_request_that_hung_through_an_outage_takes_nothing_back() -> None:
    """One hangs, another fails and is answered at last; then the first fails too."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    hanging = uptime.ask(clock.elapsed_us())
    other = uptime.ask(clock.elapsed_us())
    uptime.failed(other)
    clock.advance(10)
    again = uptime.ask(clock.elapsed_us())
    uptime.answered(again, clock.elapsed_us())
    stamped_us = uptime.stamp_us()
    uptime.failed(hanging)
    assert uptime.stamp_us() >= stamped_us
    assert uptime.now_us() >= stamped_us
    assert stamped_us < PATIENCE_US
