"""A segment's file that shrinks or cannot be read under its reader: an error, not a dead process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import oncelog
from oncelog import CorruptionError, Unavailable
from oncelog.format.block import scan
from oncelog.storage.local import segment_reader
from oncelog.storage.local.disk import RealDisk

LOAD_BYTES = 40_000

PROGRAM = """
import os, sys, oncelog
from pathlib import Path
with oncelog.connect(sys.argv[1]) as db:
    log = db.log("orders")
    with log.read() as entries:
        entries = iter(entries)
        first = next(entries)
        batches = log.read_arrow()
        held = next(batches)
        for path in Path(sys.argv[2]).iterdir():
            os.truncate(path, 100)
        try:
            count = sum(1 for _ in entries) + sum(1 for _ in log.read())
            print("read", count)
        except oncelog.CorruptionError as error:
            print("corrupt", error)
        print(len(first.value), sum(map(len, held["value"].to_pylist())))
"""


def test_a_segment_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """The reader's process died of SIGBUS; and what it holds already stays what it was."""
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        for number in range(50):
            writer.append(b"x" * 100_000, id=str(number))
    segments = tmp_path / "logs" / "orders" / "segments"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path.as_uri(), str(segments)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("corrupt ")
    assert "restore it from a copy" in done.stdout
    first, held = done.stdout.splitlines()[-1].split()
    assert (int(first), int(held) % 100_000) == (100_000, 0)


def test_a_bad_sector_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says that it cannot read: so does the log."""
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"x", id="1")

    def load(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(RealDisk, "load", load)
    with (
        oncelog.connect(tmp_path.as_uri()) as db,
        pytest.raises((CorruptionError, Unavailable), match="input/output error"),
    ):
        list(db.log("orders").read())


def test_blocks_of_one_size_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that ends within a block has the block loaded again: the size of the last block tells where blocks end."""
    loaded: list[int] = []
    load = RealDisk.load

    def counted(self: RealDisk, descriptor: int, length: int, offset: int) -> pa.Buffer:
        loaded.append(length)
        return load(self, descriptor, length, offset)

    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        for _ in range(30):
            writer.append(bytes(9_000))
    (segment,) = (tmp_path / "logs" / "orders" / "segments").iterdir()
    size_bytes = scan(segment.read_bytes()).end
    monkeypatch.setattr(segment_reader, "_LOAD_BYTES", LOAD_BYTES)
    monkeypatch.setattr(RealDisk, "load", counted)
    with oncelog.connect(tmp_path.as_uri()) as db:
        assert len(list(db.log("orders").read())) == 30
    assert sum(loaded) < size_bytes + 10_000, "at most the end of the first load is loaded twice"
    assert max(loaded) <= LOAD_BYTES


def test_blocks_of_any_sizes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the last block is a guess at the next: a wrong one costs a load, and no record."""
    sizes = (10, 50_000, 10, 10, 30_000, 30_000, 10, 90_000, 10, 50_000)
    monkeypatch.setattr(segment_reader, "_LOAD_BYTES", LOAD_BYTES)
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        for size in sizes:
            writer.append(bytes(size))
    with oncelog.connect(tmp_path.as_uri()) as db:
        for start in range(len(sizes)):
            found = [len(entry.value) for entry in db.log("orders").read(start)]
            assert found == list(sizes[start:])


def test_the_end_of_a_segment_is_found_without_the_bodies_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that shows the newest records of a busy log does not load all that came since it looked last."""
    loaded = [0]
    load = RealDisk.load

    def counting(disk: RealDisk, descriptor: int, length: int, offset: int) -> pa.Buffer:
        loaded[0] += length
        return load(disk, descriptor, length, offset)

    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        for number in range(20):
            writer.append(bytes(1 << 20) if number != 12 else b"small", id=str(number))
        with oncelog.connect(tmp_path.as_uri()) as beside:
            orders = beside.log("orders")
            monkeypatch.setattr(RealDisk, "load", counting)
            assert [entry.id for entry in orders.read(start=18, limit=2)] == ["18", "19"]
            assert loaded[0] < 7 << 20  # those two, and the piece of the file after the small one
            assert [entry.id for entry in orders.read(start=11)] == [str(number) for number in range(11, 20)]
