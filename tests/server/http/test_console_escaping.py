"""The console of a server, in a real browser: text that users fill in is text on every page and in every act."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest

import oncelog
from oncelog import IdConflict, Inbox, Message, QueueSettings, Record, RetryPolicy
from oncelog.log.ingest.batch_marks import BatchName
from tests.console.conftest import NARROW, WIDE, Watched, press, too_wide
from tests.server.http.conftest import EVIL, Guarded
from tests.server.http.test_console import login

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("browser")

LOG, STREAMS, QUEUE, HOOKS = EVIL, f"{EVIL}-streams", f"{EVIL}-queue", "hooks/evil"
ELEMENTS = "script:not([src^='/console/static/']), img, [onerror]"


def fill(guarded: Guarded) -> None:
    """Fill every field that a user can fill: names, ids, values, headers, lineage, labels, errors, refused content, and
    what a provider posts to a webhook.
    """
    retry = RetryPolicy(max_attempts=1, backoff_s=0, max_backoff_s=0, jitter=0)
    headers = {EVIL: EVIL.encode(), "oncelog.file": EVIL.encode(), "oncelog.line": EVIL.encode()}
    with oncelog.connect(f"oncelog://{guarded.server.grpc}", options={"token": guarded.operator}) as db:
        labels: dict[str, Any] = {"type": EVIL, "tenant": EVIL, "headers": headers}
        with db.log(LOG, create=True).writer() as writer:
            writer.append(EVIL.encode(), id=EVIL, stream=EVIL, **labels)
            with suppress(IdConflict):
                writer.append(f"other {EVIL}".encode(), id=EVIL, stream=f"other {EVIL}", **labels)
        with db.log(LOG).writer(producer=EVIL) as producer:
            producer.append(b"click", sequence=7)
        db.streams(STREAMS, create=True).append(EVIL, [Record(EVIL.encode(), id=EVIL, type=EVIL)])
        queue = db.queue(QUEUE, QueueSettings(retry=retry), create=True)
        queue.send_many([Message(f"{n} {EVIL}".encode(), id=f"{n} {EVIL}", key=EVIL, tenant=EVIL) for n in range(3)])
        with queue.consume(EVIL, prefetch=1) as consumer:
            consumer.receive(timeout_s=60)[0].nack(EVIL)
        while not queue.dead_letters.list():
            with queue.consume(EVIL, prefetch=1) as consumer:
                consumer.receive(timeout_s=0.1)
        clicks = db.log(f"rejected.{EVIL}", create=True)
        with clicks.writer() as writer:
            table = pa.table({"value": [EVIL.encode()], "id": [EVIL]})
            writer.ingest([clicks.stage([table])], BatchName(producer=EVIL, number=0))
        db.log(HOOKS, create=True)
    with guarded.client(None) as http:
        for value in ("new", "other"):  # the second is a conflict
            posted = http.post(f"/v1/hooks/{quote(EVIL, safe='')}", json={"id": EVIL, EVIL: value})
            assert posted.status_code == 200
    with Inbox(f"sqlite:///{guarded.inbox}") as inbox:
        with inbox.once(EVIL, topic=EVIL, tenant=EVIL) as effect:
            effect.result = {EVIL: EVIL}
        with suppress(RuntimeError), inbox.once(f"failed {EVIL}", topic=EVIL, group=EVIL):
            raise RuntimeError(EVIL)
    guarded.report.write_text("<!doctype html><html lang=en><title>r</title><h1>Pipeline</h1>")


def queries() -> list[str]:
    """Return every page with the names that were filled in, and those that say an evil address back."""
    at = {"log": LOG, "position": 0}
    good = [
        "", "logs", f"logs?{urlencode({'q': EVIL[:9]})}", f"log?{urlencode({'name': LOG})}",
        f"log?{urlencode({'name': LOG, 'start': 0})}", f"record?{urlencode(at)}", f"producers?{urlencode(at)}",
        "find", "pipelines", f"streams?{urlencode({'log': STREAMS})}",
        f"stream?{urlencode({'log': STREAMS, 'stream': EVIL})}", "queues", f"queue?{urlencode({'name': QUEUE})}",
        "inboxes", f"verify?{urlencode({'name': LOG})}", "server",
        f"log?name={HOOKS}&start=0", f"log?name={HOOKS}", f"record?log={HOOKS}&position=0",
        f"report?name={quote(EVIL)}", f"inboxes?name={quote(EVIL)}",
    ]  # fmt: skip
    wrong = [
        f"logs?q={quote(EVIL)}&page={quote(EVIL)}", f"log?{urlencode({'name': LOG, 'start': EVIL})}",
        f"log?{urlencode({'name': LOG, 'time': EVIL})}", f"log?name={quote('no ' + EVIL)}",
        f"queue?{urlencode({'name': QUEUE, 'group': 'no ' + EVIL})}", f"report?name={quote('no ' + EVIL)}",
        f"inboxes?name={quote('no ' + EVIL)}", f"streams?{urlencode({'log': LOG, 'q': EVIL})}",
    ]  # fmt: skip
    return good + wrong


def is_text(page: Page) -> str:
    """Check that nothing that was filled in is an element of a page; return the text of the page."""
    assert page.locator(ELEMENTS).count() == 0, page.url
    assert "49" not in page.title()
    return page.inner_text("main")


def send_forms(page: Page, base: str) -> None:
    """Send every form of a page with a script in its fields: the answer says it back as text."""
    page.goto(f"{base}inboxes")
    page.fill("input[name=key]", f"failed {EVIL}")
    press(page.locator("main form button"))
    assert "What happened" in is_text(page)  # the story of a key has its error
    page.goto(f"{base}find")
    for field, text in {"log": f"no {EVIL}", "id": EVIL, "stream": EVIL}.items():
        page.fill(f"main input[name={field}]", text)
    press(page.locator("main form button"))
    is_text(page)
    page.goto(f"{base}logs")
    page.fill("input[name=name]", f"new {EVIL}")
    press(page.locator("text=Create…"))
    is_text(page)
    press(page.locator("text=/^Yes, /"))
    assert f"new {EVIL} was created." in is_text(page)
    for field, button in (("before", "Truncate…"), ("again", "Delete…"), ("segment_bytes", "Configure…")):
        page.goto(f"{base}log?{urlencode({'name': LOG})}")
        page.fill(f"input[name={field}]", EVIL)
        press(page.locator(f"text={button}"))
        is_text(page)


def test_what_users_fill_in_is_text_on_every_page_and_in_every_act(guarded: Guarded, browser: Browser) -> None:
    """Nothing of it runs, becomes an element, or breaks the policy of the pages; it is shown as it was written."""
    fill(guarded)
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    watched = Watched(page, guarded.server.http)
    base = f"http://{guarded.server.http}/console/"

    page.goto(f"{base}login?next={quote(f'/console/{EVIL}')}")
    is_text(page)
    login(
        page, guarded.server, guarded.token(EVIL, "look,read,append,consume,admin:*", f"look:{EVIL.partition('{')[0]}")
    )
    for path in queries():
        page.goto(base + path)
        is_text(page)
        if page.locator("#state").count():
            page.wait_for_selector("#state.ok")  # the part that is live came as HTML, too
            is_text(page)
        assert too_wide(page, NARROW) == [], path  # the longest names do not push a page out of a phone
        page.set_viewport_size({"width": WIDE, "height": 900})
    page.goto(f"{base}find")
    page.fill("input[name=log]", LOG)
    page.fill("main input[name=id]", EVIL)
    press(page.locator("main form button"))
    found = is_text(page)
    assert f"{EVIL} was stored once" in found
    assert page.inner_text(".even .absent mark") == f"other {EVIL}"  # refused content beside the stored one
    assert page.locator(".even .absent td", has_text=f"other {EVIL}").count() == 1
    assert f"header {EVIL}" in found
    assert "Different: value, stream." in found
    page.goto(f"{base}record?{urlencode({'log': LOG, 'position': 0})}")
    assert is_text(page).count(EVIL) >= 9  # title, id, stream, type, tenant, value, and the headers' names and values
    page.goto(f"{base}queue?{urlencode({'name': QUEUE})}")
    press(page.locator("button:text-is('Redrive…')"))
    assert EVIL in is_text(page)  # the question names the error
    press(page.locator("text=/^Yes, /"))
    assert "was sent back" in is_text(page)
    page.goto(f"{base}inboxes")
    press(page.locator("text=Resolve…"))
    assert f"failed {EVIL} counts as done." in is_text(page)
    press(page.locator("text=/^Yes, /"))
    assert "counts as done" in is_text(page)
    send_forms(page, base)
    page.goto(f"{base}server")
    assert json.dumps({"error": EVIL}, ensure_ascii=False) in is_text(page)
    assert page.locator("td", has_text=EVIL).count() >= 3  # as a token, and as who acted
    said = [text for text in watched.complaints if not text.startswith("Failed to load resource")]
    assert said == []  # a page that says an error has a status that Chromium mentions
    context.close()
