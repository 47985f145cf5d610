"""``oncelog status`` and ``oncelog doctor``: what is here, and what is wrong, also when something is damaged."""

from __future__ import annotations

from pathlib import Path

import oncelog
from tests.cli.shell import shell


def make(folder: Path) -> str:
    """Make two logs and a queue; damage one of the logs."""
    with oncelog.connect(folder.as_uri()) as db:
        for name in ("broken", "orders"):
            with db.log(name, create=True).writer() as w:
                w.append(b"x", id="1")
        db.queue("emails", create=True).send(b"hello", id="1")
        with db.queue("emails").consume("mailer", prefetch=1) as consumer:
            consumer.receive(timeout_s=60)
    for body in (folder / "logs" / "broken" / "bodies").iterdir():
        body.write_bytes(b"damage")
    return folder.as_uri()


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


def test_doctor_finds_the_damaged_log(tmp_path: Path) -> None:
    """The exit code is 1, and the row of the log says what to do."""
    done = shell("doctor", "--json", url=make(tmp_path))
    assert done.code == 1, done.err.decode()
    checks = {check["what"]: check for check in done.lines}
    assert checks["log broken"]["verdict"] == "bad"
    assert "verify" in checks["log broken"]["advice"]
    assert checks["log orders"]["verdict"] == "ok"
    assert checks["Python"]["verdict"] == "ok"


def test_doctor_tells_a_folder_that_cannot_be_there(tmp_path: Path) -> None:
    """A file where the folder should be is named, not a traceback."""
    (tmp_path / "file").write_text("not a folder")
    done = shell("doctor", url=(tmp_path / "file" / "shop").as_uri())
    assert done.code == 1
    assert "Traceback" not in done.err.decode()
