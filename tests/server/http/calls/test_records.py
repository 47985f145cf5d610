"""Records over HTTP, at a real server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.server.security import tokens
from tests.server.http.conftest import Guarded

NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def _append(http: httpx.Client, log: str, value: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): given for name, given in headers.items()}
    return http.post(f"/v1/logs/{log}/records", content=value, headers=named)


def _lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _values(http: httpx.Client, log: str) -> list[str]:
    return [entry.get("value") for entry in http.get(f"/v1/logs/{log}/records").json()["entries"]]


def test_a_retry_is_one_record_and_says_so(http: httpx.Client, log: str) -> None:
    """201 with its place, then 200 with the same place, whichever way the key is written."""
    first = _append(http, log, b"paid", Idempotency_Key='"order-42"')
    assert first.status_code == 201
    assert http.get(first.headers["location"]).json()["value"] == "paid"
    for key in ("order-42", '"order-42"'):
        again = _append(http, log, b"paid", Idempotency_Key=key, User_Agent="another", Content_Type="text/plain")
        assert again.status_code == 200
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first.json() | {"duplicate": True}
    assert _append(http, log, b"paid", Oncelog_Id="order%2D42").status_code == 200
    assert _values(http, log) == ["paid"]


def test_other_content_under_the_id_is_a_conflict_with_the_first_ones_place(http: httpx.Client, log: str) -> None:
    """422, and nothing is written."""
    _append(http, log, b"first", Idempotency_Key="a")
    refused = _append(http, log, b"second", Idempotency_Key="a")
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["position"] == 0
    assert problem["outcome"] == "not written"
    assert problem["type"] == "urn:oncelog:error:IdConflict"
    assert _values(http, log) == ["first"]


def test_an_id_on_a_log_without_idempotence_is_refused(http: httpx.Client, log: str) -> None:
    """A key that is passed over in silence is a promise that is not kept."""
    name = f"{log}-off"
    http.post("/v1/logs", json={"name": name, "settings": {"idempotence": "off"}})
    refused = _append(http, name, b"v", Idempotency_Key="a")
    assert refused.status_code == 400
    assert _append(http, name, b"v").status_code == 201


@pytest.mark.parametrize("headers", [
    {"idempotency-key": "a", "oncelog-id": "b"}, {"idempotency-key": ""}, {"idempotency-key": '"a'},
    {"oncelog-id": "%FF"}, {"oncelog-sequence": "x", "oncelog-producer": "p"}, {"idempotency-key": "a" * 300},
])  # fmt: skip
def test_headers_that_mean_nothing_are_refused(http: httpx.Client, log: str, headers: dict[str, str]) -> None:
    """400, and nothing is written."""
    refused = http.post(f"/v1/logs/{log}/records", content=b"v", headers=headers)
    assert refused.status_code == 400, refused.text
    assert refused.json()["outcome"] == "not written"
    assert _values(http, log) == []


def test_a_header_that_comes_twice_is_refused(http: httpx.Client, log: str) -> None:
    """One of two keys would be passed over."""
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert http.post(f"/v1/logs/{log}/records", content=b"v", headers=twice).status_code == 400


def test_lines_are_decided_one_by_one(http: httpx.Client, log: str) -> None:
    """207 when one is refused: the others are stored, and each result says which."""
    _append(http, log, b"first", Idempotency_Key="a")
    body = _lines({"value": "first", "id": "a"}, {"value": "other", "id": "a"}, {"value_base64": "/w==", "id": "b"})
    mixed = http.post(f"/v1/logs/{log}/records", content=body, headers=NDJSON)
    assert mixed.status_code == 207
    duplicate, conflict, new = mixed.json()["results"]
    assert duplicate["ack"]["duplicate"]
    assert conflict["error"]["status"] == 422
    assert conflict["again"] is False
    assert new["ack"]["position"] == 1
    again = http.post(f"/v1/logs/{log}/records", content=_lines({"value": "first", "id": "a"}), headers=NDJSON)
    assert again.status_code == 200
    entries = http.get(f"/v1/logs/{log}/records").json()["entries"]
    assert [entry.get("value_base64") for entry in entries] == [None, "/w=="]


def test_one_bad_line_writes_none(http: httpx.Client, log: str) -> None:
    """The whole body is read first: a slip in line 2 is told by its number, and nothing was written."""
    body = _lines({"value": "a", "id": "1"}) + b'{"value": "b", "typo": 1}\n' + _lines({"value": "c"})
    refused = http.post(f"/v1/logs/{log}/records", content=body, headers=NDJSON)
    assert refused.status_code == 400
    assert refused.json()["row"] == 1
    assert "line 2" in refused.json()["detail"]
    assert _values(http, log) == []


def test_an_atomic_body_is_all_or_nothing(http: httpx.Client, log: str) -> None:
    """A mix of known and new ids is refused whole; exactly the same body again gets the first answers."""
    batch = _lines({"value": "a", "id": "1"}, {"value": "b", "id": "2"})
    first = http.post(f"/v1/logs/{log}/records?atomic=1", content=batch, headers=NDJSON)
    assert first.status_code == 201
    again = http.post(f"/v1/logs/{log}/records?atomic=1", content=batch, headers=NDJSON)
    assert again.status_code == 200
    assert [one["ack"]["position"] for one in again.json()["results"]] == [0, 1]
    mixed = _lines({"value": "b", "id": "2"}, {"value": "c", "id": "3"})
    refused = http.post(f"/v1/logs/{log}/records?atomic=1", content=mixed, headers=NDJSON)
    assert refused.status_code == 422
    assert (refused.json()["known"], refused.json()["new"]) == (["2"], ["3"])
    assert _values(http, log) == ["a", "b"]


def test_a_key_beside_lines_is_refused(http: httpx.Client, log: str) -> None:
    """It would be the id of no record, or of all."""
    body = _lines({"value": "a"})
    refused = http.post(f"/v1/logs/{log}/records", content=body, headers=NDJSON | {"idempotency-key": "a"})
    assert refused.status_code == 400


def test_a_long_body_is_taken_as_it_comes(http: httpx.Client, log: str) -> None:
    """Beyond the limit every record needs an id, results come line by line, and the last line says that it is done."""
    value = "x" * 100_000
    count = limits.HTTP_BODY_BYTES_MAX // len(value) + 20
    lines = [_lines({"value": value, "id": f"n{number}"}) for number in range(count)]
    answered = http.post(f"/v1/logs/{log}/records", content=iter(lines), headers=NDJSON)
    assert answered.status_code == 200
    results = [json.loads(line) for line in answered.text.splitlines()]
    assert results[-1] == {"done": True}
    assert [result["ack"]["position"] for result in results[:-1]] == list(range(count))
    anonymous = [*lines[:-1], _lines({"value": "x"})]
    refused = http.post(f"/v1/logs/{log}/records", content=iter(anonymous), headers=NDJSON)
    last = json.loads(refused.text.splitlines()[-1])
    assert last["done"] is False
    assert last["error"]["status"] == 400
    whole = http.post(f"/v1/logs/{log}/records?atomic=1", content=b"".join(lines), headers=NDJSON)
    assert whole.status_code == 413


def test_a_long_body_ends_with_the_token_that_sends_it(guarded: Guarded) -> None:
    """A body has no end that a server could wait for: what comes behind the end of the token is not written."""
    secret = guarded.token("long-body", "append,read:long-body")
    value = "x" * 100_000
    count = limits.HTTP_BODY_BYTES_MAX // len(value) + 20

    def lines() -> Iterator[bytes]:
        for number in range(count):
            yield _lines({"value": value, "id": f"n{number}"})
        tokens.revoke(guarded.path, "long-body")
        yield _lines({"value": "late", "id": "late"})

    with guarded.client(guarded.operator) as operator, guarded.client(secret) as client:
        assert operator.post("/v1/logs", json={"name": "long-body"}).status_code == 201
        answered = client.post("/v1/logs/long-body/records", content=lines(), headers=NDJSON)
        last = json.loads(answered.text.splitlines()[-1])
        assert (last["done"], last["error"]["status"], last["error"]["outcome"]) == (False, 401, "not written")
        assert operator.post("/v1/logs/long-body/find", json={"id": "late"}).json()["ack"] is None


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_columns_in_and_out(http: httpx.Client, log: str) -> None:
    """An Arrow stream is appended and read; bytes that are none are a 400, not a crash."""
    table = pa.table({"value": pa.array([b"a", b"b"]), "id": ["1", "2"]})
    first = http.post(f"/v1/logs/{log}/records", content=_arrow(table), headers=ARROW)
    assert first.status_code == 201
    assert [one["ack"]["position"] for one in first.json()["results"]] == [0, 1]
    columnar = ARROW | {"accept": ARROW["content-type"]}
    again = http.post(f"/v1/logs/{log}/records", content=_arrow(table), headers=columnar)
    assert again.status_code == 200
    assert pa.ipc.open_stream(again.content).read_all().column("duplicate").to_pylist() == [True, True]
    conflicting = pa.table({"value": pa.array([b"x", b"c"]), "id": ["1", "3"]})
    mixed = http.post(f"/v1/logs/{log}/records", content=_arrow(conflicting), headers=ARROW)
    assert mixed.status_code == 207
    read = http.get(f"/v1/logs/{log}/records", headers={"accept": ARROW["content-type"]})
    assert pa.ipc.open_stream(read.content).read_all().column("value").to_pylist() == [b"a", b"b", b"c"]
    assert read.headers["oncelog-next"] == "3"
    for damaged in (b"", b"x" * 100, _arrow(table)[:-20], _arrow(table)[20:]):
        assert http.post(f"/v1/logs/{log}/records", content=damaged, headers=ARROW).status_code in (400, 201)


def test_pages_follow_each_other(http: httpx.Client, log: str) -> None:
    """``next`` leads to the end without a gap or a repeat; beyond it is a 404, before the first a 410."""
    http.post(f"/v1/logs/{log}/records", content=_lines(*({"value": str(n)} for n in range(25))), headers=NDJSON)
    found: list[str] = []
    position = 0
    while position < 25:
        page = http.get(f"/v1/logs/{log}/records", params={"start": position, "limit": 10}).json()
        found += [entry["value"] for entry in page["entries"]]
        assert page["end"] == 25
        position = page["next"]
    assert found == [str(n) for n in range(25)]
    empty = http.get(f"/v1/logs/{log}/records", params={"start": 25}).json()
    assert empty == {"entries": [], "next": 25, "end": 25}
    assert http.get(f"/v1/logs/{log}/records", params={"start": 26}).status_code == 404
    lines = http.get(f"/v1/logs/{log}/records?limit=2", headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["value"] for line in lines.text.splitlines()] == ["0", "1"]
    again = http.post(f"/v1/logs/{log}-copy/records", content=lines.content, headers=NDJSON)
    assert again.status_code == 404
    refused = http.get(f"/v1/logs/{log}/records", headers={"accept": "text/html"})
    assert refused.status_code == 406


def test_a_record_never_changes_and_is_cached_by_its_tag(http: httpx.Client, log: str) -> None:
    """A strong ETag of log id and position: 304 to who has it."""
    _append(http, log, b"\xff", Oncelog_Type="t", Oncelog_Header_Source="web")
    found = http.get(f"/v1/logs/{log}/records/0")
    assert found.json()["value_base64"] == "/w=="
    assert (found.json()["type"], found.json()["headers"]) == ("t", {"source": "web"})
    tag = found.headers["etag"]
    assert not tag.startswith("W/")
    assert http.get(f"/v1/logs/{log}/records/0", headers={"if-none-match": tag}).status_code == 304
    assert http.get(f"/v1/logs/{log}/records/0", headers={"accept": "application/octet-stream"}).content == b"\xff"
    assert http.get(f"/v1/logs/{log}/records/1").status_code == 404
    assert http.get(f"/v1/logs/{log}/records/x").status_code == 400


@pytest.mark.parametrize("name", ["shop/orders", "a/records/1", "ä b", "100%", "x?y#z", "-"])
def test_names_of_any_kind(http: httpx.Client, log: str, name: str) -> None:
    """A slash is ``%2F`` in the path, or the name comes in the query."""
    full = f"{log}{name}"
    made = http.post("/v1/logs", json={"name": full})
    assert made.status_code == 201
    path = made.headers["location"]
    assert http.post(f"{path}/records", content=b"1").status_code == 201
    assert http.post("/v1/logs/-/records", params={"log": full}, content=b"2").status_code == 201
    assert http.get(path).json()["last_position"] == 1
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.apache.arrow.stream"])
def test_an_atomic_table_is_stored_whole_or_not_at_all(http: httpx.Client, log: str, accept: str) -> None:
    """All rows, or none because one of them conflicts; sent again, all are duplicates at their places."""
    path, headers = f"/v1/logs/{log}/records?atomic=1", ARROW | {"accept": accept}

    def body(*rows: tuple[str, bytes]) -> bytes:
        sink = io.BytesIO()
        table = pa.table({"id": [id for id, _ in rows], "value": [value for _, value in rows]})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    both = body(("a", b"1"), ("b", b"2"))
    assert [http.post(path, content=both, headers=headers).status_code for _ in range(2)] == [201, 200]
    found = http.post(path, content=both, headers=headers)
    if accept != "application/json":
        rows = pa.ipc.open_stream(found.content).read_all().to_pydict()
        assert (rows["position"], rows["duplicate"]) == ([0, 1], [True, True])
    else:
        acks = [one["ack"] for one in found.json()["results"]]
        assert [(ack["position"], ack["duplicate"]) for ack in acks] == [(0, True), (1, True)]
    refused = http.post(path, content=body(("c", b"3"), ("a", b"other")), headers=headers)
    assert refused.status_code == 422, refused.text
    assert http.post(path, content=body(), headers=headers).status_code == 400
    assert _values(http, log) == ["1", "2"]
