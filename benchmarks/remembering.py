"""A log that remembers every id, beside one that remembers 100,000: what the memory costs those who append.

Both get the same records, in turn. Runs are built and merged in the background meanwhile, as they are. ``--ids`` says
how many ids are remembered when measuring begins; the other log gets the last of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
LAST_BATCHES = 60
"""So many of the batches that fill one log fill the other one, too."""

MERGED_BATCHES = 240
"""In so many batches nine runs are built, and eight of them merged at least once."""

IDLE_S = 0.05

KNOWN_EVERY = 25
"""Of so many batches one is kept, to be sent again."""


_Work = Callable[[Writer, list[pa.RecordBatch], int], float]
P99_MERGING = "append, p99 while runs are merged"
ONE_CORE = "append_arrow, all on one core"


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
            yield from self._p99_merging()
            yield from self._one_core()
            yield self._row(f"append_arrow, known ids, {UNBOUNDED}", "records/s", self._again())
            yield self._open()
        finally:
            for database in self._databases.values():
                database.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fill(self) -> None:
        batches = self._ids // BATCH_RECORDS
        for number in range(batches):
            table = self._source.batch(BATCH_RECORDS).table()
            self._writers[UNBOUNDED].append_arrow(table, timeout_s=None)
            if number >= batches - LAST_BATCHES:
                self._writers[BOUNDED].append_arrow(table)
            if number % max(KNOWN_EVERY, batches // 100) == 0:
                self._known.append(table)

    def _rates(self, way: str, unit: str, work: _Work) -> Iterator[Measurement]:
        rounds: dict[str, list[float]] = {name: [] for name in WINDOWS}
        for number in range(4 * self._plan.rounds + 1):
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

    def _p99_merging(self) -> Iterator[Measurement]:
        """Measure single appends while runs are merged; as many of the log that merges none."""
        taken: dict[str, list[float]] = {name: [] for name in WINDOWS}
        large, small = self._writers[UNBOUNDED], self._writers[BOUNDED]
        for _ in range(1 if self._plan.quick else 4 * MERGED_BATCHES):
            large.append_arrow(self._source.batch(BATCH_RECORDS).table())
            while self._plan.quick or _merges(large):
                taken[UNBOUNDED].append(self._single(large, len(taken[UNBOUNDED])))
                if len(taken[UNBOUNDED]) % SINGLES == 0:
                    break
        taken[BOUNDED] = [self._single(small, number) for number in range(len(taken[UNBOUNDED]))]
        for name, seconds in taken.items():
            row = self._row(f"{P99_MERGING}, {name}", "s", [statistics.quantiles(seconds, n=100)[-1]])
            row.larger_is_better, row.note = False, f"{len(seconds)} appends"
            yield row

    @staticmethod
    def _single(writer: Writer, number: int) -> float:
        began = time.perf_counter()
        writer.append(b"x" * 100, id=f"merging-{number}")
        return time.perf_counter() - began

    def _one_core(self) -> Iterator[Measurement]:
        """Measure a long stretch of batches on one core, until all runs are built and merged that it has brought."""
        prepared = [self._source.batch(BATCH_RECORDS).table() for _ in range(MERGED_BATCHES)]
        with _on_one_core():
            for name, writer in self._writers.items():
                _rest()
                began = time.perf_counter()
                self._append(writer, prepared, 0)
                _rest()
                rate = len(prepared) * BATCH_RECORDS / (time.perf_counter() - began - IDLE_S)
                yield self._row(f"{ONE_CORE}, {name}", "records/s", [rate])

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


def _merges(writer: Writer) -> bool:
    """Tell whether runs of a log are being merged now."""
    return writer._keeper._memory._merged_ids > 0  # noqa: SLF001


def _rest() -> None:
    """Wait until no thread of the process has worked for a while."""
    worked_s = IDLE_S
    while worked_s > IDLE_S / 10:
        began = time.process_time()
        time.sleep(IDLE_S)
        worked_s = time.process_time() - began


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Keep all threads of the process, and those that they start, on one core."""
    cores = os.sched_getaffinity(0)
    _set_cores({min(cores)})
    try:
        yield
    finally:
        _set_cores(cores)


def _set_cores(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread.name), cores)
