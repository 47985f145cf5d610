"""The settings of ``oncelog serve``: from flags, the environment and a TOML file, checked before anything starts.

A flag wins over the environment (``ONCELOG_SERVE_…``), which wins over the file.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from oncelog import names
from oncelog.errors import InvalidArgument
from oncelog.limits import MIB

PREFIX = "ONCELOG_SERVE_"
"""What the names of environment variables begin with: ``ONCELOG_SERVE_GRPC=127.0.0.1:7676``."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a server runs. Sizes are bytes, times are seconds."""

    url: str
    grpc: str = "127.0.0.1:7676"
    http: str = "127.0.0.1:7677"
    name: str | None = None
    """The server's name among the servers of its database; by default the gRPC address that it advertises."""
    advertise: str | None = None
    """The gRPC address at which the other servers reach this one; by default the one on which it listens."""
    advertise_http: str | None = None
    """The same for HTTP."""
    beat_s: float = 2.0
    """How often a server tells the others that it lives; one that does not for four times as long is taken for dead.
    The same for all servers of a database."""
    queue_state: str | None = None
    """Where queues remember what they delivered: ``postgresql://…``; by default beside the logs."""
    drain_s: float = 30.0
    """How long a server that stops may take to close its logs."""
    received_bytes_max: int = 256 * MIB
    """Bytes that were received and are not stored yet, of the whole server."""
    log_bytes_max: int = 64 * MIB
    """The same, of one log."""
    ring_bytes_max: int = 64 * MIB
    """Bytes of the latest answers that are kept, about."""
    seats_max: int = 512
    """Logs that have an open writer at once."""
    seat_idle_s: float = 60.0
    """A writer that is not used for so long is closed."""
    session_s: float = 60.0
    """How long a write session, its answers and its producer's name are kept after its stream has ended."""
    sessions_max: int = 10_000
    """Write sessions that are kept at once."""
    streams_max: int = 1_000
    """Calls that one connection may have open at once."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """Files with the server's certificate chain and its key."""
    tls_client_ca: str | None = None
    """A file with the authorities of clients' certificates; with it, clients must have one."""
    tls_fleet_ca: str | None = None
    """A file with the authorities of the other servers' certificates; by default the server's own chain."""
    tls_name: str | None = None
    """The name in this server's certificate, if the others reach it by another one."""
    tokens: str | None = None
    """A file with tokens; by default they are kept in the database."""
    insecure: bool = False
    """Listen on any address without TLS and tokens."""
    origins: list[str] = []
    """Web pages of other origins that may call the HTTP side."""
    options: dict[str, str] = {}
    """Options of the store's client, for a bucket."""
    mtls: dict[str, list[str]] = {}
    """Scopes of the names in clients' certificates."""
    hooks: dict[str, dict[str, Any]] = {}
    """Webhooks, by name."""
    inboxes: dict[str, str] = {}
    """Inboxes that the console shows, by name: ``sqlite:///…``, ``postgresql://…`` or ``redis://…``."""
    reports: dict[str, str] = {}
    """Reports of pipelines that the console shows: the file of each, by name."""


_SECONDS_MOST = 1_000_000_000
_STREAMS_MOST = (1 << 31) - 1
"""What timers, and gRPC, can count to."""

_AUDIT = "_audit/"

_TABLES = ("options", "mtls", "hooks", "origins", "inboxes", "reports")
"""Settings that only a file can have."""


def load(
    given: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> ServeSettings:
    """Return the settings; ``InvalidArgument`` names the file and line, the variable or the flag that is wrong.

    >>> load({"url": "memory://", "seat_idle_s": 5.0}, {"ONCELOG_SERVE_SEATS_MAX": "7"}).seats_max
    7
    """
    found: dict[str, object] = {}
    if file is not None:
        found.update(_from_file(file))
    for name, text in (environment or {}).items():
        if name.startswith(PREFIX):
            found.update(_from_variable(name, text))
    found.update({name: value for name, value in given.items() if value is not None})
    if "url" not in found:
        message = "a server needs the URL of its database: --url file:///var/lib/shop"
        raise InvalidArgument(message)
    return _converted(found, "serve")


def _from_file(file: Path) -> dict[str, object]:
    try:
        text = file.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{file}: {error}"
        raise InvalidArgument(message) from error
    for name, value in found.items():
        where = f"{file}:{_line(text, name)}"
        if name not in ServeSettings.__struct_fields__:
            known = ", ".join(ServeSettings.__struct_fields__)
            message = f"{where}: {name!r} is no setting of a server: there are {known}"
            raise InvalidArgument(message)
        _converted({"url": "memory://", name: value}, where)
    return found


def _line(text: str, name: str) -> int:
    """Return the line, from 1, in which a key or a table of this name stands."""
    pattern = re.compile(rf"^\s*(\[+\s*)?[\"']?{re.escape(name)}[\"']?\s*([=.\]]|$)")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _from_variable(name: str, text: str) -> dict[str, object]:
    field = name.removeprefix(PREFIX).lower()
    if field not in ServeSettings.__struct_fields__ or field in _TABLES:
        message = f"the environment variable {name} is no setting of a server"
        raise InvalidArgument(message)
    checked = _converted({"url": "memory://", field: text}, name)
    return {field: getattr(checked, field)}


def _converted(found: Mapping[str, object], where: str) -> ServeSettings:
    try:
        settings = msgspec.convert(dict(found), ServeSettings, strict=False)
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise InvalidArgument(message) from None
    for name in ServeSettings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            most = _STREAMS_MOST if name == "streams_max" else _SECONDS_MOST if name.endswith("_s") else math.inf
            if not 0 < value <= most:
                limit = "" if most == math.inf else f" and at most {most:,}"
                message = f"{where}: {name} is {value}, must be more than 0{limit}"
                raise InvalidArgument(message)
    if settings.name:
        _check_name(settings.name, where)
    return settings


def _check_name(name: str, where: str) -> None:
    """Raise ``InvalidArgument`` for a name that no log can have: the server's audit log is named by it."""
    try:
        names.check(name, "server")
        names.check(f"{_AUDIT}{name}", "audit log")
    except InvalidArgument as error:
        message = f"{where}: {error}"
        raise InvalidArgument(message) from None
    if name.startswith(names.CONFLICTS):
        message = f"{where}: a server's name does not begin with {names.CONFLICTS!r}"
        raise InvalidArgument(message)


def address(text: str) -> tuple[str, int]:
    """Return host and port of an address such as ``127.0.0.1:7676`` or ``[::1]:7676``; ``InvalidArgument`` otherwise.

    >>> address("[::1]:0")
    ('::1', 0)
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not (port.isascii() and port.isdecimal()) or int(port) > 65535:  # noqa: PLR2004
        message = f"{text!r} is not an address: use HOST:PORT, as in 127.0.0.1:7676"
        raise InvalidArgument(message)
    return bare, int(port)
