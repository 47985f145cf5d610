"""A log in a bucket, on a real S3 server on this machine, beside the same bytes as plain objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pyarrow as pa

from benchmarks.contender import NotInstalledError
from benchmarks.embedded import settings
from benchmarks.measure import Measurement, Plan
from benchmarks.records import Batch, Source
from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.connect import Database
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import FETCHERS, IN_FLIGHT_MAX, ObjectStorage

WORKLOAD = "in a bucket (SeaweedFS on this machine)"
BLOCK_RECORDS = 10_000
KEYS = 100_000
APPEND, READ = "Oncelog, append_arrow, explicit ids", "Oncelog, read_arrow"
PUT = f"plain objects of the same size, {IN_FLIGHT_MAX} in flight"
GET = f"plain objects of the same size, {FETCHERS} at a time"
TAKEOVER, REQUESTS = "Oncelog, takeover", "Oncelog, requests for a million records"


def bucket(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure appending, reading, taking over, and what it costs in requests."""
    try:
        server = SeaweedFS(folder)
    except NotInstalledError as error:
        return [Measurement(workload=WORKLOAD, contender="SeaweedFS", unit="records/s", rounds=[], missing=str(error))]
    try:
        return _measured(server, plan)
    finally:
        server.end()


def _measured(server: SeaweedFS, plan: Plan) -> list[Measurement]:
    blocks = 10 if plan.quick else 60
    batches = [Source(100, seed).batch(BLOCK_RECORDS) for seed in range(blocks)]
    rounds: dict[str, list[float]] = {}
    requests: list[float] = []
    for number in range(plan.rounds):
        _round(server, f"round-{number}", batches, rounds, requests)
    return [
        *(_row(name, "records/s", rounds[name]) for name in (APPEND, PUT, READ, GET)),
        _row(TAKEOVER, "s", rounds[TAKEOVER], larger_is_better=False),
        _row(REQUESTS, "requests", requests, larger_is_better=False),
    ]


def _row(contender: str, unit: str, rounds: list[float], *, larger_is_better: bool = True) -> Measurement:
    return Measurement(
        workload=WORKLOAD, contender=contender, unit=unit, rounds=rounds, larger_is_better=larger_is_better
    )


def _round(
    server: SeaweedFS, prefix: str, batches: list[Batch], rounds: dict[str, list[float]], requests: list[float]
) -> None:
    records = len(batches) * BLOCK_RECORDS

    def note(name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        elapsed_s = time.perf_counter() - started
        rounds.setdefault(name, []).append(elapsed_s if name == TAKEOVER else records / elapsed_s)

    bucket = Bucket.connect(f"s3://{BUCKET}/{prefix}", server.options)
    log = Database(ObjectStorage(bucket)).log("bench", settings(seal="off"), create=True)  # blocks are read, not files
    writer = log.writer()
    tables = [batch.table() for batch in batches]
    before = bucket.requests.total()
    note(APPEND, lambda: _append(writer.append_arrow, tables))
    requests.append((bucket.requests.total() - before) * 1e6 / records)
    writer.close()  # nobody works beside the readers
    blocks = [bucket.get(path) for path, size in bucket.below("logs/bench/segments/") if size > 1_000]
    store = server.store(f"{prefix}-plain")
    note(PUT, lambda: _put(store, blocks))
    note(READ, lambda: _used(log.read_arrow()))
    note(GET, lambda: _get(store, len(blocks)))
    taker = Database(ObjectStorage(Bucket.connect(f"s3://{BUCKET}/{prefix}", server.options))).log("bench")
    log.writer().append_arrow(Source(100, 10_000).batch(KEYS).table())
    note(TAKEOVER, lambda: taker.writer(takeover="force"))


def _append(append: Callable[[pa.RecordBatch], object], tables: list[pa.RecordBatch]) -> None:
    """Append as a busy service does: several callers, so that several blocks are on their way."""
    with ThreadPoolExecutor(IN_FLIGHT_MAX) as pool:
        list(pool.map(append, tables))


def _put(store: obstore.store.S3Store, blocks: list[pa.Buffer]) -> None:
    def put(number: int) -> None:
        data = memoryview(blocks[number]).cast("B")
        obstore.put(store, f"{number:010d}", data, mode="create", use_multipart=False)

    with ThreadPoolExecutor(IN_FLIGHT_MAX) as pool:
        list(pool.map(put, range(len(blocks))))


def _get(store: obstore.store.S3Store, count: int) -> None:
    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(lambda number: obstore.get(store, f"{number:010d}").bytes(), range(count)))


def _used(batches: object) -> int:
    return sum(batch.num_rows for batch in batches)  # type: ignore[attr-defined]
