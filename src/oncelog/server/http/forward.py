"""HTTP requests that are handed on to the server that holds their log: as they came, one hop, and the answer as it is.

A redirect is no way: curl follows a redirect only with ``-L``, and then drops the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from starlette.responses import Response, StreamingResponse

from oncelog.errors import Unavailable
from oncelog.server import settings as settings_module
from oncelog.server.fleet.hop import HTTP_HEADER, Hop, seal
from oncelog.server.fleet.members import FleetMember
from oncelog.server.http.bodies import Gone

if TYPE_CHECKING:
    from oncelog.server.http.request import Call

CONNECT_S = 5.0
LOOK_S = 1.0
READ_BYTES = 64 * 1024

_OF_CONNECTION = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "content-length", "expect", HTTP_HEADER,
    }
)  # fmt: skip
"""Headers of one connection, not of the request (RFC 9110, 7.6.1), and those that are made again."""


async def forward(call: Call, member: FleetMember, log: str, target: bytes, sans: tuple[str, ...]) -> Response:
    """Hand a request on to the holder of a log; return the holder's answer.

    ``Unavailable``, not written, if nothing was sent, or not to the holder; with outcome ``"unknown"`` when the answer
    does not come.
    """
    fleet = call.server.fleet
    assert fleet is not None
    reader, writer = await _connected(call, member)
    exchange = _Exchange(call, member, reader, writer)
    try:
        await exchange.send(target, sans)
        await _unless_left(call, exchange.head())
    except BaseException as error:
        exchange.close()
        if isinstance(error, Unavailable):
            fleet.forget(log)
        raise
    if exchange.status == HTTPStatus.MISDIRECTED_REQUEST:
        exchange.close()
        raise _not_reached(call, member)
    if exchange.status == HTTPStatus.SERVICE_UNAVAILABLE:  # it may not be the holder any more
        fleet.forget(log)
    response = StreamingResponse(exchange.body(), exchange.status)
    response.raw_headers = [(name, value) for name, value in exchange.headers if name.decode() not in _OF_CONNECTION]
    return response


async def _unless_left(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Wait for the holder; ``Gone`` if the client leaves first: the holder would claim messages for nobody."""
    working, left = asyncio.ensure_future(work), asyncio.ensure_future(call.body.left())
    try:
        await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        working.result()
    finally:
        left.cancel()
        working.cancel()


async def _connected(call: Call, member: FleetMember) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = settings_module.address(member.card.http)
    fleet = call.server.fleet
    assert fleet is not None
    tls = fleet.peers.tls
    if member.card.tls != (tls is not None):
        fleet.not_reached(member)
        message = f"the server {member.card.name!r} does not use TLS as this one does: nothing is handed on to it"
        raise Unavailable(message)
    try:
        async with asyncio.timeout(CONNECT_S):
            context = None if tls is None else _context(call, tls.fleet_ca)
            name = (member.card.tls_name or host) if context is not None else None
            return await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except (OSError, TimeoutError) as error:
        raise _not_reached(call, member) from error


def _not_reached(call: Call, member: FleetMember) -> Unavailable:
    """Note that a server could not be reached, and return the error that says so."""
    fleet = call.server.fleet
    assert fleet is not None
    fleet.not_reached(member)
    message = f"the server {member.card.name!r}, which holds this log, cannot be reached now"
    return Unavailable(message, retry_after_s=call.server.retry_after_s())


def _context(call: Call, ca: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.decode("ascii", "replace"))
    settings = call.server.settings
    if settings.tls_client_ca is not None and settings.tls_cert is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


class _Exchange:
    """One request to another server, and its answer as ``httptools`` parses it."""

    def __init__(
        self, call: Call, member: FleetMember, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._call = call
        self._member = member
        self._reader = reader
        self._writer = writer
        self._parser: Any = httptools.HttpResponseParser(self)
        self._complete_head = self._complete = False
        self._parts: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note that the head is complete."""
        self.status = self._parser.get_status_code()
        self._complete_head = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note the end."""
        self._complete = True

    # The exchange.

    async def send(self, target: bytes, sans: tuple[str, ...]) -> None:
        """Send the request, its body as it comes."""
        call = self._call
        lines = [call.route.method.encode() + b" " + target + b" HTTP/1.1"]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in self._headers(call.headers, sans).items()]
        self._writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        async for part in _parts(call):
            self._writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await self._drained()
            call.body.let_go(len(part))
        self._writer.write(b"0\r\n\r\n")
        await self._drained()

    def _headers(self, given: Mapping[str, str], sans: tuple[str, ...]) -> dict[str, str]:
        fleet = self._call.server.fleet
        assert fleet is not None
        kept = {name: value for name, value in given.items() if name not in _OF_CONNECTION}
        sealed = seal(fleet.key, Hop(self._member.card.holder, self._call.peer, sans))
        return kept | {HTTP_HEADER: sealed.hex(), "connection": "close", "transfer-encoding": "chunked"}

    async def _drained(self) -> None:
        try:
            await self._watched(self._writer.drain())
        except OSError as error:
            raise self._gone() from error

    async def head(self) -> None:
        """Wait for the head of the answer."""
        while not self._complete_head:
            await self._read()

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer as it comes."""
        try:
            while True:
                parts, self._parts = self._parts, []
                for part in parts:
                    yield part
                if self._complete:
                    return
                await self._read()
        finally:
            self.close()

    async def _read(self) -> None:
        try:
            data = await self._watched(self._reader.read(READ_BYTES))
            if not data:
                raise self._gone()
            self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise self._gone() from error

    async def _watched(self, work: Any) -> Any:
        """Wait for the other server, as long as it lives."""
        fleet = self._call.server.fleet
        assert fleet is not None
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                if not task.done() and fleet.members.find(self._member.card.holder) is None:
                    raise self._gone()
            return task.result()
        finally:
            if not task.done():
                task.cancel()

    def _gone(self) -> Unavailable:
        message = "the server that holds the log stopped answering: send the same again with the same id"
        return Unavailable(message, outcome="unknown")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._writer.close()


async def _parts(call: Call) -> AsyncIterator[bytes]:
    """Yield the body of a request, also if it was read already."""
    if call.body.known is not None:
        if call.body.known:
            yield call.body.known
        return
    async for part in call.body.parts():
        yield part
