"""The console and narrow tokens: a person sees the logs of the token and no other, and no content without ``read``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import httpx
import pytest

import oncelog
from oncelog import Message, QueueSettings, RetryPolicy
from tests.server.http.conftest import Guarded

OWN, OTHER = "narrow/own", "narrow/unseen"
QUEUE, OTHER_QUEUE = "narrow/mails", "narrow/unseen-mails"
SECRET = "secret-of-a-customer"
PAGES = (
    "", "logs", "logs?q=narrow", "logs?q=unseen", f"log?name={OWN}", f"log?name={OWN}&start=0", "find", "pipelines",
    f"producers?log={OWN}", "queues", "queues?q=unseen", f"queue?name={QUEUE}", f"verify?name={OWN}",
)  # fmt: skip
HIDDEN = (
    f"log?name={OTHER}", f"record?log={OTHER}&position=0", f"producers?log={OTHER}", f"streams?log={OTHER}",
    f"queue?name={OTHER_QUEUE}", f"queue?name=dlq.{OTHER_QUEUE}", f"log?name=queue/{OTHER_QUEUE}/0",
    f"log?name=conflicts.{OTHER}", f"verify?name={OTHER}", f"live/log?name={OTHER}", f"live/queue?name={OTHER_QUEUE}",
    f"live/verify?name={OTHER}", "log?name=_audit", "live/log?name=_audit", "server", "inboxes", "report?name=orders",
    "report/page?name=orders",
)  # fmt: skip
EVENTS_MAX = 100
"""Looks of a live page, about one a second, within which the server has read its tokens again."""
READING = (f"record?log={OWN}&position=0", f"streams?log={OWN}", f"stream?log={OWN}&stream={SECRET}")


@pytest.fixture(scope="module")
def filled(guarded: Guarded) -> Guarded:
    """Return the server with two logs and two queues, all with the same secret in every field."""
    retry = RetryPolicy(max_attempts=1, backoff_s=0, max_backoff_s=0, jitter=0)
    with oncelog.connect(f"oncelog://{guarded.server.grpc}", options={"token": guarded.operator}) as db:
        for name in (OWN, OTHER):
            with db.log(name, create=True).writer() as writer:
                writer.append(SECRET.encode(), id=SECRET, stream=SECRET, type=SECRET, headers={SECRET: b"x"})
        for name in (QUEUE, OTHER_QUEUE):
            queue = db.queue(name, QueueSettings(retry=retry), create=True)
            queue.send_many([Message(SECRET.encode(), id=f"{SECRET}-{n}", key=SECRET) for n in range(2)])
            with queue.consume("g", prefetch=1) as consumer:
                consumer.receive(timeout_s=60)[0].nack(f"cannot send {SECRET}")
            while not queue.dead_letters.list():
                with queue.consume("g", prefetch=1) as consumer:
                    consumer.receive(timeout_s=0.1)
    return guarded


@contextmanager
def session(guarded: Guarded, name: str, *allow: str) -> Iterator[httpx.Client]:
    """Log in with a new token of these scopes."""
    with httpx.Client(base_url=f"http://{guarded.server.http}/console/", timeout=60) as http:
        assert http.post("login", data={"token": guarded.token(name, *allow)}).status_code == 303
        yield http


def first_event(http: httpx.Client, path: str) -> dict[str, str]:
    """Return the first patch of a live page."""
    with http.stream("GET", path) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        found: dict[str, str] = json.loads(next(lines).removeprefix("data: "))
        return found


def test_a_token_of_one_log_sees_nothing_of_another(filled: Guarded) -> None:
    """Not in lists, searches, counts, menus, live parts, nor by its address; the URL of the database is not shown."""
    with session(filled, "of-one-log", f"look,read,admin:{OWN}", f"look,read,admin:{QUEUE}") as http:
        for path in PAGES:
            page = http.get(path)
            assert page.status_code == 200, path
            assert "unseen" not in page.text.replace('value="unseen"', ""), path
            assert OTHER not in page.text, path
            assert "Report:" not in page.text, path
        assert {http.get(path).status_code for path in HIDDEN} == {404}
        now = first_event(http, "live/overview")["now"]
        assert "<h2>Logs</h2><strong>1</strong>" in now
        assert "<h2>Queues</h2><strong>1</strong>" in now
        assert "file://" not in http.get("").text
        assert http.post("find", data={"log": OTHER, "id": SECRET}).status_code == 404


def test_who_may_look_sees_no_content_and_cannot_search_it(filled: Guarded) -> None:
    """No id, value, header, stream, type or error on any page or in any live part; finding an id is refused."""
    with session(filled, "looker-only", f"look:{OWN}", f"look:{QUEUE}") as http:
        for path in PAGES:
            assert SECRET not in http.get(path).text, path
        assert {http.get(path).status_code for path in READING} == {403}
        known, unknown = (http.post("find", data={"log": OWN, "id": id}) for id in (SECRET, "nobody"))
        assert known.status_code == unknown.status_code == 403
        assert known.text.replace(SECRET, "nobody") == unknown.text
        for path in (f"live/log?name={OWN}", f"live/queue?name={QUEUE}", "live/overview", f"live/verify?name={OWN}"):
            assert SECRET not in json.dumps(first_event(http, path)), path
        assert "1 dead" in http.get(f"queue?name={QUEUE}").text


def test_a_live_page_keeps_to_a_token_that_was_narrowed(filled: Guarded) -> None:
    """Somebody whose token loses the right to read gets no further record on a page that is open."""
    with session(filled, "narrowed", f"look,read:{OWN}") as http:
        secret = filled.token("writer-of-narrowed", f"append:{OWN}")
        with http.stream("GET", f"live/log?name={OWN}") as stream:
            events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            assert SECRET in next(events)["tail"]
            found = json.loads(filled.path.read_bytes())
            for one in found["tokens"]:
                if one["name"] == "narrowed":
                    one["allow"] = [f"look:{OWN}"]
            filled.path.write_text(json.dumps(found))
            with filled.client(secret) as writing:
                writing.post(f"/v1/logs/-/records?log={OWN}", content=b"later", headers={"Idempotency-Key": "later"})
            assert any("tail" not in event for event in islice(events, EVENTS_MAX))


def test_a_token_in_an_address_is_not_taken(filled: Guarded) -> None:
    """Addresses end up in histories and in the logs of proxies: only the form of the login takes a token."""
    with httpx.Client(base_url=f"http://{filled.server.http}/console/", timeout=60) as http:
        answer = http.get("login", params={"key": filled.operator})
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers


def test_the_log_of_a_queue_is_neither_made_nor_deleted_as_a_log(filled: Guarded) -> None:
    """As over HTTP: an administrator of a queue deletes the queue, and not a part of it."""
    with session(filled, "admin-of-queue", f"look,read,admin:{QUEUE}") as http:
        page = http.get(f"log?name=queue/{QUEUE}/0").text
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        assert "Delete…" not in page
        for verb, name in (("delete", f"queue/{QUEUE}/0"), ("create", f"queue/{QUEUE}/1"), ("delete", OTHER)):
            form = {"csrf": csrf, "act": verb, "name": name, "again": name, "sure": "yes"}
            assert http.post("act", data=form).status_code == 404
    with filled.client(filled.operator) as http:
        assert http.get(f"/v1/logs/-?log=queue/{QUEUE}/0").status_code == 200


def test_an_act_that_fails_is_in_the_audit_with_what_was_asked(filled: Guarded) -> None:
    """The audit says who wanted what with which words, and that it was not done."""
    with session(filled, "clumsy", "look,read,append,consume,admin:*") as http:
        csrf = http.get("logs").text.partition('name="csrf" value="')[2].partition('"')[0]
        form = {"csrf": csrf, "act": "delete", "name": OWN, "again": "wrong", "sure": "yes"}
        assert http.post("act", data=form).status_code == 400
        page = http.get("server").text
    with filled.client(filled.operator) as http:
        records = http.get("/v1/logs/_audit/records?limit=10000").json()["entries"]
    lines = [json.loads(record["value"]) for record in records if "clumsy" in record["value"]]
    assert [line["details"] for line in lines] == [{"again": "wrong"}] * 2
    reason = f"type the name of the log to delete it: {OWN}"
    assert [line.get("failed", "") for line in lines] == ["", reason]
    assert f"failed: {reason}" in page
