"""The certificates of a running server: read again on SIGHUP, for new connections."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

import grpc

from oncelog.errors import InvalidArgument
from oncelog.server.security.setup import Tls, read_tls
from oncelog.server.settings import ServeSettings

_log = logging.getLogger("oncelog.server")


class Certificates:
    """What both ports show to their callers. A file that cannot be used changes nothing: the last good one stays."""

    def __init__(self, settings: ServeSettings, tls: Tls) -> None:
        self._settings = settings
        self._told: list[Callable[[Tls], object]] = []
        self.current = tls

    def credentials(self) -> Any:
        """Return the credentials of a gRPC server, which asks for the certificates at each connection."""
        asks = self.current.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration, asks)

    def _configuration(self) -> Any:
        tls = self.current
        return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], tls.client_ca)

    def tell(self, told: Callable[[Tls], object]) -> None:
        """Call a function with the certificates whenever they were read again."""
        self._told.append(told)

    def context(self) -> ssl.SSLContext:
        """Return a context for HTTP that shows to each connection the certificates that were read last."""
        context = _LastContext(ssl.PROTOCOL_TLS_SERVER)
        context.certificates = self
        return context

    def reload(self) -> None:
        """Read the files again."""
        try:
            tls = read_tls(self._settings)
        except InvalidArgument as error:
            _log.error("the certificates were not read again, those before stay: %s", error)
            return
        assert tls is not None
        self.current = tls
        for told in self._told:
            told(tls)
        _log.info("the certificates were read again")


class _LastContext(ssl.SSLContext):
    """Has the context that was read last make each connection.

    Sessions belong to their context. So no client resumes a session that began with other authorities: it would not be
    asked for its certificate again.
    """

    certificates: Certificates

    def wrap_bio(self, *given: Any, **more: Any) -> ssl.SSLObject:
        return self.certificates.current.context.wrap_bio(*given, **more)
