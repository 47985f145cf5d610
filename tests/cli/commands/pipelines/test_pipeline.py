"""Pipelines and jobs from a shell: what they say, to people and to programs, and how they end."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

import oncelog
from oncelog.cli import app
from tests.cli.conftest import Call
from tests.spark.pipeline.shop import SPEC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {f"pipeline {name}": found for name, found in ROOT.commands["pipeline"].commands.items()} | {
    name: ROOT.commands[name] for name in ("ingest", "export", "audit", "rebuild", "purge") if name in ROOT.commands
}
EXAMPLE = re.compile(r"\[cyan\](oncelog .*)\[/\]")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(call: Call, name: str) -> None:
    """Each command shows examples, and each example is a call that the command takes; each has --json."""
    shown = call(*name.split(), "--help")
    assert shown.code == 0
    command = COMMANDS[name]
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    examples = EXAMPLE.findall(command.epilog)
    assert examples
    for example in examples:
        assert example.encode() in shown.out
        words = shlex.split(example.split("|")[0])
        assert words[: 1 + len(name.split())] == ["oncelog", *name.split()]
        with command.make_context(name, words[1 + len(name.split()) :]):
            pass


def test_init_writes_a_spec_that_check_takes(call: Call, tmp_path: Path) -> None:
    """The first two commands of anybody who begins; a second init replaces nothing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"order_id": "1"}\n')
    spec = str(tmp_path / "orders.toml")
    assert call("pipeline", "init", spec, "--input", "in").code == 0
    shown = call("pipeline", "check", spec, "--quick")
    assert shown.code == 0
    assert b"exactly once" in shown.out
    again = call("pipeline", "init", spec)
    assert again.code == 2
    assert b"is there already" in again.err


def test_init_writes_any_names(call: Call, tmp_path: Path) -> None:
    """Quotes and backslashes in a path made a file that is no TOML; a name that is not UTF-8 ended in a traceback."""
    inside = tmp_path / 'a "b" \\new'
    inside.mkdir()
    (inside / "a.json").write_text('{"order_id": "1"}\n')
    spec = str(tmp_path / "orders.toml")
    assert call("pipeline", "init", spec, "--input", inside.name).code == 0
    assert call("pipeline", "check", spec, "--quick").code == 0
    other = tmp_path / "\udcff.toml"
    refused = call("pipeline", "init", str(other))
    assert (refused.code, b"a spec is UTF-8" in refused.err, other.exists()) == (2, True, False)


def test_check_tells_line_and_suggestion(call: Call, tmp_path: Path) -> None:
    """People get a line that editors can jump to, programs an object; both get exit code 1."""
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.json").write_text("{}")
    spec = tmp_path / "orders.toml"
    spec.write_text(SPEC.replace('format = "json"', 'format = "jsn"'))
    shown = call("pipeline", "check", str(spec), "--quick")
    assert shown.code == 1
    assert f"{spec}:3: source.format".encode() in shown.out
    assert b'write format = "json"' in shown.out
    told = call("pipeline", "check", str(spec), "--quick", "--json").json
    assert (told["ok"], told["mistakes"][0]["line"]) == (False, 3)
    assert told["steps"]["identity"]


def test_status_names_files_that_are_never_read(call: Call, tmp_path: Path) -> None:
    """A file in a folder inside of the source, and one under a name that no terminal shows; programs get both, too."""
    inner = tmp_path / "incoming" / "day"
    inner.mkdir(parents=True)
    (inner / "a.json").write_text("{}")
    (tmp_path / "incoming" / os.fsdecode(b"\xff.json")).write_text("{}")
    spec = tmp_path / "orders.toml"
    spec.write_text(SPEC)
    shown = call("pipeline", "status", str(spec))
    assert shown.code == 0
    assert b"a.json is not read: it is in a folder inside of source.path" in shown.err.replace(b"\n", b" ")
    assert b"\\xff.json is not read" in shown.err.replace(b"\n", b" ")
    told = call("pipeline", "status", str(spec), "--json").json["files"]
    assert (len(told["passed_over"]), told["waiting"]) == (2, [])


def test_status_names_files_that_vanished(call: Call, tmp_path: Path) -> None:
    """Rows of a file that was gone when it was to be read are not accounted for: exit code 1, and what to do."""
    (tmp_path / "incoming").mkdir()
    spec = tmp_path / "orders.toml"
    spec.write_text(SPEC)
    checkpoint = tmp_path / ".oncelog" / "orders"
    checkpoint.mkdir(parents=True)
    gone = str(tmp_path / "incoming" / "a.json")
    (checkpoint / "vanished.json").write_text(f'{{"{gone}": null, "/in/read-later.json": 1}}')
    shown = call("pipeline", "status", str(spec))
    assert shown.code == 1
    said = b" ".join(shown.err.split())
    assert b"a.json was listed, and was gone when it was to be read" in said
    assert b"read-later.json" not in said
    assert call("pipeline", "status", str(spec), "--json").json["files"]["vanished"] == [gone]


def test_running_a_wrong_spec_starts_nothing(call: Call, tmp_path: Path) -> None:
    """All mistakes are named in one line, and nothing is made."""
    spec = tmp_path / "orders.toml"
    spec.write_text(SPEC)
    done = call("pipeline", "run", str(spec))
    assert done.code == 2
    assert b"line 4: source.path" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["orders.toml"]


def test_audit_and_rebuild_from_a_shell(call: Call, url: str, tmp_path: Path) -> None:
    """What is there again makes the exit code 1, in a table, in JSON and on a page."""
    call("log", "create", "orders", "--max-keys", "2")
    with oncelog.connect(url) as db, db.log("orders").writer() as writer:
        for id in ("a", "b", "c", "a"):
            writer.append(b"x", id=id)
    assert (call("audit", "orders", "--report", "").code, call("audit", "orders", "--report", "/").code) == (2, 2)
    shown = call("audit", "orders", "--report", str(tmp_path / "audit.html"))
    assert shown.code == 1
    assert "position 3 has the id of position 0, the same" in shown.out.decode()
    told = call("audit", "orders", "--json").json
    assert (told["records"], told["duplicates"], told["ok"]) == (4, 1, False)
    assert "Ids that are there again" in (tmp_path / "audit.html").read_text()
    assert call("audit", "orders", "--by", "colour").code == 2
    assert call("rebuild", "orders", "--json").json["ids"] == 2
    assert call("rebuild", "nothing").code == 2
    assert call("purge", "orders", "--json").json["duplicates"] == 1
    assert call("purge", "orders", "--remove").code == 2  # nobody is there to be asked
    assert call("purge", "orders", "--remove", "--yes", "--json").json["purged"] == 1
    assert call("audit", "orders").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ingest", "orders", "day.jsonl", "--id", "x"), "no log"),
        (("ingest", "orders", "nowhere.jsonl", "--create"), "is not there"),
        (("ingest", "orders", "pyproject", "--create"), "is not there"),
        (("export", "nothing", "out"), "no log"),
    ],
)
def test_what_cannot_be_done_is_told_before_spark_starts(
    call: Call, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong name costs no start of Spark."""
    monkeypatch.setattr("oncelog.spark.session.session.start", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert done.code == 2
    assert words in done.err.decode()


class Lent:
    """A session that outlives the command that is given it."""

    def __init__(self, spark: SparkSession) -> None:
        self.sparkContext = spark.sparkContext

    def stop(self) -> None:
        """Go on."""


@pytest.mark.xdist_group("pipeline")
def test_jobs_by_the_tasks_of_a_spark(
    call: Call, url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--master``, the same is said, and the same is done."""
    masters: list[str] = []

    def start(_: str, master: str, **__: object) -> Lent:
        masters.append(master)
        return Lent(spark)

    monkeypatch.setattr("oncelog.spark.session.session.start", start)
    call("log", "create", "orders", "--max-keys", "2")
    with oncelog.connect(url) as db, db.log("orders").writer() as writer:
        for id in ("a", "b", "c", "a"):
            writer.append(b"x", id=id)
    by_spark = call("audit", "orders", "--json", "--master", "spark://somewhere:7077")
    assert (by_spark.code, by_spark.json) == (1, call("audit", "orders", "--json").json)
    assert call("rebuild", "orders", "--json", "--master", "local[2]").json["ids"] == 2
    assert call("purge", "orders", "--remove", "--yes", "--json", "--master", "local[2]").json["purged"] == 1
    assert masters == ["spark://somewhere:7077", "local[2]", "local[2]"]
    nowhere = call("audit", "orders", "--url", "memory://x", "--master", "local[2]")
    assert nowhere.code != 0
