"""Traces by OpenTelemetry's API alone: without its SDK in the process every span is one that records nothing.

A span has the route and the status, never a name, an id, a token or a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode

_tracer = trace.get_tracer("oncelog.server")
_FAILED = 500


@contextlib.contextmanager
def span(scope: MutableMapping[str, Any]) -> Iterator[trace.Span]:
    """Have the span of an HTTP request, as a child of the span that its headers name."""
    carried = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
    context = propagate.extract(carried) if carried else None
    with _tracer.start_as_current_span(
        scope["method"], context, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    ) as made:
        yield made


@contextlib.contextmanager
def call_span(method: str, metadata: Iterable[tuple[str, Any]] | None) -> Iterator[trace.Span]:
    """Have the span of a gRPC call, as a child of the span that its metadata names."""
    carried = {name: str(value) for name, value in metadata or () if name in ("traceparent", "tracestate")}
    context = propagate.extract(carried) if carried else None
    with _tracer.start_as_current_span(
        method, context, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    ) as made:
        yield made


def settle(made: trace.Span, route: str, status: int) -> None:
    """Say how a request ended."""
    if made.is_recording():
        made.update_name(f"{route}")
        made.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= _FAILED:
            made.set_status(StatusCode.ERROR)
