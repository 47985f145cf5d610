"""The console of a server, in a real browser: people see what their token allows, and acts are audited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.http.conftest import Guarded
from tests.servers import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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
    page.click("button")


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
    page.click("main form button")
    assert "order-42 was stored once" in page.inner_text(".found")
    outcomes = re.findall(r"\b(stored|duplicate|conflict)\b", page.inner_text("main table"))
    assert outcomes == ["conflict", "duplicate", "stored"]
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
        page.click("text=Redrive all…")
        assert len(http.get("/v1/queues/mails/dead-letters").json()) == 1  # it only asked
        page.click("text=Yes, redrive")
        assert "1 dead letters of mails were sent back" in page.inner_text("main")
        assert http.get("/v1/queues/mails/dead-letters").json() == []
    page.goto(f"http://{guarded.server.http}/console/server")
    assert re.search(r"operator\s+console\.redrive\s+queue\s+mails", page.inner_text("main"))
    forged = page.request.post(
        f"http://{guarded.server.http}/console/act",
        form={"act": "delete", "name": "orders", "sure": "yes", "csrf": "x"},
    )
    assert forged.status == 400


def _settle(delivery: dict[str, object], reason: str) -> dict[str, object]:
    return {"group": "g", "leases": [{k: delivery[k] for k in ("token", "partition", "position")}], "reason": reason}


def _wait_for_letter(http: httpx.Client) -> None:
    while not http.get("/v1/queues/mails/dead-letters").json():
        http.post("/v1/queues/mails/receive", json={"group": "g", "timeout_s": 0.1})


def test_a_revoked_token_ends_the_session(guarded: Guarded, page: Page) -> None:
    """A person who lost the right sees the login again, not the page."""
    from oncelog.server.security import tokens

    login(page, guarded.server, guarded.token("leaver", "read:*"))
    assert "Overview" in page.inner_text("main")
    tokens.revoke(guarded.path, "leaver")
    page.goto(f"http://{guarded.server.http}/console/logs")
    assert page.url.endswith("/console/login")


def test_an_open_server_on_loopback_shows_its_console_to_its_user_alone(open_server: Serving) -> None:
    """No token is needed there; a page of another site, or a foreign name for this machine, gets nothing."""
    with httpx.Client(base_url=f"http://{open_server.http}", follow_redirects=True, timeout=60) as mine:
        assert "Overview" in mine.get("/console/").text
        assert mine.get("/console/", headers={"host": "evil.example"}).status_code == 403
        assert mine.get("/console/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
