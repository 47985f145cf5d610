"""The page of a pipeline: it begins where the runs before ended, and can be read on a telephone."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser

from oncelog.spark.pipeline.history import BatchDone, Ended, Event, Started
from oncelog.spark.pipeline.pipeline import Outcome
from oncelog.spark.report import report

SECOND_US = 1_000_000


def run(begin_s: int, stored: int, rows: int) -> list[Event]:
    """Return a run in which a batch came, and went on to the sink."""
    start, mid, end = (SECOND_US * (begin_s + after) for after in (0, 5, 9))
    came = BatchDone(
        leg="into the log",
        batch=begin_s,
        rows=rows,
        at_us=mid,
        triggered_us=start,
        duration_ms=900,
        stored=stored + rows,
        conflicts=0,
    )
    went = msgspec.structs.replace(came, leg="out of the log", at_us=end, exported=stored + rows)
    return [Started(at_us=start, stored=stored, conflicts=0), came, went, Ended(at_us=end)]


TWO_RUNS = [*run(0, 0, 1_000), *run(1_000, 1_000, 50)]


def made(events: list[Event], figure: int = 1_050) -> str:
    """Return the page of some runs."""
    outcome = Outcome(
        pipeline="orders",
        log="orders",
        rows=50,
        attempts=figure,
        stored=figure,
        duplicates=figure,
        conflicts=figure,
        exported=figure,
        batches=2,
        seconds=9.0,
    )
    return report.of_run(outcome, events)


def test_the_second_run_begins_where_the_first_ended() -> None:
    """What the sink had from earlier runs is not sent on again, and is no lag."""
    page = made(TWO_RUNS)
    assert re.findall(r">0\.0 s\nsent on: ([\d,]+)<", page) == ["1,000"]
    assert re.findall(r"\nnot yet sent on: ([\d,]+)<", page) == ["0", "50", "0"]


def test_the_page_says_what_figures_and_plots_are_of() -> None:
    """Figures count all runs, plots show the last: that is said when there is more than one."""
    assert "figures count all runs, the plots show the last" in made(TWO_RUNS)
    assert "figures count all runs" not in made(run(0, 0, 1_000))


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [360, 400, 1_200])
def test_the_page_can_be_read_at_any_width(browser: Browser, tmp_path: Path, width: int) -> None:
    """No figure is cut off, the page itself does not scroll to the side, and labels are large enough to read."""
    path = tmp_path / "report.html"
    path.write_text(made(TWO_RUNS, figure=1_234_567_890), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.goto(path.as_uri())
        cut = (
            "[...document.querySelectorAll('.figures, .figures div')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert page.evaluate(cut) == 0
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        sizes = "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
        assert min(page.evaluate(sizes)) >= 9
    finally:
        page.close()
