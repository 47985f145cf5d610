"""Rows that were rejected: what each says, where it was, and why; and their texts as a file, to be mended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

import oncelog
from oncelog.errors import NotFound
from oncelog.spark.pipeline.spec import Spec
from oncelog.types import Entry

_LINE = re.compile(r"[0-9]{1,18}")
"""A number of a line. Others may be able to write the log: what is no such number counts as none."""


class RejectedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected row; ``file`` is empty, and ``line`` 0, for a row that SQL made of others."""

    position: int
    file: str
    line: int
    reason: str
    text: str


def rejected(given: Spec, after: int = -1) -> Iterator[RejectedRow]:
    """Yield the rejected rows behind a position, oldest first."""
    for entry in _entries(given, after):
        headers = {name: bytes(value).decode(errors="replace") for name, value in (entry.headers or {}).items()}
        yield RejectedRow(
            position=entry.position,
            file=headers.get("file", ""),
            line=int(line) if _LINE.fullmatch(line := headers.get("line", "")) else 0,
            reason=headers.get("reason", ""),
            text=entry.value.decode(errors="replace"),
        )


def save(given: Spec, after: int, path: Path) -> int:
    """Write the texts of rejected rows to a new file, each on lines of its own; return how many there are."""
    count = 0
    with path.open("xb") as file:
        for entry in _entries(given, after):
            if entry.value:
                file.write(entry.value.rstrip(b"\r\n") + b"\n")
                count += 1
    return count


def _entries(given: Spec, after: int) -> Iterator[Entry]:
    with oncelog.connect(given.log.url) as db:
        try:
            log = db.log(given.log.rejected)
        except NotFound:
            return
        start = max(after + 1, log.first_position())
        if start < log.end_position():
            yield from log.read(start)
