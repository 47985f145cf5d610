"""Large answers: within a number of bytes for all of them, and cut off where a client does not take them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Message, Send

from oncelog import limits
from oncelog.server.budget import Budget
from oncelog.server.http.bodies import Gone

PART_BYTES = 128 * limits.KIB
"""So much of an answer a connection is given at once: what its client has not read, it holds a copy of."""


class Room:
    """Bytes that the answer to one request may take, of a budget for all answers."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held_bytes = 0

    async def take(self, size_bytes: int) -> None:
        """Take room before the answer is made; ``Unavailable`` when there is none in time."""
        await self._budget.take(size_bytes)
        self._held_bytes += size_bytes

    def settle(self, size_bytes: int) -> None:
        """Hold what an answer takes in fact, if room was taken for it."""
        if self._held_bytes:
            self._budget.give(self._held_bytes - size_bytes)
            self._held_bytes = size_bytes

    def close(self) -> None:
        """Give back what is held."""
        self.settle(0)


def taken(send: Send, abort: Callable[[], None]) -> Send:
    """Return what sends an answer in parts; ``Gone``, and the connection ends, when a part is not taken in time."""

    async def in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(limits.HTTP_ANSWER_S_MAX):
                await send(message)
        except TimeoutError:
            abort()
            await send(message)  # it returns when the connection has ended
            raise Gone from None

    async def in_parts(message: Message) -> None:
        body: bytes = message.get("body", b"")
        last = max(0, len(body) - 1) // PART_BYTES * PART_BYTES
        for start in range(0, last, PART_BYTES):
            await in_time({**message, "body": body[start : start + PART_BYTES], "more_body": True})
        await in_time({**message, "body": body[last:]} if last else message)

    return in_parts
