"""A fresh process: from its start to its first record, and the least that Python and Arrow need for that."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Measurement, Plan

WORKLOAD = "a fresh process, to its first record"
OURS = "Oncelog, import, connect, append"
PARTS = "Python, numpy and Arrow alone, imported"

_APPEND = """
import oncelog, sys
with oncelog.connect(sys.argv[1]) as db, db.log("first", create=True).writer() as writer:
    writer.append(b"paid", id="order-1")
"""
_IMPORT = "import numpy, pyarrow"
_PROGRAMS = {OURS: _APPEND, PARTS: _IMPORT}


def startup(folder: Path, plan: Plan) -> list[Measurement]:
    """Start processes in turn, after one of each that loads files into the system's cache."""
    folder.mkdir()
    rounds: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    for number in range(max(2, plan.rounds) + 1):
        for name, program in _PROGRAMS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", program, str(folder / f"{number}")], check=True)
            if number:
                rounds[name].append(time.perf_counter() - started)
    return [
        Measurement(workload=WORKLOAD, contender=name, unit="s", rounds=found, larger_is_better=False)
        for name, found in rounds.items()
    ]
