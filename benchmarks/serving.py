"""The server: beside the log in one's own process, and beside NATS, Redis and PostgreSQL, each by its Python client."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from pyarrow import flight

from benchmarks.beside import ECHO
from benchmarks.contender import Contender
from benchmarks.embedded import Embedded, use
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
READ = "server: read in columns, every byte used"
CPU = "server: processor time of the server, a record, 256 callers"
OURS = "Oncelog, embedded"
ECHOED = "an empty gRPC echo"
FLIGHT = "Arrow Flight on the same log"
_PEERS: Makers = (JetStream, Redis, PostgreSQL)


def serving(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure the server in every way in which it is called."""
    folder.mkdir()
    found = _alone(folder / "alone", plan)
    for callers in CALLERS:
        found += _among(folder / f"among-{callers}", callers, plan)
    return [*found, *_read(folder / "read", plan)]


def _named(contender: Contender) -> str:
    return OURS if isinstance(contender, Embedded) else contender.name


def _row(workload: str, contender: str, unit: str, *, larger: bool = True, note: str = "") -> Measurement:
    return Measurement(workload=workload, contender=contender, unit=unit, rounds=[], larger_is_better=larger, note=note)


# One at a time.


def _alone(folder: Path, plan: Plan) -> list[Measurement]:
    found: list[Measurement] = []
    count = 20 if plan.quick else 300
    source = Source(100)
    with opened((Embedded, Remote, *_PEERS), folder, ALONE, found) as contenders, _beside("echo") as port:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        echo = channel.unary_unary(ECHO)
        works: list[tuple[Measurement, Callable[[str, bytes], object]]] = [
            (_row(ALONE, _named(one), "s", larger=False), one.append_one) for one in contenders
        ]
        works.append((_row(ALONE, ECHOED, "s", larger=False), lambda _, value: echo(value)))
        for number in range(plan.rounds + 1):
            for row, work in works:
                moments = []
                for id, value in source.batch(count).rows():
                    began = time.perf_counter()
                    work(id, value)
                    moments.append(time.perf_counter() - began)
                if number:
                    row.rounds.append(statistics.median(moments))
        channel.close()
        return [*found, *(row for row, _ in works)]


# From many callers.


def _among(folder: Path, callers: int, plan: Plan) -> list[Measurement]:
    workload = AMONG.format(callers)
    found: list[Measurement] = []
    makers: Makers = (Embedded, Remote, RemoteTasks, Unary, Http, *_PEERS)
    source = Source(100)
    with opened(makers, folder, workload, found) as contenders:
        rows = [_row(workload, _named(one), "records/s", note=_how(one, callers)) for one in contenders]
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
    if isinstance(contender, Embedded) or type(contender) is Remote:
        return f"{callers} threads"
    if isinstance(contender, PostgreSQL):
        return f"{min(callers, 64)} threads, each with a connection"
    return f"{callers} tasks of one event loop"


# Reading.


def _read(folder: Path, plan: Plan) -> list[Measurement]:
    found: list[Measurement] = []
    with opened((Remote,), folder, READ, found) as (remote,):
        assert isinstance(remote, Remote)
        source = Source(100)
        remote.append(remote.prepare([source.batch(10_000) for _ in range(1 if plan.quick else 100)]))
        with _beside("flight", remote.url) as port, flight.connect(f"grpc://127.0.0.1:{port}") as client:
            readers: dict[str, Callable[[], int]] = {
                remote.name: remote.read,
                FLIGHT: lambda: sum(use(part.data) for part in client.do_get(flight.Ticket(b""))),
            }
            rows = {name: _row(READ, name, "records/s") for name in readers}
            for number in range(2 * plan.rounds + 1):
                for name, read in readers.items():
                    records = remote.count()
                    taken_s = timed(lambda read=read, records=records: _check(read(), records))  # type: ignore[misc]
                    if number:
                        rows[name].rounds.append(records / taken_s)
        return [*found, *rows.values()]


def _check(read: int, records: int) -> None:
    assert read == records, f"{read} records of {records}"


@contextlib.contextmanager
def _beside(*arguments: str) -> Iterator[str]:
    """Run one of the bare servers; yield its port."""
    command = [sys.executable, "-m", "benchmarks.beside", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
