"""The servers of a database, for people: who is there, since when, and how many logs each holds."""

from __future__ import annotations

import msgspec

from oncelog import __version__
from oncelog.clock import Clock
from oncelog.server.fleet.host import FleetHost
from oncelog.server.fleet.members import FleetMember, Members


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it was seen last. ``beat_age_s`` is how long ago its newest beat was seen first."""

    name: str
    incarnation: int
    grpc: str
    http: str
    version: str
    started_us: int
    state: str
    beat_age_s: float
    logs: int


def servers(server: FleetHost) -> list[ServerInfo]:
    """Return the servers of the fleet as a server sees them. For threads."""
    fleet = server.fleet
    if fleet is not None:
        return shown(fleet.members, server.clock)
    return [
        ServerInfo(
            name=server.name, incarnation=1, grpc=server.settings.grpc, http=server.settings.http, version=__version__,
            started_us=server.started_us, state="living", beat_age_s=0.0, logs=server.open_count(),
        )
    ]  # fmt: skip


def shown(members: Members, clock: Clock) -> list[ServerInfo]:
    """Return what is known of all members."""
    now_us = clock.elapsed_us()
    return [_info(members, member, now_us) for member in members.all()]


def _info(members: Members, member: FleetMember, now_us: int) -> ServerInfo:
    card = member.card
    state = "left" if member.left else "living" if members.is_living(member) else "dead"
    return ServerInfo(
        name=card.name,
        incarnation=card.incarnation,
        grpc=card.grpc,
        http=card.http,
        version=card.version,
        started_us=card.started_us,
        state=state,
        beat_age_s=(now_us - member.seen_us) / 1e6,
        logs=members.beat_of(member).logs if state == "living" else 0,
    )
