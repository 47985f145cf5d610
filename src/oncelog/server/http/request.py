"""One request, as its handler sees it: who calls, about what, with which fields and body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from oncelog.errors import InvalidArgument, OncelogError
from oncelog.limits import KIB
from oncelog.server.http import fields, spelling
from oncelog.server.http.answers import Room
from oncelog.server.http.bodies import Body
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.security.audit import AuditLine
from oncelog.server.security.authorize import Principal
from oncelog.settings import TIMEOUT_S

if TYPE_CHECKING:
    from oncelog.server.http.app import App
    from oncelog.server.http.routes import Route
    from oncelog.server.server import Server

_T = TypeVar("_T")


JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
_QUERY_FIELDS_MAX = 32
_SMALL_BYTES = 32 * KIB
"""So much JSON is read or made in a few milliseconds, for which the event loop may stand still."""
_SINGLE = frozenset({"idempotency-key", "authorization", "host", "content-type"})
"""Headers that must be there once, as all must that begin with ``oncelog-``."""


@dataclass(slots=True)
class Call:
    """One request."""

    app: App
    route: Route
    principal: Principal
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Body
    room: Room
    peer: str
    sans: tuple[str, ...] = ()
    """The names in the caller's certificate."""
    act: AuditLine | None = None
    """What the audit log says of an admin verb."""

    @property
    def server(self) -> Server:
        """The server that all calls share."""
        return self.app.server

    def is_valid(self) -> bool:
        """Tell whether the caller of a call that lasts is still one."""
        return self.app.authorizer.is_valid(self.principal)

    async def note_failure(self, error: OncelogError) -> None:
        """Write to the audit log that an admin verb failed after its answer had begun."""
        if self.act is not None:
            await self.app.audit.failed(self.principal, self.peer, self.act, error)

    @property
    def media_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def accepts(self, *offered: str) -> str:
        """Return the first offered type that the client named in ``Accept``; the first of all if it takes anything.

        ``Refused`` with 406 when it takes none.
        """
        accept = self.headers.get("accept", "*/*")
        wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
        for one in wanted:
            for offer in offered:
                if one in (offer, "*/*", f"{offer.partition('/')[0]}/*", ""):
                    return offer
        message = f"Accept is {accept[:100]!r}, and there is {', '.join(offered)}"
        raise HttpRefusal(406, message)

    async def read(self, work: Callable[[], _T]) -> _T:
        """Run a function that reads what this call is about, in a thread."""
        return await self.server.read(work, self.names.get("log", self.names.get("queue")))

    async def apart(self, size_bytes: int, work: Callable[[], _T]) -> _T:
        """Run a function that takes the longer, the larger what it works on: in a thread, unless that is small."""
        return work() if size_bytes <= _SMALL_BYTES else await self.server.read(work)

    async def json(self, kind: type[_T]) -> _T:
        """Return the body as a form; an empty body is an empty object."""
        data = await self.body.whole()
        if data and self.media_type not in (JSON, "", "application/x-www-form-urlencoded"):
            message = f"Content-Type is {self.media_type[:100]!r}, must be {JSON}"
            raise HttpRefusal(415, message)
        return spelling.decode(data or b"{}", kind)

    def timeout_s(self) -> float:
        """Return how long the caller waits."""
        given = self.query.get("timeout_s")
        return TIMEOUT_S if given is None else fields.seconds("timeout_s", given, TIMEOUT_S)

    def limit(self, default: int, most: int) -> int:
        """Return how many things the caller wants."""
        given = self.query.get("limit")
        return default if given is None else fields.whole("limit", given, least=0, most=most)


def query_of(data: bytes, allowed: Iterable[str]) -> dict[str, str]:
    """Return the fields of a query; ``InvalidArgument`` for one that is unknown, given twice, or no UTF-8."""
    try:
        pairs = parse_qsl(
            data.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(data),
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        message = f"the query cannot be read: {error}"
        raise InvalidArgument(message) from None
    found: dict[str, str] = {}
    known = set(allowed)
    for name, value in pairs:
        if name not in known:
            message = f"the query has {name[:100]!r}, and there are {', '.join(sorted(known)) or 'no fields'} here"
            raise InvalidArgument(message)
        if name in found:
            message = f"the query has {name!r} twice"
            raise InvalidArgument(message)
        found[name] = value
    return found


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case; ``InvalidArgument`` for one that must be there once and is not.

    Another that comes twice, with two values, is a list of them (RFC 9110, 5.3): the second is never passed over.

    >>> headers_of([(b"Accept", b"a/b"), (b"accept", b"c/d"), (b"Cookie", b"e=1"), (b"cookie", b"e=1")])
    {'accept': 'a/b, c/d', 'cookie': 'e=1'}
    """
    found: dict[str, str] = {}
    for name_bytes, value_bytes in raw:
        name, value = name_bytes.decode("latin-1").lower(), value_bytes.decode("latin-1")
        if name not in found:
            found[name] = value
        elif name in _SINGLE or name.startswith("oncelog-"):
            message = f"the header {name} is there twice"
            raise InvalidArgument(message)
        elif value != found[name]:
            found[name] += f"; {value}" if name == "cookie" else f", {value}"
    return found


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(body), status, dict(headers or {}), media_type=JSON)
