"""Request bodies: read whole, within a size and a time; cut half-way, nothing of them counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from oncelog import limits
from oncelog.clock import Clock
from oncelog.server.budget import Budget
from oncelog.server.http.problem import HttpRefusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SLOWEST_BYTES_PER_S = 8 * limits.KIB
"""A body that comes more slowly than this, after ``HTTP_BODY_S_MAX``, is refused: it holds memory and a connection."""


LINGER_S = 5.0
LINGER_BYTES_MAX = 64 * limits.MIB
"""So long, and so much, a body that was refused is still received, so that its sender sees the answer."""


class Gone(Exception):
    """The client left before its request was complete: nobody waits for an answer."""


class Body:
    """The body of one request. Its bytes count against the budget of all bodies until ``close``."""

    def __init__(self, receive: Receive, declared: str | None, budget: Budget, clock: Clock) -> None:
        """Take what receives, and the ``Content-Length`` if there is one."""
        self._receive = receive
        self._budget = budget
        self._clock = clock
        self._declared = int(declared) if declared is not None and declared.isdecimal() else None
        self._began_us = clock.elapsed_us()
        self._held_bytes = 0
        self._received_bytes = 0
        self._whole: bytes | None = None
        self.complete = False

    async def whole(self, bytes_max: int = limits.HTTP_BODY_BYTES_MAX) -> bytes:
        """Return the body; ``Refused`` with 413 when it is too large, with 408 when it is too slow. May be repeated."""
        if self._whole is not None:
            return self._whole
        if self._declared is not None and self._declared > bytes_max:
            raise too_large(bytes_max)
        parts: list[bytes] = []
        async for part in self.parts():
            parts.append(part)
            if self._received_bytes > bytes_max:
                raise too_large(bytes_max)
        self._whole = b"".join(parts)
        return self._whole

    @property
    def known(self) -> bytes | None:
        """The body, if it was read whole already."""
        return self._whole

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; ``Gone`` when the client leaves before its end."""
        while not self.complete:
            message = await self._next()
            if message["type"] != "http.request":
                raise Gone
            part: bytes = message.get("body", b"")
            self.complete = not message.get("more_body", False)
            if part:
                await self._budget.take(len(part))
                self._held_bytes += len(part)
                self._received_bytes += len(part)
                yield part

    async def left(self) -> None:
        """Return when the client has left. For a body that was read whole."""
        while (await self._receive())["type"] == "http.request":
            pass

    async def discard(self) -> None:
        """Take what still comes, for a while, and drop it."""
        dropped_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.complete and dropped_bytes < LINGER_BYTES_MAX:
                    message = await self._receive()
                    dropped_bytes += len(message.get("body", b""))
                    self.complete = message["type"] != "http.request" or not message.get("more_body", False)

    async def _next(self) -> MutableMapping[str, Any]:
        passed_s = (self._clock.elapsed_us() - self._began_us) / 1e6
        left_s = limits.HTTP_BODY_S_MAX + self._received_bytes / SLOWEST_BYTES_PER_S - passed_s
        with contextlib.suppress(TimeoutError):
            if left_s > 0:
                async with asyncio.timeout(left_s):
                    return await self._receive()
        message = "the body came too slowly: nothing was written"
        raise HttpRefusal(408, message)

    def let_go(self, size_bytes: int) -> None:
        """Give back bytes that were dealt with."""
        self._held_bytes -= size_bytes
        self._budget.give(size_bytes)

    def close(self) -> None:
        """Give back what is held."""
        self.let_go(self._held_bytes)

    @property
    def expects_nothing(self) -> bool:
        """Whether the request has no body at all."""
        return self._declared in (None, 0) and not self._received_bytes


def too_large(bytes_max: int) -> HttpRefusal:
    """Return the error of a body that is too large."""
    return HttpRefusal(413, f"the body has more than {bytes_max} bytes: send it in parts, or as NDJSON with ids")
