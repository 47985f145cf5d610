"""``oncelog status``: what is here, also when something is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import oncelog
from oncelog import InvalidArgument
from oncelog.cli.commands.status import status
from oncelog.storage.local import links
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


def test_status_makes_nothing(tmp_path: Path) -> None:
    """A misspelt path stays absent: who looks leaves no folder and no state of queues behind."""
    url = (tmp_path / "shop").as_uri()
    for command in (["status"], ["queue", "list"], ["queue", "stats"], ["log", "list"]):
        assert shell(*command, url=url).code == 0
    for command in (["queue", "peek", "emails"], ["queue", "delete", "emails", "--yes"]):
        refused = shell(*command, url=url)
        assert refused.code == 2
        assert b"there is no queue 'emails'" in refused.err
    assert not (tmp_path / "shop").exists()


def test_queues_that_may_not_be_looked_at_are_not_no_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the state of queues is refused (a folder of another user), status says why, and not that there are none."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.queue("emails", create=True)

    def refuse(path: Path) -> None:
        message = f"{path} belongs to another user"
        raise InvalidArgument(message)

    monkeypatch.setattr(links, "check_owner", refuse)
    status(tmp_path.as_uri(), json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["queues"] == []
    assert "belongs to another user" in told["queues_error"]
    status(tmp_path.as_uri())
    shown = capsys.readouterr().out
    assert "queues are not shown" in shown
    assert "0 queues" not in shown
