"""Real processes that are stopped, real storage that is away, for longer than the window: nothing is stored twice."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import oncelog
from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog import LogSettings, Window
from tests.crash.processes import Process
from tests.crash.work import LOG

WINDOW_S = 20.0
AWAY_S = 25.0
ROUNDS = 3
IDS = 5


def away() -> None:
    """Let time pass: this is about time that really passed."""
    threading.Event().wait(AWAY_S)


def stopped(worker: Process) -> None:
    """Stop the writer's process, all of its threads."""
    worker.signal(signal.SIGSTOP)
    worker.wait_until_stopped()
    away()
    worker.signal(signal.SIGCONT)


def outlive(worker: Process, disturb: Callable[[], None]) -> int:
    """Send records, disturb, and send them again, some times; return how often a retry was not the original's
    duplicate.
    """
    wrong = 0
    for turn in range(ROUNDS):
        ids = [f"id-{turn}-{number}" for number in range(IDS)]
        before = [worker.ask(record_id) for record_id in ids]
        disturb()
        for record_id, first in zip(ids, before, strict=True):
            assert first[2] == "False"
            wrong += worker.ask(record_id) != ["ack", first[1], "True"]
    return wrong


def check_once(url: str) -> None:
    """Assert that no id is in the log twice, and that the log says so, too."""
    with oncelog.connect(url) as db:
        counts = Counter(entry.id for entry in db.log(LOG).read())
        assert {record_id for record_id, count in counts.items() if count > 1} == set()
        assert sum(str(record_id).startswith("id-") for record_id in counts) == ROUNDS * IDS
        assert db.log(LOG).verify().ok


@pytest.mark.soak
@pytest.mark.parametrize("busy", ["idle", "busy"])
@pytest.mark.parametrize("how", ["stopped", "cut off"])
def test_on_a_disk_nothing_is_stored_twice(tmp_path: Path, how: str, busy: str) -> None:
    """Neither a stop of the process nor a disk that fails ages an id."""
    url, flag = (tmp_path / "db").as_uri(), tmp_path / "cut"

    def cut_off() -> None:
        flag.touch()
        away()
        flag.unlink()

    with oncelog.connect(url) as db:
        db.log(LOG, LogSettings(window=Window(duration_s=WINDOW_S)), create=True)
    with Process("sleeper", url, str(flag), busy) as worker:
        assert worker.hear() == ["ready"]
        assert outlive(worker, cut_off if how == "cut off" else lambda: stopped(worker)) == 0
        assert worker.finish() == 0
    check_once(url)


@pytest.mark.soak
@pytest.mark.parametrize("busy", ["idle", "busy"])
@pytest.mark.parametrize("how", ["stopped", "cut off"])
def test_in_a_bucket_nothing_is_stored_twice(
    tmp_path: Path, how: str, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a stop of the process nor a server that is down ages an id."""
    server = SeaweedFS(tmp_path / "server")

    def cut_off() -> None:
        server.end()
        away()
        server.start()

    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/away"
        with oncelog.connect(url) as db:
            db.log(LOG, LogSettings(window=Window(duration_s=WINDOW_S)), create=True)
        with Process("sleeper", url, "", busy) as worker:
            assert worker.hear() == ["ready"]
            assert outlive(worker, cut_off if how == "cut off" else lambda: stopped(worker)) == 0
            assert worker.finish() == 0
        check_once(url)
    finally:
        server.end()
