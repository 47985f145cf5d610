"""Acts from the console of a server, in a real browser: what the page says is what the API says after it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncelog
from oncelog import Message, QueueSettings, RetryPolicy
from oncelog.queue.queue import Queue
from tests.console.conftest import check_look, press
from tests.server.http.conftest import Guarded
from tests.server.http.test_console import act, append, login

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("browser")

NAME = "worked"
ERRORS = {"smtp 550": ("m0", "m1"), "smtp 451": ("m2", "m3"), "timeout": ("m4", "m5"), "bounced": ("m6", "m7")}


def bury(queue: Queue, errors: dict[str, str]) -> None:
    """Refuse all messages of a queue, each with the error of its id, until all are dead letters."""
    left, ends_s = set(errors), time.monotonic() + 120
    with queue.consume("g", prefetch=len(errors)) as consumer:
        while left:
            assert time.monotonic() < ends_s, left
            for delivery in consumer.receive(timeout_s=1):
                delivery.nack(errors[delivery.id])
                left.discard(delivery.id)
    while {letter.id for letter in queue.dead_letters.list()} < set(errors):
        assert time.monotonic() < ends_s, "not all are dead letters"
        with queue.consume("g", prefetch=1) as consumer:
            consumer.receive(timeout_s=0.1)


def dead(http: httpx.Client) -> list[str]:
    """Return the ids of the dead letters, as the API says."""
    return sorted(letter["id"] for letter in http.get(f"/v1/queues/{NAME}/dead-letters").json())


def acted(page: Page, guarded: Guarded, row: str, button: str) -> str:
    """Press a button of the queue's page, in a row of a table if one is named; say yes; return what was said."""
    page.goto(f"http://{guarded.server.http}/console/queue?name={NAME}")
    place = page.locator(f"tr:has(button):has-text('{row}')") if row else page.locator("main")
    press(place.locator(f"button:text-is('{button}…')"))
    press(page.locator("text=/^Yes, /"))
    return page.inner_text("[role=status]")


def audited(http: httpx.Client) -> list[tuple[str, dict[str, str]]]:
    """Return the acts on the queue from the console, with what each was asked with."""
    entries = http.get("/v1/logs/_audit/records?limit=10000").json()["entries"]
    lines: list[dict[str, Any]] = [json.loads(entry["value"]) for entry in entries]
    acts = [line for line in lines if line["name"] == NAME and line["act"].startswith("console.")]
    assert {(line["who"], line["kind"], line.get("failed")) for line in acts} == {("operator", "queue", None)}
    return [(line["act"].removeprefix("console."), line.get("details", {})) for line in acts]


def test_every_act_on_a_queue_does_what_it_says_and_is_audited(guarded: Guarded, browser: Browser) -> None:
    """Redrive one, by error, all; discard one, by error, all; pause and resume a group and the queue."""
    retry = RetryPolicy(max_attempts=1, backoff_s=0, max_backoff_s=0, jitter=0)
    page = browser.new_context().new_page()
    with (
        oncelog.connect(f"oncelog://{guarded.server.grpc}", options={"token": guarded.operator}) as db,
        guarded.client(guarded.operator) as http,
    ):
        queue = db.queue(NAME, QueueSettings(retry=retry), create=True)
        errors = {id: error for error, ids in ERRORS.items() for id in ids}
        queue.send_many([Message(b"hello", id=id) for id in errors])
        bury(queue, errors)
        login(page, guarded.server, guarded.operator)

        assert "1 dead letter of worked was sent back." in acted(page, guarded, "m0", "Redrive")
        assert dead(http) == ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]
        assert "2 dead letters of worked were sent back." in acted(page, guarded, "smtp 451", "Redrive")
        assert "1 dead letter of worked was given up for good." in acted(page, guarded, "m1", "Discard")
        assert dead(http) == ["m4", "m5", "m6", "m7"]
        assert "2 dead letters of worked were given up for good." in acted(page, guarded, "timeout", "Discard")
        assert dead(http) == ["m6", "m7"]
        assert "2 dead letters of worked were sent back." in acted(page, guarded, "", "Redrive all")
        assert dead(http) == []
        bury(queue, dict.fromkeys(("m0", "m2", "m3", "m6", "m7"), "again"))  # each came back once, and no other
        assert "5 dead letters of worked were given up for good." in acted(page, guarded, "", "Discard all")
        assert dead(http) == []

        assert "worked, group g, is paused." in acted(page, guarded, "", "Pause")
        assert http.get(f"/v1/queues/{NAME}/stats").json()["groups"]["g"]["paused"]
        assert "worked, group g, delivers again." in acted(page, guarded, "", "Resume")
        assert not http.get(f"/v1/queues/{NAME}/stats").json()["groups"]["g"]["paused"]
        assert "worked is paused." in acted(page, guarded, "", "Pause the queue")
        assert http.get(f"/v1/queues/{NAME}/stats").json()["paused"]
        assert "worked delivers again." in acted(page, guarded, "", "Resume the queue")
        assert not http.get(f"/v1/queues/{NAME}/stats").json()["paused"]
        lines = audited(http)
    page.context.close()
    assert [act for act, _ in lines] == (
        ["redrive", "redrive", "discard", "discard", "redrive", "discard", "pause", "resume", "pause", "resume"]
    )
    asked = [details for _, details in lines]
    assert [list(details) for details in asked[:4]] == [["position"], ["error"], ["position"], ["error"]]
    assert [asked[1]["error"], asked[3]["error"]] == ["smtp 451", "timeout"]
    assert asked[4:] == [{}, {}, {"group": "g"}, {"group": "g"}, {}, {}]


def test_every_act_on_a_log_does_what_it_says_and_is_audited(guarded: Guarded, browser: Browser) -> None:
    """Create, configure, seal, verify, truncate, delete: what the page said is what the API says after it. An open page
    of the verification follows it.
    """
    page = browser.new_context().new_page()
    login(page, guarded.server, guarded.operator)
    assert "acted was created" in act(page, guarded, "logs", "Create", name="acted")
    with guarded.client(guarded.operator) as http:
        assert http.get("/v1/logs/acted").status_code == 200
        append(guarded, "acted", "a", b"1")
        assert "other settings" in act(page, guarded, "log?name=acted", "Configure", on_conflict="original")
        assert http.get("/v1/logs/acted/settings").json()["on_conflict"] == "original"
        assert append(guarded, "acted", "a", b"other") == 200  # the writer keeps to it: a conflict is no error now
        assert append(guarded, "acted", "b", b"2") == 201
        assert "1 record of acted was sealed." in act(page, guarded, "log?name=acted", "Seal")
        assert [file["records"] for file in http.get("/v1/logs/acted/files").json()] == [1]
        following = page.context.new_page()
        following.goto(f"http://{guarded.server.http}/console/verify?name=acted")
        following.wait_for_selector("#state.ok")
        assert "was not verified" in following.inner_text("#verification")
        act(page, guarded, "log?name=acted", "Verify")
        following.wait_for_selector("text=acted is sound")
        assert re.search(r"\b2 records", following.inner_text("#verification"))
        press(page.locator("text=See how far it is"))
        page.wait_for_selector("text=acted is sound")
        act(page, guarded, "log?name=acted", "Configure", duration_s="3600", max_keys="500")
        settings = http.get("/v1/logs/acted/settings").json()
        assert settings["window"] == {"duration_s": 3600.0, "max_keys": 500, "refresh_on_hit": False}
        assert "0 now, and not at 1: the memory of ids needs the rest." in act(
            page, guarded, "log?name=acted", "Truncate", before="1"
        )
        act(page, guarded, "log?name=acted", "Configure", idempotence="off")
        assert "begins at 1 now." in act(page, guarded, "log?name=acted", "Truncate", before="1")
        assert http.get("/v1/logs/acted").json()["first_position"] == 1
        page.goto(f"http://{guarded.server.http}/console/log?name=acted")
        page.fill("input[name=again]", "other")
        press(page.locator("text=Delete…"))
        assert "type the name" in page.inner_text("main")
        assert http.get("/v1/logs/acted").status_code == 200
        assert "was deleted" in act(page, guarded, "log?name=acted", "Delete", again="acted")
        assert http.get("/v1/logs/acted").status_code == 404
    page.goto(f"http://{guarded.server.http}/console/server")
    audit = page.inner_text("main")
    for verb in ("create", "configure", "seal", "verify", "truncate", "delete"):
        assert re.search(rf"operator\s+console\.{verb}\s+log\s+acted", audit), verb
    page.context.close()


def test_the_pages_of_a_server_fit_a_phone_and_keep_the_rules_of_accessibility(
    guarded: Guarded, browser: Browser
) -> None:
    """Login, inboxes and the story of a key, a report, access and audit, the forms of an administrator, and an act
    before and after it: axe finds nothing serious, and nothing is too wide.
    """
    append(guarded, "looked-at", "a", b"1")
    with contextlib.suppress(RuntimeError), oncelog.Inbox(f"sqlite:///{guarded.inbox}") as inbox:
        with inbox.once("looked-at-1", topic="invoices", group="billing") as effect:
            effect.result = {"invoice": 7}
        with inbox.once("looked-at-2", topic="invoices", group="billing"):
            message = "the server of mails said: 451 try again later"
            raise RuntimeError(message)
    guarded.report.write_text("<!doctype html><html lang=en><title>r</title><h1>Pipeline orders</h1>")
    page = browser.new_context().new_page()
    base = f"http://{guarded.server.http}/console"
    page.goto(f"{base}/login")
    check_look(page)
    login(page, guarded.server, guarded.operator)
    for path in ("inboxes", "report?name=orders", "log?name=looked-at", "server", "log?name=not-there"):
        page.goto(f"{base}/{path}")
        check_look(page)
    page.goto(f"{base}/inboxes")
    page.fill("input[name=key]", "looked-at-2")
    press(page.locator("main form button"))
    check_look(page)
    press(page.locator("text=Resolve…"))
    check_look(page)
    press(page.locator("text=/^Yes, /"))
    assert "looked-at-2 counts as done." in page.inner_text("[role=status]")
    check_look(page)
    page.context.close()
