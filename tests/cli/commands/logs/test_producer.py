"""``oncelog producer``: what an operator asks of producers, and does to them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main

from oncelog import Database, ProducerPolicy
from oncelog.cli import app
from tests.cli.conftest import Call

ROOT: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = ROOT.commands["producer"].commands


@pytest.fixture(autouse=True)
def filled(db: Database) -> None:
    """Fill a log by two producers."""
    with db.log("orders", create=True).writer() as writer:
        writer.as_producer("a").append(b"x", sequence=7)
        writer.as_producer("b").append(b"y")


def test_list_and_show_tell_how_far_producers_got(call: Call) -> None:
    """People get a table, programs an object a line; both say where a producer has to go on."""
    listed = call("producer", "list", "orders", "--json")
    assert [(one["producer"], one["last_sequence"], one["last_position"]) for one in listed.lines] == [
        ("a", 7, 0),
        ("b", 0, 1),
    ]
    assert "last sequence" in call("producer", "list", "orders").seen
    assert call("producer", "show", "orders", "a", "--json").json["last_sequence"] == 7
    assert "7" in call("producer", "show", "orders", "a").seen
    unknown = call("producer", "show", "orders", "c")
    assert unknown.code == 2
    assert b"knows no producer 'c'" in unknown.err


def test_names_are_shown_as_they_are(call: Call, db: Database) -> None:
    """A producer's name is anybody's: it styles no table, breaks none, and moves no cursor."""
    with db.log("orders").writer() as writer:
        writer.as_producer("[/]").append(b"x", sequence=0)
        writer.as_producer("a\tb [red]\x1b[2J").append(b"x", sequence=1)
    seen = call("producer", "list", "orders")
    assert (seen.code, b"\x1b" in seen.out) == (0, False)
    assert "[/] " in seen.seen
    assert "a\\tb [red]\\x1b[2J " in seen.seen
    assert "[/]" in call("producer", "show", "orders", "[/]").seen


def test_a_namespace_is_one_word(call: Call) -> None:
    """The policy of a namespace that no log can have would be obeyed by none."""
    assert call("producer", "policy", "--namespace", "a/b", "--producers", "off").code == 2


def test_forget_is_for_good(call: Call, db: Database) -> None:
    """What was forgotten stays so for the next writer; the records stay too."""
    assert call("producer", "forget", "orders", "a", "--yes", "--json").json["forgotten"]
    assert call("producer", "forget", "orders", "a", "--yes").code == 2
    log = db.log("orders")
    with log.writer() as writer:
        assert set(writer.producers()) == {"b"}
        assert not writer.append(b"again", producer="a", sequence=3).duplicate
        assert writer.append(b"again", producer="a", sequence=3).duplicate
    assert [entry.value for entry in log.read()] == [b"x", b"y", b"again"]
    assert log.producers()["a"].last_sequence == 3


def test_nobody_is_asked_in_a_script(call: Call) -> None:
    """What cannot be undone needs a person, or --yes."""
    assert call("producer", "forget", "orders", "a").code == 2


def test_policies_are_shown_and_set(call: Call, db: Database) -> None:
    """The database's and a namespace's are stored with the database."""
    assert "nothing of its own" in call("producer", "policy").seen
    call("producer", "policy", "--producers", "off")
    set_ = call("producer", "policy", "--namespace", "shop", "--max-producers", "9", "--json").json
    assert set_ == {"namespace": "shop", "enabled": None, "inactive_s": None, "max_producers": 9}
    assert "not checked" in call("producer", "policy").seen
    assert db.producer_policy() == ProducerPolicy(enabled=False)
    assert call("producer", "policy", "--max-producers", "0").code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(call: Call, name: str) -> None:
    """Each command shows examples, and each example is a call that the command takes."""
    assert call("producer", name, "--help").code == 0
    examples = re.findall(r"\[cyan\](oncelog .*)\[/\]", COMMANDS[name].epilog)
    for example in examples:
        words = shlex.split(example.split("|")[0])
        assert words[:3] == ["oncelog", "producer", name]
        with COMMANDS[name].make_context(name, words[3:]):
            pass
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--url", "--json"} <= options
