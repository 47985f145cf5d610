"""The first rows of a process, into fresh files: what somebody sees who tries it out.

Each round is a process of its own. Records are made before the clock starts; opening and loading are not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.embedded import Embedded
from benchmarks.measure import Measurement, Plan
from benchmarks.records import Batch, Source
from benchmarks.sqlite import SQLite

WORKLOAD = "the first rows of a process, fresh files"
COMMIT_RECORDS = 10_000
COMMITS = 30


class FirstRows(Embedded):
    """As a user begins: numba comes in its own time, if it is installed."""

    name = "Oncelog, append_arrow, from the opening on"

    def append(self, prepared: Sequence[object]) -> None:
        """Append each table, and wait for it."""
        for table in prepared:
            self.writer.append_arrow(table)


CONTENDERS: dict[str, type[Contender]] = {"oncelog": FirstRows, "sqlite": SQLite}
NAMES = {"oncelog": FirstRows.name, "sqlite": SQLite.name}


def first(folder: Path, plan: Plan) -> list[Measurement]:
    """Start a process for each round of each contender, in turn."""
    folder.mkdir()
    commits = 2 if plan.quick else COMMITS
    rounds: dict[str, list[float]] = {kind: [] for kind in CONTENDERS}
    for number in range(plan.rounds):
        for kind in CONTENDERS:
            place = folder / f"{kind}-{number}"
            place.mkdir()
            command = [sys.executable, "-m", "benchmarks.first", kind, str(place), str(commits)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds[kind].append(commits * COMMIT_RECORDS / float(ran.stdout))
    return [
        Measurement(workload=WORKLOAD, contender=NAMES[kind], unit="records/s", rounds=found)
        for kind, found in rounds.items()
    ]


def _measured(kind: str, folder: Path, batches: Sequence[Batch]) -> float:
    """Return how long a contender takes for its first records, from opening to the last answer."""
    contender = CONTENDERS[kind](folder)
    prepared = contender.prepare(batches)
    started = time.perf_counter()
    contender.open()
    contender.append(prepared)
    elapsed_s = time.perf_counter() - started
    assert contender.count() == sum(map(len, batches))
    contender.close()
    return elapsed_s


if __name__ == "__main__":
    source = Source(100)
    print(_measured(sys.argv[1], Path(sys.argv[2]), [source.batch(COMMIT_RECORDS) for _ in range(int(sys.argv[3]))]))
