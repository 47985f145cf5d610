"""Publishing: a table is brought to the state of a log, in one commit, by comparing the files of both.

Sealing, merging, truncation and purging change which files a log has. None of them has to tell the table: a
publication compares the log's files with those of the table, and one commit adds what is new and removes what is gone.
So a publication repairs whatever an earlier one left undone. The commit notes the version of the log's manifest: a
publication that read the log before another one did cannot take the table back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import pyarrow as pa

from oncelog.errors import NotFound, Unavailable
from oncelog.format.payload.schema import (
    FIELDS,
    HEADERS,
    ID,
    PRODUCER,
    SEQUENCE,
    STREAM,
    TENANT,
    TIMESTAMP_TYPE,
    TYPE,
    VALUE,
)
from oncelog.format.sealed import PURGED
from oncelog.log.info import SealedFileInfo
from oncelog.log.log import Log

FIRST = "first_position"
COLUMNS = pa.schema(
    [
        pa.field(FIRST, pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        *(pa.field(FIELDS[bit].name, FIELDS[bit].type) for bit in (ID, STREAM, TYPE, VALUE, HEADERS, PRODUCER)),
        *(pa.field(FIELDS[bit].name, FIELDS[bit].type) for bit in (SEQUENCE, TENANT)),
        pa.field(PURGED, pa.int64()),
    ]
)
"""The columns of a published table, all of them optional: a file that was staged by Spark has only those it needs."""

_ATTEMPTS_MAX = 20


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed files of a log, at one version of its manifest."""

    log: str
    log_id: str
    version: int
    first_position: int
    files: tuple[SealedFileInfo, ...]

    def by_name(self) -> dict[str, SealedFileInfo]:
        """Return the files by the names that they have in a table."""
        return {f"{FIRST}={file.first_position}/{file.path.rpartition('/')[2]}": file for file in self.files}


class TableChange(msgspec.Struct, frozen=True):
    """What a publication did: how many files came into the table, how many left it."""

    added: int
    removed: int


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it is after a publication. It has the rows from ``first_position`` up to ``next_position``.

    Rows that were purged are among them (``purged`` is not null there), and rows of the first file that the log has
    truncated since it was sealed.
    """

    table: str
    log: str
    version: int
    first_position: int
    next_position: int
    files: int
    rows: int
    added: int
    removed: int


class PublishedTable(Protocol):
    """A table that a log is published to."""

    name: str

    def bring(self, state: State) -> TableChange | None:
        """Make the table list the files of a state, in one commit. Return ``None``, with nothing changed, when the
        state is older than the table's, or another commit came first.
        """
        ...

    def let_go(self) -> None:
        """Remove versions of the table that are too old, with the files that only they need."""
        ...


@contextmanager
def told(name: str, *failures: type[Exception]) -> Iterator[None]:
    """Raise ``Unavailable`` in place of what a library of tables raises: what it did is settled by the next attempt."""
    try:
        yield
    except failures as error:
        message = f"{name}: {' '.join(str(error).split())[:500]}"
        raise Unavailable(message, outcome="unknown") from error


def publish(log: Log, table: PublishedTable) -> Published:
    """Bring a table to the state of a log. What is not sealed yet is not in it.

    ``Unavailable`` if others commit to the table, or the log changes its files, all the time.
    """
    for _ in range(_ATTEMPTS_MAX):
        state = state_of(log)
        try:
            change = table.bring(state)
        except NotFound:
            continue  # a file was merged with others since: the log has newer files
        if change is not None:
            table.let_go()
            return _published(table, state, change)
    message = f"{table.name}: others committed to the table, or the log changed, in each of {_ATTEMPTS_MAX} attempts"
    raise Unavailable(message)


def state_of(log: Log) -> State:
    """Return the sealed files of a log with the version of the manifest that names them."""
    while True:
        before, files, after = log.info(), log.files(), log.info()
        if before.version == after.version:
            return State(
                log=log.name,
                log_id=log.log_id,
                version=after.version,
                first_position=after.first_position,
                files=tuple(files),
            )


def _published(table: PublishedTable, state: State, change: TableChange) -> Published:
    rows = sum(file.records for file in state.files)
    first = state.files[0].first_position if state.files else state.first_position
    last = state.files[-1] if state.files else None
    return Published(
        table=table.name,
        log=state.log,
        version=state.version,
        first_position=first,
        next_position=last.first_position + last.records if last is not None else first,
        files=len(state.files),
        rows=rows,
        added=change.added,
        removed=change.removed,
    )
