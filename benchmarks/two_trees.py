"""Two checkouts of Oncelog against each other: append and read, in processes that take turns.

``python benchmarks/two_trees.py OLD NEW`` takes two folders with a ``src`` each, which the same Python can import. Each
round starts processes for each of them, so that both see the machine in the same state: one that writes logs, one that
reads them. Figures are microseconds a block: CPU time and wall time, the median of the rounds and the best.
``ONCELOG_FAST=0`` is set: the compiler of numba would work in the background of some processes and not of others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCKS = {1: 1500, 20: 800, 1000: 80, 10_000: 24}
"""Rows of a block, and how many blocks a log has."""
READS = 5
"""A process reads its log so often, opened again each time; the first read is shown by itself."""
ROUNDS = int(os.environ.get("ROUNDS", "9"))

Figures = dict[str, tuple[float, float]]
"""Microseconds of CPU and of wall time a block, by the work."""


def main() -> None:
    """Measure both trees in turns and print a table, or be one of the processes that are measured."""
    if sys.argv[1] in WORKS:
        print(json.dumps(WORKS[sys.argv[1]](Path(sys.argv[2]))))
        return
    trees = {"old": Path(sys.argv[1]), "new": Path(sys.argv[2])}
    found: dict[str, list[Figures]] = {name: [] for name in trees}
    for number in range(ROUNDS):
        order = list(trees.items())
        for name, tree in order if number % 2 else reversed(order):
            found[name].append(_in_process(tree))
    _show(found["old"], found["new"])


def _in_process(tree: Path) -> Figures:
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "ONCELOG_FAST": "0"}
        found: Figures = {}
        for work in WORKS:
            command = [sys.executable, __file__, work, folder]
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            found |= json.loads(done.stdout)
        return found


def _measure_appends(folder: Path) -> Figures:
    """Write logs of every size of block by the tree that is on the path."""
    import oncelog  # noqa: PLC0415  one of two trees

    found: Figures = {}
    settings = oncelog.LogSettings(block_bytes=16 << 20, seal="off")
    for rows, blocks in BLOCKS.items():
        place = folder / str(rows)
        with (
            oncelog.connect(place.absolute().as_uri()) as database,
            database.log("bench", settings, create=True).writer() as writer,
        ):
            _append(writer, rows, max(2, blocks // 10), "first")
            found[f"append {rows}"] = _append(writer, rows, blocks, "then")
    return found


def _measure_reads(folder: Path) -> Figures:
    """Read those logs by the tree that is on the path."""
    import oncelog  # noqa: PLC0415  one of two trees

    found: Figures = {}
    for rows, appended in BLOCKS.items():
        place, blocks = folder / str(rows), appended + max(2, appended // 10)
        for work, read in READERS.items():
            times = [_read(oncelog, place, read, blocks) for _ in range(READS)]
            found[f"{work} {rows}, first"] = times[0]
            found[f"{work} {rows}"] = (min(cpu for cpu, _ in times[1:]), min(wall for _, wall in times[1:]))
    return found


def _append(writer: Any, rows: int, blocks: int, prefix: str) -> tuple[float, float]:
    import pyarrow as pa  # noqa: PLC0415  the process that starts the others needs none of it

    if rows == 1:
        ids = [f"{prefix}-{number:010d}" for number in range(blocks)]
        return _timed(lambda: [writer.append(b"%0100d" % number, id=ids[number]) for number in range(blocks)], blocks)
    tables = [
        pa.table(
            {
                "value": pa.array([b"%0100d" % row for row in range(rows)], pa.binary()),
                "id": [f"{prefix}-{number:010d}-{row:08d}" for row in range(rows)],
            }
        )
        for number in range(blocks)
    ]
    return _timed(lambda: [writer.append_arrow(table) for table in tables], blocks)


def _read(oncelog: Any, place: Path, read: Callable[[Any], None], blocks: int) -> tuple[float, float]:
    with oncelog.connect(place.absolute().as_uri()) as database:
        log = database.log("bench")
        return _timed(lambda: read(log), blocks)


def _timed(work: Callable[[], object], blocks: int) -> tuple[float, float]:
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    work()
    return (time.process_time_ns() - cpu_ns) / 1000 / blocks, (time.perf_counter_ns() - wall_ns) / 1000 / blocks


def _read_entries(log: Any) -> None:
    for entry in log.read():
        assert entry.value


def _read_batches(log: Any, columns: list[str] | None = None) -> None:
    import xxhash  # noqa: PLC0415  the process that starts the others needs none of it

    for batch in log.read_arrow(columns=columns):
        for column in batch.columns:
            for buffer in filter(None, column.buffers()):
                xxhash.xxh3_64_intdigest(buffer)


WORKS: dict[str, Callable[[Path], Figures]] = {"--append": _measure_appends, "--read": _measure_reads}
READERS: dict[str, Callable[[Any], None]] = {
    "read": _read_entries,
    "read_arrow": _read_batches,
    "read_arrow value, id": lambda log: _read_batches(log, ["value", "id"]),
}


def _show(old: list[Figures], new: list[Figures]) -> None:
    print(f"{'work and rows of a block':<36}{'CPU old':>10}{'new':>10}{'median':>9}{'best':>9}", end="")
    print(f"{'wall old':>12}{'new':>10}{'median':>9}{'best':>9}")
    for work in old[0]:
        print(f"{work:<36}", end="")
        for at in (0, 1):
            before, after = ([figures[work][at] for figures in found] for found in (old, new))
            median = statistics.median(after) / statistics.median(before) - 1
            best = min(after) / min(before) - 1
            shown = f"{statistics.median(before):.2f}", f"{statistics.median(after):.2f}"
            print(f"{shown[0]:>{12 if at else 10}}{shown[1]:>10}{median:>+9.1%}{best:>+9.1%}", end="")
        print()


if __name__ == "__main__":
    main()
