"""HTTP/1.1 on a connection: uvicorn's, with limits that it lacks.

A head that is too large or comes too slowly ends its connection; so does one connection too many, and the rest of a
body that does not come to its end though its request is answered. What cannot be parsed
gets a problem, unless an answer to an earlier request on the connection is still due: the client would take the problem
for that answer. Trailers are dropped (RFC 9110, 6.5.1): a trailer must not become a header of a request that was judged
without it. An offer to speak another protocol (``Upgrade``) is passed over, as RFC 9110, 7.8, allows. The parser takes
what follows such a head for the other protocol: the body would be lost, so the head is read once more, without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncelog import limits
from oncelog.server.http import problem
from oncelog.server.http.problem import HttpRefusal

_OFFERS = (b"upgrade", b"http2-settings")
"""Headers that offer another protocol, and their names among those of ``Connection``."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    _in_head = True
    _idle_bytes = 0
    """Bytes behind a head since the last part of a body: chunk extensions and trailers."""
    _offered = False
    """Whether the head that was read offers another protocol: it is read once more."""
    _in_body = False
    _head_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    """Runs while the rest of a body comes whose request is answered."""
    _sans: tuple[str, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; one connection too many is closed at once."""
        super().connection_made(transport)
        if len(self.connections) > connections_max():
            transport.abort()
            return
        self._sans = _names(transport.get_extra_info("peercert"))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._head_done()
        self._rest_done()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.HTTP_HEAD_S_MAX, self._late)

    def _head_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _rest_done(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(HttpRefusal(408, "the head of the request came too slowly"))

    def data_received(self, data: bytes) -> None:
        """Take what came. Only a head that is not complete counts against its limit."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > limits.HTTP_HEAD_BYTES_MAX + self._body_allowance(data):
                self._refuse(HttpRefusal(431, f"the head has more than {limits.HTTP_HEAD_BYTES_MAX} bytes"))
                return
        self._idle_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if not self._in_head and self._idle_bytes > limits.HTTP_HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(HttpRefusal(431, f"more than {limits.HTTP_HEAD_BYTES_MAX} bytes of trailers"))

    def _feed(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = self._fed(left)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

    def _fed(self, data: memoryview) -> memoryview:
        """Parse data to the end, or to that of the first head that offers another protocol; return what is left."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":  # what follows is another protocol whatever the head says
                self._refuse(HttpRefusal(405, "CONNECT is not known here"))
                return data[:0]
            self._pass_over_upgrade()
            return data[upgrade.args[0] :]
        return data[:0]

    def _pass_over_upgrade(self) -> None:
        """Read a head once more that offered another protocol, without the offer."""
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s" % (name, _kept(name, value)) for name, value in self.headers if name not in _OFFERS]
        self._offered = False
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(AttributeError):  # httptools 0.6.3 and later, as uvicorn has it
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*head, b"", b""]))

    def _body_allowance(self, data: bytes) -> int:
        """Return how much of the data may be body: a head ends with an empty line."""
        end = data.find(b"\r\n\r\n")
        return len(data) - end if end >= 0 else 0

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._in_head = True
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._await_head()
        self.scope["oncelog_sans"] = self._sans  # type: ignore[typeddict-unknown-key]
        self.scope["oncelog_abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop a trailer."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._offered:
            return
        self._idle_bytes = 0
        self._in_body = False
        super().on_message_complete()
        if self._rest_timer is not None:
            self._rest_done()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        if self.parser.should_upgrade():
            self._offered = True
            return
        self._in_head = False
        self._in_body = True
        self._idle_bytes = 0
        self._head_done()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """End an answer. What is left of its body is dropped, for a while."""
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(limits.HTTP_BODY_S_MAX, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """End a connection on which nothing came; one whose client does not take the answer would not close."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(HttpRefusal(400, msg))

    def _refuse(self, error: HttpRefusal) -> None:
        waiting: RequestResponseCycle | None = self.cycle
        if waiting is None or waiting.response_complete:
            body = msgspec.json.encode(problem.of(error))
            head = [
                STATUS_LINE[error.status],
                b"content-type: application/problem+json\r\n",
                b"content-length: %d\r\n" % len(body),
                b"connection: close\r\n\r\n",
            ]
            self.transport.write(b"".join([*head, body]))
        self.transport.close()


def connections_max() -> int:
    """Return how many connections may be open: half of the files that the process may have, at most.

    Without files no log can be opened, and the event loop does nothing but fail to accept.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.HTTP_CONNECTIONS_MAX if files < 0 else min(limits.HTTP_CONNECTIONS_MAX, files // 2)


def _kept(name: bytes, value: bytes) -> bytes:
    """Return a header's value; of ``Connection`` without what offers another protocol."""
    if name != b"connection":
        return value
    return b",".join(part for part in value.split(b",") if part.strip().lower() not in _OFFERS)


def _names(certificate: Any) -> tuple[str, ...]:
    """Return the DNS and URI names of a client's certificate."""
    found = (certificate or {}).get("subjectAltName", ())
    return tuple(value for kind, value in found if kind in ("DNS", "URI"))
