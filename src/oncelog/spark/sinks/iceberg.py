"""Batches into an Iceberg table, each exactly once, by ``pyiceberg``: no jar of Spark's is needed.

Spark writes the batch's Parquet files below the table's location, in a bucket by way of a folder of this machine;
``add_files`` makes them a part of the table in one commit, which also sets the table property of the query's last
batch. If another run has changed the table, pyiceberg by default loads it again and commits all the same: the batch
would be there twice. So retries are switched off in the table. When another run commits first, this commit fails, and
the last batch is looked up again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.spark.sinks.folder import Write, cleaned

_ATTEMPTS_MAX = 20
_CHUNK_BYTES = 8 << 20
_RETRIES = "commit.retry.num-retries"
_OWNER = "oncelog.owner"


class Iceberg:
    """Writes the batches of one query into an Iceberg table whose files are on a disk or in a bucket.

    ``options`` name the table (``table = "shop.orders"``) and the catalog (``catalog``, by its name, ``default`` if not
    given), in pyiceberg's words (``uri``, ``warehouse``, ``s3.endpoint``).
    """

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        given = _of_environment() | {name.lower(): value for name, value in options.items()}
        self._name = given.pop("table")
        self._catalog: Catalog = load_catalog(given.pop("catalog", "default"), **({"type": "sql"} | given))
        self._clock = clock

    def write(self, query: str, batch: int, schema: pa.Schema, write: Write) -> None:
        """Write a batch, unless the table has it. Between two batches no connection to the catalog is held."""
        with closing(self._catalog):  # it connects again when it is used again
            self._write(query, batch, schema, write)

    def _write(self, query: str, batch: int, schema: pa.Schema, write: Write) -> None:
        table = self._opened(schema)
        _check_owner(table, query)
        if _is_done(table, query, batch):
            return
        data = f"{table.location()}/data/oncelog-{batch:010d}-{self._clock.token(8).hex()}"
        with _folder(data) as folder:
            write(str(folder))
            paths = _uploaded(table.io, folder, data) if _is_away(data) else _within(folder)
            if not (paths and self._commit(query, batch, schema, paths)):
                _remove(table.io, folder, paths)

    def _opened(self, schema: pa.Schema) -> Table:
        """Return the table; it is created with every column optional, and without retries, if it is not there."""
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            optional = pa.schema([pa.field(field.name, field.type, nullable=True) for field in schema])
            return self._catalog.create_table_if_not_exists(self._name, optional, properties={_RETRIES: "0"})

    def _commit(self, query: str, batch: int, schema: pa.Schema, paths: list[str]) -> bool:
        """Add files to the table in one commit; return ``False`` if another run has added this batch."""
        for _ in range(_ATTEMPTS_MAX):
            table = self._opened(schema)
            _check_owner(table, query)
            if _is_done(table, query, batch):
                return False
            try:
                if _prepared(table, schema):
                    continue
                with table.transaction() as change:
                    change.set_properties({f"oncelog.batch.{query}": str(batch), _OWNER: query})
                    change.add_files(paths, snapshot_properties={"oncelog.query": query, "oncelog.batch": str(batch)})
            except CommitFailedException:
                continue  # another commit came between: look again
            except (TypeError, ValueError) as error:
                message = f"{self._name}: the table does not take these columns: {error}"
                raise InvalidArgument(message) from error
            return True
        message = f"{self._name}: others committed to the table in each of {_ATTEMPTS_MAX} attempts"
        raise Unavailable(message)


def _of_environment() -> dict[str, str]:
    """Return where S3 is, as the environment says: pyiceberg looks there for keys alone."""
    names = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
    return {option: os.environ[name] for option, name in names.items() if name in os.environ}


def _is_away(location: str) -> bool:
    """Tell whether a location is in a bucket."""
    return "://" in location and not location.startswith("file:")


@contextmanager
def _folder(data: str) -> Iterator[Path]:
    """Yield the folder that Spark writes to: the location itself, or one of this machine; it is not there yet."""
    if not _is_away(data):
        folder = Path(re.sub(r"^file:(//)?", "", data))
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="oncelog-") as made:
        yield Path(made) / "batch"


def _within(folder: Path) -> list[str]:
    return [str(folder / name) for name in cleaned(folder)]


def _uploaded(io: FileIO, folder: Path, data: str) -> list[str]:
    """Store files where the table is, and return their locations."""
    paths = []
    for name in cleaned(folder):
        paths.append(f"{data}/{name}")
        with (folder / name).open("rb") as source, io.new_output(paths[-1]).create() as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)
    return paths


def _remove(io: FileIO, folder: Path, paths: Sequence[str]) -> None:
    """Remove files that are no part of the table."""
    for path in paths:
        if _is_away(path):
            io.delete(path)
    shutil.rmtree(folder, ignore_errors=True)


def _prepared(table: Table, schema: pa.Schema) -> bool:
    """Switch retries off, and add columns that the table has not; return whether that was a commit."""
    if table.properties.get(_RETRIES) != "0":
        with table.transaction() as change:
            change.set_properties({_RETRIES: "0"})
        return True
    known = set(table.schema().as_arrow().names)
    if set(schema.names) <= known:
        return False
    with table.update_schema() as update:
        update.union_by_name(schema)
    return True


def _check_owner(table: Table, query: str) -> None:
    """Refuse a table that another query of ours has written: its batches have the same numbers."""
    owner = table.properties.get(_OWNER)
    if owner not in {None, query}:
        message = (
            f"{'.'.join(table.name())} has batches that query {owner} wrote; this is query {query}. Was the checkpoint "
            "lost? The records would be there twice: drop that table, or name another"
        )
        raise InvalidArgument(message)


def _is_done(table: Table, query: str, batch: int) -> bool:
    done = table.properties.get(f"oncelog.batch.{query}")
    return done is not None and int(done) >= batch
