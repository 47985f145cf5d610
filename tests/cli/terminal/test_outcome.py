"""What scripts rely on: the exit code, and one line on stderr that says why."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import oncelog
from oncelog import Database, LogSettings, Record
from oncelog.cli.terminal.outcome import fail
from tests.cli.conftest import Call
from tests.cli.shell import COMMAND, environment, shell


def damage(folder: Path) -> None:
    """Change one byte in the middle of every file that holds records."""
    for file in folder.rglob("*"):
        data = bytearray(file.read_bytes()) if file.is_file() else bytearray()
        at = data.find(b"a value to be damaged")
        if at >= 0:
            data[at] ^= 1
            file.write_bytes(data)


@pytest.fixture
def damaged(db: Database, tmp_path: Path) -> str:
    """Return the name of a log with one wrong bit."""
    with db.log("orders", LogSettings(seal="off"), create=True).writer() as writer:
        writer.append(b"a value to be damaged", id="1")
        writer.append(b"and one after it", id="2")
    damage(tmp_path / "db")
    return "orders"


def test_findings_are_1(damaged: str, url: str) -> None:
    """A damaged log that is verified has findings, each with severity and place."""
    found = shell("log", "verify", damaged, "--json", url=url)
    assert (found.code, found.json["ok"], found.err) == (1, False, b"")
    assert {finding["severity"] for finding in found.json["findings"]} >= {"error"}
    assert any(finding["where"] == "segment 0" for finding in found.json["findings"])


def test_findings_are_a_table(damaged: str, call: Call) -> None:
    """People see the findings below each other, then the verdict."""
    found = call("log", "verify", damaged)
    lines = found.out.decode().splitlines()
    assert found.code == 1
    assert lines[0].split() == ["severity", "where", "what"]
    assert lines[1].startswith("error     segment 0")
    assert lines[-1].startswith("orders is damaged: ")


def test_damage_that_is_met_is_4(damaged: str, url: str) -> None:
    """A command that meets damaged bytes stops, in one line, without a traceback."""
    met = shell("log", "cat", damaged, url=url)
    assert met.code == 4
    assert met.err.startswith(b"error: ")
    assert met.err.count(b"\n") == 1


def test_refused_records_are_1(db: Database, url: str) -> None:
    """What is refused is told line by line; everything else is stored."""
    db.log("orders", create=True)
    given = b'{"id": 1, "v": "a"}\nnot JSON\n{"v": "c"}\n\n{"id": 1, "v": "other"}\n{"id": true}\n{"id": 2}\n'
    done = shell("log", "append", "orders", "--id-field", "id", "--json", url=url, given=given)
    assert done.code == 1
    assert [(line["source"], line["place"], line["number"], line["error"]) for line in done.errors] == [
        ("stdin", "line", 2, "InvalidArgument"),
        ("stdin", "line", 3, "InvalidArgument"),
        ("stdin", "line", 6, "InvalidArgument"),
        ("stdin", "line", 5, "IdConflict"),
    ]
    assert {key: done.json[key] for key in ("attempts", "stored", "conflicts", "refused")} == {
        "attempts": 6,
        "stored": 2,
        "conflicts": 1,
        "refused": 3,
    }
    assert [entry.id for entry in db.log("orders").read()] == ["1", "2"]


def test_refusals_are_told_to_people(db: Database, call: Call, tmp_path: Path) -> None:
    """The line says where and why."""
    db.log("orders", create=True)
    file = tmp_path / "day.jsonl"
    file.write_text('{"id": 1}\n{"no": 2}\n')
    done = call("log", "append", "orders", str(file), "--id-field", "id")
    assert done.err.decode() == f"refused: {file}, line 2: has no 'id'\n"
    assert done.out.startswith(b"orders: 2 records read, 1 stored, 1 refused (")


def test_a_log_that_is_busy_is_3(db: Database, url: str) -> None:
    """A script can tell "try again" from "never"; with --json it learns who holds the log."""
    with db.log("orders", create=True).writer():
        met = shell("log", "append", "orders", "--wait", "0s", "--json", url=url, given=b"a\n")
    assert (met.code, met.out) == (3, b"")
    assert met.errors[0]["error"] == "LogBusy"
    assert met.errors[0]["exit_code"] == 3
    assert isinstance(met.errors[0]["pid"], int)


def test_a_log_that_is_not_there_is_2(url: str) -> None:
    """The message says, in the shell's words, what makes it."""
    met = shell("log", "info", "orders", url=url)
    assert met.code == 2
    assert met.err.decode() == (
        f"error: there is no log 'orders' at {url}: make it with oncelog log create, or see oncelog log list\n"
    )


WRONG: list[tuple[str, str]] = [
    ("log info", "Missing argument 'NAME'"),
    ("log info orders --nope", "No such option: --nope"),
    ("log nope", "No such command 'nope'"),
    ("log create orders --window soon", "'soon' is not a duration"),
    ("log create orders --segment-size big", "'big' is not a size"),
    ("log create orders --segment-size 1", "segment_bytes is 1, must be from"),
    ("log create orders --idempotence maybe", "'maybe' is not one of"),
    ("log create ../orders", "no part between slashes may be empty"),
    ("log cat filled --from yesterday", "write earliest, latest, a position"),
    ("log cat filled --from 4", "is behind its end"),
    ("log cat filled --columns position,nope", "column 'nope'"),
    ("log cat filled --format raw --columns id", "raw is the values and nothing else"),
    ("log cat filled --limit -1", "--limit"),
    ("log cat filled --output /nowhere/at/all", "/nowhere/at/all: No such file or directory"),
    ("log tail filled --from 7:1", "7"),
    ("log truncate filled --before 4 --yes", "ends at 3"),
    ("log truncate filled --before 1", "say --yes"),
    ("log delete filled", "say --yes"),
    ("log append filled /nowhere/at/all", "/nowhere/at/all: No such file or directory"),
    ("log append off --id-field id", "has idempotence off"),
    ("log list --url http://nonsense", "is not a URL of a database"),
    ("log list --url quorum://nodes", "the store of a quorum is a folder"),
]


@pytest.mark.parametrize(("line", "why"), WRONG, ids=[line for line, _ in WRONG])
@pytest.mark.parametrize("suffix", ["", " --json"], ids=["people", "json"])
def test_a_wrong_call_is_2(db: Database, call: Call, line: str, why: str, suffix: str) -> None:
    """A call that will stay wrong says so in one line, or one JSON object, and does nothing."""
    with db.log("filled", create=True).writer() as writer:
        writer.append_many([Record(b"x", id=str(number)) for number in range(3)])
    db.log("off", LogSettings(idempotence="off"), create=True)
    met = call(*(line + suffix).split())
    assert (met.code, met.out) == (2, b"")
    if suffix:
        assert [(said["exit_code"], why in said["message"]) for said in met.errors] == [(2, True)]
    else:
        assert met.err.startswith(b"error: ")
        assert why in met.err.decode()
        assert met.err.count(b"\n") == 1
    assert db.logs() == ["filled", "off"]


def test_without_a_url_it_is_2(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: neither the option nor the variable is an error that names both."""
    monkeypatch.delenv("ONCELOG_URL")
    met = call("log", "list")
    assert met.code == 2
    assert b"--url" in met.err
    assert b"ONCELOG_URL" in met.err


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from oncelog.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("line", ["ingest orders {}", "export orders {}/out", "audit orders --master local[1]"])
def test_a_missing_extra_is_2(db: Database, url: str, tmp_path: Path, line: str) -> None:
    """A command that needs a package which is not installed names the extra that brings the package."""
    db.log("orders", create=True)
    (tmp_path / "day.jsonl").write_text('{"id": "1"}')
    command = [sys.executable, "-c", WITHOUT_SPARK, *line.format(tmp_path).split()]
    done = subprocess.run(command, env=environment(url), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        'error: pyspark is not installed, and this command needs it: pip install "oncelog[spark]"\n'
    )


def test_a_bug_shows_where(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no error of ours is not hidden behind one line."""

    def broken(_: Database) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(Database, "logs", broken)
    with pytest.raises(ZeroDivisionError):
        call("log", "list")


def test_ctrl_c_at_a_prompt_is_an_interrupt() -> None:
    """Scripts tell it from a "no": 130, not 1."""
    abort = typer.Abort()
    abort.__context__ = KeyboardInterrupt()  # as a prompt raises it
    assert fail(abort, as_json=False) == 130
    assert fail(typer.Abort(), as_json=False) == 1


def test_help_whose_reader_has_gone_is_done() -> None:
    """``oncelog --help | head -1`` is no failure."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_server_without_its_packages_names_the_extra_of_servers(tmp_path: Path) -> None:
    """The extra of clients has gRPC too, and would not be enough."""
    program = WITHOUT_SPARK.replace("pyspark", "grpc")
    command = [sys.executable, "-c", program, "serve", "--url", tmp_path.as_uri()]
    done = subprocess.run(command, env=environment(None), capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b'pip install "oncelog[server]"' in done.stderr


@pytest.mark.parametrize("command", ["log info ordres", "queue stats emials", "log append ordres -"])
def test_a_mistyped_name_is_met_with_the_one_that_was_meant(command: str, tmp_path: Path) -> None:
    """As for mistyped commands: what is there and looks like it is named."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log("orders", create=True)
        db.queue("emails", create=True)
    done = shell(*command.split(), url=tmp_path.as_uri(), given=b"x\n")
    assert done.code == 2
    assert (b"did you mean 'orders'?" in done.err) or (b"did you mean 'emails'?" in done.err)


def test_a_shell_without_a_standard_output_is_served(tmp_path: Path) -> None:
    """Closed by the caller (``>&-``), output goes nowhere; the command does its work and says nothing else."""
    script = f"{shlex.join(COMMAND)} log create orders --url {tmp_path.as_uri()} >&-"
    done = subprocess.run(["bash", "-c", script], env=environment(None), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    """The error names what was given, not a file that nobody asked for."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log("orders", create=True)
    done = shell("log", "cat", "orders", "--output", str(tmp_path), url=tmp_path.as_uri())
    assert (done.code, done.err.decode()) == (2, f"error: {tmp_path}: Is a directory: name a file in it\n")
