"""Two bare servers, to measure ours beside: an empty gRPC echo, and Arrow Flight over a log. Each prints its port."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pyarrow as pa
from pyarrow import flight

import oncelog

ECHO = "/bench.Echo/Echo"


async def _echo() -> None:
    """Answer every message with itself, by the asyncio server that ``oncelog serve`` uses, too."""

    async def answer(data: bytes, _: Any) -> bytes:
        return data

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the ids and values of one log."""

    def __init__(self, url: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._log = oncelog.connect(url).log("bench")

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002
        """Send all records in columns."""
        batches = self._log.read_arrow(columns=["value", "id"])
        first: pa.RecordBatch = next(batches)
        return flight.GeneratorStream(first.schema, (batch for some in ((first,), batches) for batch in some))


def main() -> None:
    """Serve until the process is ended."""
    if sys.argv[1] == "echo":
        asyncio.run(_echo())
    else:
        server = _Flight(sys.argv[2])
        print(server.port, flush=True)
        server.serve()


if __name__ == "__main__":
    main()
