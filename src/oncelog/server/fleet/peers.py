"""Connections to the other servers of a fleet, and calls that are handed on over them.

A call is handed on as the bytes that came, with the caller's own token: the holder judges the caller itself. What the
holder answers goes back as it is, errors with all their fields.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc

from oncelog.errors import Unavailable
from oncelog.server.fleet.hop import GRPC_KEY, Hop, seal
from oncelog.server.fleet.members import Card, FleetMember
from oncelog.wire import failures, messages
from oncelog.wire.failures import Misdirected
from oncelog.wire.methods import METHODS, Method

if TYPE_CHECKING:
    from oncelog.server.call import Caller
    from oncelog.server.fleet.host import FleetHost
    from oncelog.server.security.setup import Tls

TAKE_S = 2.0
"""A server that does not say within this time that it takes a log is passed over."""

CONNECT_S = 5.0
"""A server that is busy may take long to answer; one that is not there refuses at once."""

LOOK_S = 1.0
"""How often a call that waits for another server looks whether that server is still there."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
    ("grpc.keepalive_time_ms", 10_000),  # a network that drops all packets ends no connection
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC 1.85 ends a connection by this one alone; else after a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_FORWARDED = frozenset({"authorization", "traceparent", "tracestate"})
_READY = grpc.ChannelConnectivity.READY
_MISDIRECTED = getattr(grpc.StatusCode, failures.grpc_code(Misdirected("")))
_T = TypeVar("_T")


class HolderGone(Exception):
    """The holder stopped answering in the middle of a call: nobody knows what it did. The client gets a
    failure without an error of Oncelog's own, as if its own connection had broken.
    """


class HolderFailure(Exception):
    """The holder ended the call with an error, which goes back as it is."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details())
        self.error = error

    @property
    def is_misdirected(self) -> bool:
        """Whether another server than the holder got the call, and did nothing."""
        trailers = dict(self.error.trailing_metadata() or ())
        said = failures.from_trailer(trailers[failures.TRAILER])
        return self.error.code() is _MISDIRECTED and isinstance(said, Unavailable)

    @property
    def passes(self) -> bool:
        """Whether the holder could not serve the call: it may not be the holder any more."""
        return self.error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)


class _CardChannel(NamedTuple):
    """A channel to a server, and the certificates that it was made with."""

    channel: grpc.aio.Channel
    tls: Tls | None


class Peers:
    """Channels to the other servers, by their cards. For the event loop."""

    def __init__(self, server: FleetHost, key: bytes, tls: Tls | None) -> None:
        self._server = server
        self._key = key
        self.tls = tls
        """The certificates for connections that are made from now on."""
        self._channels: dict[Card, _CardChannel] = {}

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = list(self._channels.values()), {}
        for made in channels:
            await made.channel.close()

    def _channel(self, card: Card) -> grpc.aio.Channel:
        """Return the channel to a server. One whose certificates were renewed since is used until its connection ends;
        it closes when nobody waits for it.
        """
        made = self._channels.get(card)
        if made is None or (made.tls is not self.tls and made.channel.get_state() is not _READY):
            made = self._channels[card] = _CardChannel(self._connected(card), self.tls)
        return made.channel

    def _connected(self, card: Card) -> grpc.aio.Channel:
        if not card.tls:
            return grpc.aio.insecure_channel(card.grpc, options=_OPTIONS)
        assert self.tls is not None
        name = (("grpc.ssl_target_name_override", card.tls_name),) if card.tls_name is not None else ()
        credentials = grpc.ssl_channel_credentials(self.tls.fleet_ca, self.tls.key, self.tls.cert)
        return grpc.aio.secure_channel(card.grpc, credentials, options=(*_OPTIONS, *name))

    def use(self, tls: Tls) -> None:
        """Show these certificates to servers that are connected to from now on."""
        self.tls = tls

    def _check_tls(self, member: FleetMember) -> None:
        """Never hand a token on in the clear that came by TLS."""
        if member.card.tls != (self.tls is not None):
            message = f"the server {member.card.name!r} does not use TLS as this one does: nothing is handed on to it"
            raise Unavailable(message)

    async def take(self, member: FleetMember, log: str) -> bool:
        """Ask a server to take a log; tell whether it said so in time."""
        method = METHODS["Database.Take"]
        sealed = seal(self._key, Hop(member.card.holder))
        try:
            self._check_tls(member)
            call = self._channel(member.card).unary_unary(method.path)
            await call(messages.LogRequest(log=log).SerializeToString(), timeout=TAKE_S, metadata=((GRPC_KEY, sealed),))
        except (grpc.aio.AioRpcError, Unavailable):
            return False
        return True

    async def watch(self, member: FleetMember, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Have a server ring when logs that it holds have grown."""
        sealed = seal(self._key, Hop(member.card.holder))
        channel = await self._ready(member)
        made = channel.stream_stream(METHODS["Database.Watch"].path)(requests, metadata=((GRPC_KEY, sealed),))
        try:
            async for data in made:
                yield data
        finally:
            made.cancel()

    async def reaches(self, card: Card) -> bool:
        """Tell whether a card's address leads to its server."""
        method = METHODS["Database.Take"]
        sealed = seal(self._key, Hop(card.holder))
        request = messages.LogRequest(log="").SerializeToString()
        try:
            await self._channel(card).unary_unary(method.path)(request, timeout=2.0, metadata=((GRPC_KEY, sealed),))
        except grpc.aio.AioRpcError:
            return False
        return True

    async def hand_on(self, member: FleetMember, method: Method, context: Any, call: Caller, first: bytes) -> Any:
        """Hand a call on; return its answer, or send its stream of answers.

        ``first`` is the request, or the first of a stream of them. Raises ``HolderFailure``, ``HolderGone``, or
        ``Unavailable``, not written, when nothing was sent, or not to the holder.
        """
        try:
            return await self._handed_on(member, method, context, call, first)
        except HolderFailure as failure:
            if failure.is_misdirected:
                raise self._not_reached(member) from None
            raise

    async def _handed_on(self, member: FleetMember, method: Method, context: Any, call: Caller, first: bytes) -> Any:
        channel = await self._ready(member)
        given = {"timeout": context.time_remaining(), "metadata": self._metadata(member, context, call)}
        gone = self._watch(member, stream=method.client_streams or method.server_streams)
        if not method.client_streams and not method.server_streams:
            made = channel.unary_unary(method.path)(first, **given)
            return await _until(made, gone, made)
        if not method.client_streams:
            made = channel.unary_stream(method.path)(first, **given)
            return await _until(_pass_answers(made, context), gone, made)
        if not method.server_streams:
            made = channel.stream_unary(method.path)(_requests(context, first), **given)
            return await _until(made, gone, made)
        made = channel.stream_stream(method.path)(_requests(context, first), **given)
        return await _until(_pass_answers(made, context), gone, made)

    async def _ready(self, member: FleetMember) -> grpc.aio.Channel:
        """Return a channel that is connected: what could not be sent is surely not written."""
        self._check_tls(member)
        channel = self._channel(member.card)
        try:
            async with asyncio.timeout(CONNECT_S):
                await _connected(channel)
        except (TimeoutError, ConnectionError):
            raise self._not_reached(member) from None
        return channel

    def _not_reached(self, member: FleetMember) -> Unavailable:
        message = f"the server {member.card.name!r}, which holds this log, cannot be reached now"
        return Unavailable(message, retry_after_s=self._server.retry_after_s())

    def _metadata(self, member: FleetMember, context: Any, call: Caller) -> tuple[tuple[str, Any], ...]:
        own = tuple((name, value) for name, value in context.invocation_metadata() or () if name.lower() in _FORWARDED)
        sealed = seal(self._key, Hop(member.card.holder, call.peer, call.certificate_names))
        return (*own, (GRPC_KEY, sealed))

    def _watch(self, member: FleetMember, *, stream: bool) -> Callable[[], bool]:
        """Return what tells whether to end a call: its server is dead, or this one drains and it has no end."""
        fleet, draining = self._server.fleet, self._server.draining
        assert fleet is not None
        return lambda: fleet.members.find(member.card.holder) is None or (stream and draining.is_set())


async def _connected(channel: grpc.aio.Channel) -> None:
    """Wait until a channel is connected; ``ConnectionError`` when the server refuses."""
    while (state := channel.get_state(try_to_connect=True)) is not _READY:
        await channel.wait_for_state_change(state)
        if channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError


async def _requests(context: Any, first: bytes) -> AsyncIterator[bytes]:
    """Yield the first request, and those that follow it, when they are asked for."""
    yield first
    while (data := await context.read()) is not grpc.aio.EOF:
        yield data


async def _pass_answers(made: Any, context: Any) -> None:
    async for message in made:
        await context.write(message)


async def _until(work: Awaitable[_T], gone: Callable[[], bool], made: Any) -> _T:
    """Wait for a call that was handed on; end it when its server is taken for dead."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if not task.done() and gone():
                raise HolderGone
        return task.result()
    except grpc.aio.AioRpcError as error:
        if any(name == failures.TRAILER for name, _ in error.trailing_metadata() or ()):
            raise HolderFailure(error) from None
        raise HolderGone from None
    finally:
        made.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await task
