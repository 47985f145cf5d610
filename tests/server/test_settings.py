"""Settings of a server: where they come from, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.errors import InvalidArgument
from oncelog.server.settings import address, load


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """One setting from three places."""
    file = tmp_path / "serve.toml"
    file.write_text('url = "memory://"\nseats_max = 1\ndrain_s = 1\nname = "file"\n')
    environment = {"ONCELOG_SERVE_SEATS_MAX": "2", "ONCELOG_SERVE_NAME": "environment", "PATH": "/bin"}
    found = load({"name": "flag", "url": None}, environment, file)
    assert (found.url, found.drain_s, found.seats_max, found.name) == ("memory://", 1.0, 2, "flag")


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('url = "memory://"\n\nseat_max = 5\n', 3, "seat_max"),
        ('url = "memory://"\n# more\nseats_max = "many"\n', 3, "seats_max"),
        ('url = "memory://"\nsession_s = -1\n', 2, "session_s"),
        ('url = "memory://"\ndrain_s = inf\n', 2, "drain_s"),
        ('url = "memory://"\nbeat_s = 1e300\n', 2, "beat_s"),
        ('url = "memory://"\nstreams_max = 2147483648\n', 2, "streams_max"),
        ('url = "memory://"\n[hooks]\ngithub = 5\n', 2, "hooks"),
        ('url = "memory://"\nnot toml\n', 2, "line 2"),
    ],
    ids=["unknown", "type", "range", "infinite", "long", "large", "table", "syntax"],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    """The message has the file, the line and the setting."""
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        load({}, {}, file)
    assert str(file) in str(refused.value)
    assert f":{line}:" in str(refused.value) or f"line {line}" in str(refused.value)
    assert word in str(refused.value)


def test_a_mistake_elsewhere_is_named_too(tmp_path: Path) -> None:
    """A wrong variable, a file that is not there, no URL at all."""
    with pytest.raises(InvalidArgument, match="ONCELOG_SERVE_SEATS"):
        load({"url": "memory://"}, {"ONCELOG_SERVE_SEATS": "5"})
    with pytest.raises(InvalidArgument, match="ONCELOG_SERVE_SEATS_MAX"):
        load({"url": "memory://"}, {"ONCELOG_SERVE_SEATS_MAX": "five"})
    with pytest.raises(InvalidArgument, match=r"none\.toml"):
        load({}, {}, tmp_path / "none.toml")
    with pytest.raises(InvalidArgument, match="--url"):
        load({})


@pytest.mark.parametrize("name", ["../a", "a//b", "two\nlines", "x" * 249, "conflicts.a"])
def test_a_name_that_no_audit_log_can_have_is_refused(name: str) -> None:
    """A server of such a name started, and refused every admin verb: nothing could be written to its audit log."""
    with pytest.raises(InvalidArgument, match="name"):
        load({"url": "memory://", "name": name})


@pytest.mark.parametrize("name", ["a", "shop/a", "[::1]:7676", "ä b", "x" * 248])
def test_a_name_that_an_audit_log_can_have(name: str) -> None:
    """Servers that are named by their addresses, too."""
    assert load({"url": "memory://", "name": name}).name == name


@pytest.mark.parametrize("text", ["7676", "localhost:", "localhost:port", "localhost:70000", ":7676"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """HOST:PORT, nothing else."""
    with pytest.raises(InvalidArgument):
        address(text)
