"""The service ``Log``: records in, records out, and what can be asked of a log."""

from __future__ import annotations

from typing import Any

from oncelog.log.writer import TIMEOUT_S
from oncelog.server.call import Call
from oncelog.server.server import Server
from oncelog.wire import failures, messages, values


class LogService:
    """The methods of ``Log``, by their names."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def append(self, request: Any, call: Call) -> Any:
        """Append records; one call, one answer."""
        records = [values.record(one) for one in request.records]
        timeout_s = request.timeout_s if request.HasField("timeout_s") else TIMEOUT_S
        results = await self._server.seats[request.log].append(
            records, atomic=request.atomic, timeout_s=timeout_s, peer=call.peer
        )
        return messages.AppendResponse(results=[failures.result(one) for one in results])
