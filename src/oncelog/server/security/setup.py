"""The security of a server, from its settings: who is known, which certificates are used, which pages may call."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument
from oncelog.server.security import exposure, scopes
from oncelog.server.security.authorize import Authorizer
from oncelog.server.security.sessions import BrowserSessions
from oncelog.server.security.token_object import TokenObject
from oncelog.server.security.tokens import TokenFile
from oncelog.server.settings import ServeSettings, address

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates as bytes, for gRPC, and as a context, for HTTP."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    fleet_ca: bytes
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Security:
    """All that decides who may call a server, and how."""

    settings: ServeSettings
    authorizer: Authorizer
    sessions: BrowserSessions
    tls: Tls | None
    loopback: bool


def load(
    settings: ServeSettings, clock: Clock, sessions_key: bytes | None = None, shared: TokenObject | None = None
) -> Security:
    """Return the security of a server; ``InvalidArgument`` for what is wrong with its settings.

    A server that other machines reach needs TLS and callers that are known, or ``insecure``. The servers of a fleet
    share the key of sessions: each knows the sessions of all. ``shared`` are the tokens in the database; those of a
    file are used instead, if there is one.
    """
    _check_origins(settings.origins)
    tls = read_tls(settings)
    if settings.mtls and (tls is None or tls.client_ca is None):
        message = "mtls needs tls_cert, tls_key and tls_client_ca"
        raise InvalidArgument(message)
    table = {san: [scopes.parse(text) for text in texts] for san, texts in settings.mtls.items()}
    authorizer = Authorizer(clock, TokenFile(Path(settings.tokens)) if settings.tokens else shared, table)
    hosts = {f"--{name}": address(getattr(settings, name))[0] for name in ("grpc", "http")}
    exposure.check(hosts, tls=tls is not None, authenticated=not authorizer.is_open, insecure=settings.insecure)
    loopback = all(exposure.is_loopback(host) for host in hosts.values())
    return Security(
        settings, authorizer, BrowserSessions(clock, sessions_key or clock.token(_KEY_BYTES)), tls, loopback
    )


def _check_origins(origins: list[str]) -> None:
    for origin in origins:
        if "*" in origin or not origin.startswith(("http://", "https://")) or origin.count("/") != 2:  # noqa: PLR2004
            message = f"origins: {origin!r} is no origin: write https://shop.example, never *"
            raise InvalidArgument(message)


def read_tls(settings: ServeSettings) -> Tls | None:
    """Return the certificates that settings name; ``InvalidArgument`` for files that cannot be used."""
    if settings.tls_cert is None and settings.tls_key is None:
        for name in ("tls_client_ca", "tls_fleet_ca", "tls_name"):
            if getattr(settings, name) is not None:  # passed over, it would leave a server open that is meant not to be
                message = f"{name} needs tls_cert and tls_key"
                raise InvalidArgument(message)
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        message = "tls_cert and tls_key belong together"
        raise InvalidArgument(message)
    found = _files(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        message = f"the certificates cannot be used: {error}"
        raise InvalidArgument(message) from None
    if _files(settings) != found:  # what was checked is not what was read
        message = "the certificates cannot be used: their files are being replaced"
        raise InvalidArgument(message)
    cert, key, ca, others = found
    assert cert is not None
    assert key is not None
    return Tls(cert, key, ca, others or cert, context)


def _files(settings: ServeSettings) -> tuple[bytes | None, ...]:
    """Return what stands in the files of the certificate, the key, the authorities of clients, and those of servers."""
    names = ("tls_cert", "tls_key", "tls_client_ca", "tls_fleet_ca")
    return tuple(None if (path := getattr(settings, name)) is None else _read(name, path) for name in names)


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        message = f"{name} {path}: {error.strerror}"
        raise InvalidArgument(message) from None
