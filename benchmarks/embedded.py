"""Oncelog, in each of the ways in which one appends to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import xxhash

from benchmarks.contender import Contender, NotInstalledError
from benchmarks.records import Batch
from oncelog import LogSettings, Record
from oncelog.connect import Database
from oncelog.dedup import kernels
from oncelog.settings import Seal
from oncelog.storage.base import Chunk
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.home import LocalStorage

Ids = Literal["explicit", "content", "off"]
Way = Literal["append_arrow", "append_arrow, 10 commits a call", "append_many"]

COMMITS_A_CALL = 10
COMPILED = ", numba"
_WORDS: dict[Ids, str] = {"explicit": "explicit ids", "content": "content ids", "off": "idempotence off"}


def settings(ids: Ids = "explicit", seal: Seal = "auto") -> LogSettings:
    """Return settings under which a commit takes 10,000 records, of 1 KB values too."""
    return LogSettings(idempotence=ids, block_bytes=16 << 20, seal=seal)


class Embedded(Contender):
    """A log in a folder, one writer, one thread that appends."""

    def __init__(
        self,
        folder: Path,
        way: Way = "append_arrow",
        ids: Ids = "explicit",
        *,
        compiled: bool = False,
        seal: Seal = "auto",
    ) -> None:
        """Say how to append, which ids there are, whether numba is to help, and whether files are sealed meanwhile."""
        self.way, self.ids, self.compiled, self._seal = way, ids, compiled, seal
        self.name = f"Oncelog, {way}, {_WORDS[ids]}{COMPILED if compiled else ''}"
        kind = "numba" if compiled else "numpy"
        self.folder = folder / f"oncelog-{way.replace(' ', '-').replace(',', '')}-{ids}-{kind}"
        self.folder.mkdir()
        self.note = "the id is stored within the value" if ids == "off" else ""

    def open(self) -> None:
        """Create the log and become its writer."""
        if self.compiled and find_spec("numba") is None:
            message = "numba is missing: pip install 'oncelog[fast]'"
            raise NotInstalledError(message)
        self._db = Database(LocalStorage(self.folder, self._disk()))
        self.log = self._db.log("bench", settings(self.ids, self._seal), create=True)
        self.writer = self.log.writer()

    def _disk(self) -> RealDisk:
        return RealDisk()

    def close(self) -> None:
        """Leave the log."""
        self._db.close()

    def prepare(self, batches: Sequence[Batch]) -> list[Any]:
        """Return tables, or lists of records."""
        payloads = [self._payload(batch) for batch in batches]
        if self.way == "append_many":
            names = [payload.schema.names for payload in payloads]
            columns = [[column.to_pylist() for column in payload.columns] for payload in payloads]
            return [
                [Record(**dict(zip(named, row, strict=True))) for row in zip(*part, strict=True)]
                for named, part in zip(names, columns, strict=True)
            ]
        if self.way == "append_arrow":
            return payloads
        starts = range(0, len(payloads), COMMITS_A_CALL)
        return [pa.Table.from_batches(payloads[at : at + COMMITS_A_CALL]).combine_chunks() for at in starts]

    def _payload(self, batch: Batch) -> pa.RecordBatch:
        if self.ids == "explicit":
            return batch.table()
        return batch.anonymous() if self.ids == "content" else batch.folded()

    def append(self, prepared: list[Any]) -> None:
        """Append each, and wait for it."""
        kernels.choose("1" if self.compiled else "0")
        append = self.writer.append_many if self.way == "append_many" else self.writer.append_arrow
        for part in prepared:
            append(part)

    def append_one(self, id: str, value: bytes) -> None:
        """Append one record."""
        if self.ids == "off":
            self.writer.append(value)
        else:
            self.writer.append(value, id=id)

    def submit(self, rows: Sequence[tuple[str, bytes]]) -> None:
        """Submit records one by one, then wait for all of them."""
        submit = self.writer.submit
        futures = [submit(value, id=id) for id, value in rows]
        self.writer.flush()
        for future in futures:
            future.result()

    def count(self) -> int:
        """Return how many records there are."""
        return self.writer.last_position + 1

    def read(self) -> int:
        """Read all in columns, and use every byte of ids and values."""
        return sum(use(batch) for batch in self.log.read_arrow(columns=["value", "id"]))

    def read_entries(self) -> int:
        """Read all one by one."""
        return sum(1 for _ in self.log.read())


class _Limited(RealDisk):
    """A disk that takes so many bytes a second and no more: a sync takes the time of what was written before it."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self._bytes_per_s = bytes_per_s
        self._unsynced: dict[int, tuple[float, int]] = {}

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Write, and remember since when how many bytes are to be synced. Zeros ahead cost nothing here."""
        since, size = self._unsynced.get(descriptor, (time.perf_counter(), 0))
        if len(chunks) > 1:
            self._unsynced[descriptor] = (since, size + sum(map(len, chunks)))
        super().write(descriptor, chunks, offset)

    def sync(self, descriptor: int) -> None:
        """Sync, and wait for as long as such a disk would have taken."""
        super().sync(descriptor)
        since, size = self._unsynced.pop(descriptor, (0.0, 0))
        left_s = since + size / self._bytes_per_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class Limited(Embedded):
    """A log on a disk that gives 400 MB/s: files in memory, where there is enough, and syncs that take their time."""

    MB_PER_S = 400

    def _disk(self) -> RealDisk:
        return _Limited(self.MB_PER_S * 1e6)


def use(batch: pa.RecordBatch) -> int:
    """Touch every byte of a batch: its buffers are hashed. Return its rows."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                xxhash.xxh3_64_intdigest(buffer)
    return int(batch.num_rows)
