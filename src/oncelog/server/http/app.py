"""The ASGI application: from a request to its route, its caller, its answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncelog import limits
from oncelog.errors import NotAuthenticated, OncelogError
from oncelog.server.budget import Budget
from oncelog.server.fleet import routing
from oncelog.server.fleet.hop import HTTP_HEADER
from oncelog.server.fleet.members import FleetMember
from oncelog.server.fleet.routing import RoutedSubject
from oncelog.server.http import guard, openapi, paths, problem, routes, spelling
from oncelog.server.http.answers import PART_BYTES, LargeAnswer, Room, Rooms, taken
from oncelog.server.http.bodies import Body, Gone
from oncelog.server.http.calls.hooks import Hooks
from oncelog.server.http.calls.metrics import ServerMetrics
from oncelog.server.http.console import console_app
from oncelog.server.http.forward import forward
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.http.request import Call, headers_of, query_of
from oncelog.server.http.routes import Route
from oncelog.server.security import authorize, sessions, setup
from oncelog.server.security.audit import LOG as AUDIT_LOG
from oncelog.server.security.audit import TIMEOUT_S as AUDIT_S
from oncelog.server.security.audit import AuditLine, AuditTrail
from oncelog.server.security.authorize import Authorizer, Credentials, Principal
from oncelog.server.security.gate import Gate
from oncelog.server.security.sessions import BrowserSessions
from oncelog.server.security.setup import Security
from oncelog.server.watch import tracing
from oncelog.types import Record

if TYPE_CHECKING:
    from oncelog.server.server import Server

CONSOLE = "console"
"""The first part of the paths that belong to the console."""

_ACT_BYTES_MAX = limits.MIB
_access = logging.getLogger("oncelog.server.access")


class App:
    """All that HTTP calls share. ``console`` is an ASGI application for ``/console/…``, once there is one."""

    def __init__(self, server: Server, security: Security, audit: AuditTrail, metrics: ServerMetrics) -> None:
        self.server = server
        self.security = security
        self.authorizer: Authorizer = security.authorizer
        self.origins = frozenset(security.settings.origins)
        self.loopback = security.loopback
        self.sessions: BrowserSessions = security.sessions
        self.audit = audit
        self.metrics = metrics
        self.hooks = Hooks(server.settings.hooks)
        self.bodies = Budget(limits.HTTP_BODIES_BYTES_MAX, "the HTTP port of this server")
        self.answers = Rooms(limits.HTTP_ANSWERS_BYTES_MAX, "the HTTP port of this server")
        self.files = Rooms(limits.HTTP_FILES_BYTES_MAX, "the HTTP port of this server")
        self.document = openapi.document_bytes()
        self.console: ASGIApp | None = None
        metrics.watch(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if self.console is not None and paths.split(scope["raw_path"])[:1] == (CONSOLE,):
            await self._console(self.console, scope, receive, send)
            return
        began_us = self.server.clock.elapsed_us()
        body = Body(receive, _header(scope, b"content-length"), self.bodies, self.server.clock)
        room, seen = Room(self.answers), _Seen()
        try:
            with tracing.span(scope) as span:
                response = await self._response(scope, body, room, seen)
                room.settle(_size_bytes(response))
                tracing.settle(span, seen.route, response.status_code)
                await self._send(response, body, scope, receive, send)
        except Gone:
            seen.status = 499
        finally:
            body.close()
            room.close()
            self._note(scope, seen, (self.server.clock.elapsed_us() - began_us) / 1e6)

    async def _console(self, console: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the console answer, unless a page of another site may have sent the request."""
        loopback = self.loopback and self.authorizer.is_open
        try:
            headers = headers_of(scope["headers"])
            guard.check(headers, scheme=scope["scheme"], origins=(), ambient=True, loopback=loopback)
        except OncelogError as error:
            await problem.response(error, writes=False)(scope, receive, send)
            return
        await console(scope, receive, send)

    async def _response(self, scope: Scope, body: Body, room: Room, seen: _Seen) -> Response:
        """Return the answer: every error is one, a bug too."""
        writes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        try:
            headers = headers_of(scope["headers"])
            seen.headers = headers
            response = await self._routed(scope, headers, body, room, seen)
        except Gone:
            raise
        except OncelogError as error:
            response = problem.response(error, writes=writes)
        except Exception as error:  # noqa: BLE001 (a client never sees a traceback)
            response = problem.unexpected(error, writes=writes)
        response.headers.update(guard.cors(seen.headers, self.origins))
        seen.status = response.status_code
        return response

    async def _routed(self, scope: Scope, headers: dict[str, str], body: Body, room: Room, seen: _Seen) -> Response:
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "Content-Length and Transfer-Encoding: send one of them"
            raise HttpRefusal(400, message, headers={"connection": "close"})
        if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            message = "Transfer-Encoding: this server knows chunked alone"
            raise HttpRefusal(501, message, headers={"connection": "close"})
        if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
            message = "Content-Encoding: send the body as it is; a value that is compressed needs no such header"
            raise HttpRefusal(415, message, headers={"accept-encoding": "identity"})
        if scope["method"] == "OPTIONS" and (allowed := guard.preflight(headers, self.origins)) is not None:
            return Response(None, 204, allowed)
        found = routes.find(scope["method"], paths.split(scope["raw_path"]))
        if isinstance(found, list):
            raise _no_route(scope["method"], found)
        route, raw_names = found
        seen.route = route.template.text
        hop = self.server.hop_of(headers.get(HTTP_HEADER))
        peer, sans = (_peer(scope), scope.get("oncelog_sans", ())) if hop is None else (hop.peer, hop.sans)
        principal = self._admitted(scope, headers, route, peer, sans)
        query = query_of(scope["query_string"], route.query)
        call = Call(self, route, principal, paths.names(raw_names, query), query, headers, body, room, peer, sans)
        name = await self._judged(call)
        subject = self._subject(call, name)
        if subject is not None and (member := await self._elsewhere(subject, handed_on=hop is not None)) is not None:
            return await forward(call, member, subject.log, _target(scope), sans)
        if not route.audited or name is None:
            return await route.does(call)
        return await self._audited(call, name)

    def _subject(self, call: Call, name: str | None) -> RoutedSubject | None:
        """Return the log whose holder serves a request; ``None``: any server does."""
        if call.route.name == "hooks_post" and (hook := self.hooks.get(call.names["name"])) is not None:
            return routing.log_subject(hook.settings.log, takes=True)
        return routing.http_subject(call.route.name, call.route.kind, name)

    async def _elsewhere(self, subject: RoutedSubject, *, handed_on: bool) -> FleetMember | None:
        """Return the other server that a request goes to; ``None``: it is served here."""
        fleet = self.server.fleet
        return None if fleet is None else await fleet.place(subject.log, takes=subject.takes, handed_on=handed_on)

    def _admitted(
        self, scope: Scope, headers: Mapping[str, str], route: Route, peer: str, sans: tuple[str, ...]
    ) -> Principal:
        """Return who calls. A request that a foreign page may have sent is refused before anything is looked at."""
        ambient = "authorization" not in headers
        if route.verb is not None or not route.writes:  # a webhook has a signature, and comes from anywhere
            loopback = self.loopback and self.authorizer.is_open
            guard.check(headers, scheme=scope["scheme"], origins=self.origins, ambient=ambient, loopback=loopback)
        if route.verb is None:
            return authorize.NOBODY
        return self.principal(headers, peer, sans, writes=route.writes)

    def principal(
        self, headers: Mapping[str, str], peer: str, sans: tuple[str, ...], *, writes: bool = False
    ) -> Principal:
        """Return who calls: by a token, a certificate, or the session of the console."""
        authorization = headers.get("authorization")
        if authorization is None and not self.authorizer.is_open and (cookie := _cookie(headers)) is not None:
            return self.of_session(cookie, headers.get(sessions.CSRF_HEADER), writes=writes)
        return self.authorizer.principal(Credentials(authorization, sans, peer))

    def of_session(self, cookie: str, csrf: str | None, *, writes: bool) -> Principal:
        """Return whose session a cookie is of; a call that writes needs the session's token against forgery, too."""
        session = self.sessions.read(cookie)
        found = self.authorizer.with_digest(session.digest) if session is not None else None
        if session is None or found is None:
            message = "the session is over: log in again"
            raise NotAuthenticated(message)
        if writes:
            self.sessions.check_csrf(session, csrf)
        return found

    async def _judged(self, call: Call) -> str | None:
        """Raise unless the caller may do this; return the log or queue that the call is about."""
        route = call.route
        if route.verb is None or route.kind == "server":
            return None
        name = call.names[route.subject] if route.subject != "body" and route.subject is not None else None
        if name is None:
            name = _named(await call.body.whole(_ACT_BYTES_MAX))
        authorize.check(call.principal, route.verb, route.kind, name, making=route.making)
        return name

    async def _audited(self, call: Call, name: str) -> Response:
        """Do an admin verb after its line in the audit log; if the verb fails, a second line says so."""
        details = _details(await call.body.whole(_ACT_BYTES_MAX))
        call.act = AuditLine(act=call.route.name, kind=call.route.kind, name=name, details=details)
        async with self.audit.noted(call.principal, call.peer, call.act):
            return await call.route.does(call)

    async def _send(self, response: Response, body: Body, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer. One that does not wait for the whole body ends the connection: the rest is no request.

        The connection is not closed at once: TCP would reset it, and a client that still sends would lose the answer.
        """
        if scope["method"] == "HEAD" and isinstance(response, LargeAnswer):  # what it would send is not read
            response = Response(None, response.status_code, dict(response.headers))
        if _size_bytes(response) > PART_BYTES or isinstance(response, LargeAnswer):
            send = taken(send, scope["oncelog_abort"], self.server.clock, holds_room=_size_bytes(response) > 0)
        if body.complete or body.expects_nothing or response.status_code < 400:  # noqa: PLR2004
            await response(scope, receive, send)
            return
        response.headers["connection"] = "close"

        async def held(message: Message) -> None:
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send({**message, "more_body": True} if last else message)

        await response(scope, receive, held)
        await body.discard()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _note(self, scope: Scope, seen: _Seen, took_s: float) -> None:
        self.server.calls.observe("http", f"{scope['method']} {seen.route}", str(seen.status), took_s)
        if _access.isEnabledFor(logging.DEBUG):
            fields = {"method": scope["method"], "route": seen.route, "status": seen.status, "took_s": took_s}
            _access.debug("request", extra=fields)


class _Seen:
    """What is known of a request so far."""

    route = "unknown"
    status = 0
    headers: Mapping[str, str] = {}


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _size_bytes(response: Response) -> int:
    """Return how much an answer holds: all of one that was made as a whole, and a part of one that is made as it is
    sent.
    """
    return response.held_bytes if isinstance(response, LargeAnswer) else len(getattr(response, "body", b""))


def _target(scope: Scope) -> bytes:
    """Return the path and the query as they came."""
    path, query = bytes(scope["raw_path"]), bytes(scope["query_string"])
    return path + b"?" + query if query else path


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _cookie(headers: Mapping[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(sessions.COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _no_route(method: str, allowed: list[str]) -> HttpRefusal:
    if not allowed:
        return HttpRefusal(404, "there is nothing at this path: see /openapi.json")
    listed = ", ".join(sorted(set(allowed)))
    return HttpRefusal(405, f"{method[:20]} is not known here: use {listed}", headers={"allow": listed})


def _named(data: bytes) -> str:
    """Return the name in a body, before anything else of it is looked at."""
    return spelling.decode(data or b"{}", _NamedBody).name


class _NamedBody(msgspec.Struct):
    name: str


def _details(data: bytes) -> dict[str, Any]:
    """Return what an admin verb was asked with; what is no JSON is refused here, and not written down."""
    found = spelling.decode(data or b"{}", dict[str, Any])
    return {name: part for name, part in found.items() if name != "name"}


def build(server: Server, sessions_key: bytes | None = None) -> App:
    """Return the HTTP face of a server, and have its gRPC face ask the same questions."""
    security = setup.load(server.settings, server.clock, sessions_key, server.tokens)
    audit = AuditTrail(_auditing(server), audit_log(server.settings.name))
    server.gate = Gate(security.authorizer, audit)
    app = App(server, security, audit, ServerMetrics(server))
    app.console = console_app(app)
    return app


def audit_log(name: str | None) -> str:
    """Return the audit log of a server: servers of one database have a name each, and a log each."""
    return AUDIT_LOG if name is None else f"{AUDIT_LOG}/{name}"


def _auditing(server: Server) -> Callable[[str, Record], Awaitable[object]]:
    """Return what appends to the audit log, which is made when the first line comes."""
    made: set[str] = set()

    async def append(log: str, record: Record) -> None:
        if log not in made:
            await server.write(lambda: server.database.log(log, create=True))
            made.add(log)
        [found] = await server.seats[log].append([record], timeout_s=AUDIT_S)
        if isinstance(found, OncelogError):
            raise found

    return append
