"""Queues over HTTP: a lease is three numbers, and any process may settle it."""

from __future__ import annotations

import socket
from typing import Any

import httpx

from oncelog import limits
from oncelog.errors import LeaseLost
from tests.servers import Serving


def _receive(http: httpx.Client, queue: str, **more: Any) -> list[dict[str, Any]]:
    found = http.post(f"/v1/queues/{queue}/receive", json={"limit": 10, **more})
    assert found.status_code == 200, found.text
    return list(found.json()["deliveries"])


def _lease(delivery: dict[str, Any]) -> dict[str, Any]:
    return {name: delivery[name] for name in ("token", "partition", "position")}


def test_a_message_is_sent_once_delivered_and_acknowledged(http: httpx.Client, queue: str) -> None:
    """A retry is a duplicate; an ack from another connection counts; a second ack is a 409."""
    headers = {"idempotency-key": "u7", "oncelog-key": "k", "oncelog-header-lang": "de"}
    assert http.post(f"/v1/queues/{queue}/messages", content=b"hi", headers=headers).status_code == 201
    again = http.post(f"/v1/queues/{queue}/messages", content=b"hi", headers=headers)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert http.post(f"/v1/queues/{queue}/messages", content=b"ho", headers=headers).status_code == 422
    [delivery] = _receive(http, queue)
    assert (delivery["value"], delivery["key"], delivery["headers"]) == ("hi", "k", {"lang": "de"})
    assert _receive(http, queue) == []
    lease = {"leases": [_lease(delivery)]}
    assert http.post(f"/v1/queues/{queue}/extend", json=lease | {"seconds": 60}).json() == {"settled": 1}
    assert http.post(f"/v1/queues/{queue}/ack", json=lease).json() == {"settled": 1}
    lost = http.post(f"/v1/queues/{queue}/ack", json=lease)
    assert lost.status_code == 409
    assert lost.json()["type"].endswith(LeaseLost.__name__)
    assert "outcome" not in lost.json()
    assert http.get(f"/v1/queues/{queue}/stats").json()["groups"]["default"]["lag"] == 0


def test_a_client_that_has_left_gets_no_message(http: httpx.Client, open_server: Serving, queue: str) -> None:
    """A poll whose client gave up went on: it took the next message from those who wait, until its lease was over."""
    host, _, port = open_server.http.rpartition(":")
    body = b'{"timeout_s": 30}'
    head = f"POST /v1/queues/{queue}/receive HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(head.encode() + body)
        while not http.get(f"/v1/queues/{queue}/stats").json()["groups"]:  # until the poll has begun
            pass
    assert http.post(f"/v1/queues/{queue}/messages", content=b"hi").status_code == 201
    [delivery] = _receive(http, queue, timeout_s=10)
    assert (delivery["value"], delivery["attempts"]) == ("hi", 1)


def test_what_died_is_sent_back_or_given_up(http: httpx.Client, queue: str) -> None:
    """A refused message goes to the dead letters with its reason, and from there back, or away."""
    lines = '{"value":"a","id":"1"}\n{"value":"b","id":"2"}\n'
    ndjson = {"content-type": "application/x-ndjson"}
    assert http.post(f"/v1/queues/{queue}/messages", content=lines, headers=ndjson).status_code == 201
    leases = [_lease(one) for one in _receive(http, queue)]
    nack = {"leases": leases, "reason": "broken", "retry": False}
    assert http.post(f"/v1/queues/{queue}/nack", json=nack).json() == {"settled": 2}
    letters = http.get(f"/v1/queues/{queue}/dead-letters").json()
    assert [(one["value"], one["last_error"]) for one in letters] == [("a", "broken"), ("b", "broken")]
    back = http.post(f"/v1/queues/{queue}/dead-letters/redrive", json={"positions": [letters[0]["position"]]})
    assert back.json() == {"count": 1}
    away = http.post(f"/v1/queues/{queue}/dead-letters/discard", json={"positions": [letters[1]["position"]]})
    assert away.json() == {"count": 1}
    assert http.get(f"/v1/queues/{queue}/dead-letters").json() == []
    [again] = _receive(http, queue)
    assert (again["value"], again["redriven"]) == ("a", 1)


def test_a_paused_queue_delivers_nothing(http: httpx.Client, queue: str) -> None:
    """Until it is resumed."""
    http.post(f"/v1/queues/{queue}/messages", content=b"m")
    assert http.post(f"/v1/queues/{queue}/pause").status_code == 204
    assert _receive(http, queue) == []
    assert http.post(f"/v1/queues/{queue}/resume").status_code == 204
    assert len(_receive(http, queue)) == 1


def test_what_is_wrong_is_said(http: httpx.Client, queue: str) -> None:
    """Names that are not there, numbers that are none, and a group that nobody has."""
    assert http.post("/v1/queues/none/messages", content=b"m").status_code == 404
    assert http.post("/v1/queues/none/receive").status_code == 404
    assert http.post(f"/v1/queues/{queue}/receive", json={"limit": 0}).status_code == 400
    assert http.post(f"/v1/queues/{queue}/receive", json={"timeout_s": 1e9}).status_code == 400
    lease = {"token": 1, "partition": 0, "position": 0}
    assert http.post(f"/v1/queues/{queue}/ack", json={"leases": [lease], "group": "nobody"}).status_code == 404
    assert http.post(f"/v1/queues/{queue}/ack", json={"leases": [{"token": -1}]}).status_code == 400
    assert http.post(f"/v1/queues/{queue}/messages", content=b"m", headers={"oncelog-stream": "s"}).status_code == 400


def test_a_change_needs_the_tag_of_what_it_changes(http: httpx.Client, queue: str) -> None:
    """Nobody's change is lost."""
    path = f"/v1/queues/{queue}/settings"
    tag = http.get(path).headers["etag"]
    assert http.patch(path, json={"ack_timeout_s": 5}).status_code == 428
    assert http.patch(path, json={"ack_timeout_s": 5}, headers={"if-match": tag}).json()["ack_timeout_s"] == 5
    assert http.patch(path, json={"ack_timeout_s": 6}, headers={"if-match": tag}).status_code == 412
    assert http.delete("/v1/queues/none").status_code == 404


def test_large_messages_come_in_answers_that_fit(http: httpx.Client, queue: str) -> None:
    """Many of them at once would fill the memory: there are fewer in an answer, and the next asks for more."""
    for number in range(3):
        headers = {"idempotency-key": str(number)}
        sent = http.post(f"/v1/queues/{queue}/messages", content=b"x" * (10 * limits.MIB), headers=headers)
        assert sent.status_code == 201
    received = [_receive(http, queue) for _ in range(4)]
    assert [[one["id"] for one in found] for found in received] == [["0"], ["1"], ["2"], []]
    leases = [_lease(one) for found in received for one in found]
    nack = {"leases": leases, "reason": "broken", "retry": False}
    assert http.post(f"/v1/queues/{queue}/nack", json=nack).json() == {"settled": 3}
    pages = [http.get(f"/v1/queues/{queue}/dead-letters", params={"start": start}).json() for start in range(4)]
    assert [[one["id"] for one in page] for page in pages] == [["0"], ["1"], ["2"], []]
