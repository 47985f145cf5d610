"""The server beside NATS, Redis and PostgreSQL, each by its own Python client; HTTP beside gRPC. ``remote`` has the
server beside the log in one's own process.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.jetstream import JetStream
from benchmarks.measure import Measurement, Plan, timed
from benchmarks.postgresql import PostgreSQL
from benchmarks.records import Source
from benchmarks.redis_stream import Redis
from benchmarks.served import Http, Remote, RemoteTasks, Unary
from benchmarks.workloads import Makers, opened

ALONE = "server: one append at a time, p50"
AMONG = "server: append, {} callers"
CALLERS = (32, 256)
CPU = "server: processor time of the server, a record, 256 callers"
_PEERS: Makers = (JetStream, Redis, PostgreSQL)


def serving(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure the server in every way in which it is called."""
    folder.mkdir()
    found = _alone(folder / "alone", plan)
    for callers in CALLERS:
        found += _among(folder / f"among-{callers}", callers, plan)
    return found


def _row(workload: str, contender: str, unit: str, *, larger: bool = True, note: str = "") -> Measurement:
    return Measurement(workload=workload, contender=contender, unit=unit, rounds=[], larger_is_better=larger, note=note)


# One at a time.


def _alone(folder: Path, plan: Plan) -> list[Measurement]:
    found: list[Measurement] = []
    count = 20 if plan.quick else 300
    source = Source(100)
    with opened((Remote, *_PEERS), folder, ALONE, found) as contenders:
        rows = [_row(ALONE, one.name, "s", larger=False) for one in contenders]
        for number in range(plan.rounds + 1):
            for contender, row in zip(contenders, rows, strict=True):
                moments = []
                for id, value in source.batch(count).rows():
                    began = time.perf_counter()
                    contender.append_one(id, value)
                    moments.append(time.perf_counter() - began)
                if number:
                    row.rounds.append(statistics.median(moments))
        return [*found, *rows]


# From many callers.


def _among(folder: Path, callers: int, plan: Plan) -> list[Measurement]:
    workload = AMONG.format(callers)
    found: list[Measurement] = []
    makers: Makers = (Remote, RemoteTasks, Unary, Http, *_PEERS)
    source = Source(100)
    with opened(makers, folder, workload, found) as contenders:
        rows = [_row(workload, one.name, "records/s", note=_how(one, callers)) for one in contenders]
        cpu = [_row(CPU, one.name, "s", larger=False) for one in contenders if type(one) in (Unary, Http)]
        for number in range(plan.rounds + 1):
            for contender, row in zip(contenders, rows, strict=True):
                count = callers if plan.quick or isinstance(contender, JetStream) else 8 * callers
                records = source.batch(count).rows()
                before = contender.cpu_s() if isinstance(contender, Remote) else 0.0
                taken_s = timed(lambda some=records, one=contender: one.append_among(some, callers))  # type: ignore[misc]
                if number:
                    row.rounds.append(count / taken_s)
                    for one in cpu:
                        if one.contender == contender.name and isinstance(contender, Remote):
                            one.rounds.append((contender.cpu_s() - before) / count)
        return [*found, *rows, *(cpu if callers == CALLERS[-1] else [])]


def _how(contender: Contender, callers: int) -> str:
    if type(contender) is Remote:
        return f"{callers} threads"
    if isinstance(contender, PostgreSQL):
        return f"{min(callers, 64)} threads, each with a connection"
    return f"{callers} tasks of one event loop"
