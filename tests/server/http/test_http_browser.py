"""A real browser: it resumes a tail by itself, stops when what it wants is gone, and cannot be used by another site."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.servers import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("browser")

LISTEN = """
window.seen = [];
window.source = new EventSource("/v1/logs/%s/tail?start=0");
window.source.onmessage = (event) => window.seen.push(event.lastEventId);
window.source.addEventListener("truncated", (event) => window.seen.push("truncated " + JSON.parse(event.data).first));
"""
FOREIGN = """async (url) => {
    const tries = [
        () => fetch(url, {method: "POST", mode: "no-cors", body: "evil"}),
        () => fetch(url, {method: "POST", body: "evil", headers: {"Content-Type": "application/json"}}),
        () => fetch(url),
    ];
    const readable = [];
    for (const attempt of tries) {
        try { const answer = await attempt(); readable.push(answer.type); } catch (error) { readable.push("refused"); }
    }
    return readable;
}"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a page of Chromium."""
    made = browser.new_page()
    yield made
    made.close()


class Proxy:
    """A way to a server that can be cut: every connection through it is lost at once."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._released = threading.Event()
        self._released.set()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._released.wait()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Lose every connection, and let none through until ``release``."""
        self._released.clear()
        self.cut()

    def release(self) -> None:
        """Let connections through again."""
        self._released.set()

    def cut(self) -> None:
        """Lose every connection."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def close(self) -> None:
        """End."""
        self.release()
        self._listening.close()
        self.cut()


@pytest.fixture
def proxy(open_server: Serving) -> Iterator[Proxy]:
    """Yield a way to the open server."""
    made = Proxy(open_server.http)
    yield made
    made.close()


def test_a_browser_resumes_and_stops_behind_a_truncation(
    page: Page, proxy: Proxy, http: httpx.Client, log: str
) -> None:
    """Cut, it goes on behind its last event; cut again while that was truncated away, it is told, and asks no more."""
    name = f"{log}-b"
    settings = {"window": {"max_keys": 1, "duration_s": 0.001}, "segment_bytes": 65536}
    http.post("/v1/logs", json={"name": name, "settings": settings})

    def append(number: int) -> None:
        headers = {"idempotency-key": f"n{number}"}
        http.post(f"/v1/logs/{name}/records", content=b"x" * 60_000, headers=headers)

    append(0)
    page.goto(f"http://{proxy.address}/livez")
    page.evaluate(LISTEN % name)
    page.wait_for_function("window.seen.length == 1")
    append(1)
    page.wait_for_function("window.seen.length == 2")
    proxy.cut()
    append(2)
    page.wait_for_function("window.seen.length == 3")
    proxy.hold()
    for number in range(3, 10):
        append(number)
    first = http.post(f"/v1/logs/{name}/truncate", json={"before": 6}).json()["first_position"]
    assert first > 3
    proxy.release()
    page.wait_for_function("window.source.readyState == 2")
    assert page.evaluate("window.seen") == ["0", "1", "2", f"truncated {first}"]


def test_a_page_of_another_site_can_neither_append_nor_read(
    page: Page, open_server: Serving, http: httpx.Client, log: str
) -> None:
    """Every web page that a user of this machine looks at could reach the server: it is refused by its origin."""
    server = _other_site()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        answers = page.evaluate(FOREIGN, f"http://{open_server.http}/v1/logs/{log}/records")
    finally:
        server.shutdown()
        server.server_close()
    assert answers == ["opaque", "refused", "refused"]
    assert http.get(f"/v1/logs/{log}").json()["last_position"] == -1


def _other_site() -> HTTPServer:
    """Return another site, on another port."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>evil</h1>")

        def log_message(self, *_: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made
