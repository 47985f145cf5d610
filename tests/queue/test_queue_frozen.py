"""A worker that is stopped in the midst of a transaction stalls nobody beyond their own time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oncelog
from oncelog import Delivery, Unavailable
from oncelog.queue.state.database import StateBusy
from oncelog.queue.state.sqlite import SqliteDatabase
from oncelog.testing.clock import SimulatedClock

PROGRAM = """
import os, signal, sys, oncelog
from oncelog.queue.deliver.broker import Broker
from oncelog.queue.state import postgresql

postgresql._SESSION["idle_in_transaction_session_timeout"] = "200"
claim = Broker._claim

def claim_and_stop(self, *given):
    claimed = claim(self, *given)
    os.kill(os.getpid(), signal.SIGSTOP)
    return claimed

Broker._claim = claim_and_stop
with oncelog.connect(sys.argv[1]) as db:
    try:
        found = db.queue("work", state=sys.argv[2] or None).consume("g").receive()
        print("received", *(one.token for one in found), flush=True)
    except oncelog.Unavailable as error:
        print("unavailable", error.outcome, flush=True)
"""


@contextmanager
def frozen(url: str, state: str | None) -> Iterator[subprocess.Popen[str]]:
    """Have a worker that is stopped in the midst of the transaction in which it claims a message."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, url, state or ""], stdout=subprocess.PIPE, text=True)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_on_sqlite_who_waits_gets_nothing_in_its_own_time(tmp_path: Path) -> None:
    """Nothing takes a file's lock from a stopped process: the others wait as long as they said, not half a minute."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        queue = db.queue("work", create=True)
        queue.send(b"x")
        with queue.consume("g") as consumer:
            with frozen(url, None) as process:
                assert consumer.receive(timeout_s=0) == []
                process.send_signal(signal.SIGCONT)
                assert process.stdout is not None
                assert process.stdout.readline().startswith("received")
                process.wait()
            assert queue.stats().groups["g"].delivered == 1


def test_on_postgresql_the_server_ends_the_transaction(tmp_path: Path, postgres_state: str) -> None:
    """The group goes on without the stopped worker, which learns that what it claimed is not its own."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        queue = db.queue("work", create=True, state=postgres_state)
        queue.send(b"x")
        with queue.consume("g") as consumer, frozen(url, postgres_state) as process:
            found: list[Delivery] = []
            while not found:
                found = consumer.receive(timeout_s=1)
            assert found[0].attempts == 1
            found[0].ack()
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            assert process.stdout.readline().split() == ["unavailable", "unknown"]


def test_a_send_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    """Another process in the gate's transaction is no reason to wait half a minute, and nothing was written."""
    with oncelog.connect(tmp_path.as_uri()) as db, oncelog.connect(tmp_path.as_uri()) as other:
        queue = db.queue("work", create=True)
        queue.send(b"a", id="a")
        with other._state_of(None).writing(durable=False), pytest.raises(Unavailable) as refused:
            queue.send(b"b", id="b", timeout_s=0)
        assert refused.value.outcome == "not written"
        assert not queue.send(b"b", id="b").duplicate


def test_a_thread_waits_for_another_no_longer_than_it_may() -> None:
    """Threads of a process share a connection: one that is held up holds no other up for longer than it wants."""
    database = SqliteDatabase(None, SimulatedClock())
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with database.writing():
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    with pytest.raises(StateBusy, match="another thread"), database.writing(wait_s=0.01):
        pass
    leave.set()
    holder.join()
    database.close()
