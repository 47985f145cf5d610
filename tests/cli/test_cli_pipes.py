"""The streams of a process: pipes that close, pipes that stay open, terminals, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from oncelog import Database, LogSettings, Record
from tests.cli.shell import COMMAND, TIMEOUT_S, environment, shell, started, stream, terminal


def fill(db: Database, count: int) -> None:
    """Make the log ``orders``."""
    with db.log("orders", create=True).writer() as writer:
        writer.append_many([Record(b"value %d" % number, id=str(number)) for number in range(count)])


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Return how a process ended, and what else it said."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def test_a_reader_that_has_enough_is_no_error(db: Database, url: str) -> None:
    """``cat | head`` says nothing on stderr, and a script under pipefail goes on."""
    fill(db, 50_000)
    piped = f"set -o pipefail; {' '.join(COMMAND)} log cat orders | head -n 1"
    done = subprocess.run(
        ["bash", "-c", piped], env=environment(url), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"value 0\n", b"")


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["people", "json"])
def test_a_reader_that_was_never_there_is_no_error(db: Database, url: str, form: list[str]) -> None:
    """What is still to be written when the reader goes, is dropped without a complaint at the end of the process."""
    fill(db, 1)
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*COMMAND, "log", "info", "orders", *form]
    done = subprocess.run(
        arguments, env=environment(url), stdout=writer, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code"), [("log append orders", 0), ("log delete orders", 2)], ids=["read", "asked"]
)
def test_a_process_without_stdin(db: Database, url: str, arguments: str, code: int) -> None:
    """Whoever starts a command may have closed its stdin: there is nothing to read, and nobody to be asked."""
    fill(db, 1)
    line = f"{' '.join(COMMAND)} {arguments} <&-"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(url), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr


def test_tail_follows_until_it_is_interrupted(db: Database, url: str) -> None:
    """What is appended while it runs is seen at once; Ctrl-C ends it with 130 and without a word."""
    fill(db, 3)
    process = started("log", "tail", "orders", "-f", "-n", "1", "--columns", "position,value", url=url)
    assert stream(process.stdout).readline() == b"2\tvalue 2\n"
    with db.log("orders").writer() as writer:
        writer.append(b"new")
        assert stream(process.stdout).readline() == b"3\tnew\n"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"", b"")


def test_tail_ends_at_its_limit(db: Database, url: str) -> None:
    """A script waits for the next few records and no longer."""
    fill(db, 1)
    process = started("log", "tail", "orders", "-f", "--from", "0", "--limit", "3", "--json", url=url)
    assert msgspec.json.decode(stream(process.stdout).readline())["position"] == 0
    with db.log("orders").writer() as writer:
        writer.append_many([Record(b"x")] * 5)
        code, out, err = ended(process)
    assert (code, err) == (0, b"")
    assert [msgspec.json.decode(line)["position"] for line in out.splitlines()] == [1, 2]


def test_a_slow_producer_is_stored_promptly(db: Database, url: str) -> None:
    """A line that is piped in is durable before the next one comes; interrupted, the command tells what it did."""
    log = db.log("orders", create=True)
    with log.tail("earliest") as entries:
        process = started("log", "append", "orders", "--json", url=url)
        for line in (b"first", b"second"):
            stream(process.stdin).write(line + b"\n")
            stream(process.stdin).flush()
            entry = entries.poll(timeout_s=TIMEOUT_S)
            assert entry is not None
            assert entry.value == line
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, err) == (130, b"")
    assert msgspec.json.decode(out)["stored"] == 2


def test_large_input_needs_no_more_memory(db: Database, url: str, tmp_path: Path) -> None:
    """What is piped in is let go: ten times the input takes hardly more memory than the input once."""
    db.log("orders", LogSettings(seal="off"), create=True)
    peaks = []
    for count in (100_000, 1_000_000):
        with (tmp_path / "lines").open("wb") as file:
            file.writelines(b"a line of input, number %032d\n" % number for number in range(count))
        peaks.append(peak_kib("log", "append", "orders", str(tmp_path / "lines"), url=url))
    assert peaks[1] - peaks[0] < 60_000, peaks


def peak_kib(*arguments: str, url: str) -> int:
    """Run a command; return the most memory it had."""
    pid = os.posix_spawn(
        COMMAND[0],
        [*COMMAND, *arguments],
        environment(url),
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_maxrss


def test_progress_is_for_terminals(db: Database, url: str, tmp_path: Path) -> None:
    """In a terminal a bar with rate and remaining time comes and goes; elsewhere nothing of it is seen."""
    db.log("orders", create=True)
    file = tmp_path / "lines"
    file.write_bytes(b"a line\n" * 100_000)
    quiet = shell("log", "append", "orders", str(file), url=url)
    assert (quiet.code, quiet.err, quiet.out.count(b"\n")) == (0, b"", 1)
    seen = terminal("log", "append", "orders", str(file), url=url)
    assert seen.code == 0
    for part in ("appending", "━", "683.6 KiB of 683.6 KiB", "records/s", "0:00:00", "100,000 records read"):
        assert part in seen.seen


@pytest.mark.parametrize("command", ["verify", "seal"])
def test_long_work_shows_its_progress(db: Database, url: str, command: str) -> None:
    """Whatever reads a whole log shows how far it has come."""
    fill(db, 1000)
    seen = terminal("log", command, "orders", url=url)
    assert seen.code == 0
    assert "1,000 of 1,000 records" in seen.seen


def test_a_terminal_shows_more_and_is_not_harmed(db: Database, url: str) -> None:
    """People see positions, times and ids; a value that would clear the screen is shown, not obeyed."""
    with db.log("orders", create=True).writer() as writer:
        writer.append_many([Record(b"\x1b[2Jgone", id="a"), Record(b"\xff", id="longer")])
    seen = terminal("log", "cat", "orders", url=url)
    first, second = seen.out.decode().splitlines()
    assert b"\x1b[2J" not in seen.out
    assert first.startswith("0  20")
    assert first.endswith("Z  a       \\x1b[2Jgone")
    assert second.endswith("Z  longer  \\xff")


@pytest.mark.parametrize("columns", [20, 60, 100])
def test_numbers_are_never_cut(db: Database, url: str, columns: int) -> None:
    """A table that is wider than the terminal is shown cell by cell, with whole headings and whole numbers."""
    with db.log("a-log-with-a-rather-long-name", create=True).writer() as writer:
        writer.append_arrow(pa.table({"value": pa.array([b""] * 12_345)}))
    seen = terminal("log", "list", url=url, columns=columns)
    assert seen.code == 0
    words = re.sub(r"\x1b\[[0-9;]*m", " ", seen.out.decode()).split()
    assert {"12,345", "12,344", "records", "segments"} <= set(words)


def test_columns_are_not_for_a_terminal(db: Database, url: str) -> None:
    """Parquet on a screen helps nobody."""
    fill(db, 1)
    seen = terminal("log", "cat", "orders", "--format", "parquet", url=url)
    assert seen.code == 2
    assert "error: parquet is not for a terminal" in seen.seen


def test_delete_wants_the_name(db: Database, url: str) -> None:
    """A log is not deleted by a slip of the finger."""
    fill(db, 3)
    stopped = terminal("log", "delete", "orders", url=url, typed=b"order\n")
    assert (stopped.code, db.logs()) == (1, ["orders"])
    assert "error: stopped: nothing was done" in stopped.seen
    done = terminal("log", "delete", "orders", url=url, typed=b"orders\n")
    assert (done.code, db.logs()) == (0, [])
    assert b"3 records will be gone. Type the log's name to go on" in done.out


def test_truncate_asks(db: Database, url: str) -> None:
    """What would go is told before it goes; no means no."""
    fill(db, 3)
    seen = terminal("log", "truncate", "orders", "--before", "2", url=url, typed=b"n\n")
    assert seen.code == 1
    assert b"Remove 2 records before position 2 from orders?" in seen.out
    assert db.log("orders").info().first_position == 0
