"""Many small adoptions: ten thousand micro-batches leave few runs and a bounded table, and every row is known."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import oncelog
from oncelog import limits
from oncelog.log.log import Log

BATCHES, ROWS = 10_000, 100


def table(batch: int) -> pa.Table:
    """Return the rows of a micro-batch."""
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    values = pa.array([b"%d" % number for number in numbers], pa.binary())
    return pa.table({"id": [f"row-{number}" for number in numbers], "value": values})


def memory_mb() -> float:
    """Return the memory that is this process's own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))


def brought(log: Log, batches: range) -> tuple[int, int]:
    """Bring micro-batches in, one commit each; return how many rows were new, and how many known."""
    records = duplicates = 0
    with log.writer() as writer:
        for batch in batches:
            done = writer.ingest([log.stage([table(batch)])], timeout_s=None)
            records, duplicates = records + done.records, duplicates + done.duplicates
            keys = log.info().window["keys"] if batch % 500 == 0 else 0
            assert keys is not None
            assert keys <= 2 * limits.MEMORY_RUN_IDS
    return records, duplicates


@pytest.mark.soak
def test_ten_thousand_micro_batches(tmp_path: Path) -> None:
    """A stream of small commits for days: few runs, bounded memory, and a re-run of any part of it stores nothing."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", create=True)
    began_s, began_mb = time.process_time(), memory_mb()
    assert brought(log, range(BATCHES)) == (BATCHES * ROWS, 0)
    took_s, grown_mb = time.process_time() - began_s, memory_mb() - began_mb
    memory = log.info().memory
    assert memory is not None
    print(f"\n{took_s:.0f} s of CPU, {grown_mb:.0f} MB more, {memory.runs} runs of {memory.ids} ids")  # noqa: T201  (figures are what a soak is for)
    assert memory.runs < limits.MEMORY_RUNS_MAX // 2
    assert grown_mb < 300
    assert brought(log, range(0, BATCHES, 97)) == (0, len(range(0, BATCHES, 97)) * ROWS)
    assert log.info().last_position == BATCHES * ROWS - 1
    assert log.verify().ok
