"""A stream of answers that goes on after its connection breaks: a thread takes what comes, and others wait for it.

gRPC's synchronous answers can only be waited for without a time limit. So one thread a stream waits for them, and hands
them over by a bounded queue: what is not taken is not read, and HTTP/2 flow control holds the server back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from oncelog.client.channel import ArrivalBell, Broken, Channel
from oncelog.client.frames_out import is_passing
from oncelog.errors import OncelogError, Unavailable
from oncelog.handle import Handle, closes_anywhere

T = TypeVar("T")

AHEAD_MAX = 4
"""So many messages are taken ahead of who reads them."""

_logger = logging.getLogger("oncelog.client")


class Pump(Generic[T]):
    """Items of a stream. ``begin`` begins the call again, behind the last message that was taken; ``take`` makes items
    of a message. Safe to share between threads.
    """

    def __init__(self, channel: Channel, begin: Callable[[], Any], take: Callable[[Any], list[T]]) -> None:
        self._channel = channel
        self._begin = begin
        self._take = take
        self._changed = threading.Condition()
        self._ready: deque[list[T]] = deque()
        self._error: OncelogError | None = None
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self.closed = False

    def next(self, timeout_s: float) -> list[T]:
        """Return the next items, waiting for some up to ``timeout_s``; raise what ended the stream for good."""
        with self._changed:
            self._start()
            if not self._ready and timeout_s > 0:
                self._changed.wait_for(lambda: self._ready or self._error is not None or self.closed, timeout_s)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            return []

    def _start(self) -> None:
        if self._thread is None and not self.closed and self._error is None:
            thread = threading.Thread(target=self._run, name="oncelog-pump", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                message = f"no thread to read with ({error}): end some, and try again"
                raise Unavailable(message) from error
            self._thread = thread

    def _run(self) -> None:
        attempts = 0
        while not self.closed:
            try:
                progressed = self._pump()
            except grpc.RpcError as error:
                found: Exception = self._channel.translated(error)
            except Exception as error:  # noqa: BLE001 (bytes that are no answer, or the server's own word)
                found = error
            else:
                found, attempts = Broken("the server ended the stream"), 0 if progressed else attempts
            self._note(found)
            if isinstance(found, OncelogError) and not is_passing(found):
                self._fail(found)
                return
            attempts += 1
            self._rest(self._channel.pause_s(attempts))

    def _note(self, why: Exception) -> None:
        if not self.closed:
            _logger.info("a stream of records ended: %s", why)

    def _pump(self) -> bool:
        """Take messages until the stream ends; return whether there were any."""
        progressed = False
        call = self._begin()
        with self._changed:
            self._call = call
            if self.closed:
                call.cancel()
        for message in call:
            items = self._take(message)
            progressed = True
            with self._changed:
                if items:
                    self._ready.append(items)
                    self._changed.notify_all()
            if items:
                self._channel.bell.ring()
            with self._changed:
                self._changed.wait_for(lambda: self.closed or len(self._ready) < AHEAD_MAX)
        return progressed

    def _fail(self, error: OncelogError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._channel.bell.ring()

    def _rest(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.closed, pause_s)

    def close(self) -> None:
        """End the stream; a thread that waits returns."""
        with self._changed:
            self.closed = True
            call = self._call
            self._changed.notify_all()
        self._channel.bell.ring()
        if call is not None:
            call.cancel()


class Pumped(Handle):
    """What reads from a pump: it waits by the bell of its channel, and closes the pump with itself."""

    _bell: ArrivalBell
    _pump: Pump[Any]

    def _await_more(self, timeout_s: float) -> None:
        self._bell.wait(timeout_s)

    def _end_wait(self) -> None:
        self._bell.ring()

    def _source(self) -> object:
        return self._bell

    @closes_anywhere
    def close(self) -> None:
        if self._closes_now():
            self._pump.close()
