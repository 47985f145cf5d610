"""``oncelog status`` and ``oncelog doctor``: what is here, and what is wrong, also when something is damaged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oncelog
from tests.cli.shell import shell, terminal


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


def test_doctor_says_what_to_check_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that does not answer is a finding, with what to look at: the endpoint, the name, the credentials."""
    for name, value in {"REGION": "x", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = shell("doctor", "--json", url="s3://wrong/shop")
    (database,) = (check for check in done.lines if check["what"] == "database")
    assert (done.code, database["verdict"]) == (1, "bad")
    assert "endpoint" in database["advice"]


def test_a_narrow_terminal_shows_no_empty_lines_of_a_row(tmp_path: Path) -> None:
    """A row of which nothing is to be done has no line for it: what is wrong is found at a glance."""
    seen = terminal("doctor", url=(tmp_path / "shop").as_uri(), columns=40).out.decode()
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in seen.splitlines()]
    assert "what   Python" in lines
    assert "do" not in lines
