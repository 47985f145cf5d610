"""The workloads: each measures every contender that can do it, round by round in turn, on the same records."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.contender import Contender, NotInstalledError
from benchmarks.embedded import COMMITS_A_CALL, Embedded, Limited, Way
from benchmarks.jetstream import JetStream
from benchmarks.measure import Measurement, Plan, calibrated, timed
from benchmarks.postgresql import PostgreSQL, PostgreSQLTwice
from benchmarks.raw import Raw, RawFilled
from benchmarks.records import Batch, Source
from benchmarks.redis_stream import Redis
from benchmarks.sqlite import SQLite

Maker = Callable[[Path], Contender]
Makers = Sequence[Maker]

RETRIES, NO_RETRIES = "append, 50 % retries", "append, no retries"
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 8 << 30
OVERLAPPED: Way = "append_arrow, 10 commits a call"

RAW: Makers = (Raw, RawFilled)
OURS: Makers = (
    Embedded,
    lambda folder: Embedded(folder, OVERLAPPED),
    lambda folder: Embedded(folder, "append_arrow", "off"),
    lambda folder: Embedded(folder, OVERLAPPED, "off"),
    lambda folder: Embedded(folder, "append_arrow", "content"),
    lambda folder: Embedded(folder, OVERLAPPED, "content"),
    lambda folder: Embedded(folder, compiled=True),
    lambda folder: Embedded(folder, OVERLAPPED, compiled=True),
)
MANY: Makers = (
    lambda folder: Embedded(folder, "append_many"),
    lambda folder: Embedded(folder, "append_many", "off"),
)
ANY_RECORD: Makers = (SQLite, PostgreSQL, PostgreSQLTwice, Redis, JetStream)
ATOMIC: Makers = (lambda folder: JetStream(folder, atomic=True),)
NOT_DURABLE: Makers = (
    lambda folder: JetStream(folder, sync=False),
    lambda folder: JetStream(folder, sync=False, atomic=True),
)


def append(folder: Path, plan: Plan) -> list[Measurement]:
    """Append new records, 100-byte values."""
    makers = (*RAW, *OURS, *MANY, *ANY_RECORD, *ATOMIC, *NOT_DURABLE)
    return _rates("append, 100-byte values", makers, 100, folder, plan)


def append_1k(folder: Path, plan: Plan) -> list[Measurement]:
    """Append new records, 1 KB values."""
    return _rates("append, 1 KB values", (*RAW, *OURS, *ANY_RECORD, *ATOMIC, *NOT_DURABLE), 1024, folder, plan)


def limited(folder: Path, plan: Plan) -> list[Measurement]:
    """Append new records, 1 KB values, to a disk that is held to 400 MB/s."""
    makers: Makers = (
        Limited,
        lambda folder: Limited(folder, OVERLAPPED),
        lambda folder: Limited(folder, "append_arrow", "off"),
        lambda folder: Limited(folder, OVERLAPPED, "off"),
    )
    workload = f"append, 1 KB values, disk held to {Limited.MB_PER_S} MB/s"
    folder.mkdir()
    with memory(folder) as fast:
        return _rates(workload, makers, 1024, fast / "limited", msgspec.structs.replace(plan, round_s=plan.round_s / 2))


@contextlib.contextmanager
def memory(folder: Path) -> Iterator[Path]:
    """Yield a folder in memory, where there is enough: a disk of the machine may give less than the limit."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-", dir=_MEMORY) as fast:
            yield Path(fast)
    else:
        yield folder


def retries(folder: Path, plan: Plan) -> list[Measurement]:
    """Append records half of which were in the batch before; and, beside it, records that are all new."""
    makers = (*OURS[:2], *MANY[:1], *ANY_RECORD, *NOT_DURABLE[:1])
    folder.mkdir()
    found = _rates(RETRIES, makers, 100, folder / "half", plan, retry=True)
    return [*found, *_rates(NO_RETRIES, makers[:3], 100, folder / "none", plan)]


@contextlib.contextmanager
def opened(makers: Makers, folder: Path, workload: str, found: list[Measurement]) -> Iterator[list[Contender]]:
    """Open all contenders; one that is not installed is noted and left out."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        contenders: list[Contender] = []
        for make in makers:
            contender = make(folder)
            try:
                contenders.append(stack.enter_context(contender))
            except NotInstalledError as error:
                found.append(_measurement(workload, contender, "records/s", [], missing=str(error)))
        yield contenders


def _measurement(
    workload: str,
    contender: Contender,
    unit: str,
    rounds: list[float],
    missing: str = "",
    *,
    more_is_better: bool = True,
) -> Measurement:
    return Measurement(
        workload=workload,
        contender=contender.name,
        unit=unit,
        rounds=rounds,
        durable=contender.durable,
        note=contender.note,
        missing=missing,
        larger_is_better=more_is_better,
    )


def _rates(
    workload: str, makers: Makers, value_bytes: int, folder: Path, plan: Plan, *, retry: bool = False
) -> list[Measurement]:
    found: list[Measurement] = []
    plan = plan.finer()
    with opened(makers, folder, workload, found) as contenders:
        runs = [_Run(workload, contender, value_bytes, retry=retry) for contender in contenders]
        for run in runs:
            run.warm_up(plan)
        for _ in range(plan.rounds):
            for run in runs:
                run.round()
        for run in runs:
            run.check()
            found.append(run.measurement)
    return found


class _Run:
    """One contender's way through a workload."""

    def __init__(self, workload: str, contender: Contender, value_bytes: int, *, retry: bool) -> None:
        self._contender = contender
        self._source = Source(value_bytes)
        self._retry = retry
        self._last: Batch | None = None
        self._batches = 1
        self._new = 0
        self.measurement = _measurement(workload, contender, "records/s", [])
        self._bytes_per_record = value_bytes + 32

    def warm_up(self, plan: Plan) -> None:
        """Go through a window's worth of records (or fewer, of slow contenders), and see how long a round must be."""
        seconds = self._round()
        for _ in range(1 if plan.quick else 2):
            rate = self._batches * self._contender.batch_records / seconds
            most = min(self._contender.batches_max, 100 if self._bytes_per_record < 200 else 30)
            self._batches = calibrated(rate, self._contender.batch_records, plan, most)
            if self._contender.name.startswith("Oncelog"):
                self._batches = -(-self._batches // COMMITS_A_CALL) * COMMITS_A_CALL
            seconds = self._round()

    def round(self) -> None:
        """Measure once."""
        seconds = self._round()
        self.measurement.rounds.append(self._batches * self._contender.batch_records / seconds)
        self.measurement.more["mb_per_s"] = self.measurement.best * self._bytes_per_record / 1e6

    def _round(self) -> float:
        prepared = self._contender.prepare([self._next() for _ in range(self._batches)])
        return timed(lambda: self._contender.append(prepared))

    def _next(self) -> Batch:
        count = self._contender.batch_records
        fresh = not self._retry or self._last is None
        batch = self._source.batch(count) if fresh else self._source.retried(self._last or self._source.batch(0), count)
        self._new += count if fresh else count - count // 2
        self._last = batch
        return batch

    def check(self) -> None:
        """Count: a contender that lost or doubled a record has not done the work."""
        stored = self._contender.count()
        assert stored == self._new, f"{self._contender.name}: {stored} records, {self._new} were new"


def single(folder: Path, plan: Plan) -> list[Measurement]:
    """Append records one at a time, each durable before the next."""
    workload = "one append at a time"
    makers: Makers = (
        Raw,
        Embedded,
        lambda folder: Embedded(folder, "append_arrow", "off"),
        lambda folder: Embedded(folder, "append_arrow", "content"),
        *ANY_RECORD[:2],
        *ANY_RECORD[3:],
        *NOT_DURABLE[:1],
    )
    found: list[Measurement] = []
    with opened(makers, folder, workload, found) as contenders:
        rows = [_measurement(workload, contender, "records/s", []) for contender in contenders]
        source = Source(100)
        plan = plan.finer()
        count = 100 if plan.quick else 250
        for number in range(plan.rounds + 1):
            for contender, row in zip(contenders, rows, strict=True):
                row.contender = row.contender.replace("append_arrow", "append")
                latencies = _latencies(contender, source.batch(count).rows())
                if number:
                    row.rounds.append(1 / statistics.mean(latencies))
                    if row.rounds[-1] == row.best:
                        row.more = {
                            "p50_us": 1e6 * statistics.median(latencies),
                            "p99_us": 1e6 * sorted(latencies)[len(latencies) * 99 // 100],
                        }
        found += rows
    return found


def _latencies(contender: Contender, rows: list[tuple[str, bytes]]) -> list[float]:
    if isinstance(contender, Raw):
        blocks = [contender.ready(id, value) for id, value in rows]
        moments = [time.perf_counter()]
        for block in blocks:
            contender.store_ready(block)
            moments.append(time.perf_counter())
    else:
        moments = [time.perf_counter()]
        for id, value in rows:
            contender.append_one(id, value)
            moments.append(time.perf_counter())
    return [after - before for before, after in pairwise(moments)]


def submit(folder: Path, plan: Plan) -> list[Measurement]:
    """Submit records from one thread, and wait for all at the end."""
    workload = "submit from one thread"
    folder.mkdir()
    plan = plan.finer()
    count = 20_000 if plan.quick else 30_000
    source = Source(100)
    with Embedded(folder) as log:
        log.submit(source.batch(count).rows())
        rounds = []
        for _ in range(plan.rounds):
            rows = source.batch(count).rows()
            rounds.append(count / timed(lambda rows=rows: log.submit(rows)))  # type: ignore[misc]
        assert log.count() == count * (plan.rounds + 1)
        row = _measurement(workload, log, "records/s", rounds)
        row.contender = "Oncelog, submit, explicit ids"
        return [row]
