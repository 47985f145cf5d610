"""Large answers: within a number of bytes for all of them, and cut off where a client does not take them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from oncelog import limits
from oncelog.clock import Clock
from oncelog.server.budget import Budget
from oncelog.server.http.bodies import Gone

PART_BYTES = 128 * limits.KIB
"""So much of an answer a connection is given at once: what its client has not read, it holds a copy of."""


SLOWEST_BYTES_PER_S = 64 * limits.KIB
"""An answer that is taken more slowly than this, after ``HTTP_ANSWER_S_MAX``, is cut off: others wait for its room."""

SHARES = 4
"""Answers that are being made for one log have this part of all room: its storage may hang, and that of others not."""


class Rooms:
    """Bytes for all answers, and the share of each log in them."""

    def __init__(self, bytes_max: int, what: str) -> None:
        self._share_bytes = bytes_max // SHARES
        self._what = what
        self.all = Budget(bytes_max, what)
        self._shares: WeakValueDictionary[str, Budget] = WeakValueDictionary()

    def share(self, log: str) -> Budget:
        """Return the share of a log; it is kept as long as somebody has it."""
        return self._shares.setdefault(log, Budget(self._share_bytes, f"log {log!r} on {self._what}"))


class Room:
    """Bytes that the answer to one request may take."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._held_bytes = 0
        self._share: Budget | None = None

    async def take(self, size_bytes: int, log: str, rooms: Rooms | None = None) -> None:
        """Take room before an answer of a log is made, once; ``Unavailable`` when there is none in time.

        ``rooms``: those of answers of another kind.
        """
        self._rooms = rooms or self._rooms
        share = self._rooms.share(log)
        await share.take(size_bytes)
        try:
            await self._rooms.all.take(size_bytes)
        except BaseException:
            share.give(size_bytes)
            raise
        self._held_bytes, self._share = size_bytes, share

    def settle(self, size_bytes: int) -> None:
        """Hold what an answer takes in fact, if room was taken for it."""
        if self._share is not None:
            self._share.give(self._held_bytes)
            self._share = None
        if self._held_bytes:
            self._rooms.all.give(self._held_bytes - size_bytes)
            self._held_bytes = size_bytes

    def close(self) -> None:
        """Give back what is held."""
        self.settle(0)


class LargeAnswer(StreamingResponse):
    """A large answer that is made as it is sent. ``held_bytes`` is what it holds meanwhile."""

    held_bytes = 0


def taken(send: Send, abort: Callable[[], None], clock: Clock, *, holds_room: bool) -> Send:
    """Return what sends an answer in parts; ``Gone``, and the connection ends, when its client takes it too slowly.

    No part may take too long, and of an answer that ``holds_room`` not all of it either. What counts is the time that
    the client was waited for: an answer may be made slowly.
    """
    waited_us = sent_bytes = 0

    async def in_time(message: Message) -> None:
        nonlocal waited_us, sent_bytes
        began_us = clock.elapsed_us()
        left_s = limits.HTTP_ANSWER_S_MAX
        if holds_room:
            left_s = max(0.0, min(left_s, left_s + sent_bytes / SLOWEST_BYTES_PER_S - waited_us / 1e6))
        try:
            async with asyncio.timeout(left_s):
                await send(message)
        except TimeoutError:
            abort()
            await send(message)  # it returns when the connection has ended
            raise Gone from None
        waited_us += clock.elapsed_us() - began_us
        sent_bytes += len(message.get("body", b""))

    async def in_parts(message: Message) -> None:
        body: bytes = message.get("body", b"")
        last = max(0, len(body) - 1) // PART_BYTES * PART_BYTES
        for start in range(0, last, PART_BYTES):
            await in_time({**message, "body": body[start : start + PART_BYTES], "more_body": True})
        await in_time({**message, "body": body[last:]} if last else message)

    return in_parts
