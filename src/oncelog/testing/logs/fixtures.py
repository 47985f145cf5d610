"""What the suites of the log's contract need: the fixtures to override, and a few short ways to say things."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record

LONG_S = 60.0
"""Longer than anything here takes: what waits so long has failed."""

SMALL_SEGMENTS = LogSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
OFF = LogSettings(idempotence="off")
CONTENT = LogSettings(idempotence="content")
ORIGINAL = LogSettings(on_conflict="original")
FULL = Record(
    b"paid", id="order-42", stream="orders", type="Paid", headers={"trace": b"\x00\xff", "a": b""}, tenant="shop"
)


class Reopen(Protocol):
    """Ends a database, by closing it or by a crash, and opens it again."""

    def __call__(self, *, crash: bool = False) -> Database:
        """Return a new database on the same logs."""
        ...


class LogContractFixtures:
    """What the suites need: override ``database`` and ``reopen``."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a new, empty database: override this."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, database: Database) -> Reopen:
        """Return what ends ``database`` and opens it again: override this."""
        raise NotImplementedError

    @pytest.fixture
    def log(self, database: Database) -> Log:
        """Return a new log with the default settings."""
        return database.log("orders", create=True)

    @pytest.fixture
    def writer(self, log: Log) -> Iterator[Writer]:
        """Yield its writer."""
        with log.writer() as writer:
            yield writer


def append(writer: Writer, record: Record) -> Ack:
    """Append a record as it is."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return writer.append(**fields)


_LABELS = ("id", "stream", "type", "tenant")


def table(*records: Record) -> pa.Table:
    """Return records as a user's table: all columns of a plain log."""
    text = {name: pa.array([getattr(record, name) for record in records], pa.string()) for name in _LABELS}
    headers = [None if record.headers is None else list(record.headers.items()) for record in records]
    return pa.table(
        {
            "value": pa.array([record.value for record in records], pa.binary()),
            **text,
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
        }
    )


def values(log: Log) -> list[bytes]:
    """Return the values of all records."""
    return [entry.value for entry in log.read()]


def places(log: Log) -> list[tuple[int | None, int | None, int | None, datetime | None]]:
    """Return where all records are."""
    return [(entry.position, entry.segment, entry.entry, entry.timestamp) for entry in log.read()]


def place(ack: Ack) -> tuple[int | None, int | None, int | None, datetime | None]:
    """Return where an ack says that its record is."""
    return ack.position, ack.segment, ack.entry, ack.timestamp


def duplicate_of(ack: Ack) -> Ack:
    """Return what a retry of a record must be answered, given the first one's ack."""
    return Ack(*place(ack), duplicate=True)
