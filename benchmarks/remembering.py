"""A log that remembers every id, beside one that remembers 100,000: what the memory costs those who append.

Both get the same records, in turn. Runs are built and merged in the background meanwhile, as they are. ``--ids`` says
how many ids are remembered when measuring begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from benchmarks.contender import BATCH_RECORDS
from benchmarks.embedded import COMPILED
from benchmarks.measure import Measurement, Plan
from benchmarks.records import Source
from oncelog import LogSettings, Window
from oncelog.connect import Database
from oncelog.dedup import kernels
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.storage.local.home import LocalStorage

BOUNDED, UNBOUNDED = "window of 100,000 ids", "every id remembered"
WINDOWS = {BOUNDED: Window(duration_s=86_400.0, max_keys=100_000), UNBOUNDED: Window()}
BATCHES = 10
SINGLES = 300
KNOWN_EVERY = 25
"""Of so many batches one is kept, to be sent again."""


_Work = Callable[[Writer, list[pa.RecordBatch], int], float]


def workload(ids: int) -> str:
    """Return the name of the workload with so many ids."""
    return f"append with {ids:,} ids stored"


def remembering(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure with numpy alone, and with numba where it is installed."""
    ids = 10 * BATCH_RECORDS if plan.quick else plan.ids
    ways = [False, True] if find_spec("numba") is not None else [False]
    return [row for compiled in ways for row in _Pair(folder / f"{compiled}", ids, plan, compiled=compiled).measured()]


class _Pair:
    """The two logs, filled alike."""

    def __init__(self, folder: Path, ids: int, plan: Plan, *, compiled: bool) -> None:
        kernels.choose("1" if compiled else "0")
        self._suffix = COMPILED if compiled else ""
        self._folder, self._ids, self._plan = folder, ids, plan
        self._source = Source(100)
        self._known: list[pa.RecordBatch] = []
        self._databases = {name: Database(LocalStorage(folder / name.replace(" ", "-"))) for name in WINDOWS}
        self._logs = {name: self._log(name) for name in WINDOWS}
        self._writers = {name: log.writer() for name, log in self._logs.items()}

    def _log(self, name: str) -> Log:
        return self._databases[name].log("bench", LogSettings(window=WINDOWS[name], block_bytes=16 << 20), create=True)

    def measured(self) -> Iterator[Measurement]:
        """Fill both, then measure one after the other in each round."""
        try:
            self._fill()
            yield from self._rates("append_arrow", "records/s", self._append)
            yield from self._rates("append", "records/s", self._singles)
            yield self._row(f"append_arrow, known ids, {UNBOUNDED}", "records/s", self._again())
            yield self._open()
        finally:
            for database in self._databases.values():
                database.close()

    def _fill(self) -> None:
        for number in range(self._ids // BATCH_RECORDS):
            table = self._source.batch(BATCH_RECORDS).table()
            if number % KNOWN_EVERY == 0:
                self._known.append(table)
            for writer in self._writers.values():
                writer.append_arrow(table)

    def _rates(self, way: str, unit: str, work: _Work) -> Iterator[Measurement]:
        rounds: dict[str, list[float]] = {name: [] for name in WINDOWS}
        for number in range(self._plan.rounds + 1):
            prepared = [self._source.batch(BATCH_RECORDS).table() for _ in range(BATCHES)]
            for name, writer in self._writers.items():
                rate = work(writer, prepared, number)
                rounds[name] += [rate] if number else []
        for name, rates in rounds.items():
            yield self._row(f"{way}, {name}", unit, rates)

    @staticmethod
    def _append(writer: Writer, prepared: list[pa.RecordBatch], _: int) -> float:
        began = time.perf_counter()
        for table in prepared:
            writer.append_arrow(table)
        return len(prepared) * BATCH_RECORDS / (time.perf_counter() - began)

    @staticmethod
    def _singles(writer: Writer, _: list[pa.RecordBatch], number: int) -> float:
        began = time.perf_counter()
        for each in range(SINGLES):
            writer.append(b"x" * 100, id=f"single-{number}-{each}")
        return SINGLES / (time.perf_counter() - began)

    def _again(self) -> list[float]:
        writer = self._writers[UNBOUNDED]
        rates = [self._append(writer, self._known, 0) for _ in range(self._plan.rounds + 1)]
        return rates[1:]

    def _open(self) -> Measurement:
        self._databases[UNBOUNDED].close()
        seconds = []
        for _ in range(max(2, self._plan.rounds)):
            database = Database(LocalStorage(self._folder / UNBOUNDED.replace(" ", "-")))
            began = time.perf_counter()
            database.log("bench").writer()
            seconds.append(time.perf_counter() - began)
            database.close()
        row = self._row(f"open, {UNBOUNDED}", "s", seconds)
        row.larger_is_better = False
        return row

    def _row(self, what: str, unit: str, rounds: list[float]) -> Measurement:
        name = f"Oncelog, {what}{self._suffix}"
        return Measurement(workload=workload(self._ids), contender=name, unit=unit, rounds=rounds)
