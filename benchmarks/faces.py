"""Producers and streams: what sequences cost, what versions cost, a thousand subscribers, and a million streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import Measurement, Plan, timed
from oncelog import LogSettings, ProducerPolicy, Record, Subscription
from oncelog.connect import Database
from oncelog.storage.local import LocalStorage
from oncelog.storage.memory import MemoryStorage

SEQUENCED = "append by a producer, 100-byte values, 10,000 a commit"
VERSIONED = "append in batches of ten, 100-byte values, each commit synced"
FANNED = "a thousand subscriptions"
MILLION = "streams in one log"
ROWS, BATCH = 10_000, 10


def faces(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure both faces."""
    return [*producers(folder, plan), *streams(folder, plan), *fan(plan), *million(folder, plan)]


def producers(folder: Path, plan: Plan) -> list[Measurement]:
    """Append the same tables with sequences held against each other, with them only stored, and without them."""
    ways = ("Oncelog, sequences checked", "Oncelog, sequences stored, not checked", "Oncelog, no producer")
    rates: dict[str, list[float]] = {way: [] for way in ways}
    tables = 2 if plan.quick else 60
    with Database(LocalStorage(folder / "producers")) as db:
        logs = {}
        for way in ways:
            policy = ProducerPolicy(enabled=way == ways[0])
            logs[way] = db.log(way[9:].replace(" ", "-"), LogSettings(producers=policy), create=True)
        writers = {way: log.writer() for way, log in logs.items()}
        next_sequence = 0
        for _ in range(plan.rounds):
            for way, writer in writers.items():
                made = [_table(next_sequence + ROWS * n, producer=way != ways[2]) for n in range(tables)]
                took_s = timed(lambda made=made, writer=writer: [writer.append_arrow(one) for one in made])  # type: ignore[misc]
                rates[way].append(tables * ROWS / took_s)
            next_sequence += tables * ROWS
    return [
        Measurement(workload=SEQUENCED, contender=way, unit="records/s", rounds=found) for way, found in rates.items()
    ]


def _rates(workload: str, rates: dict[str, list[float]]) -> list[Measurement]:
    return [Measurement(workload=workload, contender=way, unit="records/s", rounds=one) for way, one in rates.items()]


def _table(first: int, *, producer: bool) -> pa.RecordBatch:
    values = pa.array([b"%0100d" % number for number in range(first, first + ROWS)], pa.binary())
    if not producer:
        return pa.record_batch({"value": values})
    names = pa.array(["importer-1"] * ROWS)
    return pa.record_batch({"value": values, "producer": names, "sequence": np.arange(first, first + ROWS)})


def streams(folder: Path, plan: Plan) -> list[Measurement]:
    """Append batches of ten under an exact version, and the same records as plain batches."""
    count = 20 if plan.quick else 400
    exact, plain = "Oncelog, streams, exact version", "Oncelog, append_batch"
    rates: dict[str, list[float]] = {exact: [], plain: []}
    with Database(LocalStorage(folder / "streams")) as db:
        store = db.streams("events", create=True)
        store.append("warm", Record(b"up"))
        with db.log("plain", create=True).writer() as writer:
            for round_ in range(plan.rounds):
                batches = [_events(round_, number) for number in range(count)]
                took_s = timed(lambda batches=batches: _by_version(store.append, batches))  # type: ignore[misc]
                rates[exact].append(count * BATCH / took_s)
                took_s = timed(lambda batches=batches: [writer.append_batch(one) for _, _, one in batches])  # type: ignore[misc]
                rates[plain].append(count * BATCH / took_s)
    return [
        Measurement(workload=VERSIONED, contender=way, unit="records/s", rounds=found) for way, found in rates.items()
    ]


def _events(round_: int, number: int) -> tuple[str, int, list[Record]]:
    """Return a stream, the version it is at, and ten events with ids: a hundred streams in turn."""
    stream, times = f"order-{round_}-{number % 100}", number // 100
    events = [Record(b"x" * 100, id=f"{round_}-{number}-{row}", stream=stream) for row in range(BATCH)]
    return stream, BATCH * times - 1, events


def _by_version(append: Callable[..., object], batches: Sequence[tuple[str, int, list[Record]]]) -> None:
    for stream, version, events in batches:
        append(stream, events, expected=version)


def fan(plan: Plan) -> list[Measurement]:
    """Deliver every event to each of a thousand subscriptions."""
    count, events = (50, 20) if plan.quick else (1000, 200)
    rounds = []
    for _ in range(plan.rounds):
        with Database(MemoryStorage()) as db:
            store = db.streams("events", create=True)
            following = [store.subscribe_all("latest") for _ in range(count)]
            for one in following:
                one.poll()
            store.append("s", [Record(b"x" * 100) for _ in range(events)])
            rounds.append(count * events / timed(lambda: _take_all(following, events)))  # noqa: B023
    return [Measurement(workload=FANNED, contender="Oncelog, events delivered", unit="events/s", rounds=rounds)]


def _take_all(following: Sequence[Subscription], count: int) -> None:
    for subscription in following:
        for _ in range(count):
            assert subscription.poll(60.0) is not None


def million(folder: Path, plan: Plan) -> list[Measurement]:
    """Make many streams; measure what the index takes in memory, and how long it takes to open and to rebuild."""
    count = 10_000 if plan.quick else 1_000_000
    storage = LocalStorage(folder / "million")
    with Database(storage) as db:
        settings = LogSettings(id_scope="stream", idempotence="off")
        with db.log("events", settings, create=True).writer() as writer:
            for first in range(0, count, ROWS):
                names = pa.array([f"order-{number:030d}" for number in range(first, first + ROWS)])
                writer.append_arrow(pa.record_batch({"value": pa.array([b"x"] * ROWS, pa.binary()), "stream": names}))
        started = time.perf_counter()
        store = db.streams("events")
        assert store.version("order-" + "0" * 30) == 0
        rebuilt_s = time.perf_counter() - started
        store.append("one-more", Record(b"x"))
    opened: list[float] = []
    for _ in range(plan.rounds):
        with Database(storage) as db:
            started = time.perf_counter()
            store = db.streams("events")
            assert store.version("one-more") == 0
            opened.append(time.perf_counter() - started)
            size = store.index_bytes
    return [
        _figure(f"Oncelog, open, {count:,} streams", "s", opened),
        _figure(f"Oncelog, rebuild from the log, {count:,} streams", "s", [rebuilt_s]),
        _figure(f"Oncelog, memory, {count:,} streams", "bytes", [float(size)]),
    ]


def _figure(contender: str, unit: str, rounds: list[float]) -> Measurement:
    return Measurement(workload=MILLION, contender=contender, unit=unit, rounds=rounds, larger_is_better=False)
