"""Live pages, without a browser: what one look at a log costs, and which log a name stands for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from oncelog import LogSettings, Record, Window
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.console.live import ROWS, LivePages, _Following
from oncelog.console.pages import Pages
from oncelog.console.queue_pages import QueuePages
from oncelog.console.source import Source
from oncelog.console.viewer import KeyGate, LocalViewer
from oncelog.log.log import Log
from oncelog.storage.memory import MemoryStorage


async def _run(work: Callable[[], Any]) -> Any:
    return work()


def _shown(following: _Following) -> list[bytes]:
    return [row.entry.value for row in following.rows if row.entry is not None]


def test_a_live_page_opens_its_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100,000 records a second, opening the log at every look cost more than all the rest of the page."""
    opened: list[str] = []
    opening = Source.log

    def counting(source: Source, name: str) -> Log:
        opened.append(name)
        return opening(source, name)

    monkeypatch.setattr(Source, "log", counting)
    with Database(MemoryStorage()) as database, database.log("orders", create=True).writer() as writer:
        following = _Following(Source(database), "orders")
        for value in (b"1", b"2", b"3"):
            writer.append(value)
            assert following.step(reads=True) == 1
    assert _shown(following) == [b"3", b"2", b"1"]
    assert opened == ["orders"]


def test_a_live_page_follows_a_log_that_was_made_again() -> None:
    """Records of a log that is gone are not shown as those of the log that has its name now."""
    with Database(MemoryStorage()) as database:
        following = _Following(Source(database), "orders")
        for values in ([b"old 1", b"old 2"], [b"new"]):
            with database.log("orders", create=True).writer() as writer:
                for value in values:
                    writer.append(value)
            assert following.step(reads=True) == len(values)
            assert _shown(following) == values[::-1]
            database.delete("orders")


def test_the_tail_says_how_many_records_it_has_no_place_for() -> None:
    """A page that shows 20 of 30 new records does not say that it shows every record, nor answers that nobody notes."""
    with Database(MemoryStorage()) as database, database.log("orders", create=True).writer() as writer:
        pages = Pages(Source(database), KeyGate(SYSTEM), _run)
        live = LivePages(pages, QueuePages(pages))
        following = _Following(pages.source, "orders")
        captions = []
        for count in (ROWS, ROWS + 10):
            following.step(reads=True)
            writer.append_many([Record(b"paid")] * count)
            captions.append(live._tail("orders", following, following.step(reads=True)))
    assert "not shown" not in captions[0]
    assert "10 new ones are not shown" in captions[1]
    assert not any("answers" in caption for caption in captions)


def test_the_first_look_counts_the_records_that_are_left() -> None:
    """Most of a log was truncated. What is gone is not new, and rows that are said to be new are shown."""
    settings = LogSettings(window=Window(duration_s=1, max_keys=2), segment_bytes=65_536)
    with Database(MemoryStorage()) as database:
        log = database.log("orders", settings, create=True)
        with log.writer() as writer:
            for number in range(30):
                writer.append(bytes(20_000), id=str(number))
        log.truncate(before=25)
        left = log.end_position() - log.first_position()
        assert 0 < left < ROWS
        following = _Following(Source(database), "orders")
        assert following.step(reads=True) == len(_shown(following)) == left


def test_a_live_page_has_no_head() -> None:
    """An answer without a body would wait as long as the page is live, and hold up its connection."""
    with Database(MemoryStorage()) as database:
        pages = Pages(Source(database), KeyGate(SYSTEM), _run)
        head = Request({"type": "http", "method": "HEAD", "headers": []})
        answer = asyncio.run(LivePages(pages, QueuePages(pages)).overview(head, LocalViewer("csrf")))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
