"""What the shell says about itself, and that it says so quickly."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import oncelog
from oncelog import LogSettings, ProducerPolicy, Window
from oncelog.cli import app
from oncelog.cli.nouns import NOUNS
from oncelog.cli.terminal.plain import summary
from oncelog.settings import check
from tests.cli.conftest import Call
from tests.cli.shell import COMMAND, environment

ROOT: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = ROOT.commands["log"].commands
COMMANDS_FOLDER = Path(oncelog.__file__).parent / "cli" / "commands"
COMMAND_FILES = list(COMMANDS_FOLDER.rglob("*.py"))
PARTS = {"opened", "records", "__init__", "dead_letters", "describe", "options", "output", "settings"}
"""Modules that are parts of a command."""
EXAMPLE = re.compile(r"\[cyan\](oncelog .*)\[/\]")

WITHOUT_PYARROW = """
import sys
import oncelog.cli
oncelog.cli.run(sys.argv[1:])
sys.exit("pyarrow" in sys.modules or "numpy" in sys.modules)
"""


def test_every_command_is_there() -> None:
    """What operators were promised."""
    promised = "list create set find info append cat tail verify truncate retain seal copy snapshot delete"
    assert list(COMMANDS) == promised.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(call: Call, name: str) -> None:
    """Each command shows examples, and each example is a call that the command takes."""
    shown = call("log", name, "--help")
    assert shown.code == 0
    examples = EXAMPLE.findall(COMMANDS[name].epilog)
    assert examples
    for example in examples:
        assert example.encode() in shown.out
        words = shlex.split(example.split("|")[0].split("<")[0])
        assert words[:3] == ["oncelog", "log", name]
        with COMMANDS[name].make_context(name, words[3:]):
            pass


def _all(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below one, with the words that call it."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _all(below, (*words, name))


EVERY = dict(_all(ROOT, ()))


def test_every_help_has_an_example_and_no_noise(call: Call) -> None:
    """Each command shows how it is called; arguments stand as they are typed; a type that says nothing is left out."""
    for words, command in EVERY.items():
        shown = call(*words, "--help").seen
        assert f"oncelog {' '.join(words)}" in command.epilog
        usage = re.split(r"\n\s*\n", shown[shown.index("Usage:") :])[0]
        assert not re.search(r"[{}]|\[\[", usage), usage
        assert not re.search(r"<(bool|str|int|float|path)>", shown), shown
        assert not re.search(r"\[default: \(|default: \)|x[<>]=|…\.\.\.", shown), shown


def test_the_first_page_says_what_each_command_says_of_itself() -> None:
    """The first page loads no command: what it says of one is the beginning of the command's own help."""
    for word, noun in NOUNS.items():
        assert summary(ROOT.commands[word]).startswith(noun.summary.removesuffix(".")), word
        assert ROOT.commands[word].name == word
    files = [path.relative_to(COMMANDS_FOLDER).with_suffix("") for path in COMMAND_FILES if path.stem not in PARTS]
    modules = {".".join(file.parts) for file in files}
    assert modules == {noun.module for noun in NOUNS.values()}


def test_the_first_page_loads_no_command() -> None:
    """Who asks for help waits for nothing that only a command needs."""
    look = "import sys, oncelog.cli; oncelog.cli.run(['--help']); print(*(n for n in sys.modules if '.commands.' in n))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_one_word_stands_for_one_thing() -> None:
    """The field of an id is ``--id-field`` everywhere, a group ``--group`` or ``-g``, a queue's memory ``--state``."""
    names = {words: {name for one in command.params for name in one.opts} for words, command in EVERY.items()}
    with_field = {("ingest",), ("pipeline", "init"), ("log", "append"), ("queue", "send")}
    assert {words for words, given in names.items() if "--id-field" in given} == with_field
    assert {words for words, given in names.items() if "--id" in given} <= with_field
    assert all("-g" in given for given in names.values() if "--group" in given)
    assert all("--state" in given for given in names.values() if "--queue-state" in given)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_url_and_json(name: str) -> None:
    """There is one way to name the database, and one to get JSON."""
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--url", "--json"} <= options


def test_help_is_shown_when_nothing_is_asked(call: Call) -> None:
    """Who types a noun alone learns the verbs."""
    assert b"log" in call().out
    shown = call("log")
    assert shown.code == 0
    assert all(name.encode() in shown.out for name in COMMANDS)


OTHER: dict[str, tuple[str, object]] = {
    "idempotence": ("content", "content"),
    "id_scope": ("stream", "stream"),
    "on_conflict": ("original", "original"),
    "segment_bytes": ("1MiB", 1 << 20),
    "segment_age_s": ("1h", 3600.0),
    "block_bytes": ("1MiB", 1 << 20),
    "block_records": ("7", 7),
    "commit_interval_s": ("250ms", 0.25),
    "snapshot_interval_s": ("5s", 5.0),
    "snapshot_records": ("7", 7),
    "seal": ("off", "off"),
    "retention_s": ("30d", 30 * 86_400.0),
    "retention_bytes": ("1GiB", 1 << 30),
    "pending_bytes": ("1MiB", 1 << 20),
    "pending_records": ("7", 7),
}


def option(field: str) -> str:
    """Return the option that sets a field: without its unit, a size where the field has bytes."""
    return "--" + field.removesuffix("_s").replace("_bytes", "_size").replace("_", "-")


def test_create_sets_every_setting(call: Call, url: str) -> None:
    """A setting that a program can choose, a shell can choose: anybody who adds one adds its option."""
    window = ("--window", "1h", "--max-keys", "7", "--refresh-on-hit")
    producers = ("--producers", "off", "--producer-inactivity", "1h", "--max-producers", "7")
    assert set(LogSettings.__struct_fields__) == {*OTHER, "window", "producers"}
    given = [word for field, (text, _) in OTHER.items() for word in (option(field), text)]
    assert call("log", "create", "orders", *window, *producers, *given).code == 0
    wanted: dict[str, Any] = {field: value for field, (_, value) in OTHER.items()}
    wanted["window"] = Window(duration_s=3600.0, max_keys=7, refresh_on_hit=True)
    wanted["producers"] = ProducerPolicy(enabled=False, inactive_s=3600.0, max_producers=7)
    with oncelog.connect(url) as db:
        assert db.log("orders").settings == check(LogSettings(**wanted))


def test_defaults_are_the_library_s(call: Call, url: str) -> None:
    """A log made in a shell without options is one made in a program without settings."""
    call("log", "create", "orders")
    with oncelog.connect(url) as db:
        assert db.log("orders").settings == LogSettings()


@pytest.mark.parametrize("words", ["--help", "log --help", "log append --help"])
def test_help_needs_no_pyarrow(words: str) -> None:
    """Arrow is loaded for commands that work on records, not for those who ask for help."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYARROW, *words.split()], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def complete(words: str, url: str) -> list[str]:
    """Return what bash would offer after these words."""
    asked = environment(url) | {
        "_ONCELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return subprocess.run(COMMAND, env=asked, capture_output=True, check=False).stdout.decode().split()


def test_completion_knows_commands_and_logs(url: str) -> None:
    """A shell completes what there is: commands, and the logs of the database."""
    with oncelog.connect(url) as db:
        db.log("orders", create=True)
        db.log("clicks", create=True)
    assert complete("oncelog log sn", url) == ["snapshot"]
    assert complete("oncelog log info or", url) == ["orders"]
