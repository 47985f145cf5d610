"""Text of others on its way to a terminal: a name, a key or an error that moves the cursor is spelled out."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

import oncelog
from oncelog import cli
from oncelog.cli import run
from oncelog.cli.commands.queues import worker
from oncelog.cli.terminal.output import json_line
from oncelog.redaction import harmless
from tests.cli.conftest import Call
from tests.cli.shell import Outcome, terminal

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
OBEYED = [character for character in ESCAPE if not character.isprintable()]


def check(found: Outcome, shown: str = "owned") -> None:
    """Check that a command said what was amiss, and that nothing in it is for the terminal."""
    said = (found.out + found.err).decode()
    assert shown in said, said
    assert not [character for character in OBEYED if character in said], said


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a database with a log, which commands find."""
    url = f"file://{tmp_path}/db"
    with oncelog.connect(url) as db:
        db.log("orders", create=True)
    monkeypatch.setenv("ONCELOG_URL", url)
    return url


@pytest.fixture
def call(url: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return what runs a command line in this process, into pipes and without colours."""
    monkeypatch.setenv("NO_COLOR", "1")

    def called(*arguments: str) -> Outcome:
        capfdbinary.readouterr()
        code = run(arguments)
        return Outcome(code, *capfdbinary.readouterr())

    return called


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_field_of_a_line_that_is_no_record(call: Call, tmp_path: Path, more: tuple[str, ...]) -> None:
    """The decoder's message repeats the name of a field that it does not know."""
    escaped = ESCAPE.encode("unicode_escape").decode().replace("\\x", "\\u00")
    line = f'{{"value": "a", "{escaped}": 1}}\n'.encode()
    (tmp_path / "lines.jsonl").write_bytes(line)
    check(call("log", "append", "orders", str(tmp_path / "lines.jsonl"), *more))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_name_of_a_file(call: Call, tmp_path: Path, more: tuple[str, ...]) -> None:
    """A file name may have any byte but two."""
    path = tmp_path / f"{ESCAPE}.arrow"
    path.write_bytes(b"no Arrow")
    check(call("log", "append", "orders", str(path), *more))
    check(call("log", "append", "orders", str(tmp_path / ESCAPE), *more))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_name_of_a_file_that_is_not_text(call: Call, tmp_path: Path, more: tuple[str, ...]) -> None:
    """A file name may have bytes that are no UTF-8; one of them alone is CSI to a terminal of eight bits."""
    found = call("log", "append", "orders", f"{tmp_path}/\udc9b2Jowned", *more)
    check(found)
    assert found.code == 2
    assert b"\x9b" not in found.err


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize(
    "given", [f"what://{ESCAPE}", f"file://{ESCAPE}", f"s3://{ESCAPE}?x=1", f"memory://a/{ESCAPE}"]
)
def test_a_url(call: Call, given: str, more: tuple[str, ...]) -> None:
    """A URL is repeated by most errors."""
    check(call("log", "list", "--url", given, *more))


def test_the_name_of_a_log_and_an_option(call: Call) -> None:
    """What is typed, or pasted, is repeated too."""
    check(call("log", "info", f"owned{ESCAPE}"))
    check(call("log", f"--owned{ESCAPE}"))


def test_keys_of_a_pipeline(call: Call, tmp_path: Path) -> None:
    """Keys and values of TOML come from a file that somebody sent."""
    escaped = ESCAPE.encode("unicode_escape").decode().replace("\\x", "\\u00")
    spec = tmp_path / "pipeline.toml"
    spec.write_text(f'name = "a"\n"{escaped}" = 1\n[source]\nformat = "{escaped}"\n')
    check(call("pipeline", "check", str(spec)))


@pytest.fixture
def hostile(url: str) -> str:
    """Return the URL of a database in which all text of records was made for a terminal."""
    with oncelog.connect(url) as db:
        record = oncelog.Record(
            ESCAPE.encode(), id=ESCAPE, stream=ESCAPE, type=ESCAPE, tenant=ESCAPE, headers={ESCAPE: ESCAPE.encode()}
        )
        with db.log("orders").writer() as writer:
            writer.append_many([record])
            writer.as_producer(f"p{ESCAPE}").append(b"x", sequence=1)
        db.streams("events", create=True).append(ESCAPE, [oncelog.Record(ESCAPE.encode(), type=ESCAPE)])
        queue = db.queue("emails", create=True)
        queue.send(ESCAPE.encode(), id=ESCAPE, key=ESCAPE, tenant=ESCAPE)
        with queue.consume(group="default") as deliveries:
            next(iter(deliveries)).nack(ESCAPE)
    return url


@pytest.mark.usefixtures("hostile")
def test_what_records_say(call: Call) -> None:
    """Values, ids, streams, types, headers, tenants, producers and reasons are text of others."""
    for command in (
        "log cat orders",
        "log cat orders --columns id,headers",
        "log tail orders",
        "stream read events",
        "stream list events",
        "queue peek emails",
        "producer list orders",
        "audit orders",
    ):
        check(call(*command.split(), "--json"))
    for command in ("stream list events", "queue peek emails", "producer list orders", "audit orders"):
        check(call(*command.split()))
    for more in ((), ("--json",)):
        check(call("sql", "SELECT * FROM orders", *more))


def test_raw_values_on_a_terminal(hostile: str) -> None:
    """Raw values are for a pipe; in a terminal they are shown, and not obeyed."""
    found = terminal("log", "cat", "orders", "--format", "raw", url=hostile)
    assert "owned" in found.out.decode()
    assert not [character for character in OBEYED if character in found.out.decode()]


def test_the_error_of_a_handler(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A handler fails with the message it was sent: what the worker says of it is harmless."""
    event = oncelog.WorkerEvent("failed", f"m-1: ValueError: {ESCAPE}", error=ValueError(ESCAPE))
    worker._report(event)
    worker._json_report(event)
    check(Outcome(0, *capfdbinary.readouterr()))


def test_lines_of_the_standard_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the background tells that it fails by a line of the log, which has the text of a storage."""
    assert logging.lastResort is not None
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    cli._log_harmlessly()
    record = logging.makeLogRecord({"msg": "a merge fails: %s", "args": (f"{ESCAPE} password=hunter2",)})
    check(Outcome(0, logging.lastResort.format(record).encode(), b""))
    assert "hunter2" not in logging.lastResort.format(record)


def test_an_error_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A bug shows where it is by a traceback. Its message is harmless, also from a thread."""
    assert logging.lastResort is not None
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    cli._log_harmlessly()
    error = RuntimeError(f"{ESCAPE} password=hunter2")
    sys.excepthook(RuntimeError, error, None)
    check(Outcome(0, *capfdbinary.readouterr()), "RuntimeError: \\x1b]0;owned")
    thread = threading.Thread(target=_raise, args=[error])
    thread.start()
    thread.join()
    found = Outcome(0, *capfdbinary.readouterr())
    check(found, "in _raise")
    assert b"hunter2" not in found.err
    thread = threading.Thread(target=_raise, args=[SystemExit(1)])  # a thread may end so
    thread.start()
    thread.join()
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    sys.excepthook(RuntimeError, error, None)
    assert capfdbinary.readouterr().err == b""


def _raise(error: BaseException) -> None:
    raise error


def test_a_terminal_gets_colours_and_no_more(url: str) -> None:
    """On a terminal the codes of our own remain, and those of others do not."""
    found = terminal("log", "info", f"owned{ESCAPE}", url=url)
    assert "owned" in found.out.decode()
    assert b"\x1b]0;" not in found.out
    assert b"\x1b[2J" not in found.out


def test_harmless_leaves_text_alone() -> None:
    """Letters of every script, lines and tabs stay; what a terminal obeys is spelled so that it can be told."""
    assert harmless("Größe\t日本\n😀") == "Größe\t日本\n😀"
    assert harmless(ESCAPE) == "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202e"
    assert json_line({"a": ESCAPE}) == '{"a":"\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202e"}\n'
    assert json_line({"a": "\udc80", "b": float("nan")}) == '{"a":"\\udc80","b":null}\n'  # as without a surrogate
