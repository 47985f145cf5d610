"""The memory of ids alone: batches of new ids are looked up and remembered beside many others; then known ones come.

Each contender gets 16-byte keys, in the form that it takes best, before the clock starts, and keeps a position and a
fingerprint with each. Oncelog works as a writer does: the table for recent ids, a run for every 262,144 of them, merges
of neighbours, and the sieve in front of all runs, all on one core; every id is on the clock, from the first one on. A
peer has its ids loaded in ascending order, off the clock, and is measured with the next ones. ``--ids`` says how many
ids are remembered.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.contender import BATCH_RECORDS, NotInstalledError
from benchmarks.embedded import COMPILED
from benchmarks.measure import Measurement, Plan
from benchmarks.postgresql import PostgreSQL
from benchmarks.records import Batch
from oncelog.dedup import kernels
from oncelog.dedup.table import Table
from oncelog.format.runs.run import Run
from oncelog.log.memory.building import commits_of, delete_run, entries_of, store_run
from oncelog.log.memory.merging import merge_runs, worth_merging
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.quest import Found
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import RunSet
from oncelog.log.upkeep.sifting import Sifter
from oncelog.storage.local.home import LocalStorage

RUN_IDS = 262_144
PREPARED_BATCHES = 50
"""So many batches are prepared at once, off the clock."""

PARTS = 256
"""The ids of a peer are loaded in so many parts, by their first byte."""

NEW_BATCHES = 25
"""Batches of new ids of a round, for a peer."""

Keys = NDArray[np.uint64]


class Memory(ABC):
    """Remembers ids in a folder of its own."""

    name: str
    note: str = ""

    def __init__(self, folder: Path) -> None:
        """Make the folder; ``open`` begins."""
        self.folder = folder / type(self).__name__.lower()
        self.folder.mkdir(parents=True)

    @abstractmethod
    def open(self) -> None:
        """Begin; ``NotInstalledError`` when it cannot."""

    @abstractmethod
    def close(self) -> None:
        """End what was started."""

    def prepare(self, keys: Keys) -> Any:
        """Return a batch in the form that is taken best."""
        return [key.tobytes() for key in keys]

    def load(self, keys: Keys) -> None:
        """Remember new ids that follow all others in order."""
        self.remember(self.prepare(keys))

    @abstractmethod
    def remember(self, prepared: Any) -> None:
        """Find out which ids are new, and remember those."""

    def bytes_per_id(self, ids: int) -> float:
        """Return what one of so many ids takes where it is stored."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) / ids


class Oncelog(Memory):
    """The table and the runs, as a writer uses them."""

    note = "table, sieve, runs and merges on one core; 10,000 a batch"

    def __init__(self, folder: Path, *, compiled: bool) -> None:
        """Take numpy alone, or numba."""
        super().__init__(folder / ("numba" if compiled else "numpy"))
        self.name = f"Oncelog{COMPILED if compiled else ''}"
        self._compiled = compiled
        self.spent = dict.fromkeys(("look-up", "build", "merge"), 0.0)
        self.written_bytes = 0
        self.runs_max = 0

    def open(self) -> None:
        """Begin with nothing."""
        kernels.choose("1" if self._compiled else "0")
        self._home = LocalStorage(self.folder).home("ids")
        self._objects = RunObjects(self._home)
        self._recall = Recall(RunSet.open(self._objects, []), 0)
        self._sifter = Sifter(self._recall, self._objects)
        self._table = Table()
        self._position = self._number = 0

    @property
    def runs(self) -> RunSet:
        """The runs that look-ups see."""
        return self._recall.view.runs

    def close(self) -> None:
        """Let go of nothing: everything is mapped."""
        self._objects.close()

    def prepare(self, keys: Keys) -> Keys:
        """Take identities as they are."""
        return keys

    def remember(self, prepared: Keys) -> None:
        """Look ids up in runs and table, add the new ones, and make a run when there are enough."""
        started = time.process_time()
        found, fingerprints = self._recall.look(prepared).found, prepared[:, 0].copy()
        if found is None and self._table.enter(prepared, self._position, lambda: fingerprints):
            count = len(prepared)
        else:
            count = self._add_absent(prepared, found)
        self.spent["look-up"] += time.process_time() - started
        self._position += count
        self._table.commit(self._position, self._position, self._position)
        if self._position - self.runs.next_position >= RUN_IDS:
            self._build()

    def _add_absent(self, keys: Keys, found: Found | None) -> int:
        absent = self._table.find(keys) < 0
        if found is not None:
            absent &= ~found.found
        new = keys[absent]
        positions = np.arange(self._position, self._position + len(new))
        self._table.add(new, positions, new[:, 0].copy(), np.ones(len(new), np.bool_))
        return len(new)

    def bytes_per_id(self, ids: int) -> float:
        """Count what is in runs: recent ids are in the log alone."""
        return self.runs.size_bytes / self.runs.ids if self.runs.ids else super().bytes_per_id(ids)

    def _build(self) -> None:
        started = time.process_time()
        first = self.runs.next_position
        state = self._table.between(first, self._position)
        entries, commits = entries_of(state, first).sorted(), commits_of(state, first)
        run = store_run(self._home, "log", self._key(), entries, first, self._position, commits)
        self._sifter.add(run, entries)
        self._publish([*self.runs.runs, run], built=True)
        self._table.drop_before(self._position)
        if self._sifter.read_rest(lambda: None)[0]:
            self._publish(list(self.runs.runs), built=False)
        built = time.process_time()
        self.spent["build"] += built - started
        while (due := worth_merging(self.runs.runs)) is not None:
            self._merge(due)
        self.spent["merge"] += time.process_time() - built

    def _merge(self, due: slice) -> None:
        runs = list(self.runs.runs)
        old = runs[due]
        runs[due] = [merge_runs(self._objects, "log", self._key(), old)]
        self._sifter.add_merged(runs[due.start], old, None)
        self._publish(runs, built=False)
        for run in old:
            delete_run(self._home, run)

    def _publish(self, runs: list[Run], *, built: bool) -> None:
        new = set(runs) - set(self.runs.runs)
        self.written_bytes += sum(run.size_bytes for run in new)
        self.runs_max = max(self.runs_max, len(runs))
        self._recall.show(RunSet.open(self._objects, runs, self.runs, self._sifter.sieve), built=built)

    def _key(self) -> str:
        self._number += 1
        return f"sealed/{self._number:020d}-0"

    @property
    def counted(self) -> dict[str, float]:
        """What else was seen: nanoseconds of CPU an id, bytes written an id, runs."""
        ids = self._position
        spent = {f"{name}, ns of CPU an id": 1e9 * seconds / ids for name, seconds in self.spent.items()}
        in_memory = self.runs.memory_bytes / self.runs.ids if self.runs.ids else 0.0
        written = self.written_bytes / self.runs.ids if self.runs.ids else 0.0
        return {**spent, "bytes written an id": written, "runs at most": self.runs_max, "filter bytes an id": in_memory}


class RocksDB(Memory):
    """RocksDB by rocksdict: multi-get, then a write batch; no write-ahead log, as Kafka Streams has it."""

    name = "RocksDB"
    note = "rocksdict: multi-get and write batch of 10,000, Bloom filter of 16 bits, no write-ahead log"

    def open(self) -> None:
        """Open with raw keys and a filter."""
        try:
            rocksdict: Any = import_module("rocksdict")
        except ImportError as error:
            message = "pip install rocksdict"
            raise NotInstalledError(message) from error
        options = rocksdict.Options(raw_mode=True)
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(16, block_based=False)
        table.set_block_cache(rocksdict.Cache(256 << 20))
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(64 << 20)
        options.increase_parallelism(2)
        options.create_if_missing(True)
        self._module = rocksdict
        self._writing = rocksdict.WriteOptions()
        self._writing.disable_wal = True
        self._db = rocksdict.Rdict(str(self.folder / "db"), options)

    def close(self) -> None:
        """Close it."""
        self._db.close()

    def load(self, keys: Keys) -> None:
        """Put them, and ask for none."""
        batch = self._module.WriteBatch(raw_mode=True)
        for key in self.prepare(keys):
            batch.put(key, key)
        self._db.write(batch, self._writing)

    def remember(self, prepared: list[bytes]) -> None:
        """Get all, put what was not there."""
        found = self._db.get(prepared)
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in zip(prepared, found, strict=True):
            if value is None:
                batch.put(key, key)
        self._db.write(batch, self._writing)

    def bytes_per_id(self, ids: int) -> float:
        """Flush, then count."""
        self._db.flush()
        return super().bytes_per_id(ids)


class SQLite(Memory):
    """SQLite: one table of keys, without row ids."""

    name = "SQLite"
    note = "WITHOUT ROWID, INSERT OR IGNORE, a transaction a batch, synchronous=OFF, 256 MB cache"

    def open(self) -> None:
        """Make the table."""
        self._db = sqlite3.connect(self.folder / "ids.sqlite", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-262144"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (id BLOB PRIMARY KEY, entry BLOB NOT NULL) WITHOUT ROWID")

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def prepare(self, keys: Keys) -> list[tuple[bytes, bytes]]:
        """Return rows, sorted: neighbours share pages."""
        return sorted((key.tobytes(), key.tobytes()) for key in keys)

    def remember(self, prepared: list[tuple[bytes, bytes]]) -> None:
        """Insert what is not there."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?)", prepared)
        self._db.execute("COMMIT")


class Postgres(Memory):
    """PostgreSQL, as it takes part in the other workloads."""

    name = "PostgreSQL"
    note = PostgreSQL.note

    def open(self) -> None:
        """Start a server."""
        self._inner = PostgreSQL(self.folder)
        self._inner.open()

    def close(self) -> None:
        """End it."""
        self._inner.close()

    def prepare(self, keys: Keys) -> Any:
        """Return rows of text and bytes, encoded."""
        raw = [key.tobytes() for key in keys]
        return self._inner.prepare([Batch(pa.array([key.hex() for key in raw]), pa.array(raw, pa.binary()))])

    def load(self, keys: Keys) -> None:
        """Copy them into the table itself."""
        self._inner.load(self.prepare(keys))

    def remember(self, prepared: Any) -> None:
        """Copy, and insert what is not there."""
        self._inner.append(prepared)


def memory(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure new ids, up to as many as are asked for, and known ones among them."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    ids = 40 * BATCH_RECORDS if plan.quick else plan.ids
    made: list[Callable[[], Memory]] = [
        lambda: Oncelog(folder, compiled=False),
        lambda: Oncelog(folder, compiled=True),
        lambda: RocksDB(folder),
        lambda: SQLite(folder),
        lambda: Postgres(folder),
    ]
    return [row for make in made for row in _measured(make(), ids, plan)]


def _measured(contender: Memory, ids: int, plan: Plan) -> list[Measurement]:
    workload = f"memory of {ids:,} ids"

    def row(what: str, unit: str, rounds: list[float], *, larger: bool = True, **more: Any) -> Measurement:
        name = f"{contender.name}, {what}"
        return Measurement(
            workload=workload,
            contender=name,
            unit=unit,
            rounds=rounds,
            larger_is_better=larger,
            note=contender.note,
            **more,
        )

    try:
        contender.open()
    except NotInstalledError as error:
        return [row("new ids", "ids/s", [], missing=str(error))]
    try:
        contender.remember(contender.prepare(_keys(1 << 40, BATCH_RECORDS)))  # what is loaded or compiled once
        if isinstance(contender, Oncelog):
            new = [_fill(contender, range(ids // BATCH_RECORDS))]
            counted = contender.counted
            known = [_keys(batch, BATCH_RECORDS) for batch in range(0, ids // BATCH_RECORDS, max(1, ids // 200_000))]
        else:
            known = _load(contender, ids)
            new = [_fill(contender, _numbers(round_)) for round_ in range(plan.rounds)]
            counted = {}
        again = [_rate(contender, known) for _ in range(max(2, plan.rounds))]
        return [
            row("new ids", "ids/s", new, more=counted),
            row("known ids", "ids/s", again),
            row("at rest", "bytes an id", [contender.bytes_per_id(ids)], larger=False),
        ]
    finally:
        contender.close()
        shutil.rmtree(contender.folder, ignore_errors=True)


def _numbers(round_: int) -> range:
    """Return the numbers of the batches of a round, which no batch before them had."""
    return range((round_ + 1) << 20, ((round_ + 1) << 20) + NEW_BATCHES)


def _load(contender: Memory, ids: int) -> list[Keys]:
    """Load ids in ascending order; return some batches of them, in no order."""
    kept = []
    for part in range(PARTS):
        keys = _keys((1 << 50) + part, ids // PARTS)
        keys[:, 0] = keys[:, 0] & np.uint64(~0xFF & 2**64 - 1) | np.uint64(part)  # the first byte in memory
        contender.load(np.sort(keys.view("S16").ravel()).view(np.uint64).reshape(-1, 2))
        kept.append(keys[:: max(1, ids // 200_000)])
    mixed = np.random.default_rng(0).permutation(np.concatenate(kept))
    return [mixed[start : start + BATCH_RECORDS] for start in range(0, len(mixed), BATCH_RECORDS)]


def _fill(contender: Memory, numbers: range) -> float:
    """Let a contender remember the new ids of batches; return how many it took in a second."""
    wall_s = 0.0
    for start in range(0, len(numbers), PREPARED_BATCHES):
        part = numbers[start : start + PREPARED_BATCHES]
        batches = [contender.prepare(_keys(number, BATCH_RECORDS)) for number in part]
        began = time.perf_counter()
        for batch in batches:
            contender.remember(batch)
        wall_s += time.perf_counter() - began
    return len(numbers) * BATCH_RECORDS / wall_s


def _rate(contender: Memory, known: list[Keys]) -> float:
    prepared = [contender.prepare(keys) for keys in known]
    began = time.perf_counter()
    for batch in prepared:
        contender.remember(batch)
    return sum(map(len, known)) / (time.perf_counter() - began)


def _keys(seed: int, count: int) -> Keys:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)
