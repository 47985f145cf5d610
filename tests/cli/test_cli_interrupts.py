"""Ctrl-C ends a command with 130, without a traceback; what was half done can be done again."""

from __future__ import annotations

import os
import pty
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Database, Record
from oncelog.cli.commands.servers import top
from oncelog.cli.terminal.output import Meter
from tests.cli.conftest import Call
from tests.cli.shell import COMMAND, environment


@pytest.fixture(autouse=True)
def _python_handles_sigint() -> Iterator[None]:
    """Let SIGINT raise, as in a terminal: a worker of the tests may have been started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler  # a command leaves it as it was


def pressing_ctrl_c(*_: object, **__: object) -> None:
    """Do what a terminal does to its foreground process."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def filled(db: Database) -> Database:
    """Return the database with a log in it."""
    with db.log("orders", create=True).writer() as writer:
        writer.append_many([Record(b"v", id=str(number)) for number in range(50)])
    return db


@pytest.mark.parametrize("command", [["log", "verify", "orders"], ["log", "copy", "orders", "{0}/copy"]])
def test_a_job_that_is_interrupted_can_be_run_again(
    filled: Database, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """In the middle of its work it ends with 130 and no word; run again it does all of it."""
    words = [word.format(tmp_path) for word in command]
    with monkeypatch.context() as patched:
        patched.setattr(Meter, "to", pressing_ctrl_c)
        cut = call(*words)
    assert (cut.code, cut.out, cut.err) == (130, b"", b"")
    again = call(*words)
    assert (again.code, again.err) == (0, b"")
    assert "50 records" in again.seen
    assert len(list(filled.log("orders").read())) == 50


def _in_an_import() -> None:
    try:
        pressing_ctrl_c()
    except KeyboardInterrupt:
        message = "partially initialized module 'pandas' has no attribute 'core'"
        raise AttributeError(message) from None


@pytest.mark.parametrize("ending", [pressing_ctrl_c, _in_an_import])
def test_what_an_interrupt_turns_into_is_no_bug(
    filled: Database, call: Call, monkeypatch: pytest.MonkeyPatch, ending: Callable[[], None]
) -> None:
    """A library whose import is interrupted raises what it likes: the user pressed Ctrl-C, and sees no traceback."""
    assert filled.logs() == ["orders"]

    def broken(_: Database) -> Any:
        ending()

    monkeypatch.setattr(Database, "logs", broken)
    cut = call("log", "list")
    assert (cut.code, cut.out, cut.err) == (130, b"", b"")


def test_a_query_that_is_interrupted_was_not_refused(
    filled: Database, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB makes a text of what a scan raises; Ctrl-C in it is still Ctrl-C."""

    def broken(*_: object) -> Any:
        pressing_ctrl_c()

    monkeypatch.setattr(type(filled.log("orders")), "read_arrow", broken)
    cut = call("sql", "select count(*) from orders")
    assert (cut.code, cut.out, cut.err) == (130, b"", b"")


def test_ctrl_c_is_the_end_of_top(filled: Database, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is how a user leaves ``top``: that is no failure."""
    monkeypatch.setattr(top, "rates", pressing_ctrl_c)
    assert filled.logs() == ["orders"]
    ended = call("top", "--json", "--every", "10ms")
    assert (ended.code, ended.err) == (0, b"")


def test_who_waits_for_a_silent_server_is_told() -> None:
    """A command asks a server that takes the connection and says nothing: the terminal says which one it waits for,
    long before the time is over, and Ctrl-C ends it.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        pid, descriptor = pty.fork()
        if pid == 0:  # pragma: no cover (another process)
            os.execve(COMMAND[0], [*COMMAND, "log", "list"], environment(f"oncelog://{target}"))
        seen = b""
        while f"no answer yet from {target}".encode() not in seen:
            seen += os.read(descriptor, 1 << 16)  # an OSError when the command has ended
        os.write(descriptor, b"\x03")
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 130
