"""The process of a server: it says when it is ready, serves, and stops when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
import httpx
import pytest

import oncelog
from oncelog.errors import Unavailable
from oncelog.server import process
from oncelog.server.fleet import starting
from oncelog.server.fleet.hop import GRPC_KEY, HTTP_HEADER, Hop, seal
from oncelog.server.fleet.starting import Addresses
from oncelog.server.http import app as http_app
from oncelog.server.server import Server
from oncelog.server.settings import ServeSettings
from oncelog.wire import messages
from oncelog.wire.methods import METHODS
from tests.server.clients import Wire, error_of
from tests.servers import Serving

_NO_SERVER = "oncelog://127.0.0.1:1 is a server: serve the database itself (file://…, s3://…)"


def _append(server: Serving, log: str, value: bytes, id: str) -> messages.Ack:
    method = METHODS["Log.Append"]
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            method.path, request_serializer=method.encode_request, response_deserializer=method.decode_response
        )
        request = messages.AppendRequest(log=log, records=[messages.Record(value=value, id=id)])
        [result] = call(request, timeout=60).results
        return result.ack


def test_a_record_is_stored_once_and_a_drained_server_exits_cleanly(serve: Callable[..., Serving]) -> None:
    """A retry over the wire gets the first position; SIGTERM ends with 0, and the log is free and whole then."""
    server = serve()
    with oncelog.connect(server.url) as db:
        db.log("orders", create=True)
    first, again = (_append(server, "orders", b"paid", "order-42") for _ in range(2))
    assert (first.position, first.duplicate) == (0, False)
    assert (again.position, again.duplicate) == (0, True)
    assert server.stop() == 0, server.errors()
    with oncelog.connect(server.url) as db:
        assert [entry.value for entry in db.log("orders").read()] == [b"paid"]
        db.log("orders").writer(wait_s=0).close()


def _refused(url: str, **environment: str) -> tuple[int, str]:
    """Return how a server that does not start ends; one that starts has 60 s, and is none of these."""
    command = [sys.executable, "-m", "oncelog.cli", "serve", "--url", url, "--grpc", "127.0.0.1:0"]
    found = subprocess.run(
        [*command, "--http", "127.0.0.1:0"], capture_output=True, check=False, timeout=60, env=os.environ | environment
    )
    return found.returncode, found.stderr.decode()


def test_a_database_on_a_disk_has_one_server(serve: Callable[..., Serving]) -> None:
    """The second server refuses to start, and names the first one's process; it may start when that was killed."""
    first = serve()
    code, said = _refused(first.url)
    assert (code, f"process {first.process.pid}" in said) == (3, True), said
    first.kill()
    assert serve().process.poll() is None


def test_a_database_that_is_named_by_a_path_or_a_profile_has_one_server_too(
    serve: Callable[..., Serving], tmp_path: Path
) -> None:
    """However it is spelt, it is the same folder: two servers would take the logs of it from each other."""
    first = serve()
    folder = unquote(urlsplit(first.url).path)
    profiles = {"ONCELOG_PROFILES": str(tmp_path / "profiles.toml")}
    add = [sys.executable, "-m", "oncelog.cli", "profile", "add", "prod", first.url]
    subprocess.run(add, check=True, capture_output=True, env=os.environ | profiles)
    for url in (folder, os.path.relpath(folder), f"FILE://{folder}", "profile:prod"):
        code, said = _refused(url, **profiles)
        assert (code, f"process {first.process.pid}" in said) == (3, True), (url, said)


def test_a_server_does_not_serve_another_server() -> None:
    """It says so, and nothing of what it is made of."""
    assert _refused("oncelog://127.0.0.1:1") == (2, f"error: {_NO_SERVER}\n")


def test_a_server_says_that_it_is_healthy_and_ctrl_c_ends_it_as_sigterm_does(serve: Callable[..., Serving]) -> None:
    """grpc.health.v1 is what balancers and orchestrators ask; SIGINT drains, too."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    server = serve("memory://")
    with grpc.insecure_channel(server.grpc) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=120)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait() == 0, server.errors()


def test_a_live_page_ends_with_its_server(serve: Callable[..., Serving]) -> None:
    """The stream of a page that somebody looks at ends when the server drains: cut off, it left a traceback."""
    server = serve("memory://")
    with httpx.Client(base_url=f"http://{server.http}", timeout=120, follow_redirects=True) as http:
        http.get("/console/login")
        with http.stream("GET", "/console/live/overview") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
    assert server.process.wait() == 0
    assert "Traceback" not in server.errors()


def test_an_http_answer_does_not_wait_for_an_acknowledgement_of_tcp() -> None:
    """Head and body of an answer are two writes. Without TCP_NODELAY the second one waits for the client's delayed ACK,
    and every request on a kept connection takes 40 ms more.
    """

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            transport = writer.get_extra_info("socket")
            found.set_result(transport.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with process._http_socket("127.0.0.1:0") as listening:
            server = await asyncio.start_server(connected, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            nodelay = await found
            writer.close()
            server.close()
            return nodelay

    assert asyncio.run(accepted())


def test_a_server_joins_its_fleet_and_knows_its_audit_log_before_a_call_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that served while it joined took logs from living servers as a process that is no server, took calls
    that were handed on for calls of clients, and audited into no log of its own.
    """
    apps: list[http_app.App] = []
    logs: list[str] = []
    done: list[str] = []
    build, start = http_app.build, process._start

    def built(*given: Any) -> http_app.App:
        apps.append(build(*given))
        return apps[0]

    async def started(server: Server, made: Any) -> None:
        logs.append(apps[0].audit.log)
        done.append("start")
        await start(server, made)

    async def join(_: Any, __: Any, ___: Any, where: Addresses, stop: Callable[[], None]) -> None:
        logs.append(f"_audit/{where.grpc}")
        done.append("join")
        stop()

    monkeypatch.setattr(starting, "fleet_key", lambda _: bytes(32))
    monkeypatch.setattr(starting, "join", join)
    monkeypatch.setattr(http_app, "build", built)
    monkeypatch.setattr(process, "_start", started)
    process.run(ServeSettings(url="memory://", grpc="127.0.0.1:0", http="127.0.0.1:0"), lambda _: None)
    assert logs[0] == logs[1] == apps[0].audit.log
    assert done == ["join", "start"]


def test_a_call_of_a_fleet_is_refused_by_a_server_that_is_in_none(serve: Callable[..., Serving]) -> None:
    """The address of a fleet's server may lead to the server of another database, which has a log of this name, too:
    the call is not served as if a client had sent it.
    """
    server = serve()
    with oncelog.connect(server.url) as db:
        db.log("orders", create=True)
    sealed = seal(bytes(32), Hop(("b", 1)))
    method = METHODS["Log.Append"]
    with Wire(server.grpc) as wire:
        call = wire.channel.unary_unary(method.path, method.encode_request, method.decode_response)
        request = messages.AppendRequest(log="orders", records=[messages.Record(value=b"v")])
        with pytest.raises(grpc.RpcError) as refused:
            call(request, metadata=((GRPC_KEY, sealed),), timeout=120)
    error = error_of(refused.value)
    assert isinstance(error, Unavailable)
    assert error.outcome == "not written"
    path = f"http://{server.http}/v1/logs/orders/records"
    answer = httpx.post(path, content=b"v", headers={HTTP_HEADER: sealed.hex()}, timeout=120)
    assert (answer.status_code, answer.json()["outcome"]) == (421, "not written")
    assert server.stop() == 0, server.errors()
    with oncelog.connect(server.url) as db:
        assert list(db.log("orders").read()) == []


def test_systemd_hears_that_the_server_is_ready_and_that_it_stops(
    serve: Callable[..., Serving], tmp_path: Path
) -> None:
    """READY=1 comes when the ports are open, STOPPING=1 when the drain begins."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(120)
        server = serve("memory://", NOTIFY_SOCKET=str(path))
        assert manager.recv(100) == b"READY=1"
        assert server.stop() == 0, server.errors()
        assert manager.recv(100) == b"STOPPING=1"
