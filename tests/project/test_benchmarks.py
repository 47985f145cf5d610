"""What is published about speed follows from what was measured."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import report
from benchmarks.measure import Measurement
from benchmarks.reach import reach
from benchmarks.records import Source

APPEND = "append, 100-byte values"
RATES = {
    "raw pwritev + fdatasync": 4e6,
    "raw pwritev + fdatasync, zero-filled before": 8e6,
    "Oncelog, append_arrow, explicit ids": 1e6,
    "SQLite": 2e5,
}


def measurements() -> list[Measurement]:
    """Return a run in which one ratio is reached, and one missed by far."""
    peer = Measurement(workload=APPEND, contender="NATS", unit="records/s", rounds=[9e6], durable=False)
    missing = Measurement(workload=APPEND, contender="Redis", unit="records/s", rounds=[], missing="not installed")
    rows = [
        Measurement(workload=APPEND, contender=name, unit="records/s", rounds=[rate / 2, rate])
        for name, rate in RATES.items()
    ]
    return [*rows, peer, missing]


def run_on(date: str, found: list[Measurement], memory: str = "8 GiB") -> report.Run:
    """Return what was measured on a machine."""
    machine = {"date": date, "processor": "one", "memory": memory, "file system": "ext4"}
    return report.Run(machine=machine, measurements=found)


def test_a_peer_that_is_not_durable_is_no_yardstick() -> None:
    """The best peer is the best of those that do the same work."""
    ratios = {row.work: row for row in reach(measurements())}
    against_peer = next(row for work, row in ratios.items() if "best peer (SQLite)" in work)
    against_raw = next(row for work, row in ratios.items() if "both with zeros kept ahead alike" in work)
    assert (against_peer.value, against_peer.reached) == (5, False)
    assert (against_raw.value, against_raw.reached) == (0.25, False)


def test_page_and_picture_show_every_contender() -> None:
    """Nobody is left out because it was not installed, or was not durable."""
    found = measurements()
    result = report.Result(quick=False, runs={"append": run_on("today", found)}, reached=reach(found))
    page = report.markdown(result, "picture.svg")
    assert all(row.contender in page for row in found)
    assert "not installed" in page
    assert "**not durable**" in page
    ET.fromstring(report.picture(found))


def test_the_page_says_when_each_workload_was_measured() -> None:
    """A workload that was measured again does not pass for one of the day of the others."""
    runs = {"append": run_on("the first day", measurements()), "read": run_on("the second day", measurements())}
    page = report.markdown(report.Result(quick=False, runs=runs), "picture.svg")
    assert page.index("| memory | 8 GiB |") < page.index("date the first day") < page.index("date the second day")


def test_workloads_of_two_machines_do_not_stand_side_by_side() -> None:
    """Figures of another machine say nothing about these: that run ends before it begins."""
    stored = report.Result(quick=False, runs={"append": run_on("today", [])})
    program.check_same_machine(stored, run_on("tomorrow", []).machine)
    with pytest.raises(SystemExit, match="memory: 4 GiB, but the stored result is of 8 GiB"):
        program.check_same_machine(stored, run_on("tomorrow", [], memory="4 GiB").machine)


def test_growth_may_be_measured_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference of growth alone is stored, and waits for the page it will be a part of."""
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    (tmp_path / "reference-growth.json").write_text('{"machine": {}, "samples": [], "open_s": {}}')
    assert program.document() == {}


def test_retried_batch_is_half_old() -> None:
    """The workload of retries would measure something else if its retries were not retries."""
    source = Source(100)
    before = source.batch(1000)
    after = source.retried(before, 1000)
    known = dict(before.rows())
    repeats = [(id, value) for id, value in after.rows() if id in known]
    assert len(repeats) == 500
    assert all(known[id] == value for id, value in repeats)


@pytest.mark.parametrize("name", ["benchmarks.md", "benchmarks.svg", "benchmarks-growth.svg", "benchmarks-memory.svg"])
def test_documentation_is_what_the_reference_result_says(name: str) -> None:
    """Figures that were edited by hand, or a result that was stored without its page, are found here."""
    page = program.DOCS / name
    if not (program.RESULTS / "reference.json").exists():
        assert not page.exists()
        return
    assert program.document().get(name) == (page.read_text() if page.exists() else None)


def test_stored_results_are_the_reference_only() -> None:
    """Every other run's result is its machine's own."""
    ignored = (Path(program.__file__).parents[1] / ".gitignore").read_text()
    assert "benchmarks/results/*\n!benchmarks/results/reference*.json" in ignored
