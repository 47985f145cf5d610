"""Webhooks at a real server: retries as providers send them, with a changed field."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncelog.errors import InvalidArgument
from oncelog.server.http.calls.hooks import Hooks
from oncelog.server.security import signatures
from tests.server.http.conftest import SECRET


@pytest.fixture(autouse=True)
def _logs(http: httpx.Client) -> None:
    for name in ("stripe", "github", "strict"):
        http.post("/v1/logs", json={"name": f"hooks/{name}"})


def _stripe(http: httpx.Client, event: dict[str, Any], **more: Any) -> httpx.Response:
    body = json.dumps(event).encode()
    header = signatures.sign(more.pop("secret", SECRET), body, more.pop("now_s", int(time.time())))
    return http.post("/v1/hooks/stripe", content=body, headers={"stripe-signature": header})


def _count(http: httpx.Client, hook: str, outcome: str) -> float:
    wanted = f'oncelog_hooks_total{{hook="{hook}",outcome="{outcome}"}} '
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(wanted)]
    return float(lines[0].removeprefix(wanted)) if lines else 0.0


def test_a_retry_with_a_changed_field_is_a_success_and_one_record(http: httpx.Client) -> None:
    """Stripe counts ``pending_webhooks`` down between retries: the first body stands, and the retry gets its 200."""
    event = {"id": f"evt_{time.time_ns()}", "type": "charge.succeeded", "pending_webhooks": 2}
    first = _stripe(http, event)
    assert (first.status_code, first.json()["duplicate"]) == (200, False)
    exact = _stripe(http, event)
    assert (exact.status_code, exact.json()["duplicate"], exact.json()["conflict"]) == (200, True, False)
    before = _count(http, "stripe", "conflict")
    changed = _stripe(http, event | {"pending_webhooks": 1})
    assert (changed.status_code, changed.json()["conflict"]) == (200, True)
    assert changed.json()["position"] == first.json()["position"]
    assert _count(http, "stripe", "conflict") == before + 1
    stored = http.get(f"/v1/logs/hooks%2Fstripe/records/{first.json()['position']}").json()
    assert json.loads(stored["value"]) == event


def test_a_forged_or_old_event_is_refused(http: httpx.Client) -> None:
    """Another secret, a changed body, and a recording from an hour ago: 401, counted, and nothing is written."""
    event = {"id": f"evt_forged_{time.time_ns()}"}
    before = _count(http, "stripe", "refused")
    assert _stripe(http, event, secret=b"guess").status_code == 401
    assert _stripe(http, event, now_s=int(time.time()) - 3600).status_code == 401
    assert http.post("/v1/hooks/stripe", json=event).status_code == 401
    assert _count(http, "stripe", "refused") == before + 3
    end = http.get("/v1/logs/hooks%2Fstripe/records", params={"start": "latest"}).json()["end"]
    entries = http.get("/v1/logs/hooks%2Fstripe/records", params={"limit": 1000}).json()["entries"] if end else []
    assert not [entry for entry in entries if "forged" in entry["value"]]


def test_an_event_without_an_id_is_refused_and_counted(http: httpx.Client) -> None:
    """Stored without an id it would be stored again by every retry."""
    before = _count(http, "stripe", "no id")
    for event in ({}, {"id": None}, {"id": ""}, {"id": {"x": 1}}, {"id": True}, {"id": "x" * 300}):
        assert _stripe(http, event).status_code == 400, event
    assert _count(http, "stripe", "no id") == before + 6


def test_the_id_may_come_in_a_header(http: httpx.Client) -> None:
    """As GitHub's deliveries have it."""
    body = b'{"ref": "main"}'
    signature = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    headers = {"x-github-delivery": f"d-{time.time_ns()}", "x-hub-signature-256": signature}
    first = http.post("/v1/hooks/github", content=body, headers=headers)
    assert first.status_code == 200
    assert http.post("/v1/hooks/github", content=body, headers=headers).json()["duplicate"]
    assert http.get(f"/v1/logs/hooks%2Fgithub/records/{first.json()['position']}").json()["type"] == "push"
    without = {"x-hub-signature-256": signature}
    assert http.post("/v1/hooks/github", content=body, headers=without).status_code == 400
    assert http.post("/v1/hooks/none", content=body).status_code == 404


def test_a_second_id_in_the_headers_is_not_passed_over(http: httpx.Client) -> None:
    """The event was taken for the one that has the first id alone, and was answered as a duplicate."""
    body, one, other = b"{}", f"d-{time.time_ns()}", f"e-{time.time_ns()}"
    signature = ("x-hub-signature-256", "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest())

    def post(*ids: str) -> bool:
        headers = [signature, *(("x-github-delivery", id) for id in ids)]
        answered = http.post("/v1/hooks/github", content=body, headers=headers)
        assert answered.status_code == 200
        return bool(answered.json()["duplicate"])

    assert [post(one), post(one, one), post(one, other), post(one, other)] == [False, True, False, True]


def test_a_pointer_leads_into_lists_and_a_strict_hook_refuses_conflicts(http: httpx.Client) -> None:
    """``json:/data/0/key``; with ``on_conflict = "error"`` another body under the id is a 422."""

    def post(document: dict[str, Any]) -> int:
        body = json.dumps(document).encode()
        header = {"oncelog-signature": signatures.sign(SECRET, body, int(time.time()))}
        return http.post("/v1/hooks/strict", content=body, headers=header).status_code

    key = time.time_ns()
    assert post({"data": [{"key": key}]}) == 200
    assert post({"data": [{"key": key}]}) == 200
    assert post({"data": [{"key": key}], "more": 1}) == 422
    assert post({"data": {"0": {"key": f"x{key}"}}}) == 200
    assert post({"data": []}) == 400


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """Who reads the secret can sign: a server with such a file does not start."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    settings = {"log": "payments", "id": "json:/id", "signature": "stripe", "secret_file": str(secret)}
    secret.chmod(0o600)
    Hooks({"stripe": settings})
    secret.chmod(mode)
    with pytest.raises(InvalidArgument, match="chmod 600") as caught:
        Hooks({"stripe": settings})
    assert SECRET.decode() not in str(caught.value)


def _table(log: str, **more: Any) -> dict[str, Any]:
    return {"log": log, "id": "json:/id", **more}


def test_hooks_that_share_a_log_say_how_their_ids_are_told_apart() -> None:
    """Two providers may send one id: the event of the second was answered as a duplicate, and was nowhere."""
    alone = {"a": _table("x"), "b": _table("y")}
    Hooks(alone)
    for first, second in (({}, {}), ({"id_prefix": "a:"}, {}), ({}, {"id_prefix": "b:"})):
        with pytest.raises(InvalidArgument, match=r"hooks\.a and hooks\.b both write log 'x'.*id_prefix"):
            Hooks({"a": _table("x", **first), "b": _table("x", **second)})
    Hooks({"a": _table("x", id_prefix=""), "b": _table("x", id_prefix="")})


def test_a_prefix_keeps_the_ids_of_two_providers_apart(http: httpx.Client) -> None:
    """One id from both is two records, and a retry of each is one."""
    assert http.post("/v1/logs", json={"name": "hooks/shared"}).status_code in (200, 201)
    event = {"id": f"evt_{time.time_ns()}"}
    found = {}
    for name in ("left", "right"):
        first, again = (http.post(f"/v1/hooks/{name}", json=event | {"from": name}) for _ in range(2))
        assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
        found[name] = http.get(f"/v1/logs/hooks%2Fshared/records/{first.json()['position']}").json()
    ids = {name: entry["id"] for name, entry in found.items()}
    assert ids == {"left": event["id"], "right": f"right:{event['id']}"}
    assert {name: json.loads(entry["value"])["from"] for name, entry in found.items()} == {
        "left": "left",
        "right": "right",
    }


@pytest.mark.parametrize("prefix", ["x" * 256, "a\n", "\ud800"])
def test_a_prefix_that_no_id_can_have_is_refused(prefix: str) -> None:
    """Every event would be refused, one by one, when the server runs."""
    with pytest.raises(InvalidArgument, match=r"hooks\.a: id_prefix"):
        Hooks({"a": _table("x", id_prefix=prefix)})


@pytest.mark.parametrize("log", ["_audit", "queue/emails/0", "conflicts.queue/emails/0", "conflicts._audit"])
def test_a_hook_writes_no_log_that_callers_may_not_write(log: str) -> None:
    """A web page that posts could write lines of the audit log, or messages that no queue knows."""
    with pytest.raises(InvalidArgument, match=r"hooks\.a: log"):
        Hooks({"a": _table(log)})


def test_a_secret_without_a_scheme_is_a_mistake(tmp_path: Path) -> None:
    """Whoever names a secret wants it to be asked for: without ``signature`` everybody could post."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with pytest.raises(InvalidArgument, match=r"hooks\.a: secret_file .* signature"):
        Hooks({"a": _table("x", secret_file=str(secret))})
    Hooks({"a": _table("x", secret_file=str(secret), signature="stripe")})
