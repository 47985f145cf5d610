"""The HTTP application of a server."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from oncelog.server.server import Server


def build(server: Server) -> Starlette:
    """Return the application that serves HTTP for a server."""

    async def live(_: Request) -> PlainTextResponse:
        return PlainTextResponse("live\n")

    async def ready(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ready\n") if server.ready else PlainTextResponse("not ready\n", 503)

    return Starlette(routes=[Route("/livez", live), Route("/readyz", ready)])
