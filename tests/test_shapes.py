"""Types are ready before threads decode: msgspec ends the process when two threads prepare one type at once."""

from __future__ import annotations

import subprocess
import sys

_FIRST_USE = """
import sys, threading
import oncelog
from oncelog.format import manifest
sys.setswitchinterval(1e-6)
made = manifest.encode_body(manifest.Manifest(
    name="x", log_id="0" * 32, secret=bytes(32), settings=oncelog.LogSettings(), created_us=0, labels=0))
import pyarrow as pa
go = threading.Barrier(8)
def decode():
    go.wait()
    manifest.decode_body(pa.py_buffer(made), "test")
threads = [threading.Thread(target=decode) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_may_decode_a_type_for_the_first_time() -> None:
    """Eight threads read a manifest at once, in processes that never have: none of the processes dies."""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
