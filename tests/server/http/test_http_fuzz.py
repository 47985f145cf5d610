"""Random bytes and mutated requests at both ports of a real server: never a 500, never a traceback, never silence."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.server.http.routes import ROUTES
from oncelog.wire.methods import METHODS
from tests.servers import Serving

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
VALID = b"POST /v1/logs/fuzz/records HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: a\r\nContent-Length: 4\r\n\r\npaid"
NAMES = st.sampled_from(
    ["fuzz", "fuzz-s", "none", "a%2Fb", "%00", "%FF", "..", "-", "_audit", "queue%2Ffuzz%2F0", "%F0%9F%A6%8A"]
)
LABELS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
TYPES = ["application/x-ndjson", "application/json", "application/vnd.apache.arrow.stream", '"a"', "*"]
HEADERS = st.dictionaries(
    st.sampled_from([
        "Idempotency-Key", "Oncelog-Id", "Oncelog-Type", "Oncelog-Sequence", "Oncelog-Producer", "Oncelog-Header-X",
        "Content-Type", "Accept", "If-Match", "If-None-Match", "Last-Event-ID", "Origin", "Cookie", "Authorization",
        "traceparent", "Oncelog-Key", "Oncelog-Delay", "Range", "Expect", "Content-Encoding",
    ]),
    LABELS | st.sampled_from(TYPES),
    max_size=6,
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = "name value value_base64 id settings leases positions before group headers"
FORMS = st.fixed_dictionaries({}, optional={name: JSON for name in FIELDS.split()})  # noqa: C420 (hypothesis wants it so)
BODIES = (
    st.binary(max_size=200)
    | st.builds(lambda form: json.dumps(form).encode(), FORMS)
    | st.builds(lambda forms: b"\n".join(json.dumps(form).encode() for form in forms), st.lists(FORMS, max_size=4))
)
FIELD = st.sampled_from(["start", "limit", "log", "atomic", "timeout_s", "direction", "x", "prefix"])
QUERIES = st.lists(st.tuples(FIELD, LABELS), max_size=3)
REQUESTS = st.tuples(st.sampled_from(ROUTES), st.lists(NAMES, min_size=3, max_size=3), QUERIES, HEADERS, BODIES)


@pytest.fixture
def ready(http: httpx.Client) -> httpx.Client:
    """Return a client of a server that has what the fuzzer names."""
    http.post("/v1/logs", json={"name": "fuzz"})
    http.post("/v1/logs", json={"name": "fuzz-s", "streams": True})
    http.post("/v1/queues", json={"name": "fuzz"})
    return http


@SHARED
@given(request=REQUESTS)
def test_no_request_breaks_the_server(ready: httpx.Client, request: tuple[Any, ...]) -> None:
    """Every answer is one that the docs know; a refusal is a problem that a program can read."""
    route, names, query, headers, body = request
    left = iter(names)
    parts = zip(route.template.names, route.template.parts, strict=True)
    path = "/".join(next(left) if name else part for name, part in parts)
    try:
        with ready.stream(route.method, f"/{path}", params=query, headers=headers, content=body) as response:
            status = response.status_code
            text = (
                "" if "event-stream" in response.headers.get("content-type", "") else response.read().decode("latin-1")
            )
    except httpx.LocalProtocolError:
        return  # the client itself refuses to send this
    assert status < 500 or status in (501, 503, 504), (status, text)
    assert "Traceback" not in text
    if status >= 400:
        problem = json.loads(text)
        assert problem["status"] == status
        assert problem["detail"]


@SHARED
@given(data=st.binary(max_size=300) | st.builds(
    lambda at, junk: bytes(bytearray(VALID[:at]) + junk + VALID[at:]), st.integers(0, 150), st.binary(max_size=10)
))  # fmt: skip
def test_no_bytes_break_the_http_port(open_server: Serving, ready: httpx.Client, data: bytes) -> None:
    """Random bytes, and a valid request with bytes put in: an answer that is none of the server's failures, or none."""
    host, _, port = open_server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            response = connection.recv(65536)
        except ConnectionResetError:
            response = b""
    assert not response.startswith(b"HTTP/1.1 5"), response
    assert b"Traceback" not in response


@SHARED
@given(method=st.sampled_from(sorted(METHODS)), data=st.binary(max_size=200))
def test_no_bytes_break_a_grpc_method(
    open_server: Serving, ready: httpx.Client, channel: Any, method: str, data: bytes
) -> None:
    """Bytes that are no message are refused as such; no code says that the server failed."""
    found = METHODS[method]
    shape = f"{'stream' if found.client_streams else 'unary'}_{'stream' if found.server_streams else 'unary'}"
    call = getattr(channel, shape)(found.path)
    try:
        answer = call(iter([data]) if found.client_streams else data, timeout=10)
        if found.server_streams:
            next(answer, None)
            answer.cancel()
        code, details = "OK", ""
    except grpc.RpcError as error:
        code, details = error.code().name, error.details() or ""
    assert code not in ("UNKNOWN", "INTERNAL", "DATA_LOSS"), details
    assert "Traceback" not in details


@pytest.fixture
def channel(open_server: Serving) -> Iterator[Any]:
    """Yield a gRPC channel."""
    with grpc.insecure_channel(open_server.grpc) as made:
        yield made


def test_the_server_has_met_no_bug(open_server: Serving, ready: httpx.Client) -> None:
    """It logged no traceback while it was fuzzed, but of damage that other tests plant, and it still serves."""
    traces = [line for line in open_server.errors().splitlines() if "Traceback" in line]
    assert [line for line in traces if "oncelog.errors.CorruptionError: " not in line] == []
    assert ready.get("/readyz").status_code == 200
