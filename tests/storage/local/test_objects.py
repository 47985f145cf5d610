"""An object's file that shrinks under its reader: an error, not a dead process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import oncelog
from oncelog import LogSettings

PROGRAM = """
import os, sys, oncelog
from pathlib import Path
with oncelog.connect(sys.argv[1]) as db:
    log = db.log("orders")
    batches = log.read_arrow()
    held = next(batches)
    for path in Path(sys.argv[2]).glob("*.parquet"):
        os.truncate(path, 100)
    print(held.num_rows + sum(batch.num_rows for batch in batches))
    try:
        print("read", sum(1 for _ in log.read()))
    except oncelog.CorruptionError as error:
        print("corrupt", error)
"""


def test_a_sealed_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """The reader's process died of SIGBUS. Who has the file open reads on; who opens it is told."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", LogSettings(seal="off"), create=True)
        with log.writer() as writer:
            writer.append_many(
                [oncelog.Record(bytes([n % 251]) * 37 + b"%d" % (n**7), id=str(n)) for n in range(70_000)]
            )
        log.seal()
    sealed = tmp_path / "logs" / "orders" / "sealed"
    assert max(path.stat().st_size for path in sealed.glob("*.parquet")) > 2**18, "large enough to be mapped"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path.as_uri(), str(sealed)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("70000\ncorrupt ")
    assert "restore it from a copy" in done.stdout
