"""Oncelog: an append-only log in which a retried write is never a second write."""

from oncelog.connect import Database, connect
from oncelog.errors import (
    AppendErrors,
    Closed,
    CorruptionError,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    LogBusy,
    NotFound,
    OncelogError,
    PartialOverlap,
    TooSlow,
    Unavailable,
    Unsupported,
    WriterFenced,
    WrongExpectedVersion,
)
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, ColumnAcks, Entry, Record

__all__ = [
    "Ack",
    "AppendErrors",
    "Closed",
    "ColumnAcks",
    "CorruptionError",
    "Database",
    "Entry",
    "IdConflict",
    "InvalidArgument",
    "LeaseLost",
    "LogBusy",
    "LogSettings",
    "NotFound",
    "OncelogError",
    "PartialOverlap",
    "Record",
    "TooSlow",
    "Unavailable",
    "Unsupported",
    "Window",
    "WriterFenced",
    "WrongExpectedVersion",
    "connect",
]
