"""A disk that fills up under a writer. Run as a program it does so on a real file system of four megabytes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import oncelog
from oncelog import Database, LogSettings, Unavailable
from oncelog.limits import MIB
from oncelog.log.writer import Writer

VALUE = bytes(20_000)
SETTINGS = LogSettings(segment_bytes=64 * 1024, block_bytes=1024)
WAIT_S = 0.2


def live_on_a_full_disk(connect: Callable[[], Database], free: Callable[[], None]) -> int:
    """Fill a disk, make room, go on; return how many records were stored. All promises hold throughout."""
    with connect() as db, db.log("orders", SETTINGS, create=True).writer() as writer:
        stored = fill(writer, 0)
        assert stored > 0
        read_all(db, stored)
        free()
        again = writer.append(VALUE, id=str(stored), timeout_s=None)
        assert again.position == stored, "what was pending is settled at its place"
        assert writer.append(b"more", id=str(stored + 1)).position == stored + 1
    with connect() as db:
        read_all(db, stored + 2)
    return stored + 2


def die_on_a_full_disk(connect: Callable[[], Database], free: Callable[[], None], stored: int) -> None:
    """Fill the disk again, leave it full with a write pending, and let another writer find it so."""
    with connect() as db:
        writer = db.log("orders").writer()
        full = fill(writer, stored)
        unavailable(lambda: writer.close(timeout_s=WAIT_S))
    with connect() as db:
        read_all(db, full, or_one_more=True)
        unavailable(lambda: try_again(db.log("orders").writer(), full))
    free()
    with connect() as db:
        with db.log("orders").writer() as writer:
            assert writer.append(VALUE, id=str(full)).position == full
            assert writer.append(VALUE, id=str(full - 1)).position == full - 1
        read_all(db, full + 1)


def fill(writer: Writer, first: int) -> int:
    """Append until the disk is full; return the number of the record that did not fit."""
    stored: list[int | None] = []

    def append_for_ever() -> None:
        for number in itertools.count(first):
            stored.append(writer.append(VALUE, id=str(number), timeout_s=WAIT_S).position)  # noqa: PERF401  also if it ends

    with pytest.raises(Unavailable, match="disk full: free space") as raised:
        append_for_ever()
    assert raised.value.outcome == "unknown"
    assert stored == list(range(first, first + len(stored)))
    return first + len(stored)


def try_again(writer: Writer, number: int) -> None:
    """Offer what did not fit once more, and leave."""
    try:
        writer.append(VALUE, id=str(number), timeout_s=WAIT_S)
    finally:
        writer.close(timeout_s=WAIT_S)


def unavailable(call: Callable[[], object]) -> None:
    """Do what a full disk may let through or not, and accept no other error than the one that says so."""
    try:
        call()
    except Unavailable as error:
        if "disk full" not in str(error):
            raise


def read_all(db: Database, count: int, *, or_one_more: bool = False) -> None:
    """Make sure that the first ``count`` records are there, once and in order, and no others."""
    found = [entry.id for entry in db.log("orders").read()]
    expected = [str(number) for number in range(count + 1)]
    assert found == expected[:-1] or (or_one_more and found == expected), found


def main(folder: Path) -> None:
    """Mount a small file system and live on it; it goes with this process."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    ballast = folder / "ballast"

    def connect() -> Database:
        return oncelog.connect((folder / "shop").as_uri())

    def give_up_ballast() -> None:
        with ballast.open("r+b") as file:
            file.truncate(2 * MIB)

    ballast.write_bytes(bytes(3 * MIB))
    stored = live_on_a_full_disk(connect, give_up_ballast)
    die_on_a_full_disk(connect, ballast.unlink, stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
