"""OpenAPI 3.1, made from the table of routes and the structs that stand in bodies."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from oncelog import __version__
from oncelog.server.http import problem
from oncelog.server.http.routes import ROUTES, Route

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457. Only outcome 'not written' proves that nothing was written.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "outcome": {"enum": ["not written", "unknown"]},
        "retry": {"enum": ["same id", "unsafe"]},
        "retry_after_s": {"type": "number"},
        "position": {"type": "integer"},
        "first": {"type": "integer"},
        "known": {"type": "array", "items": {"type": "string"}},
        "new": {"type": "array", "items": {"type": "string"}},
        "expected": {"type": ["string", "integer"]},
        "actual": {"type": ["integer", "null"]},
        "row": {"type": "integer"},
        "column": {"type": "string"},
    },
}
_INTEGERS = frozenset({"position", "limit"})
_NUMBERS = frozenset({"timeout_s"})


@functools.cache
def document_bytes() -> bytes:
    """Return the document as JSON."""
    return json.dumps(document(), separators=(",", ":")).encode()


def document() -> dict[str, Any]:
    """Return the document."""
    bodies = [body for route in ROUTES for body in (*route.takes.values(), *route.gives.values())]
    kinds = [kind for body in bodies for kind in _kinds(body)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    known = dict(zip(map(str, kinds), schemas, strict=True))
    described: dict[str, Any] = {}
    for route in ROUTES:
        described.setdefault(route.template.text, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Oncelog",
            "version": __version__,
            "description": "An append-only log in which a retried write is never a second write.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": described,
        "components": {
            "schemas": components | {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, known),
        "security": [] if route.verb is None else [{"token": []}, {}],
    }
    if route.verb is not None:
        made["description"] = f"Needs the verb `{route.verb}`."
    if route.takes:
        made["requestBody"] = {"required": False, "content": _content(route.takes, known)}
    return made


def _parameters(route: Route) -> list[dict[str, Any]]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": _schema(name)} for name in route.template.names if name
    ]
    query = [
        {"name": name, "in": "query", "description": text, "schema": _schema(name)}
        for name, text in route.query.items()
    ]
    headers = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in route.headers]
    return path + query + headers


def _schema(name: str) -> dict[str, Any]:
    return {"type": "integer" if name in _INTEGERS else "number" if name in _NUMBERS else "string"}


def _responses(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in route.statuses:
        body = route.gives if status < HTTPStatus.BAD_REQUEST and status not in (204, 304) else {}
        found[str(status)] = {"description": HTTPStatus(status).phrase} | (
            {"content": _content(body, known)} if body else {}
        )
        if status >= HTTPStatus.BAD_REQUEST:
            found[str(status)]["content"] = _problem()
    found["default"] = {"description": "A problem.", "content": _problem()}
    return found


def _problem() -> dict[str, Any]:
    return {problem.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def _content(bodies: Any, known: dict[str, Any]) -> dict[str, Any]:
    return {media: {"schema": _body(_kinds(body), known)} for media, body in bodies.items()}


def _body(kinds: Sequence[Any], known: dict[str, Any]) -> dict[str, Any]:
    if len(kinds) > 1:
        return {"anyOf": [known[str(kind)] for kind in kinds]}
    return dict(known[str(kinds[0])]) if kinds else {}


def _kinds(body: Any) -> Sequence[Any]:
    """Return the kinds of a body; none for bytes."""
    return body if isinstance(body, tuple) else () if body is bytes else (body,)
