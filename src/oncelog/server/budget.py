"""Bytes that were received and are not stored yet: bounded, so that many clients cannot fill the memory."""

from __future__ import annotations

import asyncio
from collections import deque

from oncelog.errors import Unavailable

WAIT_S = 5.0
"""So long a write waits for room before it is refused."""


class Budget:
    """A number of bytes that writes share. Used by the event loop's thread alone; waiters are served in order.

    A single write that is larger than the whole budget is let in when it is alone.
    """

    def __init__(self, bytes_max: int, what: str) -> None:
        self._bytes_max = bytes_max
        self._what = what
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._bytes_max

    def try_take(self, size_bytes: int) -> bool:
        """Take bytes if there is room now and nobody waits; tell whether that was so."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    async def take(self, size_bytes: int, timeout_s: float | None = None) -> None:
        """Take bytes, waiting for room; ``Unavailable``, not written, when there is none in time (``WAIT_S``)."""
        if self.try_take(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            async with asyncio.timeout(WAIT_S if timeout_s is None else timeout_s):
                await turn
        except BaseException as error:
            self._leave(size_bytes, turn)
            if isinstance(error, TimeoutError):
                message = f"{self._what} has no room for {size_bytes} bytes more: try again later"
                raise Unavailable(message) from None
            raise

    def _leave(self, size_bytes: int, turn: asyncio.Future[None]) -> None:
        """Give up waiting; what was granted at the last moment is given back."""
        if turn.done() and not turn.cancelled():
            self.give(size_bytes)
        else:
            turn.cancel()
            self._serve()

    def give(self, size_bytes: int) -> None:
        """Give bytes back."""
        self.used_bytes -= size_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size_bytes):
                    return
                self.used_bytes += size_bytes
                turn.set_result(None)
            self._waiting.popleft()
