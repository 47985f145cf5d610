"""A server with far too many clients, and with clients that mean harm: memory is bounded, others are served."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import statistics
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oncelog
from tests.servers import Serving

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc"),
]


def _resident_mib(server: Serving) -> float:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


@contextlib.contextmanager
def _served(server: Serving, what: str) -> Iterator[None]:
    """See that an ordinary client is served before and during a harm; show what it cost.

    A client that comes at the worst moment may be refused by gRPC itself, which bounds the calls that wait to be begun;
    the client tries again by itself.
    """
    with oncelog.connect(f"oncelog://{server.grpc}") as db:
        log = db.log("log", create=True)
        with log.writer() as writer:
            writer.append(b"first")
        before = _resident_mib(server)
        yield
        took_ms = []
        with log.writer(wait_s=60) as writer:
            for number in range(50):
                began = time.perf_counter()
                writer.append(b"v", id=f"{number}", timeout_s=60)
                took_ms.append((time.perf_counter() - began) * 1e3)
        urllib.request.urlopen(f"http://{server.http}/livez", timeout=60).close()
        grown = _resident_mib(server) - before
        middle, worst = statistics.median(took_ms), max(took_ms)
        print(f"{what}: {grown:.0f} MiB more, append p50 {middle:.1f} ms, worst {worst:.1f} ms")  # noqa: T201
    assert grown < 400, f"{what}: {grown:.0f} MiB"


def test_ten_thousand_idle_connections(serve: Callable[..., Serving]) -> None:
    """Five thousand at each port: none is served slower for it, and each costs a few KB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_000)), hard))
    server = serve()
    with contextlib.ExitStack() as held, _served(server, "10,000 idle connections"):
        for address in (server.grpc, server.http):
            for _ in range(5_000):
                held.enter_context(_connect(address))


def test_slowloris(serve: Callable[..., Serving]) -> None:
    """A thousand heads that come byte by byte end by a 408 or a cut, and hold nobody up."""
    server = serve()
    with contextlib.ExitStack() as held:
        ends = [held.enter_context(_connect(server.http)) for _ in range(1_000)]
        with _served(server, "1,000 slow heads"):
            for byte in b"GET /livez HT":
                for end in ends:
                    with contextlib.suppress(OSError):
                        end.send(bytes([byte]))
        for end in ends:
            with contextlib.suppress(ConnectionError):
                assert end.recv(4096)[:12] in (b"", b"HTTP/1.1 408")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _head(path: bytes) -> bytes:
    """Return the head of a gRPC request, literal (RFC 7541, 6.2.2)."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


def test_rapid_reset(serve: Callable[..., Serving]) -> None:
    """Streams that are opened and reset at once (CVE-2023-44487), fifty thousand of them: others are served."""
    server = serve()
    head = _head(b"/oncelog.v1.Database/Describe")
    reset = struct.pack(">I", 8)
    with _served(server, "50,000 streams reset"):
        for _ in range(50):
            with _connect(server.grpc) as end, contextlib.suppress(OSError):
                end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
                numbers = range(1, 2_001, 2)
                end.sendall(b"".join(_frame(1, 4, n, head) + _frame(3, 0, n, reset) for n in numbers))


def test_ten_times_as_many_clients_as_it_can_serve(serve: Callable[..., Serving]) -> None:
    """Five hundred callers at once: each gets an answer, a refusal that says when to come again, or its own time-out;
    what was acknowledged is there.
    """
    server = serve()
    url = f"http://{server.http}/v1/logs/log/records"
    counts: dict[int, int] = {}
    lock = threading.Lock()

    def call(number: int) -> None:
        for turn in range(5):
            request = urllib.request.Request(url, b"x" * 10_000, {"Idempotency-Key": f'"{number}-{turn}"'})
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    status = response.status
            except urllib.error.HTTPError as error:
                status = error.code
            with lock:
                counts[status] = counts.get(status, 0) + 1

    with _served(server, "500 callers"):
        threads = [threading.Thread(target=call, args=(number,)) for number in range(500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"answers by status: {counts}")  # noqa: T201
    assert set(counts) <= {201, 429, 503}
    with urllib.request.urlopen(f"http://{server.http}/v1/logs/log", timeout=60) as response:
        last = json.load(response)["last_position"]
    assert last + 1 == counts.get(201, 0) + 1 + 50
