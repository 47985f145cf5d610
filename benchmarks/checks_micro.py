"""What the checks against crafted bytes cost, in CPU time a block: with them, without them, and with files mapped.

Nobody can switch the checks off: they are taken out here, by replacing functions, in turns with the code as it is.
Run it by ``python benchmarks/checks_micro.py``, on a machine that does nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from benchmarks.embedded import use
from oncelog import LogSettings
from oncelog.connect import connect
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.storage.local.disk import RealDisk

BLOCKS = {1: 2000, 20: 1000, 1000: 100, 10_000: 30}
"""Rows of a block, and how many blocks are read or appended at a time."""
ROUNDS = 25
SETTINGS = LogSettings(block_bytes=16 << 20, seal="off")


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """Take payloads and records as they come."""
    with (
        mock.patch("oncelog.format.block.is_usual", _yes),
        mock.patch("oncelog.format.block.check_message", _yes),
        mock.patch("oncelog.format.payload.intake._check_spread", _yes),
    ):
        yield


def _yes(*_: object, **__: object) -> bool:
    return True


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    """Map segments, as if no file ever became shorter."""

    def load(self: RealDisk, descriptor: int, length: int, offset: int) -> pa.Buffer:
        return self.map(descriptor, os.fstat(descriptor).st_size).slice(offset, length)

    with mock.patch.object(RealDisk, "load", load):
        yield


@contextlib.contextmanager
def _both(*managers: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "as it is": contextlib.nullcontext,
    "unchecked": _unchecked,
    "mapped": _mapped,
    "unchecked, mapped": lambda: _both(_unchecked(), _mapped()),
}


def _batches(rows: int, count: int, numbers: Iterator[int]) -> list[pa.RecordBatch]:
    found = []
    for number in itertools.islice(numbers, count):
        ids = pa.array([f"order-{number:010d}-{row:08d}" for row in range(rows)])
        values = pa.array([b"%0100d" % row for row in range(rows)], pa.binary())
        found.append(pa.RecordBatch.from_arrays([values, ids], names=["value", "id"]))
    return found


def _cpu_us(work: Callable[[], Any]) -> float:
    started_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - started_ns) / 1000


def _append(writer: Writer, batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.append_arrow(batch)


def _read(log: Log, columns: list[str] | None) -> None:
    for batch in log.read_arrow(columns=columns):
        use(batch)


def _read_us(folder: Path, columns: list[str] | None) -> float:
    """Read a log that was not read since it was opened, every byte used. The allocator keeps what an earlier read by
    the same way has left behind: so the log is opened and read twice, and the second time counts.
    """
    for _ in range(2):
        with connect(folder) as database:
            log = database.log("bench")
            found_us = _cpu_us(partial(_read, log, columns))
    return found_us


def _measure(folder: Path, rows: int) -> dict[str, dict[str, float]]:
    """Return the least CPU time a block, by work and way."""
    count, numbers = BLOCKS[rows], itertools.count()
    best: dict[str, dict[str, float]] = {work: {} for work in ("append", "read, all columns", "read, value and id")}
    with connect(folder) as database:
        writer = database.log("bench", SETTINGS, create=True).writer()
        _append(writer, _batches(rows, count, numbers))
        for _ in range(ROUNDS):
            for way, manager in itertools.islice(WAYS.items(), 2):
                batches = _batches(rows, max(1, count // 20), numbers)
                with manager():
                    _least(best["append"], way, _cpu_us(partial(_append, writer, batches)) / len(batches))
    blocks = next(numbers)
    for _ in range(ROUNDS):
        for way, manager in WAYS.items():
            with manager():
                _least(best["read, all columns"], way, _read_us(folder, None) / blocks)
                _least(best["read, value and id"], way, _read_us(folder, ["value", "id"]) / blocks)
    return best


def _least(best: dict[str, float], way: str, microseconds: float) -> None:
    best[way] = min(best.get(way, microseconds), microseconds)


def main() -> None:
    """Print a line for each size and work."""
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
        for rows in BLOCKS:
            for work, found in _measure(Path(folder) / str(rows), rows).items():
                usual = found["as it is"]
                shown = (f"{way} {value:8.2f} ({usual / value - 1:+.1%})" for way, value in found.items())
                print(f"{rows:>6} rows, {work:<20}", "  ".join(shown), flush=True)


if __name__ == "__main__":
    main()
