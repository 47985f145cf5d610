"""Jobs off the append path: one at a time, and none keeps the next from being done."""

from __future__ import annotations

import threading

import pytest

from oncelog.errors import Unavailable
from oncelog.log.upkeep.background import Housekeeper

LONG_S = 60.0


@pytest.mark.parametrize("error", [Unavailable("storage is away"), RuntimeError("a bug")])
def test_a_job_that_fails_does_not_end_the_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot that failed must not be the last thing a writer ever did off the append path; the log tells of it."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    housekeeper = Housekeeper()
    failed, done = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise error

    housekeeper.ask("first", fail)
    assert failed.wait(LONG_S)
    housekeeper.stop()
    if isinstance(error, Unavailable):
        assert "the job 'first' of a log fails, and is tried again: storage is away" in caplog.text
    housekeeper.ask("second", done.set)
    assert done.wait(LONG_S)
    housekeeper.stop()


def test_a_job_that_is_asked_for_twice_before_it_begins_is_done_once() -> None:
    """Work that piles up while storage is slow is not done over and over."""
    housekeeper = Housekeeper()
    begun, go_on = threading.Event(), threading.Event()
    count = 0

    def busy() -> None:
        begun.set()
        assert go_on.wait(LONG_S)

    def counted() -> None:
        nonlocal count
        count += 1

    housekeeper.ask("busy", busy)
    assert begun.wait(LONG_S)
    housekeeper.ask("counted", counted)
    housekeeper.ask("counted", counted)
    last = threading.Event()
    housekeeper.ask("last", last.set)
    go_on.set()
    assert last.wait(LONG_S)
    assert count == 1
