"""The server itself over HTTP: whether it lives, whether it is ready, what it counts, what it can do."""

from __future__ import annotations

from starlette.responses import Response

from oncelog.errors import Unavailable
from oncelog.server.http.request import JSON, Call, answer
from oncelog.server.security import authorize
from oncelog.server.security.exposure import is_loopback

_PROXY = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})
"""Headers of a request that a proxy has passed on: it may come from anywhere."""


async def livez(call: Call) -> Response:
    """Say that the loop turns."""
    return answer({"status": "ok", "server": call.server.name}, headers={"cache-control": "no-store"})


async def readyz(call: Call) -> Response:
    """Say whether calls are taken; 503 before the server has started, once it drains, and cut off from its bucket."""
    if not call.server.ready or call.server.is_cut_off:
        message = "the server is not ready: it starts, it stops, or it does not reach its bucket"
        raise Unavailable(message, retry_after_s=call.server.retry_after_s())
    body = {"status": "ok", "tokens": call.app.authorizer.trouble or "ok"}
    return answer(body, headers={"cache-control": "no-store"})


async def metrics(call: Call) -> Response:
    """Return what the server counts, as Prometheus reads it. Off loopback it needs the verb ``look`` on ``*``."""
    if not is_loopback(call.peer.rpartition(":")[0]) or not _PROXY.isdisjoint(call.headers):
        principal = call.app.principal(call.headers, call.peer, call.sans)
        authorize.check(principal, "look", "server")
    text, media_type = await call.read(lambda: call.app.metrics.exposition(call.headers.get("accept", "")))
    return Response(text, 200, {"cache-control": "no-store"}, media_type=media_type)


async def describe(call: Call) -> Response:
    """Return the OpenAPI document."""
    return Response(call.app.document, 200, {"cache-control": "public, max-age=300"}, media_type=JSON)
