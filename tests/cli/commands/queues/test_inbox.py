"""``oncelog inbox``: what became of effects, and what a person decides about them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import oncelog
from tests.cli.conftest import Call


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an inbox, which commands find in the environment: two effects happened, one failed."""
    url = f"sqlite:///{tmp_path}/inbox.db"
    monkeypatch.setenv("ONCELOG_INBOX", url)
    with oncelog.Inbox(url) as inbox:
        for key in ("order-1", "order-2"):
            with inbox.once(key, topic="invoices") as effect:
                effect.result = {"invoice": key}
        with pytest.raises(ZeroDivisionError), inbox.once("order-3", topic="invoices"):
            _ = 1 // 0
    return url


def test_the_latest_keys_are_listed(call: Call, home: str) -> None:
    """The last change stands first; a status chooses, a limit holds, and people see the error of what failed."""
    listed = call("inbox", "list", "--json").lines
    assert [(one["key"], one["status"]) for one in listed] == [
        ("order-3", "FAILED"),
        ("order-2", "COMMITTED"),
        ("order-1", "COMMITTED"),
    ]
    committed = call("inbox", "list", "--status", "COMMITTED", "--limit", "1", "--json").lines
    assert [one["key"] for one in committed] == ["order-2"]
    assert "division" in call("inbox", "list", "--status", "FAILED").seen
    assert call("inbox", "list", "--status", "PENDING").seen == "no keys\n"


def test_a_person_decides_about_a_key(call: Call, home: str) -> None:
    """A failed effect that is said to have happened is not run again, and its story says so."""
    assert call("inbox", "resolve", "order-3", "committed").code == 0
    [known] = call("inbox", "show", "order-3", "--json").lines
    assert known["status"] == "COMMITTED"
    with oncelog.Inbox(home) as inbox, inbox.once("order-3", topic="invoices") as effect:
        assert effect.done


def test_prune_removes_what_need_not_be_kept_and_nothing_else(call: Call, home: str) -> None:
    """Keys without a retention stay; one whose retention is over goes."""
    with oncelog.Inbox(home, retention_s=0.001) as short, short.once("gone"):
        pass
    with oncelog.Inbox(home) as inbox:
        [known] = inbox.show("gone")
    assert known.keep_us is not None
    while time.time_ns() // 1000 <= known.keep_us:
        pass
    assert call("inbox", "prune", "--json").json == {"pruned": 1}
    assert call("inbox", "prune").seen == "0 keys removed\n"
    assert [one["key"] for one in call("inbox", "list", "--json").lines] == ["order-3", "order-2", "order-1"]


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:///{0}/nowhere/inbox.db", 2, "there is no file"),
        ("sqlite:///{0}", 2, "is a folder"),
        ("sqlite://inbox.db", 2, "write sqlite:///shop.db"),
        ("sqlite:///{0}/letter.txt", 4, "is no database of SQLite"),
    ],
)
def test_a_file_that_can_be_no_inbox_is_named_and_not_to_be_tried_again(
    call: Call, tmp_path: Path, url: str, code: int, words: str
) -> None:
    """A path that is wrong stays wrong: the line says what is wrong with it, and nothing is made at that path."""
    (tmp_path / "letter.txt").write_text("this is a letter, and no database" * 40)
    done = call("inbox", "list", "--inbox", url.format(tmp_path))
    said = done.err.decode()
    assert (done.code, "try again" in said) == (code, False)
    assert words in said
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_an_effect_in_a_folder_that_is_not_there_is_not_to_be_tried_again(tmp_path: Path) -> None:
    """A program that names a folder which is not there learns that, and not that the database is busy."""
    with (
        oncelog.Inbox(f"sqlite:///{tmp_path}/nowhere/inbox.db") as inbox,
        pytest.raises(oncelog.InvalidArgument, match="nowhere is not a folder"),
        inbox.once("order-1"),
    ):
        pass
