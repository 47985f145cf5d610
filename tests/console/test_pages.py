"""The pages of the console, without a browser: what they ask of the storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.console.app import build
from oncelog.console.source import PAGE_ROWS, Source
from oncelog.console.viewer import KeyGate
from oncelog.names import home_key
from oncelog.storage.memory import MemoryHome, MemoryStorage

LOGS = 3 * PAGE_ROWS


class Watched(MemoryStorage):
    """A storage that notes which homes are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def home(self, key: str) -> MemoryHome:
        """Note the key, and return the home."""
        self.asked.add(key)
        return super().home(key)


async def _run(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def _page(database: Database, path: str) -> httpx.Response:
    """Log in to a console of the database, and return one of its pages."""
    gate = KeyGate(SYSTEM)
    transport = httpx.ASGITransport(build(Source(database), gate, _run))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.get(f"/console/login?key={gate.key}")
        return await http.get(f"/console/{path}")


@pytest.mark.parametrize(
    ("path", "first"),
    [("logs", 0), ("logs?page=1", PAGE_ROWS), ("logs?q=log-1&page=0", 100), ("pipelines?page=2", 100)],
)
def test_a_page_looks_into_no_more_logs_than_it_shows(path: str, first: int) -> None:
    """With 100,000 logs a page is as quick as with 50: names come from one listing, figures from the logs shown."""
    storage = Watched()
    names = [f"log-{number:03d}" for number in range(LOGS)]
    with Database(storage) as database:
        for name in names:
            database.log(name, create=True)
        storage.asked.clear()
        page = asyncio.run(_page(database, path))
    assert page.status_code == 200
    assert storage.asked == {home_key(name) for name in names[first : first + PAGE_ROWS]}


def test_a_home_without_a_log_is_not_shown_as_one() -> None:
    """A log whose creation was cut short is in the listing of homes, and no row of the page."""
    storage = MemoryStorage()
    with Database(storage) as database:
        database.log("orders", create=True)
        storage.home("unfinished").create("bodies/00000000000000000001-00", [b"x"])
        main = asyncio.run(_page(database, "logs")).text.partition("<main")[2]
    assert "orders" in main
    assert "unfinished" not in main
