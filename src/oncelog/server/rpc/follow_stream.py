"""``Log.Follow``: many tails and subscriptions on one stream. docs/wire.md has the rules.

A stream of gRPC costs a server about 30 KB, and a client of the synchronous API a thread. So a client follows all its
logs by one stream. Each tail has a number, and a room of its own in bytes: one that is not read holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.server.call import Caller
from oncelog.server.rpc.calls import Requests, Talk
from oncelog.server.rpc.write_stream import parsed
from oncelog.server.server import Server
from oncelog.wire import failures, frames, messages
from oncelog.wire.frames import Kind, Raw

BEAT_S = 15.0
"""So often a stream on which nothing comes says that it is alive: proxies cut streams that are silent."""

OUT_MAX = 16
"""Messages that wait for the connection. The tails whose messages find no place wait, in their order."""

_BEAT = frames.pack(Raw(Kind.ENTRIES, b"", 0))  # no tail has the number 0

_log = logging.getLogger("oncelog.server")

Follow = Callable[[Any, Caller], AsyncIterator[Any]]


class _Source(NamedTuple):
    """What can be followed: the class of the request, the kind of the answers, and what makes the answers."""

    request: str
    answer: Kind
    follow: Follow


class _NumberedTail:
    """One tail or subscription of a stream, and how many bytes may still be sent to it."""

    __slots__ = ("_more", "room_bytes", "task")

    def __init__(self) -> None:
        self.room_bytes = 0
        self._more = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def give(self, size_bytes: int) -> None:
        """Let more be sent."""
        self.room_bytes += size_bytes
        self._more.set()

    async def room(self) -> None:
        """Wait until something may be sent."""
        while self.room_bytes <= 0:
            self._more.clear()
            await self._more.wait()


class FollowStream:
    """One stream of a client. Used by the event loop alone."""

    def __init__(self, server: Server, sources: Mapping[Kind, _Source], requests: Requests, call: Caller) -> None:
        self._server = server
        self._sources = sources
        self._requests = requests
        self._call = call
        self._followers: dict[int, _NumberedTail] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: deque[bytes] = deque()
        self._places = asyncio.Semaphore(OUT_MAX)
        self._changed = asyncio.Event()

    async def answers(self) -> AsyncIterator[bytes]:
        """Yield what comes for all tails, until the client ends the stream, or the server drains."""
        self._server.told.add(self._changed)
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not self._server.draining.is_set():
                self._changed.clear()
                while self._out:
                    yield self._out.popleft()
                    self._places.release()
                if reading.done():
                    reading.result()  # raises what was wrong with a request
                    return
                if not await self._has_changed():
                    yield _BEAT
        finally:
            self._server.told.discard(self._changed)
            ended = [reading, *self._tasks]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    async def _has_changed(self) -> bool:
        try:
            async with asyncio.timeout(BEAT_S):
                return await self._changed.wait()
        except TimeoutError:
            return False

    # Reading.

    async def _read(self) -> None:
        """Take the requests of the client."""
        while (request := await self._requests.next()) is not None:
            raw = frames.unpack(request)
            if raw.kind in self._sources:
                await self._begin(raw)
            elif raw.kind is Kind.MORE:
                self._give(raw.tag, frames.more_bytes(raw))
            elif raw.kind is Kind.LEAVE:
                self._leave(raw.tag)
            else:
                message = f"a client does not send raw messages of kind {raw.kind.name} to follow logs"
                raise InvalidArgument(message)

    async def _begin(self, raw: Raw) -> None:
        """Begin a tail. One too many is refused alone: the others go on. What cannot be answered is not read."""
        if raw.tag in self._followers or raw.tag == 0:
            message = f"number {raw.tag} is taken: each tail of a stream has a number of its own, from 1 on"
            raise InvalidArgument(message)
        if len(self._tasks) >= frames.FOLLOWERS_MAX:
            message = f"one stream follows at most {frames.FOLLOWERS_MAX} logs: open another, or try again later"
            await self._refuse(raw.tag, Unavailable(message))
            return
        follower = self._followers[raw.tag] = _NumberedTail()
        task = follower.task = asyncio.create_task(self._follow(raw, self._sources[raw.kind], follower))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give(self, number: int, size_bytes: int) -> None:
        follower = self._followers.get(number)
        if follower is not None:  # else it has ended, and its client does not know yet
            follower.give(size_bytes)

    def _leave(self, number: int) -> None:
        follower = self._followers.pop(number, None)
        if follower is not None and follower.task is not None:
            follower.task.cancel()

    # Following.

    async def _follow(self, raw: Raw, source: _Source, follower: _NumberedTail) -> None:
        """Send a client what comes for one tail, and at last the error that ended it."""
        number = raw.tag
        try:
            await self._send_all(raw, source, follower)
            error: OncelogError = Unavailable("this server stops: follow the log by another one, or by this one later")
        except OncelogError as raised:
            error = raised
        except Exception:  # noqa: BLE001 (a bug: its text stays here)
            _log.exception("a tail failed")
            error = Unavailable("the server failed: see its log", outcome="unknown")
        self._followers.pop(number, None)
        await self._refuse(number, error)

    async def _refuse(self, number: int, error: OncelogError) -> None:
        await self._put(Raw(Kind.ERROR, failures.to_message(error).SerializeToString(), number))

    async def _send_all(self, raw: Raw, source: _Source, follower: _NumberedTail) -> None:
        request = parsed(messages.CLASSES[source.request], raw.body)
        self._requests.admit(request.log)
        found: Any = source.follow(request, self._call)
        async with contextlib.aclosing(found):
            async for made in found:
                body = made if isinstance(made, bytes) else made.SerializeToString()
                await follower.room()
                follower.room_bytes -= len(body)
                await self._put(Raw(source.answer, body, raw.tag))

    async def _put(self, raw: Raw) -> None:
        """Have a message sent, when there is a place for it."""
        await self._places.acquire()
        self._out.append(frames.pack(raw))
        self._changed.set()


def following(server: Server, read: Follow, subscribe: Follow) -> Talk:
    """Return the method ``Follow``: ``read`` and ``subscribe`` make the answers to one tail or subscription."""
    sources = {
        Kind.FOLLOW: _Source("ReadRequest", Kind.ENTRIES, read),
        Kind.SUBSCRIBE: _Source("SubscribeRequest", Kind.ITEM, subscribe),
    }
    return lambda requests, call: FollowStream(server, sources, requests, call).answers()
