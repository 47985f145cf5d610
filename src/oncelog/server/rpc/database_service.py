"""The service ``Database``: which logs and queues there are, and making and deleting them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from oncelog import __version__
from oncelog.errors import InvalidArgument
from oncelog.queue.rules.settings import QueueSettings
from oncelog.server.call import Caller
from oncelog.server.fleet import listing
from oncelog.server.fleet.bells import Ringing
from oncelog.server.rpc.calls import Requests, check_of_fleet
from oncelog.server.rpc.log_service import document, optional
from oncelog.server.security.scopes import Kind
from oncelog.server.server import Server
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.wire import messages, values


class DatabaseService:
    """The methods of ``Database``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods by their names on the wire."""
        return {
            "Describe": self.describe,
            "Logs": self.logs,
            "Create": self.create,
            "Delete": self.delete,
            "Queues": self.queues,
            "Policy": self.policy,
            "Servers": self.servers,
            "Take": self.take,
            "Watch": self.watch,
        }

    async def describe(self, _: Any, __: Caller) -> Any:
        """Return what clients may know of the server."""
        server = self._server
        described = {
            "url": server.database.url,
            "name": server.name,
            "version": __version__,
            "protocol": messages.PROTOCOL,
            "started_us": server.started_us,
        }
        return document(described)

    async def logs(self, _: Any, call: Caller) -> Any:
        """Return the names of the logs that the caller may look at."""
        found = await self._server.read(self._server.database.logs)
        return messages.Names(names=self._visible(call, "log", found))

    async def queues(self, _: Any, call: Caller) -> Any:
        """Return the names of the queues that the caller may look at."""
        state = self._server.settings.queue_state
        found = await self._server.read(lambda: self._server.database.queues(state=state))
        return messages.Names(names=self._visible(call, "queue", found))

    def _visible(self, call: Caller, kind: Kind, names: list[str]) -> list[str]:
        gate = self._server.gate
        return names if gate is None else gate.visible(call, kind, names)

    async def create(self, request: Any, _: Caller) -> Any:
        """Open a log or queue, or make it when asked to; return what it is."""
        makers = {"": self._make_log, "log": self._make_log, "streams": self._make_streams, "queue": self._make_queue}
        if request.kind not in makers:
            message = f"kind {request.kind!r}: must be 'log', 'streams' or 'queue'"
            raise InvalidArgument(message)
        return await self._server.write(lambda: document(makers[request.kind](request)), request.name)

    def _make_log(self, request: Any) -> dict[str, object]:
        log = self._server.database.log(request.name, _given(request, LogSettings), create=request.create)
        return {"name": log.name, "kind": "log", "log_id": log.log_id, "settings": log.settings}

    def _make_streams(self, request: Any) -> dict[str, object]:
        self._server.database.streams(request.name, _given(request, LogSettings), create=request.create)
        log = self._server.open_log(request.name)
        return {"name": log.name, "kind": "streams", "log_id": log.log_id, "settings": log.settings}

    def _make_queue(self, request: Any) -> dict[str, object]:
        queue = self._server.database.queue(
            request.name,
            _given(request, QueueSettings),
            partitions=optional(request, "partitions"),
            create=request.create,
            adopt=request.adopt,
            state=self._server.settings.queue_state,
        )
        return {"name": queue.name, "kind": "queue", "partitions": queue.partitions, "settings": queue.settings}

    async def delete(self, request: Any, _: Caller) -> Any:
        """Delete a log or queue."""
        if request.kind == "queue":
            await self._server.delete_queue(request.name, force=request.force)
        elif request.kind in ("", "log"):
            await self._server.delete_log(request.name)
        else:
            message = f"kind {request.kind!r}: must be 'log' or 'queue'"
            raise InvalidArgument(message)
        return messages.Empty()

    async def policy(self, request: Any, _: Caller) -> Any:
        """Return the policy for producers of the database or a namespace; store one first, if it is given."""
        namespace = optional(request, "namespace")

        def work() -> Any:
            if request.HasField("policy"):
                wanted = values.from_document(request.policy, ProducerPolicy)
                self._server.database.set_producer_policy(wanted, namespace)
            return document(self._server.database.producer_policy(namespace))

        return await self._server.write(work)

    async def servers(self, _: Any, __: Caller) -> Any:
        """Return the servers of the fleet; of a database that has one server, that one."""
        return document(await self._server.read(lambda: listing.servers(self._server)))

    async def take(self, request: Any, _: Caller) -> Any:
        """Begin to take a log that nobody holds. Without a log it only tells that this server is here."""
        self._server.check_serving()
        if request.log:
            seat = self._server.seats[request.log]
            self._server.closers.post(seat.warm)
        return messages.Empty()

    def watch(self, requests: Requests, call: Caller) -> AsyncIterator[Any]:
        """Say which of the logs that are named have grown."""
        check_of_fleet(call)
        return Ringing(self._server).names(requests.next)


def _given(request: Any, kind: Any) -> Any:
    return values.from_document(request.settings, kind) if request.HasField("settings") else None
