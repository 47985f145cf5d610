"""``oncelog stream``: events from a shell into streams, and out of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from oncelog import Database, Record
from oncelog.cli import app
from tests.cli.conftest import Call
from tests.cli.shell import keys, terminal

ROOT: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = ROOT.commands["stream"].commands
EVENTS = b'{"value": "placed", "id": "1", "type": "Placed"}\n{"value_base64": "/w==", "id": "2"}\n'


@pytest.fixture
def events(tmp_path: Path) -> str:
    """Return a file of two events."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(EVENTS)
    return str(path)


def test_append_read_list_and_subscribe(call: Call, events: str) -> None:
    """What goes in comes out, forward and backward, with versions; again, it is the same."""
    assert call("stream", "append", "orders", "o-1", events).code == 2
    first = call("stream", "append", "orders", "o-1", events, "--create", "--expected", "no-stream", "--json").json
    assert keys(first["events"], "version", "position", "duplicate") == [(0, 0, False), (1, 1, False)]
    again = call("stream", "append", "orders", "o-1", events, "--expected", "no-stream", "--json").json
    assert keys(again["events"], "version", "position", "duplicate") == [(0, 0, True), (1, 1, True)]
    assert "now at version 1" in call("stream", "append", "orders", "o-2", events, "--type", "T").seen
    read = call("stream", "read", "orders", "o-1", "--json").lines
    assert keys(read, "stream", "version", "position", "id", "type") == [
        ("o-1", 0, 0, "1", "Placed"),
        ("o-1", 1, 1, "2", None),
    ]
    assert (read[0]["value"], read[1]["value_base64"]) == ("placed", "/w==")
    assert keys(call("stream", "read", "orders", "--backward", "--limit", "2", "--json").lines, "position", "type") == [
        (3, "T"),
        (2, "Placed"),
    ]
    assert call("stream", "read", "orders", "o-1").out == b"o-1@0\tPlaced\tplaced\no-1@1\t\t\xff\n"
    assert keys(call("stream", "list", "orders", "--json").lines, "stream", "version", "count") == [
        ("o-1", 1, 2),
        ("o-2", 1, 2),
    ]
    assert "last position" in call("stream", "list", "orders", "--prefix", "o-2").seen
    live = call("stream", "subscribe", "orders", "--prefix", "o-2", "--limit", "2", "--json")
    assert keys(live.lines, "stream", "version") == [("o-2", 0), ("o-2", 1)]


def test_refusals_are_told(call: Call, events: str) -> None:
    """A stream that is not as expected, one that is not there, and options that do not go together."""
    call("stream", "append", "orders", "o-1", events, "--create")
    wrong = call("stream", "append", "orders", "o-1", events, "--expected", "7")
    assert wrong.code != 0
    assert call("stream", "read", "orders", "o-9").code == 2
    assert call("stream", "read", "orders", "o-1", "--prefix", "o").code == 2
    assert call("stream", "append", "orders", "o-1", events, "--expected", "sometimes").code == 2
    assert call("stream", "subscribe", "orders", "--from", "then").code == 2


def test_what_is_written_can_be_read_back(call: Call, tmp_path: Path) -> None:
    """Into a pipe go columns and the value as it is; JSON is what append takes, headers and all."""
    given = tmp_path / "events.jsonl"
    given.write_text('{"value": "a\\tb", "id": "1", "type": "T", "headers": {"h": "x", "b": {"base64": "/w=="}}}\n')
    call("stream", "append", "orders", "o", str(given), "--create")
    assert call("stream", "read", "orders", "o").out == b"o@0\tT\ta\tb\n"
    (event,) = call("stream", "read", "orders", "o", "--json").lines
    assert event["headers"] == {"h": "x", "b": {"base64": "/w=="}}
    assert "a duplicate, up to version 0" in call("stream", "append", "orders", "o", str(given)).seen


def test_an_event_of_another_stream_is_not_taken_for_one_of_this(call: Call, tmp_path: Path) -> None:
    """A file that was read from elsewhere says so: it is refused, not stored under another name."""
    given = tmp_path / "events.jsonl"
    given.write_text('{"value": "a", "stream": "other"}\n')
    refused = call("stream", "append", "orders", "o", str(given), "--create")
    assert (refused.code, b"may say no other stream" in refused.err) == (2, True)
    assert call("stream", "list", "orders").seen == "orders has no stream\n"
    assert call("stream", "subscribe", "orders", "o", "--prefix", "x", "--limit", "0").code == 2


def test_a_terminal_is_not_harmed(db: Database, url: str) -> None:
    """An event that would clear the screen is shown, not obeyed."""
    with db.streams("orders", create=True) as streams:
        streams.append("o\x1b[1m", Record(b"\x1b[2Jgone", type="T\x07"))
    seen = terminal("stream", "read", "orders", url=url)
    assert [code for code in (b"\x1b[2J", b"\x1b[1m", b"\x07") if code in seen.out] == []
    assert "o\\x1b[1m@0  T\\x07  \\x1b[2Jgone" in seen.seen


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(call: Call, name: str) -> None:
    """Each command shows examples, and each example is a call that the command takes."""
    assert call("stream", name, "--help").code == 0
    examples = re.findall(r"\[cyan\](oncelog .*)\[/\]", COMMANDS[name].epilog)
    assert examples
    for example in examples:
        words = shlex.split(example.split("|")[0].split("<")[0])
        assert words[:3] == ["oncelog", "stream", name]
        with COMMANDS[name].make_context(name, words[3:]):
            pass
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--url", "--json"} <= options


def test_a_log_for_streams_is_made_and_deleted(call: Call, db: Database) -> None:
    """``create`` makes a log whose ids are of their stream; ``delete`` takes it away, and only a log of streams."""
    assert call("stream", "create", "ledger", "--json").json == {"log": "ledger", "created": True}
    assert call("stream", "create", "ledger", "--json").json == {"log": "ledger", "created": False}
    assert db.log("ledger").settings.id_scope == "stream"
    db.streams("ledger").append("a", [Record(b"1", id="1")])
    db.log("plain", create=True)
    assert call("stream", "delete", "plain", "--yes").code == 2
    assert db.logs() == ["ledger", "plain"]
    db.streams("ledger").close()
    gone = call("stream", "delete", "ledger", "--yes", "--json").json
    assert gone == {"log": "ledger", "deleted": True, "streams": 1, "events": 1}
    assert db.logs() == ["plain"]
