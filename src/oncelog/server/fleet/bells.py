"""Bells: a server that follows a log which another server holds hears from the holder that the log has grown.

So no server polls the bucket for it. One call to each holder serves all logs that are followed there: names go one way
when following begins and ends, and the other way when a log has grown. A bell says only that a look is worth it; what
is new is read from the bucket. While a call is broken, the server polls the bucket as for a log
without a holder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from oncelog.errors import OncelogError
from oncelog.server.fleet.members import FleetMember
from oncelog.wire import messages

if TYPE_CHECKING:
    from oncelog.server.fleet.host import FleetHost

AGAIN_S = 5.0
"""How long after a holder did not answer it is looked for again."""

CHECK_S = 1.0
"""How often to check that a holder lives and still holds its logs. The check reads memory only."""

Holder = tuple[str, int]
"""A server by its name and incarnation."""


class Bells:
    """What this server hears of logs that others hold. For the event loop."""

    def __init__(self, server: FleetHost) -> None:
        self._server = server
        self._calls: dict[Holder, _HolderCall] = {}
        self._asked: dict[str, int] = {}
        """When the holder of a log was looked for last."""

    def is_heard(self, log: str) -> bool:
        """Tell whether the holder of a log rings when the log has grown. If not, the holder is looked for."""
        if any(log in call.heard for call in self._calls.values()):
            return True
        now_us = self._server.clock.elapsed_us()
        if now_us - self._asked.get(log, -1_000_000_000) >= AGAIN_S * 1e6:
            self._asked[log] = now_us
            task = asyncio.ensure_future(self._ask(log))
            task.add_done_callback(_seen)
        return False

    async def _ask(self, log: str) -> None:
        """Find the server that holds a log, and have it ring."""
        fleet = self._server.fleet
        assert fleet is not None
        member = await fleet.place(log, takes=False)
        if member is None or log not in self._asked:
            return
        call = self._calls.get(member.card.holder)
        if call is None:
            call = self._calls[member.card.holder] = _HolderCall(self._server, member)
            call.task.add_done_callback(lambda _: self._ended(member.card.holder))
        call.follow(log)

    def leave(self, log: str) -> None:
        """Note that a log is followed no more."""
        self._asked.pop(log, None)
        for call in self._calls.values():
            call.leave(log)

    def _ended(self, holder: Holder) -> None:
        call = self._calls.pop(holder)
        for log in call.heard:
            self._server.fleet.forget(log)  # type: ignore[union-attr]
            self._server.wake(log)  # it looks by itself from now on

    def close(self) -> None:
        """End all calls."""
        for call in list(self._calls.values()):
            call.task.cancel()


def _seen(task: asyncio.Future[None]) -> None:
    """Take what a look for a holder raised: it is looked for again."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, OncelogError):
        raise error


class _HolderCall:
    """The call to one holder."""

    def __init__(self, server: FleetHost, member: FleetMember) -> None:
        self._server = server
        self._member = member
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._wanted: set[str] = set()
        self.heard: set[str] = set()
        """Logs of which the holder has said that it rings for them."""
        self.task = asyncio.ensure_future(self._run())

    def follow(self, log: str) -> None:
        if log not in self._wanted:
            self._wanted.add(log)
            self._requests.put_nowait(messages.WatchRequest(log=log).SerializeToString())

    def leave(self, log: str) -> None:
        if log in self._wanted:
            self._wanted.discard(log)
            self.heard.discard(log)
            self._requests.put_nowait(messages.WatchRequest(log=log, leave=True).SerializeToString())

    async def _run(self) -> None:
        """Listen, as long as the holder lives."""
        fleet = self._server.fleet
        assert fleet is not None
        listening = asyncio.ensure_future(self._listen(fleet.peers.watch(self._member, self._sent())))
        try:
            while not listening.done() and fleet.members.find(self._member.card.holder) is not None:
                await asyncio.wait({listening}, timeout=CHECK_S)
        finally:
            listening.cancel()
            with contextlib.suppress(grpc.aio.AioRpcError, OncelogError, asyncio.CancelledError):
                await listening

    async def _listen(self, answers: AsyncGenerator[bytes, None]) -> None:
        async with contextlib.aclosing(answers):
            async for data in answers:
                said = messages.WatchResponse.FromString(data)
                for log in self._wanted.intersection(said.grown):
                    self.heard.add(log)
                    self._server.wake(log)
                for log in self._wanted.intersection(said.gone):
                    self._gone(log)

    def _gone(self, log: str) -> None:
        """Note that the server does not hold a log any more: the new holder is looked for."""
        self._wanted.discard(log)
        self.heard.discard(log)
        if self._server.fleet is not None:
            self._server.fleet.forget(log)
        self._server.wake(log)

    async def _sent(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._requests.get()


class Ringing:
    """What another server follows here, and which of it has grown. For the event loop."""

    def __init__(self, server: FleetHost) -> None:
        self._server = server
        self._grown: set[str] = set()
        self._refused: list[str] = []
        """Logs that are not held here."""
        self._changed = asyncio.Event()
        self._followed: dict[str, contextlib.ExitStack] = {}

    async def names(self, next_request: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
        """Yield which logs have grown, each as soon as it is followed, too, and which are not held here any more."""
        reading = asyncio.ensure_future(self._read(next_request))
        reading.add_done_callback(lambda _: self._changed.set())
        self._server.told.add(self._changed)
        try:
            while not self._server.draining.is_set() and not reading.done():
                self._changed.clear()
                gone = [log for log in self._followed if not self._server.is_held(log)]
                for log in gone:
                    self._leave(log)
                if self._grown or self._refused or gone:
                    grown, self._grown = sorted(self._grown.difference(gone)), set()
                    refused, self._refused = self._refused, []
                    yield messages.WatchResponse(grown=grown, gone=gone + refused)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._changed.wait()
        finally:
            self._server.told.discard(self._changed)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OncelogError):
                await reading
            for log in list(self._followed):
                self._leave(log)

    async def _read(self, next_request: Callable[[], Awaitable[Any]]) -> None:
        while (request := await next_request()) is not None:
            if request.leave:
                self._leave(request.log)
            elif not self._server.is_held(request.log):
                self._refused.append(request.log)
                self._changed.set()
            elif request.log not in self._followed:
                self._follow(request.log)

    def _follow(self, log: str) -> None:
        stack = self._followed[log] = contextlib.ExitStack()
        stack.enter_context(self._server.waking(log, lambda: self._ring(log)))
        self._ring(log)

    def _leave(self, log: str) -> None:
        found = self._followed.pop(log, None)
        if found is not None:
            found.close()

    def _ring(self, log: str) -> None:
        self._grown.add(log)
        self._changed.set()
