"""All services of a server."""

from __future__ import annotations

from typing import Any

from oncelog.server.rpc import follow_stream
from oncelog.server.rpc.calls import handlers
from oncelog.server.rpc.database_service import DatabaseService
from oncelog.server.rpc.log_service import LogService
from oncelog.server.rpc.queue_service import QueueService
from oncelog.server.rpc.streams_service import StreamsService
from oncelog.server.server import Server


def all_handlers(server: Server) -> list[Any]:
    """Return the handlers of every service of ``wire.proto``."""
    logs, streams = LogService(server), StreamsService(server)
    follow = follow_stream.following(server, logs.follow, streams.subscribe)
    return [
        handlers(server, "Log", {**logs.methods(), "Follow": follow}),
        handlers(server, "Streams", streams.methods()),
        handlers(server, "Queue", QueueService(server).methods()),
        handlers(server, "Database", DatabaseService(server).methods()),
    ]
