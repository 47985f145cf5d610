"""How a server becomes a member of its fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from oncelog import __version__, inner
from oncelog.errors import InvalidArgument
from oncelog.server import settings as settings_module
from oncelog.server.fleet import hop, members
from oncelog.server.fleet.fleet import Fleet
from oncelog.server.fleet.members import Card
from oncelog.server.fleet.peers import Peers
from oncelog.server.security.exposure import is_loopback

if TYPE_CHECKING:
    from oncelog.server.fleet.host import FleetHost
    from oncelog.server.security.setup import Tls

_WILDCARDS = ("0.0.0.0", "::", "*")  # noqa: S104  (what must not be advertised)
_log = logging.getLogger("oncelog.server.fleet")


class Addresses(NamedTuple):
    """Where a server listens."""

    grpc: str
    http: str


def is_local(url: str) -> bool:
    """Tell whether a database can have one server alone: it is on a disk, or in memory."""
    return url.startswith(("file:", "memory:"))


def fleet_key(server: FleetHost) -> bytes | None:
    """Return the key that the servers of a database share; ``None`` for a database with one server. For threads."""
    if is_local(server.database.url):
        return None
    return members.shared_key(inner.home(server.database, members.HOME), server.clock)


def sessions_key(key: bytes | None) -> bytes | None:
    """Return the key of the console's sessions, the same for all servers of a fleet."""
    return None if key is None else hop.derived(key, "sessions")


def advertised(server: FleetHost, listening: Addresses) -> Addresses:
    """Return where the other servers reach this one; ``InvalidArgument`` if a wildcard leaves that open."""
    settings = server.settings
    found = Addresses(settings.advertise or listening.grpc, settings.advertise_http or listening.http)
    for option, text in (("--advertise", found.grpc), ("--advertise-http", found.http)):
        host, _ = settings_module.address(text)
        if host in _WILDCARDS:
            message = f"the other servers cannot reach this one at {text}: say where they can with {option} HOST:PORT"
            raise InvalidArgument(message)
        if is_loopback(host):
            _log.warning("only servers of this machine reach %s: others need %s HOST:PORT", text, option)
    return found


def name_of(server: FleetHost, where: Addresses) -> str:
    """Return the name of a server in its fleet: the one it was given, or else its address."""
    return server.settings.name or where.grpc


async def join(
    server: FleetHost, tls: Tls | None, key: bytes, where: Addresses, on_replaced: Callable[[], None]
) -> None:
    """Win an incarnation of the server's name, and begin to beat; ``where`` is where the other servers reach it."""
    fleet = Fleet(server, Peers(server, key, tls), key, on_replaced)
    card = Card(
        name=name_of(server, where),
        incarnation=0,
        grpc=where.grpc,
        http=where.http,
        tls=tls is not None,
        tls_name=server.settings.tls_name,
        version=__version__,
        started_us=server.started_us,
        nonce=server.clock.token(8).hex(),
    )
    await server.closers.run(lambda: fleet.join(card))
    server.fleet, server.name = fleet, card.name


async def check_address(fleet: Fleet) -> None:
    """Warn if the address that the others use does not lead back to this server, which serves now."""
    if not await fleet.peers.reaches(fleet.card):
        where = fleet.card.grpc
        _log.warning("the address %s does not lead back to this server: others may not reach it either", where)
