"""Reading everything in order: blocks beside a mapped IPC file, sealed files beside the same Parquet, and the peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contender import Contender
from benchmarks.embedded import Embedded, use
from benchmarks.measure import Measurement, Plan
from benchmarks.postgresql import PostgreSQL
from benchmarks.records import Batch, Source
from benchmarks.redis_stream import Redis
from benchmarks.sqlite import SQLite
from benchmarks.workloads import NOT_DURABLE, opened

WORKLOAD = "read"
BLOCKS, MAPPED = "Oncelog, read_arrow", "pyarrow, mapped IPC file"
SEALED, PARQUET = "Oncelog, read_arrow, sealed files", "pyarrow, the same Parquet files"
_COLUMNS = ["value", "id"]


class _Read:
    """One way to read what is stored, and how quick it was."""

    def __init__(self, contender: str, work: Callable[[], int], expected: int, note: str = "") -> None:
        self._work, self._expected = work, expected
        self.row = Measurement(workload=WORKLOAD, contender=contender, unit="records/s", rounds=[], note=note)

    def once(self) -> float:
        started = time.perf_counter()
        count = self._work()
        seconds = time.perf_counter() - started
        assert count == self._expected, f"{count} records were read, {self._expected} are stored"
        return count / seconds


def read(folder: Path, plan: Plan) -> list[Measurement]:
    """Read everything, in order."""
    found: list[Measurement] = []
    makers = (lambda folder: Embedded(folder, seal="off"), SQLite, PostgreSQL, Redis, *NOT_DURABLE[:1])
    with opened(makers, folder, WORKLOAD, found) as contenders:
        log = contenders[0]
        assert isinstance(log, Embedded)
        source = Source(100)
        batches = [source.batch(log.batch_records) for _ in range(10 if plan.quick else 100)]
        fewer = batches[: 10 if plan.quick else 20]
        _store(log, batches)
        ours, peers = _ours(log, batches, folder), [_peer(peer, fewer) for peer in contenders[1:]]
        _measure(ours, plan.finer())
        _measure(peers, plan)
        reads = [*ours, *peers]
        reads += (sealed := _sealed(log))
        _measure(sealed, plan.finer())
        found += [one.row for one in reads]
    return found


def _store(contender: Contender, batches: Sequence[Batch]) -> int:
    for batch in batches:
        contender.append(contender.prepare([batch]))
    return sum(map(len, batches))


def _measure(reads: Sequence[_Read], plan: Plan) -> None:
    for number in range(plan.rounds + 1):
        for one in reads:
            rate = one.once()
            if number:
                one.row.rounds.append(rate)


def _ours(log: Embedded, batches: Sequence[Batch], folder: Path) -> list[_Read]:
    note = "ids and values, every byte used; a block's checksum is verified when it is first read"
    plain = "the same ids and values, every byte used; nothing is verified"
    mapped = _mapped_ipc(folder / "mapped.arrow", batches)
    return [
        _Read(BLOCKS, log.read, log.count(), note),
        _Read("Oncelog, read, one by one", log.read_entries, log.count()),
        _Read(MAPPED, mapped, log.count(), plain),
    ]


def _peer(peer: Contender, batches: Sequence[Batch]) -> _Read:
    read = _Read(peer.name, peer.read, _store(peer, batches))
    read.row.durable = peer.durable
    return read


def _sealed(log: Embedded) -> list[_Read]:
    """Turn the log into Parquet, and read that."""
    count = log.count()
    log.writer.close()
    log.log.seal()
    paths = [file.path for file in log.log.files()]

    def parquet() -> int:
        return sum(use(batch) for path in paths for batch in pq.ParquetFile(path).iter_batches(columns=_COLUMNS))

    return [_Read(SEALED, log.read, count, "ids and values, every byte used"), _Read(PARQUET, parquet, count)]


def _mapped_ipc(path: Path, batches: Sequence[Batch]) -> Callable[[], int]:
    """Return pyarrow reading the same records from a mapped IPC file."""
    tables = [batch.table() for batch in batches]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, tables[0].schema) as writer:
        for table in tables:
            writer.write_batch(table)

    def work() -> int:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            return sum(use(reader.get_batch(number)) for number in range(reader.num_record_batches))

    return work
