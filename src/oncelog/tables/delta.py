"""A log as a Delta table, by ``deltalake`` (delta-rs).

Delta's readers find files by paths inside of the table's folder only, and ``vacuum`` removes files from there: so the
table has links, or copies, of its own. ``first_position`` is the partition column: polars takes the values of such
columns from the path, other readers from Delta's log, and both have it.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.storage.bucket.paths import bucket_of
from oncelog.tables.places import place_at
from oncelog.tables.publishing import COLUMNS, FIRST, State, TableChange, told

_APP = "oncelog/log/"
_HOUR_S = 3600


class DeltaPublication:
    """A Delta table at a path, or at a URL of a bucket, that one log is published to.

    Versions of the table, and the files that only they need, are kept for ``keep_s``.
    """

    def __init__(self, location: str, clock: Clock, keep_s: float) -> None:
        self.name = arguments.text("delta", location)
        self._clock = clock
        self._keep_s = keep_s
        self._place = place_at(location)
        self._options = {"allow_http": "true"} if bucket_of(location) is not None else None

    def bring(self, state: State) -> TableChange | None:
        """Compare, link and commit; the commit is made with the table object that was compared."""
        for file in state.files[:1]:
            self._place.check(file.path)
        with told(self.name, OSError, DeltaError):
            return self._bring(state)

    def _bring(self, state: State) -> TableChange | None:
        table = self._opened(state)
        app = f"{_APP}{state.log_id}"
        known = table.transaction_version(app)
        if known is not None and known > state.version:
            return None
        wanted, listed = state.by_name(), _listed(table)
        new = {name: file for name, file in wanted.items() if name not in listed}
        old = {name: size for name, size in listed.items() if name not in wanted}
        if not new and not old:
            return TableChange(0, 0)
        for name, file in new.items():
            self._place.bring(file.path, name)
        now_ms = self._clock.now_us() // 1000
        actions: list[AddAction | RemoveAction] = [
            AddAction(name, file.bytes, _partition(name), now_ms, data_change=True, stats=_stats(file.records))
            for name, file in new.items()
        ]
        actions += [RemoveAction(name, True, now_ms, size, _partition(name)) for name, size in old.items()]
        noted = CommitProperties(app_transactions=[Transaction(app, state.version, now_ms)])
        try:
            table.create_write_transaction(actions, "append", table.schema(), [FIRST], commit_properties=noted)
        except CommitFailedError:
            return None
        return TableChange(len(new), len(old))

    def let_go(self) -> None:
        """Remove files that left the table longer than ``keep_s`` ago; a commit of Delta's tells of it."""
        hours = int(self._keep_s // _HOUR_S)
        with told(self.name, OSError, DeltaError):
            table = DeltaTable(self.name, storage_options=self._options)
            if table.vacuum(hours, dry_run=True, enforce_retention_duration=False):
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False)

    def _opened(self, state: State) -> DeltaTable:
        """Return the table, created if it is not there; ``InvalidArgument`` for a table that is not this log's."""
        mine = f"log {state.log_id}"
        if not DeltaTable.is_deltatable(self.name, storage_options=self._options):
            DeltaTable.create(
                self.name,
                Schema.from_arrow(pa.schema(COLUMNS)),
                mode="ignore",
                partition_by=[FIRST],
                description=mine,
                storage_options=self._options,
            )
        table = DeltaTable(self.name, storage_options=self._options)
        if table.metadata().description != mine:
            message = f"{self.name} is a table that log {state.log!r} was not published to: name another place"
            raise InvalidArgument(message)
        return table


def _listed(table: DeltaTable) -> dict[str, int]:
    """Return the files of a table with their sizes."""
    found = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))


def _partition(name: str) -> dict[str, str | None]:
    return {FIRST: name.partition("/")[0].removeprefix(f"{FIRST}=")}


def _stats(records: int) -> str:
    return msgspec.json.encode({"numRecords": records}).decode()
