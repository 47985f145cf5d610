"""HTTP as bytes on a real connection: cut at each byte, too large, two lengths at once, pipelined, nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from oncelog import limits
from oncelog.server.http import protocol
from oncelog.server.http.protocol import Protocol
from tests.servers import Serving


def _connected(server: Serving) -> socket.socket:
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def _exchange(server: Serving, data: bytes) -> bytes:
    """Send bytes, end the sending side, and return all that comes."""
    with _connected(server) as connection:
        connection.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < _length(found):
            part = connection.recv(65536)
            if not part:
                break
            found += part
        return found


def _length(response: bytes) -> int:
    for line in response.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _problem(response: bytes) -> dict[str, Any]:
    return dict(json.loads(response.partition(b"\r\n\r\n")[2]))


def _request(log: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} /v1/logs/{log}/records HTTP/1.1", "Host: 127.0.0.1", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _ends(http: httpx.Client, log: str) -> int:
    return int(http.get(f"/v1/logs/{log}").json()["last_position"]) + 1


def test_a_request_that_is_cut_at_any_byte_writes_nothing(open_server: Serving, http: httpx.Client, log: str) -> None:
    """Raw, in lines, and in chunks: only the whole of it counts."""
    lines = b'{"value":"a"}\n{"value":"b"}\n'
    chunked = b"%x\r\n%s\r\n" % (len(lines), lines) + b"0\r\n\r\n"
    for whole in (
        _request(log, b"paid", "Content-Length: 4"),
        _request(log, lines, "Content-Type: application/x-ndjson", f"Content-Length: {len(lines)}"),
        _request(log, chunked, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked"),
    ):
        for size in range(1, len(whole)):
            with _connected(open_server) as connection:
                connection.sendall(whole[:size])
        assert _ends(http, log) == 0, whole
    assert b"201 Created" in _exchange(open_server, _request(log, b"paid", "Content-Length: 4"))
    assert _ends(http, log) == 1


@pytest.mark.parametrize("headers", [
    ("Content-Length: 4", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 4"),
    ("Content-Length: 4", "Content-Length: 5"), ("Content-Length: -1",), ("Content-Length: x",),
    ("Transfer-Encoding: gzip, chunked", "Content-Length: 4"),
])  # fmt: skip
def test_two_lengths_are_refused_and_the_connection_ends(
    open_server: Serving, http: httpx.Client, log: str, headers: tuple[str, ...]
) -> None:
    """A proxy that uses the other length would see another request in the body (request smuggling)."""
    smuggled = _request(log, b"evil", "Content-Length: 4")
    response = _exchange(open_server, _request(log, b"0\r\n\r\n" + smuggled, *headers))
    assert response.startswith(b"HTTP/1.1 400"), response
    assert b"connection: close" in response.lower()
    assert _problem(response)["outcome"] == "not written"
    assert _ends(http, log) == 0


@pytest.mark.parametrize("data", [
    b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
])  # fmt: skip
def test_what_is_no_request_gets_a_problem(open_server: Serving, data: bytes) -> None:
    """A 4xx that a program can read, and the end of the connection."""
    response = _exchange(open_server, data)
    assert response[:10] in (b"HTTP/1.1 4", b""), response
    if response:
        assert _problem(response)["status"] // 100 == 4


def test_nonsense_behind_a_request_is_not_taken_for_its_answer(
    open_server: Serving, http: httpx.Client, log: str
) -> None:
    """A 400 to the second would be read as the answer to the first, which may be stored: there is none, or its own."""
    response = _exchange(open_server, _request(log, b"paid", "Content-Length: 4") + b"\x00nonsense\r\n\r\n")
    assert b"not written" not in response
    assert response == b"" or b"201 Created" in response


def test_pipelined_requests_are_answered_in_order(open_server: Serving, http: httpx.Client, log: str) -> None:
    """Two at once on one connection."""
    both = _request(log, b"a", "Content-Length: 1") + _request(log, b"b", "Content-Length: 1", "Connection: close")
    with _connected(open_server) as connection:
        connection.sendall(both)
        found = b""
        while part := connection.recv(65536):
            found += part
    assert found.count(b"201 Created") == 2
    assert found.index(b'"position":0') < found.index(b'"position":1')


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(
    open_server: Serving, http: httpx.Client, log: str
) -> None:
    """By its length at once, in chunks when it passes the limit; the answer arrives although the body goes on."""
    declared = _exchange(open_server, _request(log, b"", f"Content-Length: {limits.HTTP_BODY_BYTES_MAX + 1}"))
    assert declared.startswith(b"HTTP/1.1 413")
    assert _problem(declared)["outcome"] == "not written"
    part = b"x" * 1_000_000
    sent = http.post(f"/v1/logs/{log}/records", content=iter([part] * 20))
    assert sent.status_code == 413
    assert _ends(http, log) == 0


def test_a_head_that_is_too_large_is_refused(open_server: Serving, http: httpx.Client, log: str) -> None:
    """Headers that never end would fill the memory."""
    response = _exchange(open_server, _request(log, b"", "X: " + "x" * (limits.HTTP_HEAD_BYTES_MAX + 1)))
    assert response.startswith(b"HTTP/1.1 431"), response[:100]
    many = [f"X-{number}: {'x' * 1000}" for number in range(200)]
    with _connected(open_server) as connection:
        connection.sendall(_request(log, b"", *many))
        assert connection.recv(65536).startswith(b"HTTP/1.1 431")


def test_a_large_body_behind_a_small_head_is_no_large_head(open_server: Serving, http: httpx.Client, log: str) -> None:
    """What comes with the head in one piece may be body."""
    body = b"x" * 1_000_000
    assert http.post(f"/v1/logs/{log}/records", content=body).status_code == 201
    assert b"201" in _exchange(open_server, _request(log, body, f"Content-Length: {len(body)}"))[:20]


def test_a_method_or_path_that_is_unknown_is_said(http: httpx.Client, log: str) -> None:
    """405 names the methods there are; 404 names the document."""
    wrong = http.put(f"/v1/logs/{log}/records", content=b"x")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "GET, POST"
    assert http.get("/v3").status_code == 404
    assert http.head("/livez").status_code == 200
    assert http.get(f"/v1/logs/{log}/records?unknown=1").status_code == 400
    assert http.get(f"/v1/logs/{log}/records?limit=1&limit=2").status_code == 400
    assert http.get(f"/v1/logs/{log}/records?limit=%FF").status_code == 400


def test_a_page_of_another_site_cannot_append(http: httpx.Client, log: str) -> None:
    """Not by its origin, not by what the browser says of it, not by a name that points here."""
    for headers in (
        {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}
    ):  # fmt: skip
        refused = http.post(f"/v1/logs/{log}/records", content=b"x", headers=headers)
        assert refused.status_code == 403, headers
        assert http.get(f"/v1/logs/{log}", headers=headers).status_code == 403
    assert _ends(http, log) == 0


def test_a_trailer_is_no_header(open_server: Serving, http: httpx.Client, log: str) -> None:
    """A request is judged by its head: a trailer gives it no id and no token."""
    chunks = b"4\r\npaid\r\n0\r\nIdempotency-Key: other\r\nAuthorization: Bearer x\r\n\r\n"
    for _ in range(2):
        found = _exchange(open_server, _request(log, chunks, "Transfer-Encoding: chunked", "Connection: close"))
        assert found.startswith(b"HTTP/1.1 201"), found
    assert http.post(f"/v1/logs/{log}/find", json={"id": "other"}).json()["ack"] is None
    assert _ends(http, log) == 2


def test_trailers_are_bounded(open_server: Serving, http: httpx.Client, log: str) -> None:
    """Many of them, or one that does not end: the connection does, and nothing is written."""
    for flood in (b"x-1: 2\r\n" * 200_000, b"x-1: " + b"a" * 1_500_000, b"0" * 1_500_000):
        begun = _request(log, b"4\r\npaid\r\n0\r\n", "Transfer-Encoding: chunked")
        with _connected(open_server) as connection:
            connection.sendall(begun)
            answered = b""
            with contextlib.suppress(OSError):
                for start in range(0, len(flood), 4096):
                    connection.sendall(flood[start : start + 4096])
                while part := connection.recv(65536):
                    answered += part
            assert b"HTTP/1.1 201" not in answered
    assert _ends(http, log) == 0


def test_a_transfer_coding_that_is_unknown_is_refused(open_server: Serving, http: httpx.Client, log: str) -> None:
    """What is compressed on its way would be stored as it came."""
    chunks = b"4\r\npaid\r\n0\r\n\r\n"
    found = _exchange(open_server, _request(log, chunks, "Transfer-Encoding: gzip, chunked"))
    assert found.startswith(b"HTTP/1.1 501"), found
    assert _problem(found)["outcome"] == "not written"
    assert _ends(http, log) == 0


def test_a_body_that_is_compressed_is_refused(open_server: Serving, http: httpx.Client, log: str) -> None:
    """Its bytes would be stored as they came, and a retry that is compressed otherwise would be a conflict."""
    refused = _exchange(open_server, _request(log, b"paid", "Content-Length: 4", "Content-Encoding: gzip"))
    assert refused.startswith(b"HTTP/1.1 415"), refused
    assert _problem(refused)["outcome"] == "not written"
    assert _ends(http, log) == 0
    plain = _request(log, b"paid", "Content-Length: 4", "Content-Encoding: identity", "Connection: close")
    assert b"201 Created" in _exchange(open_server, plain)


def test_a_header_that_is_there_twice_is_a_problem_for_the_console_too(open_server: Serving) -> None:
    """The server answered 500, and wrote a traceback into its log."""
    before = open_server.errors()
    for path in ("/console/", "/v1/logs"):
        found = _exchange(open_server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: localhost\r\n\r\n".encode())
        assert found.startswith(b"HTTP/1.1 400 "), found
        assert _problem(found)["detail"] == "the header host is there twice"
    assert open_server.errors() == before


@pytest.mark.parametrize(("waiting_bytes", "calls"), [(0, ["close"]), (5, ["abort"])])
def test_an_answer_that_nobody_takes_does_not_keep_a_connection(waiting_bytes: int, calls: list[str]) -> None:
    """A connection that is closed sends what waits first: to a client that does not read, for ever."""
    called: list[str] = []

    class Transport:
        def get_write_buffer_size(self) -> int:
            return waiting_bytes

        def is_closing(self) -> bool:
            return bool(called)

        def close(self) -> None:
            called.append("close")

        def abort(self) -> None:
            called.append("abort")

    connection = Protocol.__new__(Protocol)
    connection.transport = Transport()  # type: ignore[assignment]
    connection.timeout_keep_alive_handler()
    assert called == calls


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_body_behind_its_answer_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:  # noqa: FBT001
    """A byte now and then kept it for ever, and so did a body that ended behind the answer, with nothing after it."""
    monkeypatch.setattr(limits, "HTTP_BODY_S_MAX", 0.05)

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> None:
        config = uvicorn.Config(answer, log_config=None, timeout_keep_alive=600)
        config.load()
        connection = Protocol(config, ServerState(), {})
        server = await asyncio.get_running_loop().create_server(lambda: connection, "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (1 << 40 if goes_on else 1))
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            connection.timeout_keep_alive = 0
            writer.write(b"a")
            ended = asyncio.ensure_future(reader.read())
            while goes_on and not ended.done():
                writer.write(b"a")
                await asyncio.sleep(0)
            with contextlib.suppress(ConnectionError):
                assert await ended == b""
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(("files", "connections"), [
    (1024, 512), (1_000_000, limits.HTTP_CONNECTIONS_MAX), (resource.RLIM_INFINITY, limits.HTTP_CONNECTIONS_MAX),
])  # fmt: skip
def test_connections_leave_files_for_logs(monkeypatch: pytest.MonkeyPatch, files: int, connections: int) -> None:
    """With all files taken by idle connections no log could be opened, and the server only failed to accept more."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert protocol.connections_max() == connections


@pytest.mark.parametrize("offer", [
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),  # as Java does
    ("Connection: keep-alive, upgrade", "Upgrade: websocket"),
    ("Upgrade: h2c",),
])  # fmt: skip
def test_an_offer_of_another_protocol_is_passed_over(
    open_server: Serving, http: httpx.Client, log: str, offer: tuple[str, ...]
) -> None:
    """The body of such a request was lost, and an empty record stored; what followed it got no answer."""
    plain = _request(log, b"paid", "Content-Length: 4", "Connection: close")
    offers = _request(log, b"paid", "Content-Length: 4", *offer), _request(log, b"4\r\npaid\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked", *offer)  # fmt: skip
    for one in offers:
        for cut in (len(one), len(one) - 2, one.index(b"\r\n\r\n") + 4, one.index(b"Upgrade")):
            with _connected(open_server) as connection:
                connection.sendall(one[:cut])
                connection.sendall(one[cut:] + one + plain)
                found = b"".join(iter(lambda: connection.recv(65536), b""))
            assert found.count(b"201 Created") == 3, found
    assert {entry["value"] for entry in http.get(f"/v1/logs/{log}/records").json()["entries"]} == {"paid"}
    assert _ends(http, log) == 3 * 2 * 4


def test_many_offers_at_once(open_server: Serving) -> None:
    """Some hundreds that came together broke the connection, with a long traceback in the server's log."""
    before = open_server.errors()
    offer = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: %s\r\nUpgrade: h2c\r\n\r\n"
    with _connected(open_server) as connection:
        connection.sendall(offer % b"upgrade" * 999 + offer % b"upgrade, close")
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    assert found.count(b"200 OK") == 1_000
    assert open_server.errors() == before


def test_a_tunnel_is_refused(open_server: Serving) -> None:
    """What follows its head is never a request."""
    assert b"HTTP/1.1 405" in _exchange(open_server, b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
