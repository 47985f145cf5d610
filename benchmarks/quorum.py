"""A log on a quorum of three folders, or three slow stores, beside the same log on one of them."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pyarrow as pa
from obstore.store import MemoryStore

from benchmarks.embedded import settings
from benchmarks.measure import Measurement, Plan
from benchmarks.records import Source
from oncelog import Window
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import IN_FLIGHT_MAX, ObjectStorage
from oncelog.storage.quorum import home as quorum_home
from oncelog.storage.quorum import membership, node
from oncelog.storage.quorum.folder import FolderBucket
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.bucket import FaultyBucket

SINGLE = "on a quorum of three folders, two acks: one append at a time"
RAW = "the disk alone: a synced file in one folder, or two of three at once"
COLUMNAR = "on a quorum of three folders, two acks: append_arrow, 10,000 a commit"
SLOW = "on a quorum of stores of which 2 % of requests take twenty times as long"
TAKEOVER = "on a quorum, one node away: takeover, 100,000 keys"
WAITING = "on a quorum: sixteen threads that wait for records"
ONE, THREE, KILLED = "one", "three, ack 2", "three, ack 2, after one was cut off"
NODES = ("n0", "n1", "n2")
BATCH_ROWS = 10_000
BLOCK_BYTES = 600
"""About what a block of one record has."""
KEYS = 100_000
REQUEST_S, SLOW_TIMES, SLOW_SHARE = 0.005, 20, 0.02
_T = TypeVar("_T")


class SlowBucket(FaultyBucket):
    """A bucket whose requests take a while, and a few of them much longer."""

    def __init__(self, inner: Bucket, seed: int) -> None:
        super().__init__(inner)
        self._draw = random.Random(seed)

    def _call(self, operation: str, what: str, work: Callable[[], _T]) -> _T:
        time.sleep(REQUEST_S * (SLOW_TIMES if self._draw.random() < SLOW_SHARE else 1))
        return super()._call(operation, what, work)


class Place:
    """One bucket for everything, or a store and three nodes: ``bucket`` makes each of them."""

    def __init__(self, bucket: Callable[[str], Bucket], nodes: tuple[str, ...]) -> None:
        self.buckets = {name: FaultyBucket(bucket(name)) for name in ("store", *nodes)}
        self._nodes = nodes
        if nodes:
            with self._opening():
                membership.create(ObjectStorage(self.buckets["store"]), {n: f"s3://{n}" for n in nodes}, 2, {}, SYSTEM)

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        def opened(url: str, _options: object) -> Bucket:
            return self.buckets[url.removeprefix("s3://")]

        with mock.patch.object(node, "open_bucket", opened), mock.patch.object(quorum_home, "open_bucket", opened):
            yield

    def log(self) -> Log:
        """Open the log as a new process does."""
        store = ObjectStorage(self.buckets["store"])
        with self._opening():
            database = Database(QuorumStorage(store) if self._nodes else store)
        wanted = msgspec.structs.replace(settings(), commit_interval_s=0.0, window=Window(max_keys=KEYS))
        return database.log("bench", wanted, create=True)


def quorum(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure what a quorum costs where all is well, and what it saves where a store is slow or gone."""
    single: dict[str, list[float]] = {}
    columnar: dict[str, list[float]] = {}
    raw: dict[str, list[float]] = {}
    slow: dict[str, list[float]] = {}
    slow_p50_s: dict[str, dict[str, float]] = {}
    more: dict[str, float] = {}
    for number, (name, nodes) in itertools.product(range(plan.rounds), ((ONE, ()), (THREE, NODES))):
        root = folder / f"{number}-{len(nodes)}"
        place = Place(lambda part, root=root: FolderBucket(root / part), nodes)  # type: ignore[misc]
        raw.setdefault(name, []).append(_raw(root / "raw", len(nodes) or 1, plan))
        _single(place, name, plan, single, more)
        columnar.setdefault(name, []).append(_columnar(place.log(), plan))
        times = _slow(nodes, number, plan)
        slow.setdefault(name, []).append(statistics.quantiles(times, n=100)[98])
        known_s = slow_p50_s.setdefault(name, {})
        known_s["p50"] = min(known_s.get("p50", math.inf), statistics.median(times))
    return [
        *(_row(SINGLE, name, "s", rounds, more if name == KILLED else None) for name, rounds in single.items()),
        *(_row(RAW, name, "s", rounds) for name, rounds in raw.items()),
        *(_row(COLUMNAR, name, "records/s", rounds) for name, rounds in columnar.items()),
        *(_row(SLOW, name, "s", rounds, slow_p50_s[name]) for name, rounds in slow.items()),
        _row(TAKEOVER, THREE, "s", [_takeover(folder / f"taken-{number}") for number in range(plan.rounds)]),
        _row(WAITING, THREE, "CPU s/s", [_waiting(folder / "waiting", plan)]),
    ]


def _row(
    workload: str, contender: str, unit: str, rounds: list[float], more: dict[str, float] | None = None
) -> Measurement:
    return Measurement(
        workload=workload,
        contender=contender,
        unit=unit,
        rounds=rounds,
        larger_is_better=unit == "records/s",
        more=more or {},
    )


def _times(append: Callable[..., Any], count: int, first: int = 0) -> list[float]:
    times = []
    for number in range(first, first + count):
        started = time.perf_counter()
        append(b"x" * 100, id=str(number))
        times.append(time.perf_counter() - started)
    return times


def _single(place: Place, name: str, plan: Plan, found: dict[str, list[float]], more: dict[str, float]) -> None:
    """Append one record after the other: the middle one of all. Then one node is cut off, and again."""
    count = 20 if plan.quick else 300
    with place.log().writer() as writer:
        found.setdefault(name, []).append(statistics.median(_times(writer.append, count)))
        if name == THREE:
            place.buckets["n1"].cut_off()
            times = _times(writer.append, count, count)
            found.setdefault(KILLED, []).append(statistics.median(times))
            more["longest"] = max(more.get("longest", 0.0), *times)
            place.buckets["n1"].faults.heal()


def _columnar(log: Log, plan: Plan) -> float:
    """Append as a busy service does: several callers, so that several blocks are on their way."""
    tables = [Source(100, seed).batch(BATCH_ROWS).table() for seed in range(4 if plan.quick else 40)]

    def append(table: pa.RecordBatch) -> None:
        writer.append_arrow(table)

    with log.writer() as writer, ThreadPoolExecutor(IN_FLIGHT_MAX) as pool:
        started = time.perf_counter()
        list(pool.map(append, tables))
        return len(tables) * BATCH_ROWS / (time.perf_counter() - started)


def _raw(folder: Path, count: int, plan: Plan) -> float:
    """Create synced files in one folder, or in several at once until two are done: what a disk allows, without a log.

    The late file of one round disturbs the next round, as a late copy of a block disturbs the next append.
    """
    data = [pa.py_buffer(bytes(BLOCK_BYTES))]
    buckets = [FolderBucket(folder / str(number)) for number in range(count)]
    jobs: list[queue.SimpleQueue[tuple[str, queue.SimpleQueue[bool]] | None]] = [queue.SimpleQueue() for _ in buckets]

    def serve(bucket: Bucket, job: queue.SimpleQueue[tuple[str, queue.SimpleQueue[bool]] | None]) -> None:
        while (asked := job.get()) is not None:
            asked[1].put(bucket.create(asked[0], data))

    def create(_value: bytes, *, id: str) -> None:
        done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        for job in jobs:
            job.put((f"raw/{int(id):010d}", done))
        for _ in range(min(2, count)):
            done.get()

    threads = [threading.Thread(target=serve, args=pair) for pair in zip(buckets, jobs, strict=True)]
    for thread in threads:
        thread.start()
    times = _times(create, 20 if plan.quick else 300)
    for job, thread in zip(jobs, threads, strict=True):
        job.put(None)
        thread.join()
    return statistics.median(times)


def _slow(nodes: tuple[str, ...], seed: int, plan: Plan) -> list[float]:
    """Return how long appends take, where 2 % of requests are slow."""
    seeds = itertools.count(10 * seed)
    place = Place(lambda part: SlowBucket(Bucket(MemoryStore(), f"s3://{part}"), next(seeds)), nodes)
    with place.log().writer() as writer:
        return _times(writer.append, 20 if plan.quick else 1_000)


def _takeover(folder: Path) -> float:
    """Return how long a takeover takes, of a log with many keys, while a node does not answer."""
    place = Place(lambda part: FolderBucket(folder / part), NODES)
    holder = place.log().writer()
    for seed in range(KEYS // BATCH_ROWS):
        holder.append_arrow(Source(100, seed).batch(BATCH_ROWS).table())
    place.buckets["n1"].cut_off()
    taker = place.log()
    started = time.perf_counter()
    writer = taker.writer(takeover="force")
    elapsed_s = time.perf_counter() - started
    writer.close()
    return elapsed_s


def _waiting(folder: Path, plan: Plan) -> float:
    """Return the CPU that sixteen threads take in a second in which nothing comes."""
    log = Place(lambda part: FolderBucket(folder / part), NODES).log()
    with log.writer() as writer:
        writer.append(b"first", id="first")
        tails = [log.tail() for _ in range(16)]
        threads = [threading.Thread(target=next, args=(tail, None)) for tail in tails]
        for thread in threads:
            thread.start()
        waited_s = 0.2 if plan.quick else 5.0
        before = time.process_time()
        time.sleep(waited_s)
        used_s = time.process_time() - before
        for tail in tails:
            tail.close()
        for thread in threads:
            thread.join()
    return used_s / waited_s
