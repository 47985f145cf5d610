"""A segment's file that shrinks or cannot be read under its reader: an error, not a dead process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from oncelog import CorruptionError, Unavailable
from oncelog.storage.local.disk import RealDisk

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
