"""``oncelog stream``: events from a shell into streams, and out of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from oncelog.cli import app
from tests.cli.conftest import Call
from tests.cli.shell import keys

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
    assert call("stream", "read", "orders", "o-1", "--from", "0").seen.split()[:3] == ["o-1@0", "Placed", "placed"]
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
