"""``oncelog doctor``: whatever is wrong with the set-up is a line that says what to do, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

import oncelog
from oncelog.cli.commands import doctor
from oncelog.clock import SYSTEM
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


def test_doctor_finds_the_damaged_log(tmp_path: Path) -> None:
    """The exit code is 1, and the row of the log says what to do."""
    done = shell("doctor", "--json", url=make(tmp_path))
    assert done.code == 1, done.err.decode()
    checks = {check["what"]: check for check in done.lines}
    assert checks["log broken"]["verdict"] == "bad"
    assert "verify" in checks["log broken"]["advice"]
    assert checks["log orders"]["verdict"] == "ok"
    assert checks["Python"]["verdict"] == "ok"


def _look(url: str) -> dict[str, tuple[str, str, str]]:
    """Return what a doctor says in this process, by what was looked at."""
    return {check.what: (check.verdict, check.found, check.advice) for check in doctor._checks(url)}


def test_a_file_is_no_folder_of_a_database(tmp_path: Path) -> None:
    """A file where the folder should be, or on the way to it, is named once."""
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "shop"):
        found = _look(folder.as_uri())
        assert found["folder"] == ("bad", f"{tmp_path / 'file'} is a file", "move it away, or choose another folder")
        assert "database" not in found
    done = shell("doctor", url=(tmp_path / "file" / "shop").as_uri())
    assert (done.code, done.err) == (1, b"")


def test_a_folder_that_nobody_can_write_is_found_by_writing() -> None:
    """In ``/proc`` the superuser may write, as far as permissions say; only an attempt tells that nobody can."""
    verdict, found, advice = _look("/proc/shop")["folder"]
    assert (verdict, found.partition(":")[0]) == ("bad", "/proc cannot be written")
    assert "choose another folder" in advice


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "make room"), (errno.EROFS, "mount it writable"), (errno.EACCES, "the right")]
)
def test_why_a_folder_cannot_be_written_decides_what_to_do(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a read-only one, and a folder of another user are three different things to mend."""

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    verdict, found, told = _look(str(tmp_path))["folder"]
    assert (verdict, found) == ("bad", f"{tmp_path} cannot be written: {os.strerror(number)}")
    assert advice in told


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    """A doctor writes to see whether that works, and no trace of it stays; a folder that is not there is not made."""
    (tmp_path / "shop").mkdir()
    assert _look(str(tmp_path / "shop"))["folder"][0] == "ok"
    assert _look(str(tmp_path / "other"))["folder"][0] == "note"
    assert [path.name for path in tmp_path.rglob("*")] == ["shop"]


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    """Each address is named with its reason; nobody waits as long as a client would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{free.getsockname()[1]}"  # bound, and nobody listens
        verdict, found, advice = _look(f"oncelog://{target}")["server"]
    assert (verdict, found) == ("bad", f"nobody answers at {target}: Connection refused")
    assert "oncelog serve" in advice


def test_a_clock_that_is_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time before this version existed is bad; records from the future are a note at their log."""
    url = make(tmp_path)
    now_us = SYSTEM.now_us()
    monkeypatch.setattr(doctor, "SYSTEM", SimpleNamespace(now_us=lambda: now_us - 2 * 3_600_000_000))
    found = _look(url)
    assert found["clock"][0] == "ok"
    verdict, told, advice = found["log orders"]
    assert (verdict, "ahead of this clock" in told, "set the clock" in advice) == ("note", True, True)
    monkeypatch.setattr(doctor, "SYSTEM", SimpleNamespace(now_us=lambda: 0))
    assert _look(url)["clock"][:2] == ("bad", "1970-01-01 00:00:00 UTC is in the past")


@pytest.mark.parametrize(
    ("script", "verdict", "found"),
    [
        (None, "note", "cannot be run: No such file or directory"),
        ("exit 1", "note", "does not tell its version"),
        ("""echo 'openjdk version "11.0.2"' >&2""", "note", "11.0.2"),
        ("""echo 'openjdk version "21.0.1"' >&2""", "ok", "21.0.1"),
    ],
)
def test_java_is_the_one_that_spark_would_start(
    script: str | None, verdict: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``JAVA_HOME`` counts before the path. None, a broken one and an old one are notes: only Spark needs it."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    told = doctor._java()
    assert (told.verdict, told.found.endswith(found)) == (verdict, True)
    assert told.advice.startswith("Spark needs Java 17") == (verdict != "ok")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra that is not installed, or in part, is a note with what to install, quoted."""
    monkeypatch.setitem(doctor._EXTRAS, "sql", ("duckdb", "nowhere.at_all"))
    checks = {check.what: check for check in doctor._checks(None)}
    assert checks["extra sql"].found == "without nowhere.at_all"
    assert checks["extra sql"].advice == 'pip install "oncelog[sql]"'
    assert checks["database"].verdict == "note"


@pytest.mark.parametrize("url", ["ftp://x", "file://host/x", "profile:none", "s3:/", "oncelog://", "oncelog://a:b", ""])
def test_a_url_that_is_none_is_a_line(url: str) -> None:
    """Whatever is given as a URL, the answer is a finding with the reason."""
    verdict, found, _ = _look(url)["database"]
    assert (verdict, bool(found)) == ("bad", True)


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
    assert "what     Python" in lines
    assert "do" not in lines
