"""Server-sent events at a real server: they resume, say what is gone, and end when they must."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oncelog.server.security import tokens
from tests.server.http.conftest import Guarded
from tests.servers import Serving


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield events as a browser would see them."""
    event: dict[str, Any] = {}
    for line in lines:
        if line == "" and "data" in event:
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


def _append(http: httpx.Client, log: str, *values: str) -> None:
    for value in values:
        assert http.post(f"/v1/logs/{log}/records", content=value.encode()).status_code == 201


def test_a_tail_goes_from_the_past_into_the_present(http: httpx.Client, log: str) -> None:
    """No gap, no repeat: what was there, and what is appended while it listens."""
    _append(http, log, "a", "b")
    with http.stream("GET", f"/v1/logs/{log}/tail", params={"start": "earliest"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        events = _events(response.iter_lines())
        found = [next(events) for _ in range(2)]
        with httpx.Client(base_url=http.base_url, timeout=60) as other:
            _append(other, log, "c", "d")
        found += [next(events) for _ in range(2)]
    assert [event["data"]["value"] for event in found] == ["a", "b", "c", "d"]
    assert [event["id"] for event in found] == ["0", "1", "2", "3"]


def test_a_tail_resumes_behind_the_last_event(http: httpx.Client, log: str) -> None:
    """A browser sends ``Last-Event-ID`` by itself: it wins over ``start``."""
    _append(http, log, "a", "b", "c")
    with http.stream("GET", f"/v1/logs/{log}/tail?start=latest", headers={"last-event-id": "0"}) as response:
        events = _events(response.iter_lines())
        assert [next(events)["data"]["value"] for _ in range(2)] == ["b", "c"]
    for wrong in ("x", "-2", "1" * 40):
        assert http.get(f"/v1/logs/{log}/tail", headers={"last-event-id": wrong}).status_code == 400


def test_behind_a_truncation_a_browser_is_told_and_then_stopped(http: httpx.Client, log: str) -> None:
    """An event with the first position that is left, then the end; the next try gets a 204, which ends its retries."""
    settings = {"window": {"max_keys": 1, "duration_s": 0.001}, "segment_bytes": 65536}
    http.post("/v1/logs", json={"name": f"{log}-t", "settings": settings})
    for number in range(8):
        http.post(f"/v1/logs/{log}-t/records", content=b"x" * 60_000, headers={"idempotency-key": f"n{number}"})
    first = http.post(f"/v1/logs/{log}-t/truncate", json={"before": 4}).json()["first_position"]
    assert first > 1
    path, resume = f"/v1/logs/{log}-t/tail", {"last-event-id": "0"}
    for _ in range(2):  # two tabs of one browser stand at the same event: both are told
        told = http.get(path, headers=resume)
        [event] = _events(iter(told.text.splitlines()))
        assert (event["event"], event["id"]) == ("truncated", "truncated")
        assert event["data"] == {"first": first, "position": 1}
    assert http.get(path, headers={"last-event-id": event["id"]}).status_code == 204
    assert http.get(path, params={"start": 0}).status_code == 410
    with http.stream("GET", path, headers={"last-event-id": str(first - 1)}) as response:
        assert next(_events(response.iter_lines()))["id"] == str(first)


@pytest.mark.parametrize("face", ["logs/{}/tail", "logs/{}/events", "streams/{}/a/subscribe"])
def test_behind_the_end_a_browser_is_told_and_then_stopped(http: httpx.Client, log: str, face: str) -> None:
    """The log was deleted and made again: the event that the browser saw last is of another log.

    A subscription waited in silence for the version behind it, and passed all events before that over.
    """
    name = f"{log}-again"
    assert http.post("/v1/logs", json={"name": name, "streams": True}).status_code == 201
    assert http.post(f"/v1/streams/{name}/a", content=b"first").status_code == 201
    path = f"/v1/{face.format(name)}"
    [event] = _events(iter(http.get(path, headers={"last-event-id": "7"}).text.splitlines()))
    assert (event["event"], event["id"], event["data"]) == ("truncated", "truncated", {"first": 0, "position": 8})
    assert http.get(path, headers={"last-event-id": event["id"]}).status_code == 204
    with http.stream("GET", path, headers={"last-event-id": "0"}) as response:  # the last there is: all is well
        events = _events(response.iter_lines())
        assert http.post(f"/v1/streams/{name}/a", content=b"second").status_code == 201
        assert next(event for event in events if "event" not in event)["data"]["value"] == "second"


def test_what_never_ends_has_no_head(http: httpx.Client, log: str) -> None:
    """An answer without a body that waits for events would hold up all that its connection is asked behind it."""
    assert http.post("/v1/logs", json={"name": f"{log}-h", "streams": True}).status_code == 201
    for path in (f"/v1/logs/{log}/tail", f"/v1/logs/{log}-h/events", f"/v1/streams/{log}-h/a/subscribe"):
        answer = http.head(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET"), path
    assert http.head(f"/v1/logs/{log}/records").status_code == 200


def test_a_large_record_arrives_whole(http: httpx.Client, log: str) -> None:
    """It is sent in parts: a client that does not read must not have it all in the server's memory."""
    values = [letter * 1_000_000 for letter in "abc"]
    _append(http, log, *values)
    with http.stream("GET", f"/v1/logs/{log}/tail", params={"start": 0}) as response:
        events = _events(response.iter_lines())
        assert [next(events)["data"]["value"] for _ in values] == values


def test_many_tails_get_what_one_append_writes(http: httpx.Client, log: str) -> None:
    """One hub reads for all of them."""
    ready = threading.Barrier(21)
    found: list[str] = []

    def listen() -> None:
        with (
            httpx.Client(base_url=http.base_url, timeout=60) as client,
            client.stream("GET", f"/v1/logs/{log}/tail", params={"start": 0}) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            ready.wait()
            found.append(next(_events(lines))["data"]["value"])

    threads = [threading.Thread(target=listen) for _ in range(20)]
    for thread in threads:
        thread.start()
    ready.wait()
    _append(http, log, "news")
    for thread in threads:
        thread.join()
    assert found == ["news"] * 20


def test_a_subscription_says_when_it_has_caught_up(http: httpx.Client, log: str) -> None:
    """Events of one stream by version; others are not seen."""
    http.post("/v1/logs", json={"name": f"{log}-s", "streams": True})
    for stream, value in (("a", "1"), ("b", "x"), ("a", "2")):
        http.post(f"/v1/streams/{log}-s/{stream}", content=value.encode())
    with http.stream("GET", f"/v1/streams/{log}-s/a/subscribe") as response:
        events = _events(response.iter_lines())
        assert [next(events)["data"]["value"] for _ in range(2)] == ["1", "2"]
        assert next(events)["event"] == "caught-up"
        with httpx.Client(base_url=http.base_url, timeout=60) as other:
            other.post(f"/v1/streams/{log}-s/b", content=b"y")
            other.post(f"/v1/streams/{log}-s/a", content=b"3")
        live = next(events)
        assert (live["data"]["value"], live["id"]) == ("3", "2")
    with http.stream("GET", f"/v1/streams/{log}-s/a/subscribe", headers={"last-event-id": "1"}) as response:
        assert next(_events(response.iter_lines()))["id"] == "2"


def test_a_drained_server_tells_its_tails_and_subscriptions() -> None:
    """An event, then the end: a client reconnects, and learns no error."""
    server = Serving("memory://")
    paths = ("/v1/logs/l/tail", "/v1/logs/s/events", "/v1/streams/s/a/subscribe")
    try:
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client, contextlib.ExitStack() as open_:
            client.post("/v1/logs", json={"name": "l"})
            client.post("/v1/logs", json={"name": "s", "streams": True})
            listening = [open_.enter_context(client.stream("GET", path)).iter_lines() for path in paths]
            for lines in listening:
                next(lines)
            server.process.terminate()
            heard = [[event["event"] for event in _events(lines)] for lines in listening]
        assert heard == [["draining"], ["caught-up", "draining"], ["caught-up", "draining"]]
        assert server.process.wait() == 0, server.errors()
    finally:
        server.end()


@pytest.mark.parametrize("query", ["tail?start=0", "events", "events?prefix=other", "subscribe"])
def test_a_revoked_token_hears_nothing_more_of_a_log_that_is_written_all_the_time(guarded: Guarded, query: str) -> None:
    """Whether a caller may still listen is asked before each event, not in pauses alone: there may be none.

    Who listens to other streams alone is asked, too, whenever the log grows.
    """
    name = f"busy-{query.partition('?')[0]}-{len(query)}"
    revoked = guarded.token(name, f"read:{name}")
    path = f"/v1/streams/{name}/a/subscribe" if query == "subscribe" else f"/v1/logs/{name}/{query}"
    heard: list[dict[str, Any]] = []
    with guarded.client(guarded.operator) as writer, guarded.client(revoked) as reader:
        assert writer.post("/v1/logs", json={"name": name, "streams": True}).status_code == 201
        assert writer.post(f"/v1/streams/{name}/a", content=b"before").status_code == 201
        with reader.stream("GET", path) as response:
            events = _events(response.iter_lines())
            next(events)
            tokens.revoke(guarded.path, name)
            listening = threading.Thread(target=lambda: heard.extend(events))
            listening.start()
            written = 0
            while listening.is_alive() and written < 500:
                assert writer.post(f"/v1/streams/{name}/a", content=b"behind").status_code == 201
                written += 1
            listening.join()
    assert [event["event"] for event in heard if event.get("event") != "caught-up"] == ["ended"], heard
    assert written < 500, "it ended in a pause alone"


def test_a_tail_needs_the_right_to_read(guarded: Guarded) -> None:
    """Values and ids are in it."""
    with guarded.client(guarded.operator) as client:
        client.post("/v1/logs", json={"name": "tailed"})
    looker = guarded.token("tail-looker", "look:tailed")
    with guarded.client(looker) as client:
        assert client.get("/v1/logs/tailed").status_code == 200
        assert client.get("/v1/logs/tailed/tail").status_code == 403


def test_all_streams_of_a_log_are_followed_by_position(http: httpx.Client, log: str) -> None:
    """Events of every stream in the order of the log; ``Last-Event-ID`` resumes; names and types choose."""
    name = f"{log}-all"
    assert http.post("/v1/logs", json={"name": name, "streams": True}).status_code == 201
    for stream, kind in (("cart-1", "opened"), ("order-1", "paid"), ("cart-2", "opened"), ("cart-1", "closed")):
        made = http.post(f"/v1/streams/{name}/{stream}", content=b"v", headers={"oncelog-type": kind})
        assert made.status_code == 201

    def seen(count: int, headers: dict[str, str] | None = None, **query: str) -> list[tuple[str, str, int]]:
        with http.stream("GET", f"/v1/logs/{name}/events", params=query, headers=headers) as response:
            assert response.status_code == 200
            events = (one for one in _events(response.iter_lines()) if "event" not in one)
            found = [next(events) for _ in range(count)]
            return [(one["id"], one["data"]["stream"], one["data"]["version"]) for one in found]

    everything = [("0", "cart-1", 0), ("1", "order-1", 0), ("2", "cart-2", 0), ("3", "cart-1", 1)]
    assert seen(4) == everything
    assert seen(2, start="2") == everything[2:]
    assert seen(1, {"last-event-id": "2"}) == everything[3:]
    assert seen(2, prefix="cart-", types="opened,other") == [everything[0], everything[2]]
    for wrong in ({"start": "yesterday"}, {"start": "-1"}, {"limit": "1"}):
        assert http.get(f"/v1/logs/{name}/events", params=wrong).status_code == 400, wrong
    assert http.get("/v1/logs/none/events").status_code == 404
    assert http.get(f"/v1/logs/{log}/events").status_code == 400, "a log without streams"


def test_listeners_of_a_log_that_is_deleted_are_told(http: httpx.Client, log: str) -> None:
    """A tail and subscriptions end with the error by its name; they do not go on with another log of the name."""
    streams = f"{log}-streams"
    assert http.post("/v1/logs", json={"name": streams, "settings": {"id_scope": "stream"}}).status_code == 201
    assert http.post(f"/v1/streams/{streams}/s", content=b"x").status_code == 201
    _append(http, log, "a")
    heard: dict[str, list[dict[str, Any]]] = {}
    begun = threading.Barrier(4)

    def listen(path: str) -> None:
        with httpx.stream("GET", f"{http.base_url}{path}", params={"start": "0"}, timeout=60) as response:
            events = _events(response.iter_lines())
            heard[path] = [next(events)]
            begun.wait(60)
            heard[path] += list(events)

    paths = [f"/v1/logs/{log}/tail", f"/v1/streams/{streams}/s/subscribe", f"/v1/logs/{streams}/events"]
    threads = [threading.Thread(target=listen, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    begun.wait(60)
    for name in (log, streams):
        assert http.delete(f"/v1/logs/{name}").status_code == 204
    for thread in threads:
        thread.join()
    assert {events[-1]["data"]["type"] for events in heard.values()} == {"urn:oncelog:error:NotFound"}
    assert {events[-1]["event"] for events in heard.values()} == {"error"}
