"""The console of a plain database, in a real browser: what it shows is what the API says."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

import oncelog
from oncelog import Message, QueueSettings, Record, RetryPolicy
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.console.app import build
from oncelog.console.source import Source, Verifying
from oncelog.console.viewer import KeyGate
from oncelog.log.jobs.verify import Finding, Verification
from oncelog.storage.memory import MemoryStorage
from tests.console.conftest import Watched, check_look, press, running_console

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("browser")

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
PATHS = [
    "/console/",
    "/console/logs",
    "/console/log?name=orders&start=0",
    "/console/record?log=orders&position=1",
    "/console/find",
    "/console/producers?log=clicks",
    "/console/pipelines",
    "/console/streams?log=accounts",
    "/console/stream?log=accounts&stream=account-1",
    "/console/queues",
    "/console/queue?name=emails",
]


def fill(folder: Path, *, text: str = "plain") -> None:
    """Make a shop in which every field that a user can fill has the given text."""
    with oncelog.connect(folder.as_uri()) as db:
        with db.log("orders", create=True).writer() as w:
            for number in range(30):
                w.append(f"{text} {number}".encode(), id=f"{text}-{number}", headers={text: text.encode()}, type=text)
        with db.log("clicks", create=True).writer(producer=text) as producer:
            producer.append(b"click", sequence=7)
        accounts = db.streams("accounts", create=True)
        accounts.append("account-1", [Record(text.encode(), id=f"{text}-{n}", type=text) for n in range(3)])
        emails = db.queue("emails", QueueSettings(retry=RetryPolicy(max_attempts=1)), create=True)
        emails.send_many([Message(f"{text} {n}".encode(), id=f"{text}-{n}", key=text) for n in range(5)])
        with emails.consume("mailer", prefetch=2) as consumer:
            first, second = consumer.receive(timeout_s=60)
            first.nack(text)
            second.ack()
        while not emails.dead_letters.list():
            with emails.consume("mailer", prefetch=1) as consumer:
                consumer.receive(timeout_s=0.1)


class Verified(Source):
    """A database of which a verification is as far as the test says."""

    now: Verifying | None = None

    def verifying(self, name: str) -> Verifying | None:  # noqa: ARG002 (it is the same for all)
        """Return what the test says."""
        return self.now


async def _run(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


@contextmanager
def serving(source: Source) -> Iterator[str]:
    """Serve the console of a source from a thread; yield its link."""
    gate = KeyGate(SYSTEM)
    app = build(source, gate, _run)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/console/login?key={gate.key}"
        finally:
            server.should_exit = True
            thread.join()


def go(watched: Watched, link: str, path: str) -> str:
    """Go to a page; return the text of its main part."""
    answer = watched.page.goto(link.partition("/console/")[0] + path)
    assert answer is not None
    assert answer.status == 200, watched.page.content()
    return watched.page.inner_text("main")


def test_pages_show_what_the_api_says(shop: Path, link: str, watched: Watched) -> None:
    """Counts, positions, ids, values, versions, standings and errors are those of the database."""
    fill(shop)
    with oncelog.connect(shop.as_uri()) as db:
        info, stats = db.log("orders").info(), db.queue("emails").stats()
    overview = go(watched, link, "/console/")
    assert f"orders\t{info.last_position + 1}" in overview
    log = go(watched, link, "/console/log?name=orders&start=0")
    assert "plain-29" in watched.page.inner_text("body")
    assert f"epoch {info.epoch}" in log
    record = go(watched, link, "/console/record?log=orders&position=7")
    assert "plain-7" in record
    assert "plain 7" in record
    assert "segment 0 · entry 7" in record
    assert "plain\t7" in go(watched, link, "/console/producers?log=clicks")
    assert "account-1\t2\t3" in go(watched, link, "/console/streams?log=accounts")
    stream = go(watched, link, "/console/stream?log=accounts&stream=account-1")
    assert [line.split("\t")[0] for line in stream.splitlines() if "\t" in line][1:] == ["2", "1", "0"]
    queue = go(watched, link, "/console/queue?name=emails")
    mailer = stats.groups["mailer"]
    assert f"delivered {mailer.delivered}, acknowledged {mailer.acked}" in queue
    assert "1 dead" in queue
    assert watched.complaints == []


def test_nothing_that_a_user_fills_in_becomes_part_of_a_page(shop: Path, link: str, watched: Watched) -> None:
    """Ids, values, headers, types, producers, keys and errors with a script in them are shown, and do nothing."""
    fill(shop, text=EVIL)
    for path in PATHS:
        go(watched, link, path)
        assert watched.page.locator("main script, main img").count() == 0
    go(watched, link, "/console/record?log=orders&position=1")
    assert watched.page.locator("td.m", has_text=f"{EVIL}-1").count() == 1
    go(watched, link, "/console/log?name=orders")
    watched.page.wait_for_selector("#state.ok")  # the live tail is HTML that the server made
    assert watched.page.locator("#tail script, #tail img").count() == 0
    assert watched.complaints == []


def test_a_live_page_follows_its_log_and_says_when_it_cannot(shop: Path, watched: Watched) -> None:
    """A record of another process appears by itself; a console that ended is said to be stale, not shown as quiet."""
    page = watched.page
    with oncelog.connect(shop.as_uri()) as db, db.log("orders", create=True).writer() as w:
        w.append(b"first", id="first")
        with running_console(shop.as_uri()) as (link, process):
            page.goto(link)
            page.goto(link.partition("/console/")[0] + "/console/log?name=orders")
            page.wait_for_selector("#tail >> text=first")
            w.append(b"second", id="second")
            page.wait_for_selector("#tail >> text=second")
            process.kill()
            process.wait()
            page.wait_for_selector("#state.bad >> text=stale")


def test_only_the_link_opens_the_console(link: str) -> None:
    """Somebody else on the machine has no key; a page elsewhere that points its name here gets nothing."""
    base = link.partition("/console/")[0]
    with httpx.Client(base_url=base, timeout=60) as stranger:
        assert stranger.get("/console/").headers["location"] == "/console/login"
        assert stranger.get("/console/log?name=orders").status_code == 303
        assert stranger.get("/console/login?key=wrong").status_code == 401
        assert stranger.get(link, headers={"host": "evil.example:80"}).status_code == 421
        mine = stranger.get(link)
        assert mine.status_code == 303
        assert "HttpOnly" in mine.headers["set-cookie"]
        assert "SameSite=strict" in mine.headers["set-cookie"]
        assert stranger.get("/console/").status_code == 200
        assert "default-src 'self'" in stranger.get("/console/").headers["content-security-policy"]
        assert stranger.post("/console/act", data={"act": "delete", "name": "orders"}).status_code == 400


def test_one_damaged_log_does_not_hide_the_others(shop: Path, link: str, watched: Watched) -> None:
    """The list names the damage, and shows the logs that are whole."""
    with oncelog.connect(shop.as_uri()) as db:
        for name in ("broken", "whole"):
            with db.log(name, create=True).writer() as w:
                w.append(b"x")
    for body in (shop / "logs" / "broken" / "bodies").iterdir():
        body.write_bytes(b"damage")
    text = go(watched, link, "/console/logs")
    assert "whole\t1" in text
    assert "broken\t" in text
    assert watched.page.locator("td.badink").count() == 1


def test_the_story_of_an_inbox_key_is_shown(shop: Path, tmp_path: Path, watched: Watched) -> None:
    """An operator sees what became of an effect: its status, its attempts, its result."""
    url = f"sqlite:///{tmp_path}/inbox.db"
    database = sqlite3.connect(tmp_path / "inbox.db")
    with oncelog.Inbox(database) as inbox, inbox.once("order-42", topic="invoices") as effect:
        effect.result = {"invoice": 7}
    database.close()
    with running_console(shop.as_uri(), "--inbox", f"shop={url}") as (link, _):
        watched.page.goto(link)
        go(watched, link, "/console/inboxes")
        watched.page.fill("input[name=key]", "order-42")
        press(watched.page.locator("main form button"))
        watched.page.wait_for_selector("text=invoices")
        assert "COMMITTED" in watched.page.inner_text("main").upper()


def test_pages_fit_a_phone_and_keep_the_rules_of_accessibility(shop: Path, link: str, watched: Watched) -> None:
    """No page and no card is wider than a narrow screen, and axe finds nothing serious, light and dark."""
    fill(shop)
    for path in PATHS:
        go(watched, link, path)
        check_look(watched.page)


def test_a_verification_is_followed_and_its_findings_are_text(browser: Browser) -> None:
    """An open page shows progress, then the result; a producer's name in a finding does nothing."""
    context = browser.new_context()
    page = context.new_page()
    with Database(MemoryStorage()) as database:
        database.log("orders", create=True)
        source = Verified(database)
        with serving(source) as link:
            watched = Watched(page, link.split("/")[2])
            page.goto(link)
            page.goto(link.partition("login")[0] + "verify?name=orders")
            page.wait_for_selector("text=was not verified")
            source.now = Verifying(500, 1_000)
            page.wait_for_selector("text=500 of 1,000 records")
            assert page.get_attribute("progress", "value") == "500"
            check_look(page)
            found = Verification(
                records=1_000, bytes=1, segments=1, findings=(Finding("error", EVIL, f"producer {EVIL}"),)
            )
            source.now = Verifying(1_000, 1_000, found)
            page.wait_for_selector("text=orders is damaged")
            check_look(page)
            shown = page.locator("#verification td").all_inner_texts()
            elements = page.locator("#verification script, #verification img").count()
            context.close()
    assert shown == ["error", EVIL, f"producer {EVIL}"]
    assert elements == 0
    assert watched.complaints == []
