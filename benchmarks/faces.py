"""Producers and streams: what sequences cost, what versions cost, a thousand subscribers, and a million streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import Measurement, Plan, timed
from oncelog import LogSettings, ProducerPolicy, Record, Subscription
from oncelog.connect import Database
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.streams import inner

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
    rounds, tables = (1, 2) if plan.quick else (5 * plan.rounds, 12)
    rates: Rates = {way: [] for way in ways}
    with Database(LocalStorage(folder / "producers")) as db:
        logs = {}
        for way in ways:
            policy = ProducerPolicy(enabled=way == ways[0])
            logs[way] = db.log(way[9:].replace(" ", "-"), LogSettings(producers=policy), create=True)
        appends = {way: log.writer().append_arrow for way, log in logs.items()}
        for round_ in range(rounds):
            firsts = [ROWS * (tables * round_ + n) for n in range(tables)]
            steps = {way: [_table(first, producer=way != ways[2]) for first in firsts] for way in ways}
            _take_turns(rates, {way: [_doing(appends[way], one) for one in steps[way]] for way in ways}, ROWS)
    return _measured(SEQUENCED, rates)


Rates = dict[str, list[float]]
Step = Callable[[], object]


def _doing(work: Callable[..., object], *arguments: object, **options: object) -> Step:
    return lambda: work(*arguments, **options)


def _take_turns(rates: Rates, steps: Mapping[str, Sequence[Step]], records: int) -> None:
    """Do one round: the contenders' steps by turns, so that what disturbs the machine disturbs all of them alike.

    Rounds are short and many, so that the best of them is one in which nothing did. Who comes first changes from step
    to step.
    """
    took_s = dict.fromkeys(steps, 0.0)
    ways = list(steps)
    timed(lambda: None)  # a clean heap, and a disk that has nothing left to write
    for number in range(len(steps[ways[0]])):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            started = time.perf_counter()
            steps[way][number]()
            took_s[way] += time.perf_counter() - started
    for way, seconds in took_s.items():
        rates[way].append(len(steps[way]) * records / seconds)


def _measured(workload: str, rates: Rates) -> list[Measurement]:
    return [Measurement(workload=workload, contender=way, unit="records/s", rounds=one) for way, one in rates.items()]


def _table(first: int, *, producer: bool) -> pa.RecordBatch:
    values = pa.array([b"%0100d" % number for number in range(first, first + ROWS)], pa.binary())
    if not producer:
        return pa.record_batch({"value": values})
    names = pa.array(["importer-1"] * ROWS)
    return pa.record_batch({"value": values, "producer": names, "sequence": np.arange(first, first + ROWS)})


def streams(folder: Path, plan: Plan) -> list[Measurement]:
    """Append batches of ten under an exact version, and the same records as plain batches."""
    rounds, count = (1, 20) if plan.quick else (4 * plan.rounds, 100)
    exact, plain = "Oncelog, streams, exact version", "Oncelog, append_batch"
    rates: Rates = {exact: [], plain: []}
    with Database(LocalStorage(folder / "streams")) as db:
        store = db.streams("events", create=True)
        store.append("warm", Record(b"up"))
        with db.log("plain", create=True).writer() as writer:
            for round_ in range(rounds):
                batches = [_events(round_, number) for number in range(count)]
                steps = {
                    exact: [_doing(store.append, stream, events, expected=at) for stream, at, events in batches],
                    plain: [_doing(writer.append_batch, events) for _, _, events in batches],
                }
                _take_turns(rates, steps, BATCH)
    return _measured(VERSIONED, rates)


def _events(round_: int, number: int) -> tuple[str, int, list[Record]]:
    """Return a stream, the version it is at, and ten events with ids: twenty-five streams in turn."""
    stream, times = f"order-{round_}-{number % 25}", number // 25
    events = [Record(b"x" * 100, id=f"{round_}-{number}-{row}", stream=stream) for row in range(BATCH)]
    return stream, BATCH * times - 1, events


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
            size = inner.index_bytes(store)
    return [
        _figure(f"Oncelog, open, {count:,} streams", "s", opened),
        _figure(f"Oncelog, rebuild from the log, {count:,} streams", "s", [rebuilt_s]),
        _figure(f"Oncelog, memory, {count:,} streams", "bytes", [float(size)]),
    ]


def _figure(contender: str, unit: str, rounds: list[float]) -> Measurement:
    return Measurement(workload=MILLION, contender=contender, unit=unit, rounds=rounds, larger_is_better=False)
