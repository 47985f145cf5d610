"""Numbered records, and what their retries must be answered."""

from __future__ import annotations

from pathlib import Path

from oncelog import limits
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.log.writer import Writer
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.logs.fixtures import duplicate_of
from oncelog.types import Ack

ROOT = Path("/data/shop")
BIG = b"x" * (limits.SEGMENT_BYTES_MIN + 1)
"""A value that fills a segment: the next block goes into another."""

SMALL_SEGMENTS = {"segment_bytes": limits.SEGMENT_BYTES_MIN}


def on_disk(disk: SimulatedDisk, clock: SimulatedClock | None = None) -> Database:
    """Return the database of a process that was just started on a simulated disk."""
    return Database(LocalStorage(ROOT, disk, clock or SYSTEM), clock or SYSTEM)


def write(writer: Writer, numbers: range, size_bytes: int = 0) -> list[Ack]:
    """Append a record with an id for each number. To do it again is to retry."""
    return [writer.append(b"%d" % number + b"." * size_bytes, id=str(number)) for number in numbers]


def retried(acks: list[Ack]) -> list[Ack]:
    """Return what a retry of each must be answered."""
    return [duplicate_of(ack) for ack in acks]
