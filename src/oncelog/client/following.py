"""Tails and subscriptions over the wire: all of a connection share one stream, and one thread that takes what comes.

gRPC's synchronous answers can only be waited for by a thread. A stream for each tail would take a thread for each. So
``Log.Follow`` carries many tails on one stream, by number. A tail lets the server send some bytes ahead, and more when
they were taken: what is not taken stays at the server, and a tail that is not read holds up no other. When the stream
breaks, a new one is opened, and every tail goes on behind the last message that came for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grpc

from oncelog.client.channel import ArrivalBell, Broken, Channel
from oncelog.client.frames_out import is_passing
from oncelog.errors import Closed, OncelogError, Unavailable
from oncelog.handle import Handle, closes_anywhere
from oncelog.wire import failures, frames, messages
from oncelog.wire.frames import FOLLOW_BYTES, FOLLOWERS_MAX, Kind, Raw

T = TypeVar("T")

_ATTEMPTS_HERE = 4
"""So often a server is asked for a tail that it cannot serve, while it serves others, before all try the next one."""

_logger = logging.getLogger("oncelog.client")


class Follower(Generic[T]):
    """Items that come for one tail. ``request`` makes what asks for those behind the last message that was taken;
    ``take`` makes items of a message. Safe to share between threads.

    ``room_bytes`` and ``ready_bytes`` are those that the server may still send, and those that came and nobody has
    taken: together at most ``FOLLOW_BYTES``, and one message. They belong to the stream, under its lock.
    """

    def __init__(
        self, channel: Channel, kind: Kind, request: Callable[[], Any], take: Callable[[bytes], list[T]]
    ) -> None:
        self.kind = kind
        self.request = request
        self.room_bytes = self.ready_bytes = 0
        self.number = 0
        self.attempts = 0
        self._channel = channel
        self._take = take
        self._changed = threading.Condition()
        self._ready: deque[tuple[list[T], int]] = deque()
        self._error: OncelogError | None = None
        self._stream: SharedTails | None = None
        self.closed = False

    def next(self, timeout_s: float) -> list[T]:
        """Return the next items, waiting for some up to ``timeout_s``; raise what ended the tail for good."""
        with self._changed:
            if self._stream is None and not self.closed:
                self._stream = _joined(self._channel, self)
            if not self._ready and timeout_s > 0:
                self._changed.wait_for(lambda: self._ready or self._error is not None or self.closed, timeout_s)
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return []
            items, size_bytes = self._ready.popleft()
        assert self._stream is not None
        self._stream.taken(self, size_bytes)
        return items

    def put(self, body: bytes) -> bool:
        """Take a message that came. Tell whether there is something in it for who waits."""
        items = self._take(body)
        if items:
            with self._changed:
                self._ready.append((items, len(body)))
                self._changed.notify_all()
            self._channel.bell.ring()
        return bool(items)

    def fail(self, error: OncelogError) -> None:
        """End: nothing more comes."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._channel.bell.ring()

    def close(self) -> None:
        """End; a thread that waits returns."""
        with self._changed:
            self.closed = True
            stream = self._stream
            self._changed.notify_all()
        self._channel.bell.ring()
        if stream is not None:
            stream.leave(self)


class FollowingHandle(Handle):
    """What reads from a follower: it waits by the bell of its channel, and closes the follower with itself."""

    _bell: ArrivalBell
    _follower: Follower[Any]

    def _await_more(self, timeout_s: float) -> None:
        self._bell.wait(timeout_s)

    def _end_wait(self) -> None:
        self._bell.ring()

    def _source(self) -> object:
        return self._bell

    @closes_anywhere
    def close(self) -> None:
        if self._closes_now():
            self._follower.close()


class _CannotServeError(Exception):
    """A server cannot serve a tail, and there are other servers to ask."""


class SharedTails:
    """The tails of a connection, on one stream at a time.

    Threads: one opens streams and takes what comes; gRPC's own asks ``_requests`` for what to send. Both end when there
    is no tail any more.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._followers: dict[int, Follower[Any]] = {}
        self._last_number = 0
        self._stream: object | None = None
        """Which stream is open: another one has other requests to send."""
        self._call: Any = None
        self._out: deque[bytes] = deque()
        self._unsent: deque[int] = deque()
        """Tails that the server does not know yet."""
        self._later: dict[int, int] = {}
        """When a tail that the server could not serve is asked for again."""
        self._thread: threading.Thread | None = None

    # What tails call.

    def join(self, follower: Follower[Any]) -> bool:
        """Follow for one more; tell whether there is room for it."""
        with self._changed:
            if len(self._followers) >= FOLLOWERS_MAX:
                return False
            self._start()
            self._last_number += 1
            follower.number = self._last_number
            self._followers[follower.number] = follower
            self._unsent.append(follower.number)
            self._changed.notify_all()
            return True

    def leave(self, follower: Follower[Any]) -> None:
        """Follow no more for one."""
        call = None
        with self._changed:
            if self._followers.pop(follower.number, None) is None:
                return
            self._later.pop(follower.number, None)
            self._out.append(frames.pack(Raw(Kind.LEAVE, b"", follower.number)))
            if not self._followers:
                call, self._stream = self._call, None
            self._changed.notify_all()
        if call is not None:
            call.cancel()

    def taken(self, follower: Follower[Any], size_bytes: int) -> None:
        """Note that bytes that came for a tail were taken; let the server send more when that is worth a message."""
        with self._changed:
            follower.ready_bytes -= size_bytes
            if FOLLOW_BYTES - follower.room_bytes - follower.ready_bytes >= FOLLOW_BYTES // 2:
                self._give(follower)

    def _give(self, follower: Follower[Any]) -> None:
        more_bytes = FOLLOW_BYTES - follower.room_bytes - follower.ready_bytes
        if more_bytes > 0 and follower.number in self._followers:
            follower.room_bytes += more_bytes
            self._out.append(frames.more(follower.number, more_bytes))
            self._changed.notify_all()

    # The life of streams.

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="oncelog-following", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"no thread to read with ({error}): end some, and try again"
            raise Unavailable(message) from error
        self._thread = thread

    def _run(self) -> None:
        attempts = 0
        while True:
            with self._changed:
                if not self._followers:
                    self._thread = None  # the next tail starts another, under this lock
                    return
                stream = self._stream = object()
                self._out.clear()
                self._later.clear()
                self._unsent = deque(self._followers)
            progressed, why = self._speak(stream)
            with self._changed:
                self._stream = self._call = None
                followers = list(self._followers.values())
                self._changed.notify_all()
            if followers:
                _logger.info("the stream of %d tails ended: %s", len(followers), why)
            if self._is_final(why):
                self._fail(followers, why)
                continue
            attempts = 1 if progressed else attempts + 1
            self._rest(self._channel.pause_s(attempts))

    def _is_final(self, why: Exception) -> bool:
        return self._channel.closed or (isinstance(why, OncelogError) and not is_passing(why))

    def _fail(self, followers: list[Follower[Any]], why: Exception) -> None:
        error = why if isinstance(why, OncelogError) else Closed("the connection to the server is closed")
        for follower in followers:
            self._end(follower, error)

    def _end(self, follower: Follower[Any], error: OncelogError) -> None:
        with self._changed:
            self._followers.pop(follower.number, None)
        follower.fail(error)

    def _rest(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._followers or self._channel.closed, pause_s)

    def _speak(self, stream: object) -> tuple[bool, Exception]:
        """Open a stream and take what comes until it ends; return whether something came, and why it ended."""
        progressed = False
        call: Any = None
        try:
            call = self._channel.talk("Log.Follow", self._requests(stream))
            with self._changed:
                self._call = call
                if self._stream is not stream:  # the last tail has left meanwhile
                    call.cancel()
            for message in call:
                progressed = self._take(frames.unpack(message)) or progressed
        except grpc.RpcError as error:
            with self._changed:
                ended_here = self._stream is not stream
            return progressed, Broken("the last tail has left") if ended_here else self._channel.translated(error)
        except _CannotServeError as error:
            self._channel.move_on(call.oncelog_at)
            return progressed, error
        except Exception as error:  # noqa: BLE001 (bytes that are no answer)
            if call is None and isinstance(error, OncelogError):  # no stream was opened: a token that is not there, say
                return progressed, error
            return progressed, Broken(repr(error))
        finally:
            if call is not None:
                call.cancel()
        return progressed, Broken("the server ended the stream")

    # Sending: called by gRPC, in a thread of the stream's own.

    def _requests(self, stream: object) -> Iterator[bytes]:
        while (message := self._next(stream)) is not None:
            yield message

    def _next(self, stream: object) -> bytes | None:
        """Return the next message as soon as there is one; ``None`` when nothing more is sent on this stream."""
        with self._changed:
            while self._stream is stream:
                if self._out:
                    return self._out.popleft()
                if self._unsent:
                    message = self._asked(self._followers.get(self._unsent.popleft()))
                    if message is not None:
                        return message
                    continue
                self._changed.wait(self._until_later())
        return None

    def _asked(self, follower: Follower[Any] | None) -> bytes | None:
        """Return what asks for a tail; how much may be sent is said behind it."""
        if follower is None:
            return None
        follower.room_bytes = 0
        self._give(follower)
        return frames.pack(Raw(follower.kind, follower.request().SerializeToString(), follower.number))

    def _until_later(self) -> float | None:
        """Have tails that were refused asked for again when it is time; return how long it is to the next of them."""
        now_us = self._channel.clock.elapsed_us()
        for number in [number for number, due_us in self._later.items() if due_us <= now_us]:
            del self._later[number]
            self._unsent.append(number)
        if self._unsent:
            return 0.0
        return (min(self._later.values()) - now_us) / 1e6 if self._later else None

    # Receiving.

    def _take(self, raw: Raw) -> bool:
        """Take a message; return whether it shows that the stream works: an error of a tail does not."""
        with self._changed:
            follower = self._followers.get(raw.tag)
            if follower is None:  # it has left, or the message says only that the stream is alive
                return True
        body = bytes(raw.body)
        if raw.kind is Kind.ERROR:
            self._refused(follower, failures.from_message(messages.Error.FromString(body)))
            return False
        with self._changed:
            follower.room_bytes -= len(body)
            follower.ready_bytes += len(body)
        follower.attempts = 0
        is_waiting = False
        try:
            is_waiting = follower.put(body)
        except OncelogError as error:  # of what this tail was sent: the others go on
            self.leave(follower)
            follower.fail(error)
        finally:
            if not is_waiting:
                self.taken(follower, len(body))
        return True

    def _refused(self, follower: Follower[Any], error: OncelogError) -> None:
        """End a tail by the server's word, or have it asked for again later, if the error passes.

        The others go on meanwhile. All move to the next server, if there is one, when this server serves none of them,
        and now and then for the sake of one.
        """
        if not is_passing(error):
            self._end(follower, error)
            return
        follower.attempts += 1
        with self._changed:
            pause_us = int(self._channel.pause_s(follower.attempts) * 1e6)
            self._later[follower.number] = self._channel.clock.elapsed_us() + pause_us
            self._changed.notify_all()
            serves_none = len(self._later) == len(self._followers)
        if len(self._channel.address.targets) > 1 and (serves_none or follower.attempts % _ATTEMPTS_HERE == 0):
            raise _CannotServeError(str(error))


def _joined(channel: Channel, follower: Follower[Any]) -> SharedTails:
    """Have a stream of a connection follow for a tail; open another stream when all are full."""
    with channel.joining:
        streams: list[SharedTails] = channel.tails
        for stream in streams:
            if stream.join(follower):
                return stream
        stream = SharedTails(channel)
        stream.join(follower)
        streams.append(stream)
        return stream
