"""Logs over HTTP: made, configured, truncated, deleted; jobs."""

from __future__ import annotations

import json
import threading

import httpx


def test_a_log_is_made_once(http: httpx.Client, log: str) -> None:
    """201, then 200 with the same settings, 400 with others; a name that is none is a 400."""
    again = http.post("/v1/logs", json={"name": log})
    assert again.status_code == 200
    assert http.post("/v1/logs", json={"name": log, "settings": {"on_conflict": "original"}}).status_code == 400
    assert http.post("/v1/logs", json={"name": "../x"}).status_code == 400
    assert http.post("/v1/logs", json={"name": f"{log}-2", "settings": {"no": 1}}).status_code == 400
    assert http.post("/v1/logs", json={}).status_code == 400
    assert http.post("/v1/logs", content=b"name=x", headers={"content-type": "text/plain"}).status_code == 400
    assert log in http.get("/v1/logs").json()["names"]


def test_names_come_in_pages(http: httpx.Client, log: str) -> None:
    """A page says where the next one begins."""
    for letter in "abc":
        http.post("/v1/logs", json={"name": f"{log}/{letter}"})
    first = http.get("/v1/logs", params={"prefix": f"{log}/", "limit": 2}).json()
    assert first == {"names": [f"{log}/a", f"{log}/b"], "next": f"{log}/b"}
    second = http.get("/v1/logs", params={"prefix": f"{log}/", "limit": 2, "after": first["next"]}).json()
    assert second == {"names": [f"{log}/c"], "next": None}


def test_nobodys_change_of_settings_is_lost(http: httpx.Client, log: str) -> None:
    """``If-Match`` is needed; a change that somebody made meanwhile is a 412, and stays."""
    path = f"/v1/logs/{log}/settings"
    tag = http.get(path).headers["etag"]
    assert http.patch(path, json={"retention_s": 5}).status_code == 428
    changed = http.patch(path, json={"window": {"max_keys": 7}}, headers={"if-match": tag})
    assert changed.status_code == 200
    assert changed.json()["window"] == {"duration_s": 600.0, "max_keys": 7, "refresh_on_hit": False}
    refused = http.patch(path, json={"retention_s": 5}, headers={"if-match": tag})
    assert refused.status_code == 412
    assert http.get(path).json()["retention_s"] is None
    assert http.patch(path, json={"nonsense": 1}, headers={"if-match": "*"}).status_code == 400
    assert http.patch(path, json={"segment_bytes": "x"}, headers={"if-match": "*"}).status_code == 400


def test_new_settings_hold_for_the_next_append(http: httpx.Client, log: str) -> None:
    """The writer that is open in the server uses them, too."""
    path = f"/v1/logs/{log}"
    for value, status in ((b"first", 201), (b"other", 422)):
        assert http.post(f"{path}/records", content=value, headers={"idempotency-key": "a"}).status_code == status
    http.patch(f"{path}/settings", json={"on_conflict": "original"}, headers={"if-match": "*"})
    answered = http.post(f"{path}/records", content=b"other", headers={"idempotency-key": "a"})
    assert (answered.status_code, answered.json()["conflict"]) == (200, True)


def test_of_many_changes_at_once_each_counts(open_server: object, http: httpx.Client, log: str) -> None:
    """Twelve clients raise a number by one, each until its change is taken: none is lost."""
    path = f"/v1/logs/{log}/settings"
    start = http.get(path).json()["snapshot_records"]

    def raise_by_one() -> None:
        with httpx.Client(base_url=http.base_url, timeout=60) as client:
            while True:
                found = client.get(path)
                wanted = found.json()["snapshot_records"] + 1
                tag = {"if-match": found.headers["etag"]}
                if client.patch(path, json={"snapshot_records": wanted}, headers=tag).status_code == 200:
                    return

    threads = [threading.Thread(target=raise_by_one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert http.get(path).json()["snapshot_records"] == start + 12


def test_jobs_say_how_far_they_are_and_what_they_found(http: httpx.Client, log: str) -> None:
    """The last line has the result."""
    http.post(f"/v1/logs/{log}/records", content=b"v")
    lines = http.post(f"/v1/logs/{log}/verify").text.splitlines()
    assert json.loads(lines[-1])["result"]["records"] == 1
    assert "files" in json.loads(http.post(f"/v1/logs/{log}/seal").text.splitlines()[-1])["result"]
    assert http.post(f"/v1/logs/{log}-none/verify").status_code == 404


def test_a_truncated_record_is_gone_and_one_to_come_is_not(http: httpx.Client, log: str) -> None:
    """410 with the first position that is left; 404 for what is not there yet."""
    name = f"{log}/short"
    settings = {"window": {"max_keys": 1, "duration_s": 0.001}, "segment_bytes": 65536}
    http.post("/v1/logs", json={"name": name, "settings": settings})
    path = f"/v1/logs/{log}%2Fshort"
    for number in range(8):
        http.post(f"{path}/records", content=b"x" * 60_000, headers={"idempotency-key": f"n{number}"})
    cut = http.post(f"{path}/truncate", json={"before": 4})
    assert cut.status_code == 200
    first = cut.json()["first_position"]
    assert first > 0, cut.text
    gone = http.get(f"{path}/records/0")
    assert gone.status_code == 410
    assert gone.json()["first"] == first
    assert http.get(f"{path}/records", params={"start": 0}).status_code == 410
    assert http.get(f"{path}/records/99").status_code == 404
    assert http.post(f"{path}/truncate", json={"before": 99}).status_code == 404


def test_what_is_there_to_see(http: httpx.Client, log: str) -> None:
    """Info, files and producers of a log; a log that is not there is a 404 everywhere."""
    http.post(f"/v1/logs/{log}/records", content=b"v", headers={"oncelog-producer": "p", "oncelog-sequence": "7"})
    assert http.get(f"/v1/logs/{log}").json()["last_position"] == 0
    assert http.get(f"/v1/logs/{log}/files").json() == []
    assert http.get(f"/v1/logs/{log}/producers").json()["p"]["last_sequence"] == 7
    for path in ("", "/files", "/producers", "/settings", "/records", "/records/0", "/tail"):
        assert http.get(f"/v1/logs/none{path}").status_code == 404, path


def test_an_id_is_found_with_every_recent_attempt(http: httpx.Client, log: str) -> None:
    """Was it stored, where, and how often was it tried: one call answers; an id that is not stored has no ack."""
    path = f"/v1/logs/{log}"
    for content in (b"paid", b"paid", b"other"):
        http.post(f"{path}/records", content=content, headers={"Idempotency-Key": "order-42"})
    found = http.post(f"{path}/find", json={"id": "order-42"}).json()
    assert found["ack"]["position"] == 0
    assert [one["outcome"] for one in found["answers"]] == ["IdConflict", "duplicate", "stored"]
    assert http.post(f"{path}/find", json={"id": "order-43"}).json()["ack"] is None
    assert http.post(f"{path}/find", json={"id": ""}).status_code == 400
    assert http.post("/v1/logs/no-such-log/find", json={"id": "x"}).status_code == 404
