"""The console of a plain database: a small server on this machine, without a set-up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from oncelog.clock import Clock
from oncelog.console.app import build
from oncelog.console.pages import ROOT
from oncelog.console.source import Source
from oncelog.console.viewer import KeyGate
from oncelog.errors import Unavailable

HOST = "127.0.0.1"
_T = TypeVar("_T")


def run(source: Source, port: int, announce: Callable[[str], None], *, clock: Clock) -> None:
    """Serve until Ctrl-C or SIGTERM; ``announce`` is called with the link. ``Unavailable`` if the port is taken."""
    gate = KeyGate(clock)
    app = _OwnHost(build(source, gate, _in_thread))
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # a browser may come before the server has begun
        except OSError as error:
            message = (
                f"the console cannot listen on {HOST}:{port}: {error.strerror or error}; --port 0 picks a free one"
            )
            raise Unavailable(message) from error
        settings = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        announce(f"http://{HOST}:{listening.getsockname()[1]}{ROOT}/login?key={gate.key}")
        uvicorn.Server(settings).run([listening])


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work)


class _OwnHost:
    """Refuses requests for another host: a web page elsewhere could point a name of its own at this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value for name, value in scope.get("headers", []) if name == b"host"]
        if scope["type"] == "http" and not all(_is_local(host) for host in hosts):
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


def _is_local(host: bytes) -> bool:
    return host.rpartition(b":")[0].decode("latin-1") in (HOST, "localhost")
