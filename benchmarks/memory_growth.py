"""Does memory stay cheap? Append new ids to one log that remembers them all, up to 100 M, and measure at every mark.

What is measured is CPU time, so that other work on the machine does not count: of the thread that appends, and of the
whole process, whose other threads build and merge runs. A log that remembers 100,000 ids takes the same batches at
every mark, in the same process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

import oncelog
from benchmarks import plot
from benchmarks.contender import BATCH_RECORDS
from benchmarks.growth import marks, memory_mb
from benchmarks.machine import machine
from benchmarks.records import Source
from benchmarks.report import figure
from oncelog import LogSettings, Window
from oncelog.dedup import kernels
from oncelog.log.writer import Writer

_VALUE_BYTES = 16
_STRETCH = 20
"""Batches of a measurement at a mark."""

_SINGLES = 300
_KEPT_EVERY = 100
"""Of so many batches one is kept, to be sent again."""

_ROUNDS = 3
_ID_BYTES = 150
"""What an id takes with its record, and with its runs while they are merged."""


class Sample(msgspec.Struct, frozen=True):
    """What was measured with so many ids remembered. Times are of CPU, in microseconds a record."""

    ids: int
    append_us: float
    bounded_us: float
    background_us: float
    single_us: float
    bounded_single_us: float
    known_us: float
    open_s: float
    memory_mb: float
    runs: int
    disk_bytes_per_id: float


class MemoryGrowth(msgspec.Struct, frozen=True):
    """One run with numba or without it."""

    machine: dict[str, str]
    compiled: bool
    samples: list[Sample]


def run(folder: Path, ids: int, *, compiled: bool, store: Callable[[MemoryGrowth], None]) -> None:
    """Append up to so many ids, or as many as the disk takes; store what was measured at every mark."""
    kernels.choose("1" if compiled else "0")
    room = shutil.disk_usage(folder).free * 3 // 4 // _ID_BYTES
    pair = _Pair(folder)
    grown = MemoryGrowth(machine(folder), compiled, [])
    for mark in marks(min(ids, room)):
        grown.samples.append(pair.grown_to(mark))
        print(msgspec.json.encode(grown.samples[-1]).decode(), flush=True)
        store(grown)
    pair.close()


class _Pair:
    """A log that remembers all ids, and one that remembers 100,000."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = Source(_VALUE_BYTES)
        self._kept: list[pa.RecordBatch] = []
        self._stored = 0
        self._small = self._opened("small", Window(duration_s=86_400.0, max_keys=100_000))
        self._large = self._opened("large", Window())

    def _opened(self, name: str, window: Window) -> Writer:
        settings = LogSettings(window=window, block_bytes=16 << 20, seal="off")
        return oncelog.connect((self._folder / name).as_uri()).log("growth", settings, create=True).writer()

    def close(self) -> None:
        """Close both writers."""
        self._small.close()
        self._large.close()

    def grown_to(self, mark: int) -> Sample:
        """Append up to a mark, and measure there."""
        begun, others = self._stored, 0.0
        while self._stored < mark:
            others += self._fill(min(_KEPT_EVERY, -(-(mark - self._stored) // BATCH_RECORDS)))
        background_us = 1e6 * others / max(1, self._stored - begun)
        append_us, bounded_us = self._compared(self._appended)
        single_us, bounded_single_us = self._compared(self._singles)
        known_us = min(self._appended(self._large, self._kept[-_STRETCH:]) for _ in range(_ROUNDS))
        open_s = self._open_s()
        found = self._large_log().info().memory
        assert found is not None
        return Sample(
            ids=found.ids,
            append_us=append_us,
            bounded_us=bounded_us,
            background_us=background_us,
            single_us=single_us,
            bounded_single_us=bounded_single_us,
            known_us=known_us,
            open_s=open_s,
            memory_mb=memory_mb(),
            runs=found.runs,
            disk_bytes_per_id=found.disk_bytes / max(1, found.ids),
        )

    def _fill(self, count: int) -> float:
        """Append batches; return the CPU seconds that other threads took meanwhile."""
        process, thread = time.process_time(), time.thread_time()
        for table in self._batches(count):
            self._large.append_arrow(table, timeout_s=None)
        self._kept.append(table)
        self._stored += count * BATCH_RECORDS
        return (time.process_time() - process) - (time.thread_time() - thread)

    def _batches(self, count: int) -> Iterator[pa.RecordBatch]:
        return (self._source.batch(BATCH_RECORDS).table() for _ in range(count))

    def _compared(self, work: Callable[[Writer, list[pa.RecordBatch]], float]) -> tuple[float, float]:
        """Return the best of some rounds for both logs, in turn."""
        large, small = [], []
        for _ in range(_ROUNDS):
            tables = list(self._batches(_STRETCH))
            large.append(work(self._large, tables))
            small.append(work(self._small, tables))
        return min(large), min(small)

    @staticmethod
    def _appended(writer: Writer, tables: list[pa.RecordBatch]) -> float:
        began = time.thread_time()
        for table in tables:
            writer.append_arrow(table, timeout_s=None)
        return 1e6 * (time.thread_time() - began) / (len(tables) * BATCH_RECORDS)

    @staticmethod
    def _singles(writer: Writer, tables: list[pa.RecordBatch]) -> float:
        ids = tables[0].column("id").to_pylist()[:_SINGLES]
        began = time.thread_time()
        for id in ids:
            writer.append(b"x" * _VALUE_BYTES, id=f"single-{id}")
        return 1e6 * (time.thread_time() - began) / len(ids)

    def _open_s(self) -> float:
        """Close the log that remembers all; return the CPU seconds of a new writer, which it goes on with."""
        self._large.close()
        began = time.process_time()
        self._large = self._large_log().writer()
        return time.process_time() - began

    def _large_log(self) -> oncelog.Log:
        return oncelog.connect((self._folder / "large").as_uri()).log("growth")


def picture(grown: list[MemoryGrowth]) -> str:
    """Return what appending, knowing, opening and memory cost over the number of ids."""
    height, drawings = 0, []
    for title, unit, fields in (
        ("append_arrow, 10,000 new ids a commit: CPU of the thread that appends", "µs", ("append_us", "bounded_us")),
        ("building and merging runs in the background: CPU", "µs", ("background_us",)),
        ("append, one id at a time: CPU of the thread", "µs", ("single_us", "bounded_single_us")),
        ("append_arrow of known ids: CPU a record", "µs", ("known_us",)),
        ("opening: CPU", "s", ("open_s",)),
        ("anonymous memory of the process", "MB", ("memory_mb",)),
    ):
        series = {
            f"{_NAMES.get(field, '')}{'numba' if each.compiled else 'numpy'}": [
                (sample.ids, getattr(sample, field)) for sample in each.samples
            ]
            for each in grown
            for field in fields
        }
        drawing, height = plot.lines(title, unit, series, height)
        drawings.append(drawing)
    return plot.stacked(drawings, height)


_NAMES = {"bounded_us": "window of 100,000, ", "bounded_single_us": "window of 100,000, "}


def markdown(grown: list[MemoryGrowth], picture: str) -> str:
    """Return the section for the documentation."""
    head = (
        "## Memory of ids\n\nOne log that remembers every id, 10,000 new ids a commit, values of 16 bytes, not sealed. "
        "Times are CPU time. Beside it a log with a window of 100,000 ids takes the same batches at every mark. "
        f"Measured on {grown[0].machine.get('date', 'an unknown day')}.\n"
    )
    names = (
        *("ids", "", "append_arrow", "the same, window of 100,000", "in the background", "append"),
        *("the same, window of 100,000", "known ids", "open", "runs", "disk an id"),
    )
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
    for each in grown:
        lines += [_line(sample, "numba" if each.compiled else "numpy") for sample in each.samples]
    lines += ["", *_reached(grown)]
    return "\n".join([head, *lines, "", f"![Cost of remembering over the number of ids]({picture})", ""])


def _reached(grown: list[MemoryGrowth]) -> list[str]:
    """Return, for each reach, up to how many ids it was kept, and from where on it was missed."""
    names = ("reach", "", "kept up to", "missed from")
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
    for what, kept in _REACHES.items():
        for each in grown:
            missed = next((sample.ids for sample in each.samples if not kept(sample)), None)
            before = [sample.ids for sample in each.samples if missed is None or sample.ids < missed]
            ends = (f"{ids / 1e6:.1f} M ids" if ids else "" for ids in (max(before, default=0), missed or 0))
            lines.append(f"| {what} | {'numba' if each.compiled else 'numpy'} | {' | '.join(ends)} |")
    return lines


_REACHES: dict[str, Callable[[Sample], bool]] = {
    "append_arrow, CPU of the thread: 0.85 of a window of 100,000": lambda sample: (
        sample.bounded_us >= 0.85 * sample.append_us
    ),
    "append, CPU of the thread: at most 1.05 times that of a window of 100,000": lambda sample: (
        sample.single_us <= 1.05 * sample.bounded_single_us
    ),
    "background work below 0.5 µs of CPU an id": lambda sample: sample.background_us < 0.5,
    "known rows below 3 µs": lambda sample: sample.known_us < 3,
    "opening below 1 s": lambda sample: sample.open_s < 1,
    "at most 32 bytes of disk an id": lambda sample: sample.disk_bytes_per_id <= 32,
}


def _line(sample: Sample, way: str) -> str:
    arrows = (f"{sample.append_us:.2f} µs", f"{sample.bounded_us:.2f} µs", f"{sample.background_us:.2f} µs")
    singles = (f"{sample.single_us:.0f} µs", f"{sample.bounded_single_us:.0f} µs", f"{sample.known_us:.2f} µs")
    rest = (figure(sample.open_s, "s"), str(sample.runs), f"{sample.disk_bytes_per_id:.1f} B")
    return f"| {' | '.join((f'{sample.ids / 1e6:.1f} M', way, *arrows, *singles, *rest))} |"
