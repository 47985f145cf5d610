"""A log as an Iceberg table, by ``pyiceberg``.

An Iceberg table names its files by absolute paths. So it can have the log's own files, as they are (``in_place``); then
a reader of an older snapshot finds files gone that the log has merged or truncated since. By default the table has
links or copies of its own, which stay until their snapshot expires.

``first_position`` is a column that is in no file: it is the partition of each file. Columns that are the log's own
business (up-time, and what a purged row keeps) have an entry in the name mapping, with ids that the schema has not:
without an entry pyiceberg refuses to read the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IcebergType, LongType, MapType, NestedField, StringType, TimestamptzType

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.format.payload.schema import TIMESTAMP_TYPE
from oncelog.format.sealed import FINGERPRINT, IDENTITY, START, TIMESTAMP, UPTIME
from oncelog.log.info import SealedFileInfo
from oncelog.tables.places import place_at
from oncelog.tables.publishing import COLUMNS, FIRST, State, TableChange, told
from oncelog.types import micros

_RETRIES = "commit.retry.num-retries"
_MAPPING = "schema.name-mapping.default"
_LOG, _VERSION = "oncelog.log", "oncelog.version"
_UNSEEN = {UPTIME: 1001, START: 1002, IDENTITY: 1003, FINGERPRINT: 1004}
_PARTITION_ID = 1000
_KINDS = {"int64": LongType(), "string": StringType(), "binary": BinaryType(), str(TIMESTAMP_TYPE): TimestamptzType()}


def _kind(field: pa.Field) -> IcebergType:
    if pa.types.is_map(field.type):
        return MapType(101, StringType(), 102, BinaryType(), value_required=False)
    return _KINDS[str(field.type)]


_SCHEMA = Schema(*(NestedField(number, field.name, _kind(field)) for number, field in enumerate(COLUMNS, start=1)))


class IcebergPublication:
    """An Iceberg table of a catalog that one log is published to.

    ``options`` are those of the catalog, in pyiceberg's words (``uri``, ``warehouse``); what is not given comes from
    pyiceberg's own configuration. Snapshots, and the files that only they need, are kept for ``keep_s``.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        keep_s: float,
        *,
        catalog: str = "default",
        options: Mapping[str, str],
        in_place: bool = False,
    ) -> None:
        if not name.rpartition(".")[0]:
            message = f"{name!r}: a table of Iceberg's is in a namespace: name it as in shop.{name}"
            raise InvalidArgument(message)
        self.name = name
        self._clock = clock
        self._keep_s = keep_s
        self._in_place = in_place
        try:
            self._catalog: Catalog = load_catalog(catalog, **options)
        except (ValueError, TypeError, KeyError) as error:
            message = f"catalog {catalog!r}: {error}; give it as in --option uri=sqlite:////var/lib/catalog.db"
            raise InvalidArgument(message) from error

    def bring(self, state: State) -> TableChange | None:
        """Compare, link and commit. Retries of pyiceberg's are off: a stale table would be committed all the same."""
        with told(self.name, OSError, RESTError), closing(self._catalog):  # it connects again when it is used again
            return self._bring(state)

    def _bring(self, state: State) -> TableChange | None:
        table = self._opened(state)
        if int(table.properties.get(_VERSION, -1)) > state.version:
            return None
        wanted = self._paths(table, state)
        listed = {task.file.file_path: task.file for task in table.scan().plan_files()}
        new = {path: file for path, file in wanted.items() if path not in listed}
        old = [file for path, file in listed.items() if path not in wanted]
        if not new and not old:
            return TableChange(0, 0)
        added = [self._added(table, path, file) for path, file in new.items()]
        try:
            self._commit(table, state, added, old)
        except CommitFailedException:
            return None
        return TableChange(len(added), len(old))

    def let_go(self) -> None:
        """Remove the files that only old snapshots need, then those snapshots: a kill between leaves no file behind."""
        with told(self.name, OSError, RESTError), closing(self._catalog):
            self._let_go()

    def _let_go(self) -> None:
        table = self._catalog.load_table(self.name)
        before_us = self._clock.now_us() - round(self._keep_s * 1e6)
        current = table.metadata.current_snapshot_id
        old = [
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.timestamp_ms * 1000 < before_us and snapshot.snapshot_id != current
        ]
        if not old:
            return
        kept = {each.snapshot_id for each in table.metadata.snapshots} - set(old)
        gone = _paths_in(table, old) - _paths_in(table, kept)
        own = f"{table.location()}/data/"
        for path in sorted(gone):
            if path.startswith(own):
                place_at(own.rstrip("/")).remove(path.removeprefix(own))
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException:
            return  # another publication does the same

    def _paths(self, table: Table, state: State) -> dict[str, SealedFileInfo]:
        """Return the files of a state by the paths that they have in the table."""
        if self._in_place:
            return {file.path: file for file in state.files}
        return {f"{table.location()}/data/{name}": file for name, file in state.by_name().items()}

    def _added(self, table: Table, path: str, file: SealedFileInfo) -> DataFile:
        own = f"{table.location()}/data"
        if not self._in_place:
            place_at(own).bring(file.path, path.removeprefix(f"{own}/"))
        return _data_file(table, path, file)

    def _commit(self, table: Table, state: State, added: Iterable[DataFile], old: Iterable[DataFile]) -> None:
        noted = {_LOG: state.log_id, _VERSION: str(state.version)}
        with table.transaction() as change:
            change.set_properties(noted)
            with change.update_snapshot(snapshot_properties=noted).overwrite() as update:
                for file in added:
                    update.append_data_file(file)
                for file in old:
                    update.delete_data_file(file)

    def _opened(self, state: State) -> Table:
        """Return the table, created if it is not there; ``InvalidArgument`` for a table that is not this log's."""
        try:
            table = self._catalog.load_table(self.name)
        except NoSuchTableError:
            table = self._created(state)
        if table.properties.get(_LOG) != state.log_id:
            message = f"{self.name} is a table that log {state.log!r} was not published to: name another one"
            raise InvalidArgument(message)
        return table

    def _created(self, state: State) -> Table:
        self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        properties = {_RETRIES: "0", _LOG: state.log_id, _MAPPING: _mapping()}
        partition = PartitionSpec(PartitionField(1, _PARTITION_ID, IdentityTransform(), FIRST))
        return self._catalog.create_table_if_not_exists(
            self.name, _SCHEMA, partition_spec=partition, properties=properties
        )


def _mapping() -> str:
    found = msgspec.json.decode(_SCHEMA.name_mapping.model_dump_json())
    found += [{"field-id": number, "names": [name]} for name, number in _UNSEEN.items()]
    return msgspec.json.encode(found).decode()


def _paths_in(table: Table, snapshots: Iterable[int]) -> set[str]:
    """Return the files that snapshots list."""
    return {task.file.file_path for each in snapshots for task in table.scan(snapshot_id=each).plan_files()}


def _time_bounds(table: Table, path: str) -> tuple[int, bytes, bytes] | None:
    """Return the id of the column of times, with the first and the last of a file; ``None`` if the file has none."""
    with table.io.new_input(path).open() as stream:
        found = pq.read_metadata(stream)
    names = found.schema.to_arrow_schema().names
    if TIMESTAMP not in names:
        return None
    groups = [found.row_group(at).column(names.index(TIMESTAMP)) for at in range(found.num_row_groups)]
    if not groups or not all(group.path_in_schema == TIMESTAMP and group.statistics for group in groups):
        return None
    first = min(group.statistics.min for group in groups)
    last = max(group.statistics.max for group in groups)
    number, kind = _SCHEMA.find_field(TIMESTAMP).field_id, TimestamptzType()
    return number, to_bytes(kind, micros(first)), to_bytes(kind, micros(last))


def _data_file(table: Table, path: str, file: SealedFileInfo) -> DataFile:
    bounds = _time_bounds(table, path)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(file.first_position),
        record_count=file.records,
        file_size_in_bytes=file.bytes,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={} if bounds is None else {bounds[0]: bounds[1]},
        upper_bounds={} if bounds is None else {bounds[0]: bounds[2]},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
    )
