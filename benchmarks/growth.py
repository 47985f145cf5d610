"""Does it stay flat? Append to one log up to 100 M records, with a crash and a new writer at every mark.

As a program, it is the writer: it appends up to a mark, tells what it saw, and is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import oncelog
from benchmarks import plot
from benchmarks.contender import BATCH_RECORDS
from benchmarks.embedded import settings
from benchmarks.machine import machine
from benchmarks.raw import Raw
from benchmarks.records import Source
from benchmarks.report import figure
from oncelog import LogSettings, Window

_KEPT_BATCHES = 40
"""Batches are used again, long after the window has forgotten them: making new ones would take longer than storing."""

_RECORD_BYTES = 200
_RAW_EVERY = 10
"""After so many commits one raw write of the same bytes: many a disk is quick for some gigabytes only."""


class Sample(msgspec.Struct, frozen=True):
    """What the writer saw over the last stretch of records."""

    records: int
    records_per_s: float
    p50_ms: float
    p99_ms: float
    memory_mb: float
    raw_p50_ms: float


class Growth(msgspec.Struct, frozen=True):
    """One run: samples on the way, and how long opening took after a crash at each mark."""

    machine: dict[str, str]
    samples: list[Sample]
    open_s: dict[int, float]


def marks(most: int) -> list[int]:
    """Return the records at which the writer is killed: 1, 3, 10, 30 … million, up to ``most``."""
    steps = [factor * 10**power for power in range(6, 12) for factor in (1, 3)]
    return [step for step in steps if step <= most] or [most]


def run(folder: Path, records: int) -> Growth:
    """Append up to that many records, or as many as the disk takes."""
    room = shutil.disk_usage(folder).free // 2 // _RECORD_BYTES
    measured_on = machine(folder)
    samples: list[Sample] = []
    open_s: dict[int, float] = {}
    home = folder / "growth"
    for mark in marks(min(records, room)):
        writer = subprocess.run(
            [sys.executable, "-m", "benchmarks.growth", str(home), str(mark)], check=False, stdout=subprocess.PIPE
        )
        assert writer.returncode == -signal.SIGKILL, f"the writer that had to be killed ended with {writer.returncode}"
        samples += [msgspec.json.decode(line, type=Sample) for line in writer.stdout.splitlines()]
        open_s[mark] = _open_s(home)
        print(f"{mark:>13,} records: {_words(samples[-1])}, open {figure(open_s[mark], 's')}", flush=True)
    return Growth(measured_on, samples, open_s)


def _words(sample: Sample) -> str:
    rate = figure(sample.records_per_s, "records/s")
    return f"{rate}, p50 {sample.p50_ms:.2f} ms, p99 {sample.p99_ms:.2f} ms, {sample.memory_mb:.0f} MB"


def _open_s(home: Path) -> float:
    with oncelog.connect(home.as_uri()) as db:
        started = time.perf_counter()
        db.log("growth").writer()
        return time.perf_counter() - started


def append_and_die(home: Path, mark: int) -> None:
    """Append up to the mark, sampling on the way, and be killed."""
    source = Source(100)
    made = [source.batch(BATCH_RECORDS) for _ in range(_KEPT_BATCHES)]
    batches = [batch.table() for batch in made]
    beside = home.with_name(f"beside-{mark}")
    beside.mkdir()
    raw = Raw(beside)
    raw.open()
    blocks = [[block] for block in raw.prepare(made)]
    writer = oncelog.connect(home.as_uri()).log("growth", _settings(), create=True).writer()
    stored = writer.last_position + 1
    stretch = -(-(mark - stored) // BATCH_RECORDS // 4)
    while stored < mark:
        latencies: list[float] = []
        raws: list[float] = []
        for number in range(min(stretch, -(-(mark - stored) // BATCH_RECORDS))):
            latencies.append(_seconds(writer.append_arrow, batches[number % _KEPT_BATCHES]))
            if number % _RAW_EVERY == 0:
                raws.append(_seconds(raw.append, blocks[number % _KEPT_BATCHES]))
        stored = writer.last_position + 1
        sys.stdout.buffer.write(msgspec.json.encode(_sample(stored, latencies, raws)) + b"\n")
        sys.stdout.buffer.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _settings() -> LogSettings:
    """Return settings under which batches that come again are new: those of a bounded window."""
    return msgspec.structs.replace(settings(), window=Window(duration_s=600.0, max_keys=100_000))


def _seconds(work: Callable[[Any], object], given: object) -> float:
    started = time.perf_counter()
    work(given)
    return time.perf_counter() - started


def _sample(stored: int, latencies: list[float], raws: list[float]) -> Sample:
    ordered = sorted(latencies)
    return Sample(
        records=stored,
        records_per_s=len(ordered) * BATCH_RECORDS / sum(ordered),
        p50_ms=1000 * ordered[len(ordered) // 2],
        p99_ms=1000 * ordered[len(ordered) * 99 // 100],
        memory_mb=memory_mb(),
        raw_p50_ms=1000 * statistics.median(raws),
    )


def memory_mb() -> float:
    """Return the memory that is this process's own: mapped files are the page cache's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("RssAnon"))


def picture(growth: Growth) -> str:
    """Return throughput, latency, memory and open time over the length of the log."""
    samples = growth.samples
    height = 0
    drawings = []
    for title, unit, series in (
        (
            "append, 10,000 records a commit",
            "M/s",
            {"throughput": [(s.records, s.records_per_s / 1e6) for s in samples]},
        ),
        (
            "latency of a commit",
            "ms",
            {
                "p50": [(s.records, s.p50_ms) for s in samples],
                "p99": [(s.records, s.p99_ms) for s in samples],
                "raw write and sync, p50": [(s.records, s.raw_p50_ms) for s in samples],
            },
        ),
        ("memory of the writer", "MB", {"anonymous": [(s.records, s.memory_mb) for s in samples]}),
        ("open after a crash", "s", {"open": [(mark, seconds) for mark, seconds in growth.open_s.items()]}),
    ):
        drawing, height = plot.lines(title, unit, series, height)
        drawings.append(drawing)
    return plot.stacked(drawings, height)


def markdown(growth: Growth, picture: str) -> str:
    """Return the section for the documentation."""
    head = (
        "## Growth\n\nOne log, 10,000 records a commit, sealed as it grows; at each mark its writer is killed and "
        "another one opens it. Between the commits the same bytes are written and synced raw: a disk that is slower "
        "after some gigabytes is so for everybody.\n"
    )
    lines = [
        "| records | append | p50 | p99 | raw write and sync, p50 | memory | open after a crash |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mark, seconds in growth.open_s.items():
        sample = min(growth.samples, key=lambda sample: abs(sample.records - mark))
        cells = (f"{mark / 1e6:g} M", figure(sample.records_per_s, "records/s"), f"{sample.p50_ms:.2f} ms")
        more = (f"{sample.p99_ms:.2f} ms", f"{sample.raw_p50_ms:.2f} ms", f"{sample.memory_mb:.0f} MB")
        lines.append(f"| {' | '.join((*cells, *more, figure(seconds, 's')))} |")
    return "\n".join(
        [head, *lines, "", f"![Throughput, latency, memory and open time over the log's length]({picture})", ""]
    )


if __name__ == "__main__":
    append_and_die(Path(sys.argv[1]), int(sys.argv[2]))
