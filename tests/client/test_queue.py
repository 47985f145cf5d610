"""What a queue and its log tell through a server: groups that are removed, and files that are elsewhere."""

from __future__ import annotations

import pytest

import oncelog
from oncelog import Closed, LogBusy, LogSettings, NotFound, Record, Unsupported
from oncelog.connect import Database
from oncelog.limits import SEGMENT_BYTES_MIN


def test_a_group_is_removed_through_the_server(remote: Database) -> None:
    """A misspelt group keeps every message for ever; one that is in use is kept, unless that is forced."""
    queue = remote.queue("emails", create=True)
    queue.send(b"x", id="1")
    with queue.consume("mailr") as deliveries:
        assert deliveries.receive()
        with pytest.raises(LogBusy):
            queue.remove_group("mailr")
        assert queue.groups() == ["mailr"]
        queue.remove_group("mailr", force=True)
        with pytest.raises(Closed):
            deliveries.receive()
    assert queue.groups() == []
    with pytest.raises(NotFound, match="mailr"):
        queue.remove_group("mailr")
    with queue.consume("mailr") as deliveries:
        assert [one.attempts for one in deliveries.receive()] == [1], "another group of that name begins anew"


def test_files_on_the_servers_disk_are_not_local(remote: Database) -> None:
    """A path that only the server can open is said to be one: DuckDB here would not find it, or find another."""
    log = remote.log("orders", LogSettings(segment_bytes=SEGMENT_BYTES_MIN), create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"%0100000d" % number) for number in range(3)])
        writer.append(b"in the next segment")
    log.seal()
    assert log.files()
    assert not any(file.local for file in log.files())


def test_what_needs_the_disk_says_so(remote: Database) -> None:
    """A copy moves the log's secret: it is made where the database is."""
    remote.log("orders", create=True)
    with oncelog.connect("memory://") as other, pytest.raises(Unsupported):
        remote.copy("orders", other)
