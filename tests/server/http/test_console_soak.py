"""A live page that stays open for an hour of load keeps its memory, and so does the server that feeds it."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog import Record
from tests.servers import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession

LONG_S = float(os.environ.get("ONCELOG_CONSOLE_SOAK_S", "3600"))
WARM_S = min(60.0, LONG_S / 4)
"""What is held after this time is the measure: caches and pools are filled by then."""

SAMPLES = 10
BATCH = 500
MIB = 1 << 20


@contextmanager
def load(server: Serving) -> Iterator[None]:
    """Append without pause, every second batch a duplicate of the one before, as long as the test lasts."""
    over, there = threading.Event(), threading.Event()

    def run() -> None:
        with oncelog.connect(f"oncelog://{server.grpc}") as db, db.log("orders", create=True).writer() as writer:
            there.set()
            for number in itertools.count():
                if over.is_set():
                    return
                batch = [Record(b'{"total": 42}' * 4, id=f"order-{number // 2}-{n}") for n in range(BATCH)]
                writer.append_many(batch)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        there.wait()
        yield
    finally:
        over.set()
        thread.join()


def held(session: CDPSession) -> tuple[int, int]:
    """Return the bytes of a page's heap and its number of DOM nodes, after a garbage collection."""
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return int(found["JSHeapUsedSize"]), int(found["Nodes"])


def resident_bytes(server: Serving) -> int:
    """Return what the server holds in memory."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.soak
def test_a_live_page_keeps_its_memory(tmp_path: Path, browser: Browser) -> None:
    """Heap, nodes and the server's memory at the end are about those after the first minute: nothing piles up."""
    server = Serving(f"file://{tmp_path}/db")
    context = browser.new_context()
    try:
        with load(server):
            page = context.new_page()
            page.goto(f"http://{server.http}/console/log?name=orders")
            page.wait_for_selector("#state.ok")
            session = context.new_cdp_session(page)
            session.send("Performance.enable")
            page.wait_for_timeout(WARM_S * 1000)
            heap, nodes = held(session)
            memory = resident_bytes(server)
            begun = time.monotonic()
            for number in range(1, SAMPLES + 1):
                page.wait_for_timeout(max(0.0, begun + (LONG_S - WARM_S) * number / SAMPLES - time.monotonic()) * 1000)
                now_heap, now_nodes = held(session)
                now_memory = resident_bytes(server)
                shown = f"{time.monotonic() - begun:.0f} s: heap {now_heap / MIB:.2f} MiB, {now_nodes} nodes"
                sys.stderr.write(f"{shown}, server {now_memory / MIB:.0f} MiB\n")
            page.wait_for_selector("#state.ok")
            assert now_heap < 2 * heap + 2 * MIB
            assert now_nodes < 2 * nodes + 1000
            assert now_memory < memory + 256 * MIB  # the writer's table of ids grows with the log
    finally:
        context.close()
        server.end()
