"""The console of a server, in a real browser: people see what their token allows, and acts are audited."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import oncelog
from oncelog.console import render
from oncelog.server.security import tokens
from tests.console.conftest import press
from tests.server.http.conftest import Guarded
from tests.servers import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a page without a session."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


def login(page: Page, server: Serving, token: str) -> None:
    """Log in with a token."""
    page.goto(f"http://{server.http}/console/")
    page.fill("input[name=token]", token)
    press(page.locator("button"))


def append(guarded: Guarded, log: str, id: str, value: bytes) -> int:
    """Append a record over HTTP; return the status."""
    with guarded.client(guarded.operator) as http:
        http.post("/v1/logs", json={"name": log})
        return http.post(f"/v1/logs/{log}/records", content=value, headers={"Idempotency-Key": id}).status_code


def test_a_person_sees_what_the_token_allows(guarded: Guarded, page: Page) -> None:
    """A wrong token opens nothing; one that may look sees counts and no id; other logs are not there."""
    assert append(guarded, "seen", "secret-id", b"secret value") == 201
    assert append(guarded, "hidden", "other", b"other") == 201
    login(page, guarded.server, "wrong")
    assert "not valid" in page.inner_text("main")
    login(page, guarded.server, guarded.token("looker", "look:seen"))
    page.goto(f"http://{guarded.server.http}/console/log?name=seen")
    page.wait_for_selector("#state.ok")
    assert "positions" in page.inner_text("main")
    assert "secret" not in page.content()
    assert "hidden" not in page.inner_text("nav")
    answer = page.goto(f"http://{guarded.server.http}/console/log?name=hidden")
    assert answer is not None
    assert answer.status == 404
    assert page.goto(f"http://{guarded.server.http}/console/server").status == 404  # type: ignore[union-attr]


def test_every_attempt_of_an_id_is_shown_with_its_answer(guarded: Guarded, page: Page) -> None:
    """The operator's question: was it stored, when, and how often was it tried."""
    answers = [append(guarded, "orders", "order-42", value) for value in (b"paid", b"paid", b"other")]
    assert answers == [201, 200, 422]
    login(page, guarded.server, guarded.operator)
    page.goto(f"http://{guarded.server.http}/console/find")
    page.fill("input[name=log]", "orders")
    page.fill("main input[name=id]", "order-42")
    press(page.locator("main form button"))
    assert "order-42 was stored once" in page.inner_text(".found")
    outcomes = re.findall(r"\b(stored|duplicate|conflict)\b", page.inner_text("main table"))
    assert outcomes == ["conflict", "duplicate", "stored"]
    assert "paid" in page.inner_text(".even .found mark")  # what was refused is not stored anywhere: the ring has it
    assert "other" in page.inner_text(".even .absent mark")
    assert "Different: value." in page.inner_text("main")
    page.goto(f"http://{guarded.server.http}/console/log?name=orders")
    page.wait_for_selector("#tail tr.dup")
    page.wait_for_selector("#tail tr.bad")


def test_an_act_asks_first_is_done_once_and_is_audited(guarded: Guarded, page: Page) -> None:
    """A dead letter is sent back by a click and a yes; the audit names who did it. A forged form does nothing."""
    with guarded.client(guarded.operator) as http:
        settings = {"retry": {"max_attempts": 1, "backoff_s": 0, "max_backoff_s": 0, "jitter": 0}}
        assert http.post("/v1/queues", json={"name": "mails", "settings": settings}).status_code == 201
        http.post("/v1/queues/mails/messages", content=b"hello", headers={"Idempotency-Key": "m1"})
        [delivery] = http.post("/v1/queues/mails/receive", json={"group": "g", "timeout_s": 30}).json()["deliveries"]
        assert http.post("/v1/queues/mails/nack", json=_settle(delivery, "smtp 550")).status_code < 300
        login(page, guarded.server, guarded.operator)
        _wait_for_letter(http)
        page.goto(f"http://{guarded.server.http}/console/queue?name=mails")
        assert "smtp 550" in page.inner_text("main")
        press(page.locator("text=Redrive all…"))
        assert len(http.get("/v1/queues/mails/dead-letters").json()) == 1  # it only asked
        press(page.locator("text=Yes, redrive"))
        assert "1 dead letter of mails was sent back." in page.inner_text("main")
        assert http.get("/v1/queues/mails/dead-letters").json() == []
    page.goto(f"http://{guarded.server.http}/console/server")
    assert re.search(r"operator\s+console\.redrive\s+queue\s+mails", page.inner_text("main"))
    forged = page.request.post(
        f"http://{guarded.server.http}/console/act",
        form={"act": "delete", "name": "orders", "sure": "yes", "csrf": "x"},
    )
    assert forged.status == 400


def test_the_overview_and_the_page_of_the_server_show_what_the_api_says(guarded: Guarded, page: Page) -> None:
    """The tiles are the sums of what the API says of each log and queue; connections are the peers that it answered;
    tokens are those of the file.
    """
    settings = {"retry": {"max_attempts": 1, "backoff_s": 0, "max_backoff_s": 0, "jitter": 0}}
    sizes = {"tiles/a": 100, "tiles/b": 7}
    with guarded.client(guarded.operator) as http:
        for name, ids in sizes.items():
            http.post("/v1/logs", json={"name": name})
            lines = "\n".join(json.dumps({"id": f"id-{n}", "value": "x"}) for n in range(ids))
            for status in (201, 200):  # the second is all duplicates
                path, ndjson = f"/v1/logs/-/records?log={name}", {"content-type": "application/x-ndjson"}
                assert http.post(path, content=lines, headers=ndjson).status_code == status
        conflict = http.post("/v1/logs/-/records?log=tiles/b", content=b"other", headers={"Idempotency-Key": "id-1"})
        assert conflict.status_code == 422
        http.post("/v1/queues", json={"name": "tiles/mails", "settings": settings})
        http.post("/v1/queues/-/messages?queue=tiles/mails", content=b"hello", headers={"Idempotency-Key": "m1"})
        infos = [http.get(f"/v1/logs/-?log={name}").json() for name in ("tiles/a", "tiles/b")]
        asked = {name: http.post(f"/v1/logs/-/find?log={name}", json={"id": "id-0"}).json() for name in sizes}
    login(page, guarded.server, guarded.token("of-tiles", "look:tiles/*"))
    shown = dict(zip(*(page.locator(f".tiles {part}").all_inner_texts() for part in ("h2", "strong")), strict=True))
    assert shown == {
        "Logs": str(len(infos)),
        "Records": str(sum(info["last_position"] + 1 - info["first_position"] for info in infos)),
        "Duplicates": str(sum(info["counters"]["duplicates"] for info in infos)),
        "Conflicts": str(sum(info["counters"]["conflicts"] for info in infos)),
        "Queues": "1",
        "Dead letters": "0",
    }
    assert (shown["Records"], shown["Duplicates"], shown["Conflicts"]) == ("107", "107", "1")
    page.context.clear_cookies()
    login(page, guarded.server, guarded.operator)
    page.goto(f"http://{guarded.server.http}/console/server")
    cards = {
        card.locator("h2").inner_text(): [row.split("\t") for row in card.locator("tbody tr").all_inner_texts()]
        for card in page.locator(".card").all()
    }
    noted = {peer: int(count) for peer, count in cards["Connections: peers of recent answers"]}
    peers: Counter[str] = Counter()
    for name, found in asked.items():
        for answer in found["answers"]:
            peers[answer["peer"]] += sizes[name]
    assert sum(peers.values()) == 214
    assert all(noted[peer] >= count for peer, count in peers.items())  # a port may have been another client's before
    assert ["tiles/a", "200", "0"] in cards["Logs with an open writer"]
    known = [[one.name, ", ".join(one.allow), render.day_time(one.expires_us)] for one in tokens.stored(guarded.path)]
    assert cards["Tokens"] == known


def act(page: Page, guarded: Guarded, path: str, button: str, **fields: str) -> str:
    """Fill a form of a page, press its button, say yes; return what was said."""
    page.goto(f"http://{guarded.server.http}/console/{path}")
    form = page.locator(f"form:has(button:text-is('{button}…'))").first
    for name, value in fields.items():
        field = form.locator(f"[name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    press(form.locator("button"))
    press(page.locator("text=/^Yes, /"))
    return page.inner_text("main")


def test_the_settings_of_a_queue_are_shown_changed_and_audited(guarded: Guarded, page: Page) -> None:
    """A change is previewed, stored, and audited; a form that is older than the settings changes nothing."""
    with guarded.client(guarded.operator) as http:
        assert http.post("/v1/queues", json={"name": "set"}).status_code == 201
        login(page, guarded.server, guarded.operator)
        page.goto(f"http://{guarded.server.http}/console/queue?name=set")
        assert page.input_value("input[name=ack_timeout_s]") == "30"
        page.fill("input[name=max_attempts]", "3")
        page.fill("input[name=trim_s]", "")
        press(page.locator("text=Configure…"))
        assert "max_attempts: 10 → 3\n\ntrim_s: 600 → none" in page.inner_text("main")
        assert http.get("/v1/queues/set/settings").json()["retry"]["max_attempts"] == 10  # it only asked
        press(page.locator("text=Yes, configure queue"))
        stored = http.get("/v1/queues/set/settings").json()
        assert (stored["retry"]["max_attempts"], stored["trim_s"], stored["ack_timeout_s"]) == (3, None, 30.0)
        page.goto(f"http://{guarded.server.http}/console/queue?name=set")
        page.fill("input[name=max_attempts]", "9")
        changed = http.patch("/v1/queues/set/settings", json={"gate_s": 60}, headers={"if-match": "*"})
        assert changed.status_code == 200
        press(page.locator("text=Configure…"))
        assert "have changed since" in page.inner_text("main")
        page.goto(f"http://{guarded.server.http}/console/queue?name=set")
        page.fill("input[name=jitter]", "")
        press(page.locator("text=Configure…"))
        assert "jitter is empty" in page.inner_text("main")
    page.goto(f"http://{guarded.server.http}/console/server")
    assert re.search(r"operator\s+console\.configure_queue\s+queue\s+set", page.inner_text("main"))


def test_the_overview_and_a_queue_follow_what_happens(guarded: Guarded, page: Page) -> None:
    """A log that is made and a message that is sent while somebody looks appear without a click."""
    with guarded.client(guarded.operator) as http:
        http.post("/v1/queues", json={"name": "followed"})
        login(page, guarded.server, guarded.operator)
        page.wait_for_selector("#state.ok")
        append(guarded, "followed-log", "a", b"1")
        page.wait_for_selector("#now >> text=followed-log")
        page.goto(f"http://{guarded.server.http}/console/queue?name=followed")
        page.wait_for_selector("#state.ok")
        http.post("/v1/queues/followed/messages", content=b"hello", headers={"Idempotency-Key": "m1"})
        page.wait_for_selector("#now >> text=1 messages were sent")


def test_settings_that_somebody_else_changed_meanwhile_are_not_overwritten(guarded: Guarded, page: Page) -> None:
    """A form is held against the settings it was made from; one that changes nothing is refused."""
    append(guarded, "two-hands", "a", b"1")
    login(page, guarded.server, guarded.operator)
    page.goto(f"http://{guarded.server.http}/console/log?name=two-hands")
    press(page.locator("text=Configure…"))
    assert "nothing would change" in page.inner_text("main")
    page.goto(f"http://{guarded.server.http}/console/log?name=two-hands")
    page.fill("input[name=retention_s]", "60")
    with guarded.client(guarded.operator) as http:
        changed = http.patch("/v1/logs/two-hands/settings", json={"seal": "off"}, headers={"if-match": "*"})
        assert changed.status_code == 200
        press(page.locator("text=Configure…"))
        assert "have changed since" in page.inner_text("main")
        assert http.get("/v1/logs/two-hands/settings").json()["retention_s"] is None


def test_a_key_of_an_inbox_is_resolved_by_a_person(guarded: Guarded, page: Page) -> None:
    """An effect that failed is listed with its error; once a person says that it happened, it is not run again."""

    def send(*, fail: bool) -> bool:
        """Have the effect, or fail; return whether it was there already."""
        with oncelog.Inbox(f"sqlite:///{guarded.inbox}") as inbox, inbox.once("order-42", topic="mails") as effect:
            if fail:
                message = "smtp 451"
                raise RuntimeError(message)
            return effect.done

    with pytest.raises(RuntimeError):
        send(fail=True)
    login(page, guarded.server, guarded.operator)
    page.goto(f"http://{guarded.server.http}/console/inboxes")
    row = page.inner_text("tr:has-text('order-42')")
    assert "FAILED" in row
    assert "smtp 451" in row
    assert "counts as done" in act(page, guarded, "inboxes", "Resolve", to="committed")
    assert send(fail=False)
    page.goto(f"http://{guarded.server.http}/console/server")
    assert re.search(r"operator\s+console\.resolve\s+server\s+shop", page.inner_text("main"))


def test_the_report_of_a_pipeline_is_embedded_and_can_do_nothing(guarded: Guarded, page: Page) -> None:
    """The file is shown in a frame of its own; a script in it does not run. Before the first run the page says so."""
    guarded.report.unlink(missing_ok=True)
    login(page, guarded.server, guarded.operator)
    page.goto(f"http://{guarded.server.http}/console/pipelines")
    press(page.locator("text=Report: orders"))
    assert "not there yet" in page.inner_text("main")
    evil = "<!doctype html><title>r</title><h1>Pipeline orders</h1><script>parent.document.title = 'taken'</script>"
    guarded.report.write_text(evil)
    page.goto(f"http://{guarded.server.http}/console/report?name=orders")
    assert page.frame_locator("iframe.report").locator("h1").inner_text() == "Pipeline orders"
    assert page.title() == "Report: orders · Oncelog"
    page.context.clear_cookies()
    login(page, guarded.server, guarded.token("narrow", "look,read:orders"))
    assert page.goto(f"http://{guarded.server.http}/console/report?name=orders").status == 404  # type: ignore[union-attr]


def quiet_port(first: int | None = None) -> int:
    """Return a port that is free, below those that the system gives to connections: nobody takes it in between."""
    for port in range(first or 20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def test_a_live_page_says_that_its_server_is_gone_and_heals_when_it_is_back(tmp_path: Path, page: Page) -> None:
    """The page is said to be stale while nobody answers; on the same port again, it shows new records by itself."""
    address = f"127.0.0.1:{quiet_port()}"
    server = Serving(f"file://{tmp_path}/db", ["--http", address])
    try:
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as http:
            http.post("/v1/logs", json={"name": "orders"})
            http.post("/v1/logs/orders/records", content=b"one", headers={"Idempotency-Key": "one"})
        page.goto(f"http://{server.http}/console/log?name=orders")
        page.wait_for_selector("#tail >> text=one")
        server.kill()
        page.wait_for_selector("#state.bad >> text=stale")
        server.end()
        server = Serving(f"file://{tmp_path}/db", ["--http", address])
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as http:
            http.post("/v1/logs/orders/records", content=b"two", headers={"Idempotency-Key": "two"})
        page.wait_for_selector("#tail >> text=two")
        page.wait_for_selector("#state.ok")
        assert page.url == f"http://{server.http}/console/log?name=orders"
    finally:
        server.end()


def test_a_login_leads_to_the_page_that_was_asked_for_and_never_elsewhere(guarded: Guarded, page: Page) -> None:
    """A link to a page survives the login; a link that names another host does not lead there."""
    append(guarded, "asked", "a", b"1")
    base = f"http://{guarded.server.http}/console"
    page.goto(f"{base}/log?name=asked")
    page.fill("input[name=token]", guarded.operator)
    press(page.locator("button"))
    assert page.url == f"{base}/log?name=asked"
    with httpx.Client(timeout=60) as http:
        for elsewhere in ("//evil.example/", "https://evil.example/", "/console/\\evil", "/v1/logs"):
            answer = http.post(f"{base}/login", params={"next": elsewhere}, data={"token": guarded.operator})
            assert answer.headers["location"] == "/console/"


def _settle(delivery: dict[str, object], reason: str) -> dict[str, object]:
    return {"group": "g", "leases": [{k: delivery[k] for k in ("token", "partition", "position")}], "reason": reason}


def _wait_for_letter(http: httpx.Client) -> None:
    while not http.get("/v1/queues/mails/dead-letters").json():
        http.post("/v1/queues/mails/receive", json={"group": "g", "timeout_s": 0.1})


def test_a_revoked_token_ends_the_session(guarded: Guarded, page: Page) -> None:
    """A person who lost the right sees the login again, not the page."""
    login(page, guarded.server, guarded.token("leaver", "read:*"))
    assert "Overview" in page.inner_text("main")
    tokens.revoke(guarded.path, "leaver")
    page.goto(f"http://{guarded.server.http}/console/logs")
    assert page.url.endswith("/console/login?next=%2Fconsole%2Flogs")


def test_an_open_server_on_loopback_shows_its_console_to_its_user_alone(open_server: Serving) -> None:
    """No token is needed there; a page of another site, or a foreign name for this machine, gets nothing."""
    with httpx.Client(base_url=f"http://{open_server.http}", follow_redirects=True, timeout=60) as mine:
        assert "Overview" in mine.get("/console/").text
        assert mine.get("/console/", headers={"host": "evil.example"}).status_code == 403
        assert mine.get("/console/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
