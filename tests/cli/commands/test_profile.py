"""``oncelog profile``, ``--profile`` and ``ONCELOG_PROFILE``."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog import InvalidArgument, profiles
from oncelog.cli.terminal import database_option
from tests.cli.conftest import Call


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the shell keeps profiles."""
    place = tmp_path / "profiles.json"
    monkeypatch.setenv(profiles.FILE_VARIABLE, str(place))
    monkeypatch.delenv(database_option.VARIABLE, raising=False)
    return place


def test_a_profile_is_added_used_listed_and_removed(
    call: Call, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anywhere on the line, by either spelling, or by the variable; the flag wins over the variable of the URL."""
    other = (tmp_path / "other").as_uri()
    with oncelog.connect(other) as db:
        db.log("of-the-profile", create=True)
    assert call("profile", "list").out.startswith(b"there are no profiles")
    assert b"test is stored" in call("profile", "add", "test", other).out
    for arguments in (["--profile", "test", "log", "list"], ["log", "list", "--profile=test"]):
        found = call(*arguments, "--json")
        assert (found.code, b"of-the-profile" in found.out) == (0, True)
    url = os.environ[database_option.URL_VARIABLE]
    assert url != other, "the variable is as it was"
    monkeypatch.delenv(database_option.URL_VARIABLE)
    monkeypatch.setenv(database_option.VARIABLE, "test")
    assert b"of-the-profile" in call("log", "list").out
    assert b"of-the-profile" not in call("log", "list", "--url", url).out, "a flag wins over a variable"
    listed = msgspec.json.decode(call("profile", "list", "--json").out)
    assert listed == {"name": "test", "url": other, "options": {}}
    assert other.encode() in call("profile", "list").out.replace(b"\n", b"").replace(b" ", b"")
    assert call("profile", "remove", "test").code == 0
    gone = call("log", "list")
    assert gone.code != 0
    assert b"no profile 'test'" in gone.err.replace(b"\n", b" ")


def test_the_url_may_stand_before_the_command(call: Call, file: Path, tmp_path: Path) -> None:
    """By either spelling; the flag wins over the variable of the URL, which is as before when the command is done."""
    other, here = (tmp_path / "other").as_uri(), os.environ[database_option.URL_VARIABLE]
    with oncelog.connect(other) as db:
        db.log("elsewhere", create=True)
    for flag in (["--url", other], ["-u", other], [f"--url={other}"]):
        assert b"elsewhere" in call(*flag, "log", "list").out
    assert os.environ[database_option.URL_VARIABLE] == here
    for behind in (["--url", other], ["--profile", "prod"]):
        found = call("--url", other, "log", "list", *behind)
        assert (found.code, b"give one of them" in found.err.replace(b"\n", b" ")) == (2, True)
    assert call("--url").code == 2


def test_two_databases_are_refused(call: Call, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong database is worse than none: a test that writes to production, say."""
    found = call("log", "list", "--profile", "prod", "--url", "memory://")
    assert (found.code, b"name a database each" in found.err) == (2, True)
    monkeypatch.setenv(database_option.VARIABLE, "prod")
    found = call("log", "list")
    assert (found.code, b"unset one of them" in found.err.replace(b"\n", b" ")) == (2, True)
    assert call("log", "list", "--profile").code == 2


def test_a_token_is_named_by_its_file(call: Call, file: Path, tmp_path: Path) -> None:
    """A URL with a secret in it is refused, and so is a file that others may read."""
    token = tmp_path / "token"
    token.write_text("once_0123456789")
    token.chmod(0o644)
    server = "oncelog://logs.example.com:7676"
    found = call("profile", "add", "prod", server, "--tls", "--token-file", str(token))
    assert (found.code, b"chmod 600" in found.err.replace(b"\n", b" ")) == (2, True)
    assert call("profile", "add", "prod", "oncelog://me:secret@logs.example.com").code == 2
    token.chmod(0o600)
    assert call("profile", "add", "prod", server, "--tls", "--token-file", str(token), "--json").code == 0
    assert profiles.load(file)["prod"].options == {"token_file": str(token), "tls": "true"}


def test_what_follows_two_dashes_is_no_flag() -> None:
    """A value may look like a flag."""
    assert database_option.taken(["log", "--", "--profile", "x"]) == (["log", "--", "--profile", "x"], None)
    with pytest.raises(InvalidArgument, match="name a profile"):
        database_option.taken(["log", "--profile"])
