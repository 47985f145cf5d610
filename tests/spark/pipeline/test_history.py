"""A pipeline's history stays short, and what it says of all runs stays what it was."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import msgspec
import pytest

from oncelog.spark.pipeline import history
from oncelog.spark.pipeline.history import BatchDone, Ended, Event, History, Started
from oncelog.spark.pipeline.pipeline import Outcome
from oncelog.spark.pipeline.storing import Account
from oncelog.spark.report import report


def batch(number: int, *, rows: int, stored: int, conflicts: int = 0, leg: history.Leg = "into the log") -> BatchDone:
    """Return a batch after which the log has so many records."""
    return BatchDone(
        leg=leg,
        batch=number,
        rows=rows,
        at_us=1_000_000 * (number + 1),
        triggered_us=1_000_000 * number,
        duration_ms=100 + number % 7,
        stored=stored,
        conflicts=conflicts,
        exported=stored if leg == "out of the log" else None,
    )


def long_life(batches: int) -> list[Event]:
    """Return a run of so many batches, each of ten rows, of which seven are stored and one is put aside."""
    events: list[Event] = [Started(at_us=500, stored=0, conflicts=0)]
    for number in range(batches):
        events.append(batch(number, rows=10, stored=7 * (number + 1), conflicts=number + 1))
        events.append(batch(number, rows=7, stored=7 * (number + 1), conflicts=number + 1, leg="out of the log"))
    return events


@pytest.mark.parametrize("times", [1, 2, 5])
def test_summed_up_history_says_the_same_of_all_runs(times: int) -> None:
    """However often the older half is summed up, and wherever that cuts: every figure of all runs is as before."""
    events = [
        *long_life(30),
        Started(at_us=10**9, stored=210, conflicts=30),
        *long_life(3)[1:0],
        Ended(at_us=10**9 + 1),
    ]
    for _ in range(2):
        whole = history.summed(events)
        left = events
        for _ in range(times):
            left = history.thinned(left)
            assert history.summed(left) == whole
        assert len(left) < len(events)
        events = events[:-1]  # a run that was cut short
    assert (whole.runs, whole.batches, whole.attempts, whole.settled, whole.aside) == (2, 30, 300, 210, 30)
    assert (whole.duplicates, whole.exported) == (60, 210)


def test_runs_and_kills_are_told_behind_what_is_summed_up() -> None:
    """A run that ended is not taken for one that was killed because its end was summed up, nor the other way round."""
    clean = [*long_life(3), Ended(at_us=50), Started(at_us=60, stored=21, conflicts=3), batch(9, rows=1, stored=22)]
    cut = [event for event in clean if not isinstance(event, Ended)]
    for events, killed in ((clean, 0), (cut, 1)):
        middle = next(number for number, event in enumerate(events) if event.at_us == 60)
        left: list[Event] = [history.summed(events[:middle]), *events[middle:]]
        assert len(history.kills(left)) == killed == len(history.kills(events))
    assert history.recent([history.summed(clean[:8]), *clean[8:]]) == clean[8:]


@pytest.mark.parametrize("noted", [True, False])
def test_batch_that_comes_again_with_other_rows_is_counted_again(*, noted: bool) -> None:
    """Two rows were stored, the run was killed, and the batch has a row more: five came in, whether or not the first
    two were noted before the kill. A batch that comes again as it was is counted once.
    """

    def of(rows: int, *totals: int) -> BatchDone:
        found = Account(rows=rows, totals=totals)  # type: ignore[arg-type]  # three of them
        return msgspec.structs.replace(batch(0, rows=rows, stored=totals[0]), query="q", account=found)

    first, second = of(2, 2, 0, 0), of(3, 3, 2, 0)
    for events in ([second], [second, second]):
        whole = history.summed([first, *events] if noted else events)
        assert (whole.attempts, whole.settled, whole.duplicates, whole.aside) == (5, 3, 2, 0)
    assert history.summed([first, first]).attempts == 2


def test_what_others_stored_between_runs_is_not_counted() -> None:
    """Two pipelines into one log: each counts its own."""
    events = [
        *long_life(2),
        Ended(at_us=50),
        Started(at_us=60, stored=1014, conflicts=2),
        batch(2, rows=5, stored=1016, conflicts=2),
    ]
    assert [(one.stored, one.duplicates) for one in history.settled(events)] == [(7, 2), (7, 2), (2, 3)]


def test_file_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that runs for years leaves a file of a bounded length, and no batch uncounted."""
    monkeypatch.setattr(history, "BYTES_MAX", 20_000)
    kept = History(tmp_path / "history.jsonl")
    longest = 0
    for event in long_life(400):
        kept.add(event)
        longest = max(longest, (tmp_path / "history.jsonl").stat().st_size)
    assert longest < 21_000
    assert msgspec.structs.replace(history.summed(list(kept)), at_us=0) == msgspec.structs.replace(
        history.summed(long_life(400)), at_us=0
    )
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


def test_run_beside_another_writes_to_the_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run sums the file up while another waits to add to it: what that adds is not lost with the old file."""
    path = tmp_path / "history.jsonl"
    first, second = History(path), History(path)
    for event in long_life(10):
        first.add(event)
    monkeypatch.setattr(history, "BYTES_MAX", 100)
    flock = fcntl.flock
    raced: list[bool] = []

    def late(file: IO[bytes], operation: int) -> None:
        flock(file, operation)
        if not raced:
            raced.append(True)
            before = path.read_bytes()
            path.unlink()
            path.write_bytes(before)  # as the other run did, while this one waited

    monkeypatch.setattr(fcntl, "flock", late)
    second.add(Ended(at_us=77))
    assert list(second)[-1] == Ended(at_us=77)
    assert history.summed(list(second)).batches == 10


def test_report_of_a_long_life_has_room() -> None:
    """Thousands of batches are put together in as many columns as can be told apart, and nothing is left out."""
    events = history.thinned(long_life(3000))
    outcome = Outcome(
        pipeline="orders", log="orders", rows=0, attempts=1, stored=1, duplicates=0, conflicts=0, exported=1, batches=1,
        seconds=1.0,
    )  # fmt: skip
    page = report.of_run(outcome, events)
    assert "1 run, from" in page
    assert "The plots show what came since" in page
    assert "batches make a column" in page
    assert page.count("<g>") <= 2 * report.COLUMNS_MAX
    assert len(page) < 300_000


def test_line_that_was_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    """A disk was full in the middle of a line: the next run is told all the same."""
    events = History(tmp_path / "history.jsonl")
    events.add(Started(at_us=1, stored=0, conflicts=0))
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"type": "Bat')
    events.add(Started(at_us=2, stored=0, conflicts=0))
    assert [event.at_us for event in events] == [1, 2]


def test_history_that_is_gone_leaves_a_report_without_plots() -> None:
    """A run that ended well does not fail because somebody removed what it wrote."""
    assert report.progress([]) == []
