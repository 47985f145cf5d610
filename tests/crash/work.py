"""What writers send in the tests that kill them, so that anybody who knows a record's number knows the record."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from oncelog import LogSettings, Record, Window
from oncelog.settings import Idempotence

LOG = "orders"
PADDING_BYTES_MAX = 4_000

Kind = Literal["append", "many", "batch", "submit"]
KINDS: tuple[Kind, ...] = ("append", "many", "batch", "submit")


class Step(NamedTuple):
    """One call of a writer (for ``submit``: a run of calls): consecutive records from number ``first`` on."""

    kind: Kind
    first: int
    size: int

    @property
    def numbers(self) -> range:
        """The numbers of its records."""
        return range(self.first, self.first + self.size)


def settings(idempotence: Idempotence) -> LogSettings:
    """Return settings under which a writer rolls and takes snapshots all the time."""
    return LogSettings(
        idempotence=idempotence,
        window=Window(duration_s=86_400, max_keys=1_000_000),
        segment_bytes=64 * 1024,
        snapshot_records=25,
        snapshot_interval_s=0.05,
    )


def record(number: int, idempotence: Idempotence) -> Record:
    """Return the record of a number: its value begins with the number, and has a length of its own."""
    padding = random.Random(number).randrange(PADDING_BYTES_MAX)
    value = f"{number}:".encode() + bytes([number % 251]) * padding
    return Record(value, id=f"id-{number}" if idempotence != "off" else None)


def number_of(value: bytes) -> int:
    """Return the number of the record that has a value."""
    return int(value.partition(b":")[0])


def next_step(chance: random.Random, first: int) -> Step:
    """Return some new records to send."""
    kind = chance.choice(KINDS)
    return Step(kind, first, 1 if kind == "append" else chance.randrange(2, 7))


def checksum(value: bytes) -> int:
    """Return what a reader reports of a value instead of all of it."""
    return zlib.crc32(value)


def path_of(url: str) -> Path:
    """Return the folder of a file URL."""
    return Path(unquote(urlsplit(url).path))
