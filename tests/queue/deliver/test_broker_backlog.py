"""A million messages waiting: what a group costs does not grow with what it has not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import resource, sys, time
import msgspec, pyarrow as pa
import oncelog
from oncelog import Message

def memory_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

url, count, delay_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
found = {}
with oncelog.connect(url) as db:
    queue = db.queue("work", create=True)
    for start in range(0, count, 10_000):
        numbers = range(start, min(count, start + 10_000))
        queue.send_many([Message(b"%d" % number, delay_s=delay_s) for number in numbers])
begun = time.perf_counter()
with oncelog.connect(url) as db:
    queue = db.queue("work")
    consumer = queue.consume("g", prefetch=1_000)
    first = consumer.receive()
    found["open_s"] = time.perf_counter() - begun
    before_mb = memory_mb()
    seen = len(first)
    consumer.ack(first)
    for _ in range(30):
        more = consumer.receive()
        seen += len(more)
        consumer.ack(more)
    found["grown_mb"] = memory_mb() - before_mb
    found["seen"] = seen
    found["lag"] = queue.lag("g")
print(msgspec.json.encode(found).decode())
"""


def measured(folder: Path, count: int, delay_s: float = 0.0) -> dict[str, float]:
    """Let a process fill a queue, open it again, and consume some; return what that took."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, (folder / "db").as_uri(), str(count), str(delay_s)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, float] = msgspec.json.decode(done.stdout)
    return found


def test_memory_does_not_grow_with_what_waits(tmp_path: Path) -> None:
    """Consuming a third of what waits takes a few megabytes: neither the log nor the state is held in memory."""
    found = measured(tmp_path, 60_000)
    assert found["seen"] == 31_000
    assert found["lag"] == 29_000
    assert found["grown_mb"] < 60


@pytest.mark.soak
def test_a_million_messages_wait(tmp_path: Path) -> None:
    """The same with a million: opening and the first delivery do not take longer, and memory is bounded."""
    began = time.monotonic()
    found = measured(tmp_path, 1_000_000)
    assert found["seen"] == 31_000
    assert found["lag"] == 969_000
    assert found["grown_mb"] < 60
    print(f"open and first delivery {found['open_s']:.3f} s, in all {time.monotonic() - began:.0f} s")  # noqa: T201


@pytest.mark.soak
def test_a_million_delayed_messages_wait(tmp_path: Path) -> None:
    """Each is a row of the state then, on disk, and not in memory."""
    found = measured(tmp_path, 1_000_000, delay_s=86_400)
    assert found["seen"] == 0
    assert found["lag"] == 1_000_000
    assert found["grown_mb"] < 60
