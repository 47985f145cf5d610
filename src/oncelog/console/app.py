"""The console as an ASGI application: routes, static files, and the headers that keep others' scripts out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncelog.console.acts import Acts
from oncelog.console.live import LivePages
from oncelog.console.pages import ROOT, Pages
from oncelog.console.queue_pages import QueuePages
from oncelog.console.source import Source
from oncelog.console.viewer import ViewerGate
from oncelog.console.work_pages import WorkPages

_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_KEPT = (b"cache-control", b"public, max-age=31536000, immutable")
"""A browser keeps style and script: their addresses have a part that changes with their content."""


def build(source: Source, gate: ViewerGate, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Starlette:
    """Return the application. ``run`` runs what blocks in a thread. It answers below ``/console``."""
    pages = Pages(source, gate, run)
    acts, work, queues = Acts(pages), WorkPages(pages), QueuePages(pages)
    live = LivePages(pages, queues)
    page = pages.page
    routes = [
        Route("/", page(pages.overview)),
        Route("/logs", page(pages.logs)),
        Route("/log", page(pages.log)),
        Route("/record", page(pages.record)),
        Route("/find", page(pages.find), methods=["GET", "POST"]),
        Route("/producers", page(pages.producers)),
        Route("/pipelines", page(work.pipelines)),
        Route("/report", page(work.report)),
        Route("/report/page", page(work.report_page)),
        Route("/streams", page(pages.streams)),
        Route("/stream", page(pages.stream)),
        Route("/queues", page(queues.queues)),
        Route("/queue", page(queues.queue)),
        Route("/inboxes", page(work.inboxes), methods=["GET", "POST"]),
        Route("/verify", page(work.verify)),
        Route("/server", page(acts.server)),
        Route("/live/overview", page(live.overview)),
        Route("/live/log", page(live.log)),
        Route("/live/queue", page(live.queue)),
        Route("/live/verify", page(live.verify)),
        Route("/act", page(acts.act), methods=["POST"]),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("oncelog.console", "static")])),
    ]
    return Starlette(
        routes=[Route(ROOT, _to_root), Mount(ROOT, routes=routes), Route("/", _to_root)],
        middleware=[Middleware(_SafeHeaders)],
    )


async def _to_root(_request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", 307)


class _SafeHeaders:
    """Adds the headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if scope["path"].startswith(f"{ROOT}/static/") and message["status"] == HTTPStatus.OK:
                    message["headers"] = [*message["headers"], _KEPT]
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in given)]
            await send(message)

        await self._app(scope, receive, sending)
