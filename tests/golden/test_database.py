"""A database that an earlier version made by default settings is opened, by the same program, and keeps what it has."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import Database, InvalidArgument, LogSettings, QueueSettings, Window
from oncelog.settings import FORMER_WINDOWS
from tests.golden import make


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Return a database of the version before unbounded windows: log ``orders`` with ids order-0 to order-2, and log of
    streams ``events``. Both were made without a word about windows.
    """
    with zipfile.ZipFile(make.FOLDER / "database.zip") as stored:
        stored.extractall(tmp_path)
    with oncelog.connect(f"file://{tmp_path}") as opened:
        yield opened


def test_the_same_program_opens_its_log_after_the_upgrade(database: Database) -> None:
    """A program that names no window opens the log with its settings, and the stored bounds stay and hold."""
    for create in (True, False):
        log = database.log("orders", LogSettings(), create=create)
        assert log.settings.window == FORMER_WINDOWS[0]
    with log.writer() as writer:
        again = writer.append(b"v1", id="order-1")
        assert (again.position, again.duplicate) == (1, True)
        assert writer.append(b"v3", id="order-3").position == 3
    assert database.log("orders", LogSettings()).settings.window == FORMER_WINDOWS[0]
    database.log("orders", LogSettings(window=Window(duration_s=600, max_keys=100_000)))


def test_the_same_program_opens_its_streams_after_the_upgrade(database: Database) -> None:
    """The same of a log of streams, which had bounds of its own."""
    database.streams("events", create=True)
    database.streams("events", LogSettings(), create=True)
    assert database.log("events").settings.window == FORMER_WINDOWS[1]


def test_bounds_that_somebody_named_are_a_difference(database: Database) -> None:
    """Only what an earlier version made up is kept without a word: any other setting that differs is named."""
    with pytest.raises(InvalidArgument, match=r"window\.max_keys: stored 100000, given 5"):
        database.log("orders", LogSettings(window=Window(max_keys=5)))
    with pytest.raises(InvalidArgument, match="on_conflict") as refused:
        database.log("orders", LogSettings(on_conflict="original"))
    assert "window" not in str(refused.value)
    database.log("orders").configure(LogSettings(window=Window(max_keys=5)))
    with pytest.raises(InvalidArgument, match=r"window\.max_keys: stored 5, given None"):
        database.log("orders", LogSettings())


def test_the_bounds_are_lifted_by_configure(database: Database) -> None:
    """After a switch, the old log remembers all that is in it, by every rule of a new one."""
    log = database.log("orders", LogSettings())
    log.configure(LogSettings())
    assert database.log("orders", LogSettings()).settings.window.unbounded
    with log.writer() as writer:
        assert [writer.append(b"v%d" % n, id=f"order-{n}").position for n in range(3)] == [0, 1, 2]
    assert log.verify().ok
    with pytest.raises(InvalidArgument, match="window"):
        database.log("orders", LogSettings(window=FORMER_WINDOWS[0]))


def test_the_same_program_opens_its_queue_after_the_upgrade(database: Database) -> None:
    """A queue stores the settings of its logs too: one that was made by the old default is opened by the new one."""
    database.queue("emails", QueueSettings(log=LogSettings(window=FORMER_WINDOWS[0])), create=True).close()
    database.queue("emails", QueueSettings(), create=True).close()
    with pytest.raises(InvalidArgument, match="ack_timeout_s"):
        database.queue("emails", QueueSettings(ack_timeout_s=5.0))
