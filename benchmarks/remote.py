"""Through a server on this machine, beside the same work embedded: rates, and what client and server spend on it."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from pyarrow import flight

import oncelog
from benchmarks.contender import BATCH_RECORDS
from benchmarks.embedded import settings, use
from benchmarks.measure import Measurement, Plan, timed
from benchmarks.records import Source

SUBMIT = "through a server: submit from one thread"
ARROW = "through a server: append_arrow, 10,000 rows a call"
READ = "through a server: read_arrow"
SINGLE = "through a server: one append at a time, median"
THREADS = "through a server: append from {} threads"
EMBEDDED, REMOTE, ECHO = "Oncelog, embedded", "Oncelog, through a server", "gRPC, an empty call of the same server"
FLIGHT = "Arrow Flight, in front of read_arrow"
MANY = (32, 256)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ_TABLES = 100


class _Side:
    """A log and its writer: of this process, or of a server. ``source`` never gives a record twice."""

    def __init__(self, name: str, db: oncelog.Database, seed: int) -> None:
        self.name = name
        self.log = db.log("bench", settings(seal="off"), create=True)
        self.writer = self.log.writer()
        self.source = Source(100, seed)

    def close(self) -> None:
        """Let the log go."""
        self.writer.close()


class _Serving:
    """A server process, and how much of a processor it has used."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "oncelog.cli", "serve", "--url", f"file://{folder}", "--json"]
        self.process = subprocess.Popen(
            [*command, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["grpc"]

    def cpu_s(self) -> float:
        """Return the seconds of processor that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def _sides(folder: Path) -> Iterator[tuple[_Side, _Side, _Serving]]:
    serving = _Serving(folder / "served")
    try:
        with (
            oncelog.connect(f"file://{folder / 'embedded'}") as here,
            oncelog.connect(f"oncelog://{serving.address}") as there,
        ):
            sides = _Side(EMBEDDED, here, 1), _Side(REMOTE, there, 2)
            yield *sides, serving
            for side in sides:
                side.close()
    finally:
        serving.end()


def remote(folder: Path, plan: Plan) -> list[Measurement]:
    """Do the same work both ways, in turn."""
    folder.mkdir()
    plan = plan.finer()
    with _sides(folder) as (embedded, through, serving):
        run = _Run((embedded, through), serving, plan)
        found = _single(embedded, through, serving, plan)
        for count in MANY:
            found += run.compared(THREADS.format(count), _threads(count, 4 if plan.quick else 4000 // count))
        found += run.compared(SUBMIT, _submit(2000 if plan.quick else 30_000))
        found += run.compared(ARROW, _arrow(1 if plan.quick else 20))
        for side in (embedded, through):
            _arrow(1 if plan.quick else _READ_TABLES)(side)()
        found += run.compared(READ, _read)
        embedded.writer.close()
        found.append(_flight(folder / "embedded", plan))
    return found


class _Run:
    """Measures rounds of both sides in turn."""

    def __init__(self, sides: Sequence[_Side], serving: _Serving, plan: Plan) -> None:
        self._sides, self._serving, self._plan = sides, serving, plan

    def compared(self, workload: str, prepare: Callable[[_Side], Callable[[], int]]) -> list[Measurement]:
        """Return both rates. ``more`` has the microseconds of processor that a record takes in both processes."""
        rows = [_measurement(workload, side.name) for side in self._sides]
        for number in range(self._plan.rounds + 1):
            for side, row in zip(self._sides, rows, strict=True):
                spent = _Spent(prepare(side), self._serving)
                seconds = timed(spent)
                if number:
                    row.rounds.append(spent.records / seconds)
                    for name, used_s in (("client_cpu_us", spent.here_s), ("server_cpu_us", spent.there_s)):
                        used_us = 1e6 * used_s / spent.records / self._plan.rounds
                        row.more[name] = row.more.get(name, 0.0) + used_us
        return rows


class _Spent:
    """Does the work of a round, and notes the processor time of both processes."""

    def __init__(self, work: Callable[[], int], serving: _Serving) -> None:
        self._work, self._serving = work, serving
        self.records = 0
        self.here_s = self.there_s = 0.0

    def __call__(self) -> None:
        """Do it."""
        here_s, there_s = time.process_time(), self._serving.cpu_s()
        self.records = self._work()
        self.here_s, self.there_s = time.process_time() - here_s, self._serving.cpu_s() - there_s


def _measurement(workload: str, name: str, unit: str = "records/s") -> Measurement:
    return Measurement(workload=workload, contender=name, unit=unit, rounds=[], larger_is_better=unit != "s")


def _flight(folder: Path, plan: Plan) -> Measurement:
    """Read the same number of records from an Arrow Flight server, in a process of its own, that reads the same log."""
    row = _measurement(READ, FLIGHT)
    records = (1 if plan.quick else _READ_TABLES) * BATCH_RECORDS
    program = [sys.executable, "-m", "benchmarks.flight", str(folder), str(records)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            client = flight.connect(f"grpc://127.0.0.1:{int(server.stdout.readline())}")
            for number in range(plan.rounds + 1):
                done: list[int] = []

                def read(done: list[int] = done) -> None:
                    chunks = client.do_get(flight.Ticket(b""))
                    done.append(sum(use(chunk.data) for chunk in chunks))

                seconds = timed(read)
                row.rounds += [done[0] / seconds] if number else []
        finally:
            server.terminate()
    return row


# The work of a round.


def _submit(count: int) -> Callable[[_Side], Callable[[], int]]:
    def prepare(side: _Side) -> Callable[[], int]:
        rows = side.source.batch(count).rows()

        def work() -> int:
            submit = side.writer.submit
            futures = [submit(value, id=id) for id, value in rows]
            side.writer.flush()
            for future in futures:
                future.result()
            return count

        return work

    return prepare


def _arrow(calls: int) -> Callable[[_Side], Callable[[], int]]:
    def prepare(side: _Side) -> Callable[[], int]:
        tables = [side.source.batch(BATCH_RECORDS).table() for _ in range(calls)]

        def work() -> int:
            for table in tables:
                side.writer.append_arrow(table)
            return calls * BATCH_RECORDS

        return work

    return prepare


def _read(side: _Side) -> Callable[[], int]:
    start = max(0, side.writer.last_position + 1 - _READ_TABLES * BATCH_RECORDS)
    return lambda: sum(use(batch) for batch in side.log.read_arrow(start, columns=["value", "id"]))


def _threads(count: int, appends: int) -> Callable[[_Side], Callable[[], int]]:
    def prepare(side: _Side) -> Callable[[], int]:
        parts = [side.source.batch(appends).rows() for _ in range(count)]
        begin = threading.Barrier(count + 1)

        def appender(rows: Sequence[tuple[str, bytes]]) -> None:
            begin.wait()
            for id, value in rows:
                side.writer.append(value, id=id)

        threads = [threading.Thread(target=appender, args=(rows,)) for rows in parts]
        for thread in threads:
            thread.start()

        def work() -> int:
            begin.wait()
            for thread in threads:
                thread.join()
            return count * appends

        return work

    return prepare


def _single(embedded: _Side, through: _Side, serving: _Serving, plan: Plan) -> list[Measurement]:
    """Append one record after the other; and call the same server without asking anything of it."""
    rows = [_measurement(SINGLE, name, "s") for name in (EMBEDDED, REMOTE, ECHO)]
    count = 20 if plan.quick else 200
    with grpc.insecure_channel(serving.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for number in range(plan.rounds + 1):
            for side, row in zip((embedded, through), rows, strict=False):
                pairs = side.source.batch(count).rows()
                took = _median([(side.writer.append, (value,), {"id": id}) for id, value in pairs])
                row.rounds += [took] if number else []
            took = _median([(check, (b"",), {})] * count)
            rows[2].rounds += [took] if number else []
    return rows


def _median(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]) -> float:
    took = []
    for function, arguments, named in calls:
        started = time.perf_counter()
        function(*arguments, **named)
        took.append(time.perf_counter() - started)
    return statistics.median(took)
