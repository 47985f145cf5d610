"""All services of a server."""

from __future__ import annotations

from typing import Any

from oncelog.server.rpc.calls import handlers
from oncelog.server.rpc.log_service import LogService
from oncelog.server.server import Server


def all_handlers(server: Server) -> list[Any]:
    """Return the handlers of every service of ``wire.proto``."""
    log = LogService(server)
    return [handlers(server, "Log", {"Append": log.append})]
