"""Streams over HTTP: conditions are expected versions."""

from __future__ import annotations

import json

import httpx
import pytest


@pytest.fixture
def streams(http: httpx.Client, log: str) -> str:
    """Return the path of a new log of streams."""
    assert http.post("/v1/logs", json={"name": f"{log}-s", "streams": True}).status_code == 201
    return f"/v1/streams/{log}-s"


def test_versions_are_entity_tags(http: httpx.Client, streams: str) -> None:
    """``If-None-Match: *`` begins a stream, ``If-Match`` goes on at a version, and a wrong one is a 412 that tells."""
    first = {"if-none-match": "*", "oncelog-type": "added", "idempotency-key": "a-1"}
    begun = http.post(f"{streams}/cart-1", content=b"added", headers=first)
    assert begun.status_code == 201
    assert begun.headers["etag"] == '"0"'
    retried = http.post(f"{streams}/cart-1", content=b"added", headers=first)
    assert retried.status_code == 200
    assert retried.headers["idempotent-replayed"] == "true"
    assert http.post(f"{streams}/cart-1", content=b"paid", headers={"if-match": '"0"'}).status_code == 201
    wrong = http.post(f"{streams}/cart-1", content=b"sent", headers={"if-match": '"0"'})
    assert wrong.status_code == 412
    assert (wrong.json()["expected"], wrong.json()["actual"], wrong.json()["outcome"]) == (0, 1, "not written")
    assert http.post(f"{streams}/cart-2", content=b"x", headers={"if-match": "*"}).status_code == 412
    found = http.get(f"{streams}/cart-1")
    assert [event["value"] for event in found.json()["events"]] == ["added", "paid"]
    assert found.headers["etag"] == '"1"'
    backward = http.get(f"{streams}/cart-1", params={"direction": "backward", "limit": 1}).json()
    assert [event["version"] for event in backward["events"]] == [1]
    assert http.get(f"{streams}/cart-1", params={"direction": "sideways"}).status_code == 400
    assert http.get(f"{streams}/none").status_code == 404


def test_a_batch_of_events_is_all_or_nothing(http: httpx.Client, streams: str) -> None:
    """Lines are one append: a condition holds for all of them."""
    lines = b"".join(json.dumps({"value": str(n), "id": str(n)}).encode() + b"\n" for n in range(3))
    ndjson = {"content-type": "application/x-ndjson"}
    made = http.post(f"{streams}/s%2F1", content=lines, headers=ndjson | {"if-none-match": "*"})
    assert [ack["version"] for ack in made.json()["acks"]] == [0, 1, 2]
    assert http.post(f"{streams}/s%2F1", content=lines, headers=ndjson).status_code == 200
    assert http.get(streams).json() == [{"stream": "s/1", "version": 2, "count": 3, "last_position": 2}]


def test_a_log_without_streams_says_so(http: httpx.Client, log: str) -> None:
    """Ids of the whole log cannot be ids of a stream."""
    assert http.post(f"/v1/streams/{log}/s", content=b"x").status_code == 400
    assert http.get("/v1/streams/none/s").status_code == 404
