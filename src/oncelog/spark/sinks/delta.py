"""Batches into a Delta table, each exactly once, by ``deltalake`` (delta-rs): no jar of Spark's is needed.

Spark writes the batch's Parquet files into the table's folder, under a name of their own, or by way of a folder of this
machine into a bucket; they are no part of the table until a commit of Delta's log names them. The commit carries the
query and the batch as Delta's transaction. delta-rs stores the same transaction again when it is asked to. So the
transaction is looked up first, and the commit is made with the table object of that look-up: if another run commits
meanwhile, this commit fails, and the look-up is repeated.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.spark.sinks.folder import BucketTable, DiskTable, Folder, Write, cleaned
from oncelog.storage.bucket.paths import bucket_of

_ATTEMPTS_MAX = 20
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class _OwnedDisk(DiskTable):
    """The place beside a Delta table that says which query writes it; others may write to the table as well."""

    def has_batches(self) -> bool:
        """Tell whether a query of ours has written to the table."""
        return bool(self.keys("owners/")) and DeltaTable.is_deltatable(self.path)


class _OwnedBucket(BucketTable):
    """The same, in a bucket."""

    def has_batches(self) -> bool:
        """Tell whether a query of ours has written to the table."""
        return bool(self.keys("owners/")) and bool(self.bucket.below(f"{self.prefix.strip('/')}/_delta_log/"))


class Delta:
    """Writes the batches of one query into a Delta table, on a disk or in a bucket."""

    def __init__(self, path: str | Path, partition_by: Sequence[str], clock: Clock) -> None:
        self._path = re.sub("^s3[an]:", "s3:", str(path))
        self._bucket = bucket_of(self._path)
        self._options = None if self._bucket is None else {"allow_http": "true", "conditional_put": "etag"}
        self._partition_by = list(partition_by)
        self._clock = clock

    def own(self, query: str, pipeline: str) -> None:
        """Note whose the table is; ``InvalidArgument`` if another query of ours has written to it."""
        beside = (
            _OwnedDisk(Path(self._path), self._clock)
            if self._bucket is None
            else _OwnedBucket(*self._bucket, self._path, direct=False)
        )
        Folder(beside, self._clock).own(query, pipeline)

    def write(self, query: str, batch: int, write: Write) -> None:
        """Write a batch, unless the table has it."""
        app = f"oncelog/{query}"
        if _is_done(self._opened(), app, batch):
            return
        name = f"oncelog-{batch:010d}-{self._clock.token(8).hex()}"
        with self._folder() as folder:
            staged = folder / name
            write(str(staged))
            files = cleaned(staged)
            self._upload(staged, files)
            if not (files and self._commit(app, batch, staged, files)):
                self._remove(staged, files)  # no rows, or another run's files are the batch

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Yield the folder that Spark writes to: the table's own, or one of this machine."""
        if self._bucket is None:
            yield Path(self._path)
            return
        with tempfile.TemporaryDirectory(prefix="oncelog-") as folder:
            yield Path(folder)

    def _upload(self, staged: Path, files: Sequence[str]) -> None:
        if self._bucket is not None:
            bucket, prefix = self._bucket
            for name in files:
                bucket.upload(f"{prefix}/{staged.name}/{name}", staged / name)

    def _remove(self, staged: Path, files: Sequence[str]) -> None:
        shutil.rmtree(staged, ignore_errors=True)
        if self._bucket is not None:
            bucket, prefix = self._bucket
            for name in files:
                bucket.delete(f"{prefix}/{staged.name}/{name}")

    def _opened(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(self._path, storage_options=self._options):
            return None
        return DeltaTable(self._path, storage_options=self._options)

    def _commit(self, app: str, batch: int, staged: Path, files: Sequence[str]) -> bool:
        """Add files to the table in one commit; return ``False`` if another run has added this batch."""
        schema = self._schema(staged, files)
        actions: list[AddAction | RemoveAction] = [self._action(staged, name) for name in files]
        for _ in range(_ATTEMPTS_MAX):
            table = self._opened() or self._created(schema)
            if _is_done(table, app, batch):
                return False
            try:
                if self._widened(table, schema):
                    continue
                marked = [Transaction(app, batch, self._clock.now_us() // 1000)]
                noted = CommitProperties(app_transactions=marked)
                table.create_write_transaction(
                    actions, "append", table.schema(), self._partition_by, commit_properties=noted
                )
            except CommitFailedError:
                continue  # another commit came between: look again
            return True
        message = f"{self._path}: others committed to the table in each of {_ATTEMPTS_MAX} attempts"
        raise Unavailable(message)

    def _schema(self, staged: Path, files: Sequence[str]) -> DeltaSchema:
        found = pa.unify_schemas([pq.read_schema(staged / name) for name in files]).remove_metadata()
        parts = [pa.field(name, pa.string()) for name in self._partition_by if name not in found.names]
        return DeltaSchema.from_arrow(pa.schema([*found, *parts]))

    def _created(self, schema: DeltaSchema) -> DeltaTable:
        return DeltaTable.create(
            self._path, schema, mode="ignore", partition_by=self._partition_by or None, storage_options=self._options
        )

    def _widened(self, table: DeltaTable, schema: DeltaSchema) -> bool:
        """Add columns that the table has not; ``InvalidArgument`` for another type: delta-rs would cut 7.5 to 7."""
        known = {field.name: field for field in table.schema().fields}
        other = [
            f"{field.name} is {field.type} and the table has {known[field.name].type}"
            for field in schema.fields
            if field.name in known and field.type != known[field.name].type and field.name not in self._partition_by
        ]
        if other:
            message = f"{self._path}: {'; '.join(other)}: cast in sink.sql, or write to another table"
            raise InvalidArgument(message)
        new = [Field(field.name, field.type, nullable=True) for field in schema.fields if field.name not in known]
        if new:
            table.alter.add_columns(new)
        return bool(new)

    def _action(self, staged: Path, name: str) -> AddAction:
        file = staged / name
        values: dict[str, Any] = {}
        for part in Path(name).parent.parts:
            column, _, value = part.partition("=")
            values[unquote(column)] = None if value == _NO_VALUE else unquote(value)
        stats = msgspec.json.encode({"numRecords": pq.read_metadata(file).num_rows}).decode()
        path = f"{staged.name}/{name}"
        return AddAction(path, file.stat().st_size, values, self._clock.now_us() // 1000, data_change=True, stats=stats)


def _is_done(table: DeltaTable | None, app: str, batch: int) -> bool:
    done = table.transaction_version(app) if table is not None else None
    return done is not None and done >= batch
