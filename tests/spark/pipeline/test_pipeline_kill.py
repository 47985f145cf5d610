"""Jobs from a shell, ended by signals: politely, and with SIGKILL at moments that can be seen from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.dataset as ds
import pytest

import oncelog
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.settings import LogSettings, Window
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.history import BatchDone
from oncelog.spark.pipeline.pipeline import Pipeline
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.faults import Killed, When
from oncelog.testing.storage import FaultyStorage
from tests.spark.pipeline.shop import Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


def started(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a command in a group of processes of its own, which its JVM belongs to as well."""
    environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    command = [sys.executable, "-m", "oncelog.cli", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def kill_when(process: subprocess.Popen[bytes], seen: Callable[[], bool]) -> bool:
    """Kill a process and its JVM once something is seen; return whether that was before its end."""
    while process.poll() is None:
        if seen():
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.005)  # its end is waited for; what is seen meanwhile it does not tell
    process.communicate()
    return False


def finish(*arguments: str) -> None:
    """Run a command to its end."""
    process = started(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err


@pytest.mark.soak
def test_ingest_and_export_killed_and_run_again(shop: Shop) -> None:
    """Killed when rows are staged, when the log has them, and when files are being written: the same as undisturbed."""
    for first in range(0, 4000, 500):
        shop.send(*orders(first, first + 500))
    home, out = shop.folder / "data" / "logs" / "orders", shop.folder / "exported"
    url = (shop.folder / "data").as_uri()
    ingest = ("ingest", "orders", str(shop.folder / "incoming"), "--id", "order_id", "--create", "--url", url)
    export = ("export", "orders", str(out), "--schema", "order_id STRING, amount LONG", "--url", url)
    assert kill_when(started(*ingest), lambda: any((home / "sealed").glob("*.parquet")))
    kill_when(started(*ingest), lambda: len(shop.ids()) > 0)
    finish(*ingest)
    assert shop.ids() == sorted(f"o{number}" for number in range(4000))
    assert kill_when(started(*export), lambda: any(path.is_file() for path in out.rglob("*")))
    finish(*export, "--overwrite")
    rows = ds.dataset(out, format="parquet").to_table().column("order_id").to_pylist()
    assert sorted(rows) == shop.ids()


@pytest.mark.xdist_group("pipeline")
def test_followed_until_it_is_asked_to_stop(shop: Shop, spark: SparkSession) -> None:
    """Followed, a pipeline takes what comes while it runs, and ends in good order when the process is told to end."""
    shop.send(*orders(0, 3))
    told: list[int | None] = []

    def tell(batch: BatchDone) -> None:
        told.append(batch.exported)
        if batch.exported == 3:
            shop.send(*orders(2, 6))
        if batch.exported == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    given, _ = check.check(shop.spec)
    assert given is not None
    outcome = Pipeline(given, shop.folder, SYSTEM).run(tell, follow=True, spark=spark)
    assert told[-1] == 6
    assert (outcome.attempts, outcome.stored, outcome.duplicates, outcome.exported) == (7, 6, 1, 6)
    assert [row["position"] for row in shop.sent_on()] == list(range(6))
    assert shop.run(spark).rows == 0


@pytest.mark.soak
def test_followed_from_a_shell_until_it_is_asked_to_stop(shop: Shop) -> None:
    """``--follow`` tells what it does as it does it, and ends with what it did."""
    shop.send(*orders(0, 3))
    process = started("pipeline", "run", str(shop.spec), "--follow", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if msgspec.json.decode(line).get("exported") == 3:
            process.send_signal(signal.SIGTERM)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert msgspec.json.decode(out.splitlines()[-1])["stored"] == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_audit_cut_short_at_any_step(when: When) -> None:
    """An audit that dies leaves nothing behind: done again, it says the same, and the log is as it was."""
    storage = FaultyStorage(MemoryStorage())
    log = Database(storage).log("orders", LogSettings(window=Window(max_keys=5), seal="off"), create=True)
    with log.writer() as writer:
        for id in range(20):
            writer.append(b"x", id=str(id % 10))
    log.seal()
    undisturbed = log.audit()
    assert undisturbed.duplicates == 10
    for number in range(1, 100):
        before = storage.faults.calls
        storage.kill_at(number, when)
        with contextlib.suppress(Killed):
            assert log.audit() == undisturbed
        calls = storage.faults.calls - before
        storage.restart()
        log = Database(storage).log("orders")
        assert log.audit() == undisturbed
        assert log.verify().findings == ()
        if calls < number:
            break
    assert 2 < number < 99


@pytest.mark.parametrize("when", ["before", "after"])
def test_rebuild_cut_short_at_any_step(when: When) -> None:
    """Whatever call a rebuild dies in: the next writer knows what the last one knew."""
    for number in range(1, 100):
        storage = FaultyStorage(MemoryStorage())
        log = Database(storage).log("orders", LogSettings(window=Window(max_keys=20)), create=True)
        with log.writer() as writer:
            for id in range(50):
                writer.append(b"x", id=str(id))
        before = storage.faults.calls
        storage.kill_at(number, when)
        with contextlib.suppress(Killed):
            log.rebuild()
        calls = storage.faults.calls - before
        storage.restart()
        reopened = Database(storage).log("orders")
        assert reopened.verify().ok
        with reopened.writer() as writer:
            assert writer.append(b"x", id="35").position == 35
            with pytest.raises(oncelog.IdConflict):
                writer.append(b"y", id="49")
        if calls < number:
            break
    assert 5 < number < 99
