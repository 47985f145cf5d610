"""The process of a server: one event loop with gRPC and HTTP, from the first port to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from oncelog.connect import Database, connect
from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.names import SERVER_SCHEMES
from oncelog.server import folder_lock
from oncelog.server import settings as settings_module
from oncelog.server.crew import Crew
from oncelog.server.fleet import starting
from oncelog.server.fleet.starting import Addresses
from oncelog.server.http import app as http_app
from oncelog.server.http.protocol import Protocol
from oncelog.server.rpc import services
from oncelog.server.security.certificates import Certificates
from oncelog.server.server import Server
from oncelog.server.settings import ServeSettings
from oncelog.wire.frames import REQUEST_BYTES_MAX

GRACE_S = 5.0
"""How long calls and streams that have begun may take to end once the server drains."""

BACKLOG = 2048
"""Connections that wait to be accepted."""

CLOSE_S = 5.0
"""How long closing the database may take, when every log is closed."""

_log = logging.getLogger("oncelog.server")


def run(settings: ServeSettings, announce: Callable[[Addresses], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` is called with the addresses when the server is ready.

    Raises ``LogBusy`` if another server has the database, ``Unavailable`` if an address is taken.
    """
    asyncio.run(_open(settings, announce))


async def _open(settings: ServeSettings, announce: Callable[[Addresses], None]) -> None:
    stop = _stop_signals()
    opening = Crew("open", 1)
    database = await opening.run(lambda: connect(settings.url, options=settings.options or None))
    if database.url.startswith(SERVER_SCHEMES):
        message = f"{database.url} is a server: serve the database itself (file://…, s3://…)"
        raise InvalidArgument(message)
    with folder_lock.holding(database.url):  # the settings may say it as a path, or by a profile
        await _serve(database, settings, announce, opening, stop)


async def _serve(
    database: Database,
    settings: ServeSettings,
    announce: Callable[[Addresses], None],
    opening: Crew,
    stop: asyncio.Event,
) -> None:
    server = Server(database, settings)
    key = await opening.run(lambda: starting.fleet_key(server))
    if not settings.tokens:
        await opening.run(server.tokens.look)
    app = http_app.build(server, starting.sessions_key(key))  # first: it says who may call, of gRPC too
    with _http_socket(settings.http) as http_socket:
        tls = app.security.tls
        certificates = None if tls is None else Certificates(settings, tls)
        grpc_server, grpc_port = _grpc(server, settings, certificates)
        host, _ = settings_module.address(settings.grpc)
        listening = Addresses(_shown(host, grpc_port), _shown(*http_socket.getsockname()[:2]))
        where = listening if key is None else starting.advertised(server, listening)
        if key is not None:  # before the first call is served: what is audited goes into the log of this server
            app.audit.log = http_app.audit_log(starting.name_of(server, where))
        if key is not None:  # before the first call is served, too: a server that is no member would take any log
            await starting.join(server, tls, key, where, stop.set)
        await _start(server, grpc_server)
        if server.fleet is not None:
            await starting.check_address(server.fleet)
        http_server = _Uvicorn(_http_config(app))
        _reload_on_hangup(server, http_server, certificates)
        serving = asyncio.create_task(http_server.serve([http_socket]))
        server.start()
        announce(listening)
        _notify_systemd("READY=1")
        try:
            await stop.wait()
        finally:
            _notify_systemd("STOPPING=1")
            await _drain(server, grpc_server)
            http_server.should_exit = True
            await serving
            await _close(opening, database)


def _notify_systemd(state: str) -> None:
    """Tell systemd how the server is, if systemd started it: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), target)


def _stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _reload_on_hangup(server: Server, http_server: uvicorn.Server, certificates: Certificates | None) -> None:
    """Have SIGHUP read the certificates again. Without certificates it does nothing: tokens are read again anyway."""
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, certificates.reload if certificates is not None else lambda: None
    )
    if certificates is not None:
        http_server.config.load()
        http_server.config.ssl = certificates.context()
        if server.fleet is not None:
            certificates.tell(server.fleet.peers.use)


async def _drain(server: Server, grpc_server: Any) -> None:
    """Stop, within a time limit: not ready, streams told, calls answered, desks flushed, writers closed."""
    server.begin_drain()
    await grpc_server.stop(GRACE_S)
    await server.leave_logs()
    if server.fleet is not None:  # last: logs of a server that has left are taken by force
        await server.closers.run(server.fleet.leave)
        server.fleet.bells.close()
        await server.fleet.peers.close()


async def _close(crew: Crew, database: Database) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await crew.run(database.close)
    except (TimeoutError, OncelogError) as error:
        _log.warning("the database was not closed: %s", str(error) or "no answer in time")


# gRPC.


def _grpc(server: Server, settings: ServeSettings, certificates: Certificates | None) -> tuple[Any, int]:
    """Make the gRPC server, which serves nothing yet; return it and its port."""
    made = grpc.aio.server(options=_grpc_options(settings))
    for handlers in services.all_handlers(server):
        made.add_generic_rpc_handlers((handlers,))
    try:
        return made, _listen(made, settings.grpc, certificates)
    except RuntimeError as error:
        message = f"gRPC cannot listen on {settings.grpc}: {error}"
        raise Unavailable(message) from error


async def _start(server: Server, made: Any) -> None:
    """Let gRPC serve, and say that it is healthy."""
    checking = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checking, made)
    await made.start()
    await checking.set("", health_pb2.HealthCheckResponse.SERVING)
    server.on_drain.append(checking.enter_graceful_shutdown)


def _listen(made: Any, where: str, certificates: Certificates | None) -> int:
    """Have gRPC listen, with TLS where there are certificates; return its port."""
    if certificates is None:
        return int(made.add_insecure_port(where))
    return int(made.add_secure_port(where, certificates.credentials()))


def _grpc_options(settings: ServeSettings) -> list[tuple[str, int]]:
    """Return the limits of connections and streams.

    Without ``bdp_probe=0`` and the small look-ahead, 200 streams that the server does not read took 3.2 GB.
    """
    return [
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 64 * 1024),
        ("grpc.max_concurrent_streams", settings.streams_max),
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),  # gRPC 1.85 ends a connection by this one alone; else after a minute
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.so_reuseport", 0),
    ]


# HTTP.


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_config(app: http_app.App) -> uvicorn.Config:
    settings = app.server.settings
    return uvicorn.Config(
        app,
        http=Protocol,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=settings.tls_client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        timeout_keep_alive=60,
        backlog=BACKLOG,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )


@contextlib.contextmanager
def _http_socket(text: str) -> Iterator[socket.socket]:
    """Bind the HTTP address, so that its port is known before anything is served."""
    host, port = settings_module.address(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on sockets that say that they are TCP alone; without it an answer waits 40 ms for an ACK.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
            made.listen(BACKLOG)  # an early client waits, and is not refused
        except OSError as error:
            message = f"HTTP cannot listen on {text}: {error.strerror or error}"
            raise Unavailable(message) from error
        yield made


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
