"""Calls of a server: the channel, deadlines, errors with all their fields, and calls that are made again."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from oncelog import arguments
from oncelog.client.address import Address
from oncelog.clock import SYSTEM, Clock
from oncelog.errors import (
    Closed,
    InvalidArgument,
    LogBusy,
    NotAllowed,
    NotAuthenticated,
    Unavailable,
    Unsupported,
    WriterFenced,
)
from oncelog.settings import TIMEOUT_S
from oncelog.wire import failures
from oncelog.wire.frames import REQUEST_BYTES_MAX
from oncelog.wire.methods import METHODS

BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0
STREAMS_MAX = 100
"""So many streams go over one connection; a server allows 1,000, and proxies between may allow 100."""
SLOW_S = 3.0
"""After so long without the first answer, the log says that the server is silent."""
MESSAGE_BYTES_MAX = 72 << 20
"""Larger than any message of a server: a batch may have 64 MiB."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # gRPC 1.85 ends a connection by this one alone; else after a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),  # what is sent again, and when, is decided here
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_CODES = {
    grpc.StatusCode.UNAUTHENTICATED: NotAuthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidArgument,
}
"""What a code means that came without the server's own error: from gRPC itself, or from a proxy."""

_DOUBTS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not trusted: give the option tls_ca, or ONCELOG_TLS_CA",
    "Hostname Verification Check failed": "the certificate of the server is for another name: give the option tls_name",
    "Failed to create security handshaker": "the files of tls_ca, tls_cert or tls_key cannot be used",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS: leave the options tls… out",
}
"""By a part of what gRPC says: why the two ends cannot trust each other. Nothing was sent then, and the next attempt
would end in the same way.
"""

_T = TypeVar("_T")

_logger = logging.getLogger("oncelog.client")
_logger.addHandler(logging.NullHandler())  # a program that sets up no logging sees none


class Broken(Exception):
    """A call ended without the server's own word on how: nobody knows what it did, unless it was never ``sent``."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent

    def unavailable(self, *, write: bool) -> Unavailable:
        """Return the error for who waits."""
        outcome = "unknown" if write and self.sent else "not written"
        return Unavailable(f"the server does not answer ({self})", outcome=outcome)  # type: ignore[arg-type]


class ArrivalBell:
    """Rings when something has come, on any stream of a connection: one thread looks for all tasks that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung = self._heard = 0

    def ring(self) -> None:
        """Have the thread look."""
        with self._changed:
            self._rung += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when it has rung since this returned last, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._rung != self._heard, timeout_s)
            self._heard = self._rung


class Channel:
    """The connection to a server, made when the first call is. Safe to share between threads.

    Of several servers of one database one is spoken to. When it does not answer, or cannot serve, the next one is.
    """

    def __init__(self, address: Address, clock: Clock = SYSTEM) -> None:
        self.address = address
        self.clock = clock
        self._lock = threading.Lock()
        self._at = 0
        """The server that is spoken to: its number among the addresses."""
        self._channels: dict[tuple[int, int], Any] = {}
        """By the number of the server, and of the connection to it."""
        self._callables: dict[tuple[int, int, str], Any] = {}
        self._streaming = threading.Lock()
        self._streams: list[int] = [0]
        """How many streams each connection has."""
        self._closing = threading.Condition()
        self.bell = ArrivalBell()
        self.joining = threading.Lock()
        self.tails: list[Any] = []
        """The streams that tails share (``following.SharedTails``), under ``joining``."""
        self._called = False
        """Whether a call has ended, in whatever way."""
        self.closed = False

    # Making calls.

    def _method(self, key: str, connection: int = 0) -> tuple[Any, int]:
        """Return what calls a method of ``wire.proto``, and the number of the server that it calls."""
        with self._lock:
            if self.closed:
                message = "the connection to the server is closed"
                raise Closed(message)
            at = self._at
            if (at, connection, key) not in self._callables:
                if (at, connection) not in self._channels:
                    self._channels[at, connection] = self._connected(self.address.targets[at])
                channel = self._channels[at, connection]
                method = METHODS[key]
                ways = {
                    (False, False): channel.unary_unary,
                    (False, True): channel.unary_stream,
                    (True, False): channel.stream_unary,
                    (True, True): channel.stream_stream,
                }
                make = ways[method.client_streams, method.server_streams]
                self._callables[at, connection, key] = make(
                    method.path,
                    request_serializer=method.encode_request,
                    response_deserializer=method.decode_response,
                )
            return self._callables[at, connection, key], at

    def _connected(self, target: str) -> Any:
        address = self.address
        if not address.tls:
            return grpc.insecure_channel(target, options=_OPTIONS)
        name = (("grpc.ssl_target_name_override", address.tls_name),) if address.tls_name is not None else ()
        credentials = grpc.ssl_channel_credentials(address.tls_ca, address.tls_key, address.tls_cert)
        return grpc.secure_channel(target, credentials, options=(*_OPTIONS, *name))

    def move_on(self, at: int | None) -> None:
        """Speak to the next server, unless another call that failed there has moved on already."""
        with self._lock:
            if at == self._at:
                self._at = (at + 1) % len(self.address.targets)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        bearer = self.address.bearer()
        return () if bearer is None else (("authorization", f"Bearer {bearer}"),)

    def stream(self, key: str, request: Any) -> Any:
        """Begin a call that has a stream of answers; iterating it raises ``grpc.RpcError``: see ``translated``."""
        return self._begun(key, request)

    def talk(self, key: str, requests: Iterator[Any]) -> Any:
        """Begin a call that has a stream of requests and a stream of answers."""
        return self._begun(key, requests)

    def held(self, key: str, request: Any, timeout_s: float) -> Any:
        """Begin a call that the server may hold for long; the future raises ``grpc.RpcError``."""
        return self._begun(key, request, timeout_s, is_future=True)

    def _begun(self, key: str, given: Any, timeout_s: float | None = None, *, is_future: bool = False) -> Any:
        """Begin a call, which remembers the server that it was made to: the error that it raises is the call itself."""
        connection = self._enter()
        try:
            method, at = self._method(key, connection)
            begin = method.future if is_future else method
            call = begin(given, timeout=timeout_s, metadata=self._metadata())
        except BaseException:
            self._leave(connection)
            raise
        call.oncelog_at = at
        if not call.add_callback(lambda: self._leave(connection)):
            self._leave(connection)  # it has ended already
        return call

    def _enter(self) -> int:
        """Return the number of a connection with room for one more stream, or call that the server holds.

        A server allows so many streams on a connection, and gRPC lets the next one wait, without a word, until one of
        them ends: tails never do.
        """
        with self._streaming:
            found = next((at for at, count in enumerate(self._streams) if count < STREAMS_MAX), len(self._streams))
            if found == len(self._streams):
                self._streams.append(0)
            self._streams[found] += 1
            return found

    def _leave(self, connection: int) -> None:
        with self._streaming:
            self._streams[connection] -= 1

    def once(self, key: str, request: Any, timeout_s: float | None = TIMEOUT_S) -> Any:
        """Call once; raise the server's error, or ``Broken``."""
        check_size("what one call sends", request.ByteSize())
        method, at = self._method(key)
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata())
        except grpc.RpcError as error:
            raise self.translated(error, at) from None

    def gather(self, key: str, requests: Iterator[Any], timeout_s: float | None = TIMEOUT_S) -> Any:
        """Call what takes a stream of requests and gives one answer."""
        method, at = self._method(key)
        try:
            return method(requests, timeout=timeout_s, metadata=self._metadata())
        except grpc.RpcError as error:
            raise self.translated(error, at) from None

    def future(self, key: str, request: Any, timeout_s: float | None = TIMEOUT_S) -> Any:
        """Begin a call; the future raises ``grpc.RpcError``."""
        method, at = self._method(key)
        call = method.future(request, timeout=timeout_s, metadata=self._metadata())
        call.oncelog_at = at
        return call

    def ask(self, key: str, request: Any, *, write: bool = False) -> Any:
        """Call what may be called again: whenever the connection breaks, until the time is over.

        Also a server that says that it cannot now, and did nothing, is asked again. Of a ``write`` without an answer
        nobody knows whether it was done.
        """
        return self.again(lambda left_s: self.once(key, request, left_s), TIMEOUT_S, write=write)

    def again(
        self,
        call: Callable[[float | None], _T],
        timeout_s: float | None,
        *,
        write: bool = False,
        uncertain: bool = False,
    ) -> _T:
        """Do what may be done again until it succeeds, is refused, or the time is over.

        ``uncertain``: an attempt before these may have done something.
        """
        with self._first_contact():
            return self._again(call, timeout_s, write=write, uncertain=uncertain)

    @contextlib.contextmanager
    def _first_contact(self) -> Iterator[None]:
        """If this is the first call, and the server is silent for a while, say so in the log."""
        if self._called:
            yield
            return
        slow = threading.Timer(SLOW_S, self._say_slow)
        slow.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread to be had: it is not said
            slow.start()
        try:
            yield
        finally:
            self._called = True
            slow.cancel()

    def _say_slow(self) -> None:
        _logger.warning("no answer yet from %s: trying on", " or ".join(self.address.targets))

    def _again(
        self, call: Callable[[float | None], _T], timeout_s: float | None, *, write: bool, uncertain: bool
    ) -> _T:
        deadline_us = self.deadline(timeout_s)
        attempts = 0
        error: Unavailable
        while True:
            try:
                return call(self.left(deadline_us))
            except Broken as broken:
                uncertain = uncertain or (write and broken.sent)
                error = broken.unavailable(write=write)
            except Unavailable as unavailable:
                if unavailable.outcome == "unknown" and not write:
                    raise
                uncertain = uncertain or unavailable.outcome == "unknown"
                error = unavailable
            except WriterFenced as fenced:  # the server lost the log, and takes it again or hands the next call on
                uncertain = uncertain or (write and fenced.outcome == "unknown")
                error = Unavailable(str(fenced))
            except (NotAllowed, LogBusy) as refused:
                if not uncertain:
                    raise
                message = f"an earlier attempt may have been done, and the server refuses the next: {refused}"
                raise Unavailable(message, outcome="unknown") from refused
            attempts += 1
            pause_s = self.pause_s(attempts)
            remaining_s = self.left(deadline_us)
            if remaining_s is not None and remaining_s <= pause_s:
                raise Unavailable(str(error), outcome="unknown") if uncertain else error
            self.rest(pause_s)

    # Time.

    def deadline(self, timeout_s: float | None) -> int | None:
        """Return when a wait is over."""
        if timeout_s is None:
            return None
        return self.clock.elapsed_us() + int(arguments.seconds("timeout_s", timeout_s) * 1e6)

    def left(self, deadline_us: int | None) -> float | None:
        """Return how many seconds are left."""
        return None if deadline_us is None else max(0.0, (deadline_us - self.clock.elapsed_us()) / 1e6)

    def pause_s(self, attempts: int) -> float:
        """Return how long to rest after so many attempts in vain: longer each time, and never the same for all."""
        return min(BACKOFF_S_MAX, BACKOFF_S * float(1 << min(attempts - 1, 16))) * (0.5 + self.clock.chance() / 2)

    def rest(self, pause_s: float) -> None:
        """Rest, but not longer than the channel is open; ``Closed`` then."""
        with self._closing:
            if not self.closed:
                self.clock.wait(self._closing, pause_s)
            if self.closed:
                message = "the connection to the server is closed"
                raise Closed(message)

    # Errors.

    def translated(self, error: Any, at: int | None = None) -> Exception:
        """Return the server's error with all its fields, or ``Broken`` if the server had no say.

        A server that cannot serve is left for the next one, if there are several. ``at`` is the number of the server.
        """
        found = self._translated(error)
        if isinstance(found, Broken | Unavailable | LogBusy):
            self.move_on(getattr(error, "oncelog_at", None) if at is None else at)
        return found

    def _translated(self, error: Any) -> Exception:
        for name, value in error.trailing_metadata() or ():
            if name == failures.TRAILER:
                return failures.from_trailer(value)
        code, text = error.code(), error.details() or str(error.code())
        if self.closed:
            return Closed("the connection to the server is closed")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"this server does not have that call: {text}")
        known = _CODES.get(code)
        if known is not None:
            return known(text)
        if (doubt := next((doubt for sign, doubt in _DOUBTS.items() if sign in text), None)) is not None:
            return NotAuthenticated(f"{doubt} ({text})")
        return Broken(text, sent="failed to connect" not in text.lower())

    def close(self) -> None:
        """End every call."""
        with self._lock, self._closing:
            self.closed = True
            channels, self._channels = list(self._channels.values()), {}
            self._closing.notify_all()
        for channel in channels:
            channel.close()


def check_size(what: str, size_bytes: int, bytes_max: int = REQUEST_BYTES_MAX) -> None:
    """Refuse what no server takes in one call."""
    if size_bytes > bytes_max:
        message = (
            f"{what} has {size_bytes} bytes, with headers, and a server takes no more than 5 MiB in one such call: "
            "send less, or append the value to a log, which takes 16 MiB, and send its position"
        )
        raise InvalidArgument(message)


@contextlib.contextmanager
def told(*, write: bool = False) -> Iterator[None]:
    """Let ``Broken`` leave this room as ``Unavailable``."""
    try:
        yield
    except Broken as broken:
        raise broken.unavailable(write=write) from None
