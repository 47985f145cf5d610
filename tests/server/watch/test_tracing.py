"""Spans of calls: children of the caller's, named by the route, without a name, an id, a token or a value."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from oncelog.server.http import app as http_app
from oncelog.server.server import Server
from oncelog.server.watch import tracing
from tests.server.inside import serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class _Seen(trace.NonRecordingSpan):
    """A span that notes what it is told."""

    def __init__(self, name: str, parent: trace.SpanContext, kind: SpanKind) -> None:
        super().__init__(parent)
        self.name, self.parent, self.kind = name, parent, kind
        self.attributes: dict[str, Any] = {}
        self.status: object = None

    def is_recording(self) -> bool:
        return True

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        del description
        self.status = status


class _Tracer:
    def __init__(self) -> None:
        self.spans: list[_Seen] = []

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, context: Any, kind: SpanKind, **_: Any) -> Iterator[Span]:
        made = _Seen(name, trace.get_current_span(context).get_span_context(), kind)
        self.spans.append(made)
        with trace.use_span(made):
            yield made


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> _Tracer:
    """Return a tracer that keeps all spans of this process's server."""
    made = _Tracer()
    monkeypatch.setattr(tracing, "_tracer", made)
    return made


def test_a_request_is_a_span_under_the_callers(tracer: _Tracer) -> None:
    """Its name is the route, so that ids and names of logs are not in it; a refusal is no error, a failure is."""

    async def work(server: Server) -> None:
        transport = httpx.ASGITransport(http_app.build(server), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7677") as client:
            await asyncio.to_thread(lambda: server.database.log("secret-log", create=True))
            headers = {"traceparent": PARENT, "idempotency-key": "secret-id", "authorization": "Bearer secret-token"}
            found = await client.post("/v1/logs/secret-log/records", content=b"secret-value", headers=headers)
            assert found.status_code == 201, found.text
            assert (await client.get("/v1/logs/none")).status_code == 404

    serving(work)
    first, second = tracer.spans
    assert first.kind is SpanKind.SERVER
    assert f"{first.parent.trace_id:032x}" == TRACE
    assert (first.name, first.attributes) == (
        "/v1/logs/{log}/records",
        {"http.route": "/v1/logs/{log}/records", "http.response.status_code": 201},
    )
    assert first.status is None
    assert not second.parent.is_valid, "a caller without a trace begins one"
    assert (second.attributes["http.response.status_code"], second.status) == (404, None)
    assert not any("secret" in str(one.__dict__) for one in tracer.spans)


def test_a_failure_is_marked(tracer: _Tracer) -> None:
    """A 5xx is what a trace is looked for."""
    with tracing.span({"method": "GET", "headers": []}) as made:
        tracing.settle(made, "/v1/logs/{log}", 503)
    assert tracer.spans[0].status is StatusCode.ERROR


def test_a_call_of_grpc_is_a_span_under_the_callers(tracer: _Tracer) -> None:
    """The trace comes in the metadata; nothing else of the metadata goes into the span."""
    metadata = (("traceparent", PARENT), ("authorization", "Bearer secret"), ("x-bin", b"secret"))
    with tracing.call_span("Log.Append", metadata):
        pass
    [made] = tracer.spans
    assert (made.name, made.kind, f"{made.parent.trace_id:032x}") == ("Log.Append", SpanKind.SERVER, TRACE)
    assert "secret" not in str(made.__dict__)
