"""Opening after a crash. As a program, it is the writer that crashes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.contender import Contender, NotInstalledError
from benchmarks.embedded import settings
from benchmarks.jetstream import JetStream
from benchmarks.measure import Measurement, Plan, timed
from benchmarks.postgresql import PostgreSQL
from benchmarks.records import Source
from benchmarks.redis_stream import Redis
from benchmarks.sqlite import SQLite
from oncelog import LogSettings
from oncelog.connect import Database
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.home import LocalStorage

WORKLOAD = "open after a crash"
KEYS = 100_000
SCENARIOS = {
    "snapshot": "100,000 keys in a snapshot, then 100,000 records in blocks of 10,000",
    "single": "100,000 keys in a snapshot, then 100,000 blocks of one record",
    "none": "100,000 keys and no snapshot, blocks of 10,000",
}


class _Unsynced(RealDisk):
    """Makes what will be opened, sooner: what is measured is the opening."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""


def _settings() -> LogSettings:
    return msgspec.structs.replace(settings(), snapshot_interval_s=1e6, snapshot_records=100_000_000)


def write_and_die(folder: Path, scenario: str, keys: int) -> None:
    """Write a log, and be killed."""
    db = Database(LocalStorage(folder, _Unsynced()))
    writer = db.log("bench", _settings(), create=True).writer()
    source = Source(100)
    writer.append_arrow(source.batch(keys).table())
    if scenario != "none":
        writer.snapshot()
        gap = source.batch(keys)
        if scenario == "single":
            for id, value in gap.rows():
                writer.append(value, id=id)
        else:
            writer.append_arrow(gap.table())
    os.kill(os.getpid(), signal.SIGKILL)


def open_after_crash(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure until the next append may come."""
    folder.mkdir()
    keys = KEYS // 10 if plan.quick else KEYS
    found = [_open_log(folder, scenario, words, keys, plan) for scenario, words in SCENARIOS.items()]
    for make in (SQLite, PostgreSQL, Redis, JetStream):
        contender = JetStream(folder, sync=False) if make is JetStream else make(folder)
        found.append(_reopen(contender, keys))
    return found


def _open_log(folder: Path, scenario: str, words: str, keys: int, plan: Plan) -> Measurement:
    crashed = folder / scenario
    command = [sys.executable, "-m", "benchmarks.crash", str(crashed), scenario, str(keys)]
    died = subprocess.run(command, check=False)
    assert died.returncode == -signal.SIGKILL, f"the writer that had to be killed ended with {died.returncode}"
    rounds = []
    for number in range(min(plan.rounds, 5)):
        copy = folder / f"{scenario}-{number}"
        shutil.copytree(crashed, copy)
        db = Database(LocalStorage(copy))
        rounds.append(timed(lambda db=db: db.log("bench").writer()))  # type: ignore[misc]
        db.close()
        shutil.rmtree(copy)
    return Measurement(
        workload=WORKLOAD,
        contender=f"Oncelog, {words.replace('100,000', f'{keys:,}')}",
        unit="s",
        rounds=rounds,
        larger_is_better=False,
    )


def _reopen(contender: Contender, keys: int) -> Measurement:
    row = Measurement(
        workload=WORKLOAD,
        contender=f"{contender.name}, {2 * keys:,} records",
        unit="s",
        rounds=[],
        larger_is_better=False,
    )
    try:
        contender.open()
    except NotInstalledError as error:
        row.missing = str(error)
        return row
    source = Source(100)
    for _ in range(2 * keys // contender.batch_records):
        contender.append(contender.prepare([source.batch(contender.batch_records)]))
    contender.crash()
    row.rounds.append(timed(contender.reopen))
    contender.close()
    return row


if __name__ == "__main__":
    write_and_die(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
