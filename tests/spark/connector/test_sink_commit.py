"""Drivers that die in a commit: walked step by step without Spark, and for real, with SIGKILL."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from oncelog.connect import connect
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import OnConflict
from oncelog.log.log import Log
from oncelog.log.stored.staged import Staged
from oncelog.settings import LogSettings
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import TaskMessage, _LogSink, deliver
from oncelog.spark.connector.staging import StagedResult
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed, When
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.shop import Shop as SimulatedShop
from tests.log.worlds import LOG, DiskWorld, living

OPTIONS = WriteOptions(url="memory://", log=LOG, writer_wait_s=0)
QUERY = BatchName(producer="query", number=1, owner="query")
ROOT = Path(__file__).parents[3]


def stage(log: Log, *values: bytes) -> Staged:
    """Stage values without ids: the mark alone can tell whether they are there."""
    return log.stage([pa.table({"value": pa.array(values, pa.binary())})])


def read(log: Log) -> list[bytes]:
    """Return the values that are there, sorted."""
    with log.read() as entries:
        return sorted(entry.value for entry in entries)


class Committing(_LogSink):
    """The sink without Spark: what its tasks said is committed to a log."""

    def __init__(self, log: Log, options: WriteOptions) -> None:
        self._log = log
        super().__init__(options, StructType([StructField("value", BinaryType())]), overwrite=False)

    def _open(self) -> Log:
        return self._log

    def commit(self, *ids: str, value: bytes) -> None:
        """Commit rows with these ids and a value."""
        table = pa.table({"id": list(ids), "value": pa.array([value] * len(ids), pa.binary())})
        self._commit([TaskMessage(0, "query", StagedResult(staged=(self._log.stage([table]),)))], None)


@pytest.mark.parametrize(
    ("on_conflict", "then"), [("quarantine", "oncelog log cat conflicts.orders"), ("original", "first stands")]
)
def test_conflicts_are_told(caplog: pytest.LogCaptureFixture, on_conflict: OnConflict, then: str) -> None:
    """Rows that were not stored, because other content has their id, are counted in a warning, which says where to
    look.
    """
    with connect("memory://") as db:
        log = db.log("orders", create=True)
        sink = Committing(
            log, WriteOptions(url="s3://bucket/shop?secret_access_key=hush", log="orders", on_conflict=on_conflict)
        )
        sink.commit("1", "2", "3", value=b"paid")
        sink.commit("4", value=b"paid")
        assert caplog.records == []
        sink.commit("2", "3", "5", value=b"open")
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "log orders: 2 rows" in warning.getMessage()
    assert then in warning.getMessage()
    assert "hush" not in warning.getMessage()


@pytest.mark.parametrize(("when", "ending"), [("before", "none"), ("after", "crash")])
def test_the_driver_killed_at_every_step_of_a_commit(when: When, ending: str) -> None:
    """Before, between and after all steps, alone or with the machine: the batch comes again, and is there once.

    To be killed before a step is to be killed after the one before it: every other one will do there.
    """
    for step in itertools.count(1, 2 if when == "before" else 1):
        world = DiskWorld(step)
        with living(world):
            log = world.database().log(LOG, LogSettings(), create=True)
            deliver(log, [stage(log, b"0")], BatchName(producer="query", number=0, owner="query"), OPTIONS)
            files = [stage(log, b"a", b"b"), stage(log, b"c")]
            world.faults.kill_at(step, when)
            with contextlib.suppress(Killed):
                deliver(log, files, QUERY, OPTIONS)
            killed = world.faults.is_killed
        world.end("crash" if ending == "crash" else "none", step)
        with living(world):
            log = world.database().log(LOG)
            deliver(log, [stage(log, b"c", b"a"), stage(log, b"b")], QUERY, OPTIONS)
            assert read(log) == [b"0", b"a", b"b", b"c"], f"killed {when} step {step}"
            deliver(log, [stage(log, b"d")], BatchName(producer="query", number=2, owner="query"), OPTIONS)
            assert len(read(log)) == 5
            assert log.verify().ok
        if not killed:
            break
    assert step > 10


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost_is_asked_for_again(when: When) -> None:
    """Storage fails once, at any step, before or after it has done its work: the commit goes on, with one copy."""
    for step in itertools.count(1):
        clock = SimulatedClock(auto_advance=True)
        storage = FaultyStorage(MemoryStorage(clock=clock))
        shop = SimulatedShop(storage, clock)
        log = shop.log(LogSettings())
        files = [stage(log, b"a", b"b"), stage(log, b"c")]
        before = storage.faults.calls
        storage.fail_at(step, when)
        deliver(log, files, QUERY, OPTIONS)
        failed = storage.faults.calls >= before + step
        storage.faults.heal()
        deliver(shop.log(), [stage(log, b"a", b"b", b"c")], QUERY, OPTIONS)
        assert read(log) == [b"a", b"b", b"c"], f"failed {when} step {step}"
        if not failed:
            break
    assert step > 10


def run(folder: Path, *where: str) -> int:
    """Run a driver in a process of its own; return how it ended."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    driver = [sys.executable, "-m", "tests.spark.driver", str(folder), *where]
    with (folder / "driver.log").open("ab") as output:
        return subprocess.run(driver, env=environment, stdout=output, stderr=output, cwd=ROOT, check=False).returncode


Step = tuple[str, str, str]
STEP: Step = ("1", "4", "after")
"""The driver opens the log by two objects, then stores the manifest's body and the version that adopts."""

STEPS: list[Step] = [(batch, str(step), when) for batch in "01" for step in range(1, 7) for when in ("before", "after")]
"""All of them, two to a test: each is a Spark of its own, and no test may take five minutes."""


@pytest.mark.parametrize(
    "steps",
    [[STEP], *(STEPS[first : first + 2] for first in range(0, len(STEPS), 2))],
    ids=lambda steps: f"{steps[0][0]}-{steps[0][1]}",
)
@pytest.mark.soak
@pytest.mark.xdist_group("spark-2")
def test_a_real_driver_killed_in_its_commits(tmp_path: Path, steps: list[Step]) -> None:
    """SIGKILL for driver, JVM and commit at once; the query is started again from its checkpoint until it is done."""
    with connect((tmp_path / "db").as_uri()) as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append_many([Record(b"%d" % number) for number in range(15)])
    for step in steps:
        ended = run(tmp_path, *step)
        assert ended == -signal.SIGKILL or steps != [STEP], (tmp_path / "driver.log").read_text()
    assert run(tmp_path) == 0, (tmp_path / "driver.log").read_text()
    with connect((tmp_path / "db").as_uri()) as db:
        assert read(db.log("copy")) == read(db.log("orders"))
        assert [mark.last for mark in db.log("copy").marks()] == [2]
        taken = 3 + (steps == [STEP])  # who dies in the first two steps has not taken the log yet
        assert db.log("copy").info().epoch >= taken
