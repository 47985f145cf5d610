"""A loader that is killed again and again, and begins again each time with its first row: every row is stored once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import oncelog

ROWS, BATCH = 4_000, 100
LOADER = """
import os, signal, sys
import pyarrow as pa
import oncelog
from oncelog import limits

limits.MEMORY_RUN_IDS = 512
limits.MEMORY_MERGED_RUNS = 4
limits.MEMORY_RUN_IDS_MIN = 128
url, rows, batch, stop = sys.argv[1], *map(int, sys.argv[2:])
with oncelog.connect(url) as db:
    with db.log("orders", create=True).writer() as writer:
        for number, first in enumerate(range(0, rows, batch)):
            if number == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            ids = [f"order-{row}" for row in range(first, first + batch)]
            writer.append_arrow(pa.table({"id": ids, "value": pa.array([b"paid"] * batch, pa.binary())}))
"""


def load(url: str, stop: int) -> int:
    """Run the loader from its first row on, until it is killed or done; return how it ended."""
    words = [url, str(ROWS), str(BATCH), str(stop)]
    return subprocess.run([sys.executable, "-c", LOADER, *words], check=False).returncode


def test_a_loader_that_is_killed_and_started_over_stores_every_row_once(tmp_path: Path) -> None:
    """More rows than a segment or a table holds: each start finds what the ones before it stored, in runs."""
    url = tmp_path.as_uri()
    for stop in (7, 19, 31, 38):
        assert load(url, stop) == -signal.SIGKILL
    assert load(url, ROWS) == 0
    with oncelog.connect(url) as db:
        log = db.log("orders")
        assert [entry.id for entry in log.read()] == [f"order-{row}" for row in range(ROWS)]
        assert log._manifest().memory, "older ids are in runs"
        assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
