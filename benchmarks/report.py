"""From measurements to JSON, Markdown and a picture."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks import plot
from benchmarks.measure import Measurement
from benchmarks.reach import Reached

_INTRO = """# Benchmarks

`make bench` starts every contender itself and measures all of them in one run, on the same records: ids of 28 to 36
bytes, random values, 10,000 records a commit, every commit on stable storage before the next (but where a row says
otherwise). Rounds go in turn, after a warm-up; the table has the best round and how far the rounds lie apart. All
contenders keep every id for good; Oncelog seals files and merges its memory of ids beside the appends. Records are
brought into the form that a contender likes best before the clock starts. What counts are the ratios: figures of
another machine will differ.
"""


class Run(msgspec.Struct, kw_only=True):
    """One workload, measured in one go: on what machine, and what was found."""

    machine: dict[str, str]
    measurements: list[Measurement]


class Result(msgspec.Struct, kw_only=True):
    """What was measured, workload by workload, and the ratios. Each ratio is of one workload's run."""

    quick: bool
    runs: dict[str, Run]
    reached: list[Reached] = []

    @property
    def measurements(self) -> list[Measurement]:
        """All measurements, in the order of the workloads."""
        return [row for run in self.runs.values() for row in run.measurements]


def figure(value: float, unit: str) -> str:
    """Return a figure with its unit, short.

    >>> figure(3_214_000, "records/s"), figure(0.0321, "s"), figure(812, "records/s")
    ('3.21 M records/s', '32.1 ms', '812 records/s')
    """
    if unit == "s":
        return f"{value:.2f} s" if abs(value) >= 1 else f"{1000 * value:.3g} ms"
    if unit in ("x", "% slower", "MB", "M/s"):
        return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{'' if unit.startswith('/') else ' '}{unit}"
    return f"{value:.3g} {unit}"


def verdict(row: Reached) -> str:
    """Return reached, missed, or nothing."""
    return "" if row.reached is None else "reached" if row.reached else "**missed**"


def markdown(result: Result, picture: str, growth: str = "") -> str:
    """Return the page for the documentation."""
    parts = [_INTRO, "## Machine\n"]
    parts.append(_table(("what", "which"), list(_in_common(result).items())))
    parts.append("## Reach\n")
    rows = [(row.work, row.goal, figure(row.value, row.unit), verdict(row)) for row in result.reached]
    parts.append(_table(("work", "goal", "measured", ""), rows))
    parts.append(f"## Side by side\n\n![Throughput of every contender]({picture})\n")
    for run in result.runs.values():
        for workload in _workloads(run.measurements):
            parts.append(f"### {workload[0].upper()}{workload[1:]}\n")
            parts.append(_table(("contender", "best", "spread", "notes"), _rows(run.measurements, workload)))
        parts.append(_when(run, result))
    if growth:
        parts.append(growth)
    return "\n".join(parts)


def _in_common(result: Result) -> dict[str, str]:
    """Return what all runs were measured on."""
    first, *others = (run.machine for run in result.runs.values())
    return {what: which for what, which in first.items() if all(other.get(what) == which for other in others)}


def _when(run: Run, result: Result) -> str:
    """Return in what this run differs from the others: when it was, what else the machine had to do."""
    shared = _in_common(result)
    differs = ", ".join(f"{what} {which}" for what, which in run.machine.items() if what not in shared)
    return f"Measured with {differs}.\n" if differs else ""


def _rows(measurements: Sequence[Measurement], workload: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in measurements:
        if row.workload != workload:
            continue
        if row.missing:
            rows.append((row.contender, row.missing, "", ""))
            continue
        notes = [] if row.durable else ["**not durable**"]
        if "p50_us" in row.more:
            notes.append(f"p50 {row.more['p50_us']:.0f} µs, p99 {row.more['p99_us']:.0f} µs")
        elif "mb_per_s" in row.more:
            notes.append(f"{row.more['mb_per_s']:.0f} MB/s of ids and values")
        if row.note:
            notes.append(row.note)
        rows.append((row.contender, figure(row.best, row.unit), f"{100 * row.spread:.0f} %", "; ".join(notes)))
    return rows


def _workloads(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(row.workload for row in measurements))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def picture(measurements: Sequence[Measurement]) -> str:
    """Return the rates of every workload as bars."""
    groups = []
    for workload in _workloads(measurements):
        rows = [row for row in measurements if row.workload == workload and row.rounds and row.unit.endswith("/s")]
        if rows:
            ordered = sorted(rows, key=lambda row: -row.best)
            drawn = [(row.contender, row.best, figure(row.best, row.unit), _kind(row)) for row in ordered]
            groups.append((f"{workload} (logarithmic)", drawn))
    return plot.bars(groups)


def _kind(row: Measurement) -> str:
    if row.contender.startswith("Oncelog"):
        return "ours"
    if row.contender.startswith(("raw", "pyarrow")):
        return "raw"
    return "peer" if row.durable else "weak"
