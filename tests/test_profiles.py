"""Profiles: a database by its name, with no secret in the file, and no trust in files that others can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import oncelog
from oncelog import InvalidArgument, NotFound, profiles
from oncelog.profiles import Profile

SERVER = "oncelog://logs.example.com:7676"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where profiles are, in a folder that is not there yet."""
    place = tmp_path / "config" / "profiles.json"
    monkeypatch.setenv(profiles.FILE_VARIABLE, str(place))
    return place


def secret(folder: Path, mode: int = 0o600) -> Path:
    """Return a file with a token."""
    found = folder / "token"
    found.write_text("once_0123456789\n")
    found.chmod(mode)
    return found


def test_a_program_connects_by_a_profile(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is the one of the day it was stored, wherever the program runs later."""
    monkeypatch.chdir(tmp_path)
    assert not profiles.add("test", Profile("./shop"), file)
    monkeypatch.chdir("/")
    with oncelog.connect("profile:test") as db:
        db.log("orders", create=True)
        assert db.url == (tmp_path / "shop").as_uri()
    assert profiles.add("test", Profile("memory://"), file), "replaced"
    assert profiles.load(file) == {"test": Profile("memory://")}
    profiles.remove("test", file)
    with pytest.raises(NotFound, match="no profile 'test'"):
        oncelog.connect("profile:test")
    with pytest.raises(NotFound):
        profiles.remove("test", file)


def test_options_of_a_profile_reach_the_client(file: Path, tmp_path: Path) -> None:
    """The token is read from its file by the client; those that a call gives win over those of the profile."""
    from oncelog.client.database import RemoteDatabase

    given = secret(tmp_path)
    profiles.add("prod", Profile(SERVER, {"token_file": str(given), "tls": "true"}), file)
    with oncelog.connect("profile:prod") as db:
        assert isinstance(db, RemoteDatabase)
        address = db._channel.address
        assert (address.url, address.tls, address.bearer()) == (SERVER, True, "once_0123456789")
    with oncelog.connect("profile:prod", options={"tls": "false"}) as db:
        assert isinstance(db, RemoteDatabase)
        assert not db._channel.address.tls


def test_the_file_has_no_secret_and_is_private(file: Path, tmp_path: Path) -> None:
    """It says where the token is; it is made so that nobody else reads it, and nothing is left beside it."""
    profiles.add("prod", Profile(SERVER, {"token_file": str(secret(tmp_path))}), file)
    assert "once_" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in file.parent.iterdir()] == ["profiles.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
@pytest.mark.parametrize("name", ["token_file", "tls_key"])
def test_a_secret_that_others_may_read_is_refused(file: Path, tmp_path: Path, name: str, mode: int) -> None:
    """When it is stored, and whenever it is used: modes change."""
    given = secret(tmp_path, mode)
    with pytest.raises(InvalidArgument, match=r"may be read by others \(mode 0\d+\): chmod 600"):
        profiles.add("prod", Profile(SERVER, {name: str(given)}), file)
    given.chmod(0o600)
    profiles.add("prod", Profile(SERVER, {name: str(given)}), file)
    given.chmod(mode)
    with pytest.raises(InvalidArgument, match="may be read by others"):
        oncelog.connect("profile:prod")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_profiles_that_others_may_write_are_refused(file: Path, mode: int) -> None:
    """Who changes the URL in it is sent the token."""
    profiles.add("prod", Profile(SERVER), file)
    file.chmod(mode)
    for use in (lambda: oncelog.connect("profile:prod"), lambda: profiles.add("x", Profile(SERVER), file)):
        with pytest.raises(InvalidArgument, match="may be written by others"):
            use()


def test_a_file_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that somebody else planted decides nothing."""
    profiles.add("prod", Profile(SERVER), file)
    owner = file.stat().st_uid
    monkeypatch.setattr("oncelog.profiles.os.geteuid", lambda: owner + 1)
    found = os.stat_result((0o100600, 0, 0, 1, owner + 2, 0, 0, 0, 0, 0))
    with pytest.raises(InvalidArgument, match="belongs to another user"):
        profiles._check_owned(file, found, 0, "", "")


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (Profile("profile:other"), "not another profile"),
        (Profile("s3://bucket", {"tls": "true"}), "are for servers"),
        (Profile(SERVER, {"token": "once_0123456789"}), "secrets are not kept"),
        (Profile("s3://key:hunter2@bucket/x"), r"key:\*\*\*@bucket.*secrets are not kept"),
        (Profile("quorum:s3://key:hunter2@bucket"), "secrets are not kept"),
        (Profile("s3://bucket?secret_access_key=hunter2"), "secrets are not kept"),
        (Profile(SERVER, {"token_file": "/nowhere/token"}), "cannot be read"),
        (Profile(SERVER, {"token_file": "/"}), "is not a file"),
    ],
)
def test_what_a_profile_cannot_be_is_named(file: Path, profile: Profile, says: str) -> None:
    """Nothing is stored then."""
    with pytest.raises(InvalidArgument, match=says):
        profiles.add("prod", profile, file)
    assert not file.exists()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"prod": {"url": 5}}', b"\xff", b'{"\xff": {}}'])
def test_a_damaged_file_is_an_error_that_names_it(file: Path, data: bytes) -> None:
    """It is never taken for an empty one: the next ``add`` would lose the others."""
    file.parent.mkdir()
    file.write_bytes(data)
    for use in (lambda: oncelog.connect("profile:prod"), lambda: profiles.add("x", Profile(SERVER), file)):
        with pytest.raises(InvalidArgument, match=r"profiles\.json"):
            use()
    assert file.read_bytes() == data


def test_the_file_is_where_the_desktop_says() -> None:
    """``ONCELOG_PROFILES``, then XDG's folder, then ``~/.config``."""
    assert profiles.path({profiles.FILE_VARIABLE: "/a/b"}) == Path("/a/b")
    assert profiles.path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/oncelog/profiles.json")
    assert profiles.path({}) == Path.home() / ".config" / "oncelog" / "profiles.json"
