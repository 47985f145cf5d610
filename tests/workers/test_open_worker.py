"""Several workers in one process, what they report, and the options of the shell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog import Database, Delivery, InvalidArgument, Queue, WorkerEvent
from oncelog.cli.commands.queues import worker as commands
from tests.workers.until import Until, work

LONG_S = 60.0


def test_several_workers_run_until_all_are_stopped(db: Database, queue: Queue) -> None:
    """Each has its own function and queue; all are stopped together."""
    other = db.queue("bills", create=True)
    handled: list[tuple[str, bytes]] = []
    until = Until()
    workers = [
        work(one, lambda delivery: handled.append((delivery.topic, delivery.value)), until) for one in (queue, other)
    ]
    running = threading.Thread(target=oncelog.run_workers, args=(workers,))
    running.start()
    queue.send(b"mail")
    other.send(b"bill")
    until.wait("done", 2)
    for one in workers:
        one.stop()
    running.join(LONG_S)
    assert not running.is_alive()
    assert sorted(handled) == [("bills", b"bill"), ("emails", b"mail")]


def test_a_worker_that_fails_stops_the_others(db: Database, queue: Queue) -> None:
    """Its error is raised when all have ended: a process that does half of its work must not seem well."""
    other = db.queue("bills", create=True)
    workers = [oncelog.worker(one, "group", lambda _: None) for one in (queue, other)]
    other.close()
    with pytest.raises(oncelog.Closed):
        oncelog.run_workers(workers)
    assert [one.state for one in workers] == ["stopping", "stopping"]


def test_a_report_has_the_delivery_and_the_exception(queue: Queue) -> None:
    """Who sends failures to a tracker has the object that was raised, with its traceback."""
    error = ValueError("no address")

    def handler(delivery: Delivery) -> None:
        if delivery.attempts == 1:
            raise error

    queue.send(b"x", id="user-7")
    until = Until()
    with work(queue, handler, until):
        until.wait("done")
    failed, done = until.events
    assert failed.error is error
    assert error.__traceback__ is not None
    assert failed.delivery is not None
    assert (failed.delivery.id, failed.delivery.value) == ("user-7", b"x")
    assert (done.word, done.error) == ("done", None)


def test_a_report_that_fails_changes_nothing(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The tracker is down: messages are handled and acknowledged all the same, once, and the log says so."""
    handled: list[bytes] = []
    done = threading.Event()

    def report(event: WorkerEvent) -> None:
        if event.word == "done":
            done.set()
        message = "the tracker is down"
        raise ConnectionError(message)

    queue.send(b"x", id="1")
    with oncelog.worker(queue, "mailer", lambda delivery: handled.append(delivery.value), report=report) as worker:
        assert done.wait(LONG_S)
    assert handled == [b"x"]
    assert worker.counts() == {"done": 1}
    assert queue.lag("mailer") == 0
    assert "the tracker is down" in caplog.text


@pytest.mark.parametrize("limit_s", [0, -1.0, float("nan")])
def test_a_limit_that_is_no_time_is_refused(queue: Queue, limit_s: float) -> None:
    """Every handler would fail at once."""
    with pytest.raises(InvalidArgument, match="time_limit_s"):
        oncelog.worker(queue, "mailer", lambda _: None, time_limit_s=limit_s)


HANDLERS = """
import os, signal

handled = set()

def note(name):
    handled.add(name)
    if len(handled) == 2:
        os.kill(os.getpid(), signal.SIGTERM)

def mail(delivery):
    if delivery.attempts == 1:
        raise ValueError("no address")
    note("mail")

async def bill(delivery):
    note("bill")
"""


def _shell(db: Database, folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    (folder / "handlers.py").write_text(HANDLERS)
    command = [sys.executable, "-m", "oncelog.cli", "worker", *arguments]
    environment = {**os.environ, "ONCELOG_URL": db.url}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=LONG_S)


def test_several_functions_in_the_shell(db: Database, queue: Queue, tmp_path: Path) -> None:
    """Pairs of functions and queues run in one process; a failure is told with its id, and logged with a traceback."""
    queue.send(b"m", id="user-7")
    db.queue("bills", create=True).send(b"b")
    db.close()
    pairs = ["handlers:mail", "emails", "handlers:bill", "bills"]
    options = ["--ack-timeout", "1m", "--time-limit", "30s", "--log-level", "warning", "--concurrency", "2", "--json"]
    ended = _shell(db, tmp_path, *pairs, *options)
    assert ended.returncode == 0, ended.stderr
    told = [msgspec.json.decode(line) for line in ended.stdout.splitlines()]
    failed = next(line for line in told if line.get("event") == "failed")
    assert (failed["queue"], failed["id"], failed["attempts"], failed["error"]) == ("emails", "user-7", 1, "ValueError")
    assert told[-1]["counts"] == {"failed": 1, "done": 2}
    logged = [msgspec.json.decode(line) for line in ended.stderr.splitlines()]
    assert any("in mail" in line.get("trace", "") for line in logged if line["logger"] == "oncelog.worker")


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["json:loads"], "functions and queues come in pairs"),
        (["json:loads", "emails", "json:dumps", "emails"], "is there twice"),
        (["json", "emails"], "MODULE:FUNCTION"),
    ],
)
def test_wrong_pairs_are_named(pairs: list[str], says: str) -> None:
    """A mistake is told before anything runs."""
    with pytest.raises(InvalidArgument, match=says):
        commands._paired(pairs)


def test_a_level_that_is_none_is_named() -> None:
    """A misspelt level would log nothing."""
    assert commands._level("WARNING") == "warning"
    with pytest.raises(InvalidArgument, match="must be one of"):
        commands._level("loud")
