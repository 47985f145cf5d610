"""``python -m benchmarks [growth | memory-growth] [--quick] [--only NAME]``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks import (
    bucket,
    crash,
    faces,
    files,
    first,
    growth,
    inbox,
    jobs,
    known,
    memory,
    memory_growth,
    queues,
    quorum,
    reading,
    remembering,
    remote,
    report,
    serving,
    spark,
    startup,
    tasks,
    window,
    workloads,
)
from benchmarks.machine import machine
from benchmarks.measure import FULL, QUICK, Measurement, Plan
from benchmarks.reach import reach

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
WORKLOADS: dict[str, Callable[[Path, Plan], list[Measurement]]] = {
    "append": workloads.append,
    "first": first.first,
    "startup": startup.startup,
    "append-1k": workloads.append_1k,
    "limited": workloads.limited,
    "retries": workloads.retries,
    "single": workloads.single,
    "submit": workloads.submit,
    "read": reading.read,
    "open": crash.open_after_crash,
    "window": window.window,
    "memory": memory.memory,
    "remembering": remembering.remembering,
    "bucket": bucket.bucket,
    "quorum": quorum.quorum,
    "server": serving.serving,
    "queue": queues.queues,
    "inbox": inbox.inbox,
    "spark": spark.spark,
    "spark-known": known.known,
    "files": files.files,
    "jobs": jobs.jobs,
    "faces": faces.faces,
    "remote": remote.remote,
    "tasks": tasks.tasks,
}


def main() -> None:
    """Measure, print, and store the result."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by Ctrl-C: servers end too
    folder = Path(tempfile.mkdtemp(prefix="oncelog-bench-", dir=options.dir))
    folder.chmod(0o755)  # a server may run as another user
    try:
        if options.what == "growth":
            _growth(folder, options.records, reference=options.reference)
        elif options.what == "memory-growth":
            _memory_growth(folder, options.records, compiled=not options.plain, reference=options.reference)
        else:
            plan = msgspec.structs.replace(QUICK if options.quick else FULL, ids=options.ids)
            _compare(folder, plan, options.only, reference=options.reference)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=report.__doc__)
    parser.add_argument("what", nargs="?", choices=["compare", "growth", "memory-growth"], default="compare")
    parser.add_argument("--quick", action="store_true", help="a smoke run of about a minute: its figures mean little")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="this workload; may be repeated")
    parser.add_argument("--records", type=int, default=100_000_000, help="growth, memory-growth: how far to go")
    parser.add_argument("--plain", action="store_true", help="memory-growth: with numpy alone")
    parser.add_argument("--ids", type=int, default=FULL.ids, help="memory: how many ids are remembered")
    parser.add_argument("--dir", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument(
        "--reference",
        action="store_true",
        help="make this the result that the documentation shows; with --only, those workloads of it",
    )
    return parser.parse_args()


def _compare(folder: Path, plan: Plan, only: list[str] | None, *, reference: bool) -> None:
    result = _stored() if reference and only else report.Result(quick=plan.quick, runs={})
    for name in only or WORKLOADS:
        measured_on = machine(folder)
        check_same_machine(result, measured_on)
        found = WORKLOADS[name](folder / name, plan)
        shutil.rmtree(folder / name, ignore_errors=True)
        _print(found)
        result.runs[name] = report.Run(machine=measured_on, measurements=found)
    result.runs = {name: result.runs[name] for name in WORKLOADS if name in result.runs}
    result.reached = reach(result.measurements)
    print("\nReach")
    for row in result.reached:
        words = {True: "reached", False: "MISSED", None: ""}[row.reached]
        print(f"  {row.work:<100} {row.goal:>22} {report.figure(row.value, row.unit):>16}  {words}")
    if plan.quick:
        print("A quick run: the ratios mean little.")
    name = "reference" if reference else "latest"
    _write(name, msgspec.json.encode(result), report.picture(result.measurements))
    if reference:
        _document()


def _stored() -> report.Result:
    """Return the reference result as it is, to put a workload into; an empty one if there is none."""
    path = RESULTS / "reference.json"
    if not path.exists():
        return report.Result(quick=False, runs={})
    return msgspec.json.decode(path.read_bytes(), type=report.Result)


def check_same_machine(result: report.Result, measured_on: dict[str, str]) -> None:
    """End the program where a workload would stand beside others that were measured on another machine."""
    for run in result.runs.values():
        for what in ("processor", "memory", "file system"):
            if run.machine[what] != measured_on[what]:
                sys.exit(f"{what}: {measured_on[what]}, but the stored result is of {run.machine[what]}: measure all")


def _print(found: list[Measurement]) -> None:
    print(f"\n{found[0].workload}")
    for row in found:
        if row.missing:
            print(f"  {row.contender:<75} {row.missing}")
            continue
        weak = "" if row.durable else "  not durable"
        print(
            f"  {row.contender:<75} {report.figure(row.best, row.unit):>18}  ± {100 * row.spread:3.0f} %{weak}",
            flush=True,
        )


def _growth(folder: Path, records: int, *, reference: bool) -> None:
    grown = growth.run(folder, records)
    _write("reference-growth" if reference else "latest-growth", msgspec.json.encode(grown), growth.picture(grown))
    if reference:
        _document()


def _memory_growth(folder: Path, ids: int, *, compiled: bool, reference: bool) -> None:
    name = f"{'reference' if reference else 'latest'}-{_MEMORY[compiled]}"

    def store(grown: memory_growth.MemoryGrowth) -> None:
        _write(name, msgspec.json.encode(grown), memory_growth.picture([grown]))

    memory_growth.run(folder, ids, compiled=compiled, store=store)
    if reference:
        _document()


_MEMORY = {False: "memory-growth-numpy", True: "memory-growth-numba"}


def _write(name: str, data: bytes, picture: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(data) + b"\n")
    (RESULTS / f"{name}.svg").write_text(picture)
    print(f"\nWritten: {RESULTS / name}.json and .svg")


def document() -> dict[str, str]:
    """Return the files of the documentation that follow from the reference results, by name."""
    files: dict[str, str] = {}
    section = ""
    result = _stored()
    if not result.runs:
        return files  # growth alone makes no page
    if (RESULTS / "reference-growth.json").exists():
        grown = msgspec.json.decode((RESULTS / "reference-growth.json").read_bytes(), type=growth.Growth)
        files["benchmarks-growth.svg"] = growth.picture(grown)
        section = growth.markdown(grown, "benchmarks-growth.svg")
    paths = [RESULTS / f"reference-{name}.json" for name in _MEMORY.values()]
    grown_ids = [
        msgspec.json.decode(path.read_bytes(), type=memory_growth.MemoryGrowth) for path in paths if path.exists()
    ]
    if grown_ids:
        files["benchmarks-memory.svg"] = memory_growth.picture(grown_ids)
        section += "\n" * bool(section) + memory_growth.markdown(grown_ids, "benchmarks-memory.svg")
    files["benchmarks.svg"] = report.picture(result.measurements)
    files["benchmarks.md"] = report.markdown(result, "benchmarks.svg", section)
    return files


def _document() -> None:
    DOCS.mkdir(exist_ok=True)
    for name, text in document().items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
