"""Up-time stands still in an outage and in a pause, whatever is in flight, and never goes back."""

from __future__ import annotations

import threading

import pytest

from oncelog import clock as clock_module
from oncelog.clock import CREDIT_US, SystemClock
from oncelog.log.append.uptime import PATIENCE_US, Uptime
from oncelog.testing.clock import SimulatedClock
from tests.log.watched import LONG_S, until


def test_block_that_was_begun_while_another_failed_is_not_older_than_the_next() -> None:
    """Two are in flight, the first fails: what comes after the second has no smaller up-time than it."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    first = uptime.ask(clock.elapsed_us())
    clock.advance(0.3)
    second_us = uptime.stamp_at(clock.elapsed_us())
    uptime.ask(clock.elapsed_us())
    uptime.failed(first, clock.elapsed_us())
    clock.advance(60)
    assert (
        uptime.at(clock.elapsed_us()) == uptime.stamp_at(clock.elapsed_us()) == second_us
    )  # an outage does not age ids


def test_request_that_hung_through_an_outage_takes_nothing_back() -> None:
    """One hangs, another fails and is answered at last; then the first fails too."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    hanging = uptime.ask(clock.elapsed_us())
    other = uptime.ask(clock.elapsed_us())
    uptime.failed(other, clock.elapsed_us())
    clock.advance(10)
    again = uptime.ask(clock.elapsed_us())
    uptime.answered(again, clock.elapsed_us())
    stamped_us = uptime.stamp_at(clock.elapsed_us())
    uptime.failed(hanging, clock.elapsed_us())
    assert uptime.stamp_at(clock.elapsed_us()) >= stamped_us
    assert uptime.at(clock.elapsed_us()) >= stamped_us
    assert stamped_us < PATIENCE_US


def test_a_pause_of_the_process_is_no_uptime() -> None:
    """SIGSTOP or a frozen machine for an hour: no id is an hour older. Time that was lived counts in full."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    clock.advance(10)
    clock.pause(3600)
    assert uptime.at(clock.elapsed_us()) == 10_000_000
    clock.advance(5)
    assert uptime.at(clock.elapsed_us()) == 15_000_000


def test_a_pause_while_storage_is_asked_is_no_uptime() -> None:
    """The process is stopped in the middle of a sync: neither the pause nor the rest of the sync's hour counts."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0)
    request = uptime.ask(clock.elapsed_us())
    clock.pause(3600)
    uptime.answered(request, clock.elapsed_us())
    assert uptime.at(clock.elapsed_us()) == 0


def test_each_answer_of_storage_is_good_for_a_few_seconds() -> None:
    """Where storage is looked at every second, an idle writer's up-time ends a few seconds after the last answer."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0, looks=True)
    for _ in range(60):
        clock.advance(1)
        uptime.seen(clock.elapsed_us())
    assert uptime.at(clock.elapsed_us()) == 60_000_000
    clock.advance(3600)  # an outage: nobody is answered
    assert uptime.at(clock.elapsed_us()) == 60_000_000 + CREDIT_US
    uptime.seen(clock.elapsed_us())
    assert uptime.at(clock.elapsed_us()) == 60_000_000 + CREDIT_US
    clock.advance(1)
    assert uptime.at(clock.elapsed_us()) == 61_000_000 + CREDIT_US


def test_a_look_does_not_end_an_outage_of_writes() -> None:
    """A full disk can be read: what was refused ages no id before it is stored."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0, looks=True)
    uptime.failed(uptime.ask(clock.elapsed_us()), clock.elapsed_us())
    for _ in range(60):
        clock.advance(1)
        uptime.seen(clock.elapsed_us())
    assert uptime.at(clock.elapsed_us()) == 0
    uptime.answered(uptime.ask(clock.elapsed_us()), clock.elapsed_us())
    clock.advance(2)
    assert uptime.at(clock.elapsed_us()) == 2_000_000


def test_a_look_takes_nothing_back_while_a_request_hangs() -> None:
    """A write hangs, a look is answered late: up-time stands still meanwhile, and does not go back."""
    clock = SimulatedClock()
    uptime = Uptime(clock, 0, looks=True)
    hanging = uptime.ask(clock.elapsed_us())
    clock.advance(100)
    assert uptime.at(clock.elapsed_us()) == PATIENCE_US
    uptime.seen(clock.elapsed_us())
    clock.advance(100)
    assert uptime.at(clock.elapsed_us()) == PATIENCE_US
    uptime.answered(hanging, clock.elapsed_us())
    assert uptime.at(clock.elapsed_us()) == PATIENCE_US


def test_what_is_longer_than_a_beat_was_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's clock runs through SIGSTOP: between two beats a few seconds are taken for lived, and no more."""
    clock = SystemClock()
    now_us = 0
    monkeypatch.setattr(clock, "elapsed_us", lambda: now_us)
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)  # the test beats
    clock.pulse = 0, 0
    uptime = Uptime(clock, 0)
    now_us = 2_000_000
    assert uptime.at(clock.elapsed_us()) == 2_000_000
    now_us = 3_600_000_000  # the process was stopped, and runs before its pulse does
    assert uptime.at(clock.elapsed_us()) == CREDIT_US
    clock._beat()
    assert uptime.at(clock.elapsed_us()) == CREDIT_US
    now_us += 1_000_000
    assert uptime.at(clock.elapsed_us()) == CREDIT_US + 1_000_000


def test_the_pulse_ends_with_its_last_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without writers has no thread that wakes every second; with the next writer it has one again."""
    monkeypatch.setattr(clock_module, "BEAT_S", 0.001)
    clock = SystemClock()
    uptime = Uptime(clock, 0)
    thread = clock._thread
    assert thread is not None
    beat_us = clock.pulse[0]
    until(lambda: clock.pulse[0] > beat_us)
    asked = threading.Event()
    uptime.probe = asked.set
    assert asked.wait(LONG_S), "it asks storage for signs, too"
    assert uptime.at(clock.elapsed_us()) >= 0
    del uptime
    thread.join(LONG_S)
    assert not thread.is_alive()
    again = Uptime(clock, 0)
    assert clock._thread is not None
    assert clock._thread is not thread
    assert again.at(clock.elapsed_us()) >= 0
