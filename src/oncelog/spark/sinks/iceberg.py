"""Batches into an Iceberg table, each exactly once, by ``pyiceberg``: no jar of Spark's is needed.

Spark writes the batch's Parquet files below the table's location; ``add_files`` makes them a part of the table in one
commit, which also sets the table property of the query's last batch. Before it commits, pyiceberg by default loads a
table that has changed, and commits all the same: the batch would be there twice. So retries are switched off in the
table, and a commit that another run came before is looked up again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.spark.sinks.folder import Write, cleaned

_ATTEMPTS_MAX = 20
_RETRIES = "commit.retry.num-retries"
_OWNER = "oncelog.owner"


class Iceberg:
    """Writes the batches of one query into an Iceberg table whose files are on a disk.

    ``options`` name the table (``table = "shop.orders"``) and the catalog (``catalog``, by its name, ``default`` if not
    given), in pyiceberg's words (``uri``, ``warehouse``).
    """

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._name = given.pop("table")
        self._catalog: Catalog = load_catalog(given.pop("catalog", "default"), **({"type": "sql"} | given))
        self._clock = clock

    def write(self, query: str, batch: int, schema: pa.Schema, write: Write) -> None:
        """Write a batch, unless the table has it."""
        table = self._opened(schema)
        _check_owner(table, query)
        if _is_done(table, query, batch):
            return
        staged = (
            Path(table.location().removeprefix("file://"))
            / "data"
            / f"oncelog-{batch:010d}-{self._clock.token(8).hex()}"
        )
        staged.parent.mkdir(parents=True, exist_ok=True)
        write(str(staged))
        paths = [str(staged / name) for name in cleaned(staged)]
        if not (paths and self._commit(query, batch, schema, paths)):
            shutil.rmtree(staged, ignore_errors=True)

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
