"""``oncelog status``: what is here, also when something is damaged."""

from __future__ import annotations

from pathlib import Path

import oncelog
from tests.cli.commands.test_doctor import make
from tests.cli.shell import shell


def test_status_shows_what_is_whole_beside_what_is_not(tmp_path: Path) -> None:
    """Counts are those of the database; one damaged log does not hide the others."""
    done = shell("status", "--json", url=make(tmp_path))
    assert done.code == 0, done.err.decode()
    told = done.json
    logs = {log["name"]: log for log in told["logs"]}
    assert logs["orders"]["records"] == 1
    assert "error" in logs["broken"]
    (queue,) = told["queues"]
    assert queue["waiting"] + queue["in flight"] == 1


def test_messages_that_no_group_has_asked_for_wait(tmp_path: Path) -> None:
    """A queue that nobody has consumed yet is not an empty one."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        queue = db.queue("emails", partitions=2, create=True)
        for number in range(3):
            queue.send(b"hello", id=str(number))
    (told,) = shell("status", "--json", url=tmp_path.as_uri()).json["queues"]
    assert (told["waiting"], told["in flight"], told["dead"]) == (3, 0, 0)
