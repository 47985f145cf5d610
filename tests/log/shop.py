"""A shop whose log lives through everything: processes that come and go, and what is in the log as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from oncelog.clock import Clock
from oncelog.connect import Database
from oncelog.dedup.identity import Hasher
from oncelog.format.payload import columns, intake, schema
from oncelog.limits import KIB, MIB
from oncelog.log.ingest import staging
from oncelog.log.log import Log
from oncelog.log.read.scan import Scan
from oncelog.log.stored import object_keys, secrets, snapshots
from oncelog.log.stored.manifests import Known
from oncelog.log.stored.staged import Staged
from oncelog.log.upkeep import sealing
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.base import LogHome, Storage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.types import Ack, Entry, Record

LOG = "orders"
HOUR_S = 3600.0
SETTINGS = LogSettings(
    window=Window(duration_s=1e6, max_keys=10_000),
    segment_bytes=64 * KIB,
    block_bytes=32 * KIB,
    snapshot_interval_s=1e6,
    seal="off",
)
"""A long window, small segments, and nothing done by the writer itself."""


class Shop:
    """A home and a clock, on which processes are started: each has a database of its own."""

    def __init__(self, storage: Storage, clock: SimulatedClock) -> None:
        self.storage = storage
        self.clock = clock
        self.home: LogHome = storage.home(LOG)

    def process(self, clock: Clock | None = None) -> Database:
        """Start a process."""
        return Database(self.storage, self.clock if clock is None else clock)

    def log(self, settings: LogSettings | None = None) -> Log:
        """Open the log in a process of its own; with settings, make it if it is not there."""
        return self.process().log(LOG, settings, create=settings is not None)

    def lose_snapshots(self) -> None:
        """Delete every snapshot there is."""
        for key in self.home.list("dedup_snapshot/"):
            self.home.delete(key)


def in_memory(*, auto_advance: bool = False) -> Shop:
    """Return a shop in memory."""
    clock = SimulatedClock(auto_advance=auto_advance)
    return Shop(MemoryStorage(clock=clock), clock)


def on_disk(*, auto_advance: bool = False) -> Shop:
    """Return a shop on a disk that is simulated: what a real one does, without waiting for it."""
    clock = SimulatedClock(auto_advance=auto_advance)
    return Shop(LocalStorage(Path("/db"), SimulatedDisk(file_bytes_max=MIB), clock), clock)


def record(number: int, size_bytes: int = 8) -> Record:
    """Return the record of a number: of four kinds, so that columns come and go."""
    value = f"{number}:".encode().ljust(size_bytes, b".")
    if number % 4 == 0:
        return Record(value)
    if number % 4 == 1:
        return Record(value, id=f"id-{number}")
    if number % 4 == 2:
        return Record(
            b"", id=f"é{number}", stream=f"s{number % 3}", type="Paid", headers={"n": b"%d" % number, "": b""}
        )
    return Record(value, id=f"id-{number}", tenant="", headers={})


def records(first: int, count: int, size_bytes: int = 8) -> list[Record]:
    """Return the records of consecutive numbers."""
    return [record(number, size_bytes) for number in range(first, first + count)]


def plain(numbers: Iterable[int], size_bytes: int = 8) -> list[Record]:
    """Return records that each have an id, a value, and nothing else."""
    return [Record(f"{number}:".encode().ljust(size_bytes, b"."), id=f"id-{number}") for number in numbers]


def fill(log: Log, *segments: Sequence[Record], clock: SimulatedClock | None = None) -> list[Ack]:
    """Write records into closed segments, those of a sequence into one; time passes between commits."""
    acks: list[Ack] = []
    for content in segments:
        with log.writer(wait_s=0) as writer:
            for record in content:
                acks.append(append(writer, record))
                if clock is not None:
                    clock.advance(0.001)
    return acks


def append(writer: Writer, record: Record) -> Ack:
    """Append a record by itself."""
    return writer.append(
        record.value,
        id=record.id,
        stream=record.stream,
        type=record.type,
        headers=record.headers,
        tenant=record.tenant,
    )


def again(ack: Ack) -> Ack:
    """Return what a retry is answered."""
    return Ack(ack.position, ack.segment, ack.entry, ack.timestamp, duplicate=True)


def entries(log: Log) -> list[Entry]:
    """Return all that the log holds, one by one."""
    with log.read() as found:
        return list(found)


def values(log: Log) -> list[bytes]:
    """Return the values of all that the log holds."""
    return [entry.value for entry in entries(log)]


def table(log: Log) -> pa.Table:
    """Return all that the log holds in columns."""
    return pa.Table.from_batches(list(log.read_arrow()), schema.READ_SCHEMA).combine_chunks()


def starts(log: Log) -> list[bool]:
    """Return, for each record, whether it begins a batch, as it is stored."""
    scan = Scan(log._home, log._manifests, log.name)
    scan.begin("earliest")
    found: list[bool] = []
    while parts := scan.next_rows():
        for rows in parts:
            at = rows.payload.schema.get_field_index("start")
            found += [True] * rows.count if at < 0 else rows.payload.column(at).to_pylist()
    return found


def known(log: Log) -> Known:
    """Return the newest manifest, as a process that has just started finds it."""
    found = log._manifests.newest()
    assert found is not None
    return found


def stage(log: Log, *batches: Sequence[Record], clock: Clock | None = None) -> Staged:
    """Stage records as a file that can be adopted, as anybody may without the log's writer."""
    return staging.stage(log._home, hasher(log), clock or log._clock, map(columns.from_records, batches))


def stage_many(log: Log, first: int, count: int) -> Staged:
    """Stage that many records with ids, quickly."""
    numbers = np.arange(first, first + count).astype(str)
    ids = pa.array(np.char.add("adopted-", numbers), pa.string())
    payload = intake.normalise(pa.table({"value": ids.cast(pa.binary()), "id": ids}))
    return staging.stage(log._home, hasher(log), log._clock, [payload])


def hasher(log: Log) -> Hasher:
    """Return the log's keyed hashes."""
    return secrets.hasher_of(log._home, known(log).manifest)


def orphans(log: Log) -> set[str]:
    """Return the sealed files that nothing refers to."""
    return set(log._home.list(object_keys.PREFIX)) - sealing.used(log._manifests, known(log).manifest)


def snapshot_keys(log: Log) -> list[str]:
    """Return the keys of the log's snapshots."""
    return log._home.list(snapshots.prefix(known(log).manifest.log_id))


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a function that acts the first time it is called, and never again, not even from within."""
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    return act
