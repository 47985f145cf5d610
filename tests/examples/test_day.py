"""``make run``, the whole of it: real processes, real kills, and a page that a real browser opens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

import oncelog
from examples import counting, orders

ROOT = Path(__file__).parents[2]
ORDERS = 1500


@pytest.mark.xdist_group("story")
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path, kills: int) -> None:
    """Killed on the way into the log (and on the way out of it), the pipeline gives each record once; the control,
    killed as well, does not. The figures are those of the input, and the page shows them.
    """
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "examples.day",
        "--folder",
        str(folder),
        "--orders",
        str(ORDERS),
        "--kills",
        str(kills),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        cells[0]: [int(cell.replace(",", "")) for cell in cells[1:]]
        for line in done.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    day = orders.day(ORDERS, 20260314)
    ours, control = ({name: figures[side] for name, figures in rows.items()} for side in (0, 1))
    logical, attempts, stored, duplicates, conflicts, lost, doubled = ours.values()
    assert (logical, attempts) == (len({attempt.order_id for attempt in day}), len(day))
    assert (stored, lost, doubled) == (logical, 0, 0)
    assert stored + duplicates + conflicts == attempts
    assert disputed(day)[0] <= conflicts <= disputed(day)[1]
    assert (control["lost"], control["doubled"] >= attempts - logical) == (0, True)
    with oncelog.connect((folder / "log").as_uri()) as db:
        assert db.log("orders").audit().ok
        assert db.log("orders").verify().ok
    events = (folder / ".oncelog" / "orders" / "history.jsonl").read_text()
    assert (events.count('"started"'), events.count('"ended"')) == (kills + 1, 1)
    look_at(folder / "report.html", (logical, attempts, duplicates, conflicts))


def disputed(day: list[orders.Order]) -> tuple[int, int]:
    """Return how many attempts of a day are in conflict, at least and at most: of two orders with one id that come in
    one batch, either may stand, and then every attempt of the other is put aside.
    """
    contents: dict[str, Counter[tuple[int, int]]] = {}
    for attempt in day:
        contents.setdefault(attempt.order_id, Counter())[attempt.customer, attempt.amount_cents] += 1
    found = [counts for counts in contents.values() if len(counts) > 1]
    return sum(len(counts) - 1 for counts in found), sum(counts.total() - 1 for counts in found)


def look_at(page: Path, figures: tuple[int, ...]) -> None:
    """Open a report in Chromium, light and wide, dark and narrow: it says the figures, needs nothing else, and fits."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        look(browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light"), page, figures)
        look(browser.new_page(viewport={"width": 380, "height": 800}, color_scheme="dark"), page, figures)
        browser.close()


def look(tab: Page, page: Path, figures: tuple[int, ...]) -> None:
    """Look at the report in one tab."""
    asked: list[str] = []
    said: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(page.as_uri())
    tiles = tab.locator(".figures").inner_text()
    assert all(f"{figure:,}" in tiles for figure in figures)
    assert re.search(r"\b0\s+lost\b", tiles)
    assert tab.locator("svg[role=img]").count() >= 5
    assert tab.locator("svg").first.is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert (asked, said) == ([page.as_uri()], [])


def test_a_day_is_the_same_again(tmp_path: Path) -> None:
    """From one seed comes one day, with all that goes wrong in it: retries, replays, late duplicates, conflicts."""
    first, again = orders.day(800, 7), orders.day(800, 7)
    assert first == again
    assert first != orders.day(800, 8)
    orders.write(tmp_path, 800, 7)
    rows = counting.input_rows(tmp_path, "json", "order_id", {"attempt", "received_at"})
    assert len(rows) == len(first)
    assert list(rows["order_id"]) == [attempt.order_id for attempt in first]
    contents = rows.groupby("_id")["_content"].nunique()
    assert 0 < (contents > 1).sum() <= sum(producer.conflicts for producer in orders.PRODUCERS)
    late = [one for one in first if one.attempt > 1 and one.received_at[11:13] > one.placed_at[11:13]]
    assert len(late) > 5
