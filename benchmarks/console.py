"""The console: how soon each page paints, and what a page with a live tail costs its server.

``python -m benchmarks.console paint`` starts a server on a database with 1,000 logs for every page, loads the page as
its first one (cold), and then again (warm), in Chromium. The time is the browser's own: first contentful paint, from
the beginning of the navigation, redirects and the login of an open server included.

``python -m benchmarks.console tail`` appends 100,000 records a second to a server. In turns, a live page of the log is
open and not; the processor time of the server is compared. Run both on a machine that does nothing else.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright

import oncelog
from benchmarks.served import Remote
from scripts import screenshots

LOGS = 1000
WARM = 7
"""Loads of a page after the first one."""

RATE = 100_000
BATCH = 5_000
TURN_S = 5.0
TURNS = 20
"""Half of the turns have a live page."""

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    """Measure what was asked for, and print it."""
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as made:
        if sys.argv[1:] == ["paint"]:
            paint(Path(made))
        elif sys.argv[1:] == ["tail"]:
            tail(Path(made))
        else:
            sys.exit("python -m benchmarks.console paint | tail")


def paint(folder: Path) -> None:
    """Print when each page paints first."""
    screenshots.fill(folder)
    with oncelog.connect((folder / "shop").as_uri()) as db:
        for number in range(LOGS):
            with db.log(f"shop-{number:04d}", create=True).writer() as writer:
                writer.append(screenshots.order(number, 1), id=f"order-{number}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=screenshots.CHROMIUM, args=screenshots.FLAGS)
        browser.new_page().goto("about:blank")
        _print("page", "cold", "warm, median", "warm, worst")
        for name, path in screenshots.PAGES.items():
            if name in screenshots.ACTED:
                continue
            cold, warm = _painted(browser, folder, name, path)
            _print(name, *(f"{one:.0f} ms" for one in (cold, statistics.median(warm), max(warm))))
        browser.close()


def _painted(browser: Browser, folder: Path, name: str, path: str) -> tuple[float, list[float]]:
    """Return the milliseconds to the first paint of a page: the first page of a server, and later ones."""
    with screenshots.serving(folder) as base:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        page = context.new_page()
        times = [_first_paint(page, base, name, path) for _ in range(1 + WARM)]
        context.close()
    return times[0], times[1:]


def _first_paint(page: Page, base: str, name: str, path: str) -> float:
    page.goto(f"{base}/console/{path}", wait_until="commit")
    if name == "find":  # what is measured is the answer
        page.fill("input[name=log]", "orders")
        page.fill("input[name=id]", "order-42")
        page.click("main form button", no_wait_after=True)
        page.wait_for_selector(".found")
    while (painted := page.evaluate(PAINTED)) is None:  # the pages' policy forbids a function that waits
        page.wait_for_timeout(10)
    return float(painted)


def tail(folder: Path) -> None:
    """Print the processor time of a server with and without a live page."""
    server = Remote(folder)
    server.open()
    url = f"http://{server.addresses['http']}/console/"
    with _appending(server) as stored:
        time.sleep(TURN_S)
        turns: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(TURNS):
            with _looking(url, live=turn % 2 == 1) as events:
                time.sleep(1.0)  # the first look reads more than later ones
                begun, used, count = time.perf_counter(), server.cpu_s(), stored[0]
                time.sleep(TURN_S)
                took, used, count = time.perf_counter() - begun, server.cpu_s() - used, stored[0] - count
            turns[turn % 2 == 1].append(used / took)
            _print("live" if turn % 2 else "alone", f"{used / took:.1%} of a core", f"{count / took:,.0f}/s", events[0])
    alone, live = (statistics.median(turns[with_page]) for with_page in (False, True))
    _print("medians", f"alone {alone:.2%}", f"live {live:.2%}", f"more: {live / alone - 1:.1%}")
    server.close()


@contextmanager
def _appending(server: Remote) -> Iterator[list[int]]:
    """Append at an even rate in a thread; yield how many records are stored."""
    over, stored = threading.Event(), [0]
    log = server.log

    def run() -> None:
        begun, number = time.perf_counter(), 0
        value = pa.array([b"x" * 100] * BATCH)
        while not over.wait(max(0.0, begun + number * BATCH / RATE - time.perf_counter())):
            ids = pa.array([f"order-{number}-{row}" for row in range(BATCH)])
            server.writer.append_arrow(pa.table({"id": ids, "value": value}))
            number += 1
            stored[0] += BATCH

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield stored
    finally:
        over.set()
        thread.join()
    assert log.end_position() == stored[0]


@contextmanager
def _looking(url: str, *, live: bool) -> Iterator[list[int]]:
    """Take the events that a live page of the log takes, if ``live``; yield how many came."""
    events, over = [0], threading.Event()

    def run() -> None:
        with (
            httpx.Client(base_url=url, timeout=60, follow_redirects=True) as http,
            http.stream("GET", "live/log?name=bench") as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    assert "tail" in json.loads(line.removeprefix("data: "))
                    events[0] += 1
                if over.is_set():
                    return

    thread = threading.Thread(target=run, daemon=True)
    if live:
        thread.start()
    try:
        yield events
    finally:
        over.set()
        if live:
            thread.join()


def _print(*cells: object) -> None:
    print("".join(f"{cell!s:24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
