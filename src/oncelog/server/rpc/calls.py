"""What all gRPC methods share: messages are decoded and checked here, callers are admitted, errors become trailers."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from oncelog.errors import InvalidArgument, NotAllowed, OncelogError, Unavailable
from oncelog.server.call import Caller
from oncelog.server.fleet import routing
from oncelog.server.fleet.hop import GRPC_KEY
from oncelog.server.fleet.members import FleetMember
from oncelog.server.fleet.peers import HolderFailure, HolderGone
from oncelog.server.fleet.routing import RoutedSubject
from oncelog.server.security import verbs
from oncelog.server.security.authorize import Principal
from oncelog.server.server import Server
from oncelog.server.watch import tracing
from oncelog.wire import failures, messages
from oncelog.wire.methods import METHODS, Method

_log = logging.getLogger("oncelog.server")

CHECK_US = 1_000_000
"""How often a stream looks whether its caller's token still holds."""

Unary = Callable[[Any, Caller], Awaitable[Any]]
"""From a request to its answer."""

Answers = Callable[[Any, Caller], AsyncIterator[Any]]
"""From a request to a stream of answers."""

Talk = Callable[["Requests", Caller], AsyncIterator[Any]]
"""From a stream of requests to a stream of answers."""


class Requests:
    """The requests of a stream, decoded and checked one by one, when they are asked for.

    A request that is not asked for is not read: HTTP/2 flow control holds its sender back.
    """

    def __init__(self, rpc: _Rpc, context: Any, call: Caller, first: Any) -> None:
        self._rpc = rpc
        self._context = context
        self._call = call
        self._first = first  # was read already, to see where the call goes
        self.caller = _Caller(rpc.server)

    async def next(self) -> Any | None:
        """Return the next request; ``None`` at the end. ``NotAuthenticated`` once the caller's token has ended."""
        data, self._first = (self._first, None) if self._first is not None else (await self._context.read(), None)
        self.caller.check_still()
        return None if data is grpc.aio.EOF else self._rpc.decoded(data)

    def admit(self, name: str) -> None:
        """Raise unless the caller may call this method on a log or queue."""
        self.caller.principal = self._rpc.admit(self._call, name)


class _Caller:
    """Who makes a call that lasts. Whether the caller's token still holds is looked at once a second."""

    def __init__(self, server: Server, principal: Principal | None = None) -> None:
        self._server = server
        self._checked_us = server.clock.elapsed_us()
        self.principal = principal

    def check_still(self) -> None:
        """Raise ``NotAuthenticated`` once the token was revoked or has expired."""
        now_us = self._server.clock.elapsed_us()
        gate = self._server.gate
        if self.principal is not None and gate is not None and now_us - self._checked_us >= CHECK_US:
            self._checked_us = now_us
            gate.check_still(self.principal)


class _Rpc:
    """One method of one server."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.key = key
        self.method: Method = METHODS[key]

    def decoded(self, data: bytes) -> Any:
        """Return a request; ``InvalidArgument`` for bytes that are none."""
        if self.method.decode_request is None:
            return data
        try:
            return self.method.decode_request(data)
        except (DecodeError, UnicodeDecodeError, ValueError) as error:
            message = f"{self.key}: the request is not a message of wire.proto: {error}"
            raise InvalidArgument(message) from None

    def admit(self, call: Caller, name: str | None, request: Any = None) -> Principal | None:
        """Return who calls; raise unless the caller may call this method on a log or queue, or on the database."""
        gate = self.server.gate
        return None if gate is None else gate.admit(call, self.key, name, request)

    def admit_request(self, call: Caller, request: Any) -> Principal | None:
        """Do the same for the log or queue that a request names."""
        if self.key in verbs.SERVERS:
            check_of_fleet(call)
            return None
        return self.admit(call, _named(request), request)

    def noted(self, principal: Principal | None, call: Caller, request: Any) -> AbstractAsyncContextManager[None]:
        """Write an admin verb to the audit log before the body does it, and once more if the body fails."""
        if self.server.gate is None or principal is None:  # servers have no principal
            return nullcontext()
        return self.server.gate.noted(principal, call, self.key, _named(request), request)

    async def elsewhere(self, call: Caller, subject: RoutedSubject | None) -> FleetMember | None:
        """Return the other server that a call goes to; ``None``: it is served here."""
        fleet = self.server.fleet
        if fleet is None or subject is None:
            return None
        return await fleet.place(subject.log, takes=subject.takes, handed_on=call.handed_on)

    async def hand_on(self, member: FleetMember, subject: RoutedSubject, context: Any, call: Caller, first: Any) -> Any:
        """Hand a call on to the server that holds its log."""
        fleet = self.server.fleet
        assert fleet is not None
        try:
            return await fleet.peers.hand_on(member, self.method, context, call, first)
        except Unavailable:
            fleet.not_reached(member)
            raise
        except (HolderFailure, HolderGone) as error:
            if isinstance(error, HolderGone) or error.passes:
                fleet.forget(subject.log)
            raise


def _named(request: Any) -> str | None:
    """Return the log or queue that a request names."""
    return next((getattr(request, field) for field in ("log", "queue", "name") if hasattr(request, field)), None)


def check_of_fleet(call: Caller) -> None:
    """Raise ``NotAllowed`` unless another server of the fleet makes this call."""
    if not call.handed_on:
        message = "only servers of this fleet may call this"
        raise NotAllowed(message)


def handlers(server: Server, service: str, methods: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the handlers of a service, for ``grpc.aio.Server.add_generic_rpc_handlers``."""
    made = {name: _handler(_Rpc(server, f"{service}.{name}"), does) for name, does in methods.items()}
    known = {key.partition(".")[2] for key in METHODS if key.startswith(f"{service}.")}
    assert known == set(made), f"{service}: {known ^ set(made)}"
    return grpc.method_handlers_generic_handler(f"{messages.PACKAGE}.{service}", made)


def _handler(rpc: _Rpc, does: Callable[..., Any]) -> Any:
    method = rpc.method
    encode = {"response_serializer": functools.partial(_serialized, method)}
    if method.client_streams and method.server_streams:
        return grpc.stream_stream_rpc_method_handler(_watched(rpc, _talking(rpc, does)), **encode)
    if method.client_streams:
        return grpc.stream_unary_rpc_method_handler(_watched(rpc, _gathering(rpc, does)), **encode)
    if method.server_streams:
        return grpc.unary_stream_rpc_method_handler(_watched(rpc, _answering(rpc, does)), **encode)
    return grpc.unary_unary_rpc_method_handler(_watched(rpc, _once(rpc, does)), **encode)


def _watched(rpc: _Rpc, handle: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a handler that is counted, and traced, and whose errors end the call with all their fields."""

    async def watched(request: Any, context: Any) -> Any:
        began_us = rpc.server.clock.elapsed_us()
        with tracing.call_span(rpc.key, context.invocation_metadata()):
            try:
                return await handle(request, context)
            except Exception as error:  # noqa: BLE001 (a client never sees a traceback)
                await _abort(context, rpc, error)
            finally:
                code = getattr(context.code(), "name", None) or "OK"
                rpc.server.calls.observe("grpc", rpc.key, code, (rpc.server.clock.elapsed_us() - began_us) / 1e6)

    return watched


def _serialized(method: Method, answer: Any) -> bytes:
    """Return an answer as bytes; what many followers share is bytes already."""
    if isinstance(answer, bytes):
        return answer
    assert method.encode_response is not None
    return bytes(method.encode_response(answer))


def _once(rpc: _Rpc, does: Unary) -> Callable[[bytes, Any], Awaitable[Any]]:
    async def handle(data: bytes, context: Any) -> Any:
        call = call_of(rpc.server, context)
        request = rpc.decoded(data)
        principal = rpc.admit_request(call, request)
        subject = routing.subject(rpc.key, request)
        if subject is not None and (member := await rpc.elsewhere(call, subject)) is not None:
            return await rpc.hand_on(member, subject, context, call, data)
        async with rpc.noted(principal, call, request):
            return await does(request, call)

    return handle


def _gathering(rpc: _Rpc, does: Unary) -> Callable[[Any, Any], Awaitable[Any]]:
    async def handle(_: Any, context: Any) -> Any:
        call = call_of(rpc.server, context)
        return await does(Requests(rpc, context, call, None), call)

    return handle


def _answering(rpc: _Rpc, does: Answers) -> Callable[[bytes, Any], Awaitable[None]]:
    async def handle(data: bytes, context: Any) -> None:
        call = call_of(rpc.server, context)
        request = rpc.decoded(data)
        principal = rpc.admit_request(call, request)
        subject = routing.subject(rpc.key, request)
        if subject is not None and (member := await rpc.elsewhere(call, subject)) is not None:
            await rpc.hand_on(member, subject, context, call, data)
            return
        async with rpc.noted(principal, call, request):
            await _send(context, does(request, call), _Caller(rpc.server, principal))

    return handle


def _talking(rpc: _Rpc, does: Talk) -> Callable[[Any, Any], Awaitable[None]]:
    async def handle(_: Any, context: Any) -> None:
        call = call_of(rpc.server, context)
        first = await context.read() if rpc.server.fleet is not None else None
        subject = None
        if first is not None and first is not grpc.aio.EOF:
            subject = routing.first_subject(rpc.key, rpc.decoded(first))
        if subject is not None:
            rpc.admit(call, subject.name)
            if (member := await rpc.elsewhere(call, subject)) is not None:
                await rpc.hand_on(member, subject, context, call, first)
                return
        requests = Requests(rpc, context, call, first)
        await _send(context, does(requests, call), requests.caller)

    return handle


async def _send(context: Any, answers: AsyncIterator[Any], caller: _Caller) -> None:
    """Send a stream of answers, and end what makes them, however the stream ends."""
    try:
        async for answer in answers:
            caller.check_still()
            await context.write(answer)
    finally:
        close = getattr(answers, "aclose", None)
        if close is not None:
            await close()


async def _abort(context: Any, rpc: _Rpc, error: Exception) -> None:
    """End a call with an error and all its fields. What is no error of Oncelog's own is a bug: its text stays here."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, HolderFailure):
        told = error.error
        await context.abort(told.code(), told.details() or "", trailing_metadata=tuple(told.trailing_metadata() or ()))
    if isinstance(error, HolderGone):  # no error of ours: nobody knows what became of the call
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server that holds the log stopped answering")
    known = error if isinstance(error, OncelogError) else _bug(rpc, error)
    code = getattr(grpc.StatusCode, failures.grpc_code(known))
    trailer = ((failures.TRAILER, failures.trailer(known)),)
    await context.abort(code, str(known).encode("ascii", "replace").decode()[:1024], trailing_metadata=trailer)


def _bug(rpc: _Rpc, error: Exception) -> OncelogError:
    _log.error("%s failed", rpc.key, exc_info=error)
    return Unavailable(f"{rpc.key}: the server failed: see its log", outcome="unknown")


def call_of(server: Server, context: Any) -> Caller:
    """Return who makes a call, also if another server has handed the call on."""
    bearer, hop = None, None
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            bearer = value[7:].strip()
        if name == GRPC_KEY:
            hop = server.hop_of(value)
    if hop is not None:
        return Caller(hop.peer, bearer, hop.sans, handed_on=True)
    names = tuple(
        value.decode("utf-8", "replace")
        for value in (context.auth_context() or {}).get("x509_subject_alternative_name", ())
    )
    return Caller(context.peer() or "", bearer, names)
