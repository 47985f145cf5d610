"""Large answers: bounded in all, and ended where nobody takes them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import httpx
import pytest

from oncelog import limits
from oncelog.clock import SYSTEM
from oncelog.errors import Unavailable
from oncelog.server import budget
from oncelog.server.http.answers import PART_BYTES, SHARES, Room, Rooms, taken
from oncelog.server.http.app import build
from oncelog.server.http.bodies import Gone
from oncelog.server.http.calls import files
from oncelog.server.http.calls.records import PAGE_BYTES_MAX
from oncelog.server.server import Server
from oncelog.settings import LogSettings
from oncelog.testing.clock import SimulatedClock
from tests.server.inside import serving
from tests.servers import Serving


def test_room_is_taken_before_an_answer_is_made_and_then_fits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how large an answer becomes: only then others get what it does not need."""
    monkeypatch.setattr(budget, "WAIT_S", 0.01)
    rooms = Rooms(100, "test")
    first, second, small = Room(rooms), Room(rooms), Room(rooms)

    async def run() -> None:
        await first.take(80, "orders")
        with pytest.raises(Unavailable):
            await second.take(80, "returns")
        first.settle(20)
        await second.take(80, "returns")
        second.settle(120)  # an answer in JSON may be larger than its records
        assert rooms.all.used_bytes == 140
        small.settle(1000)  # it took no room: it holds none
        for one in (first, second, small):
            one.close()
        assert rooms.all.used_bytes == 0

    asyncio.run(run())


def test_a_log_that_answers_nobody_does_not_take_the_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its storage hangs: those who ask for it wait, or come later. What others ask for is made meanwhile."""
    monkeypatch.setattr(budget, "WAIT_S", 0.01)
    rooms = Rooms(100 * SHARES, "test")

    async def run() -> None:
        hung = [Room(rooms) for _ in range(SHARES + 1)]
        await hung[0].take(100, "hung")
        for one in hung[1:]:
            with pytest.raises(Unavailable, match="'hung'"):
                await one.take(100, "hung")
        well = Room(rooms)
        await well.take(100, "well")
        well.settle(100)
        assert rooms.all.used_bytes == 200
        hung[0].settle(10)  # it was made, and is being sent: the next one may be made
        await hung[1].take(100, "hung")
        for one in (*hung, well):
            one.close()
        assert rooms.all.used_bytes == rooms.share("hung").used_bytes == 0

    asyncio.run(run())


def test_an_answer_is_sent_in_parts_that_are_taken_one_by_one() -> None:
    """A connection holds a copy of what its client has not read: of a part, not of the whole."""
    body = bytes(range(256)) * (PART_BYTES // 256 * 2 + 1)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        wrapped = taken(send, lambda: None, SYSTEM, holds_room=True)
        await wrapped({"type": "http.response.start", "status": 200})
        await wrapped({"type": "http.response.body", "body": body})
        await wrapped({"type": "http.response.body", "body": b""})

    asyncio.run(run())
    assert sent[0] == {"type": "http.response.start", "status": 200}
    assert [len(message["body"]) for message in sent[1:]] == [PART_BYTES, PART_BYTES, 256, 0]
    assert [message.get("more_body", False) for message in sent[1:]] == [True, True, False, False]
    assert b"".join(message["body"] for message in sent[1:]) == body


def test_a_client_that_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it would wait for ever, and with it the bytes that it holds."""
    monkeypatch.setattr(limits, "HTTP_ANSWER_S_MAX", 0.01)

    async def run() -> None:
        ended = asyncio.Event()

        async def send(_: Any) -> None:
            await ended.wait()  # as a connection does whose client does not read

        with pytest.raises(Gone):
            await taken(send, ended.set, SYSTEM, holds_room=False)({"type": "http.response.body", "body": b"x"})

    asyncio.run(run())


@pytest.mark.parametrize("holds_room", [True, False])
def test_a_client_that_takes_a_page_by_and_by_is_left(holds_room: bool) -> None:  # noqa: FBT001
    """A little every minute held the room of a page for hours. What holds no room may be taken so."""
    clock, parts = SimulatedClock(), 20

    async def run() -> int:
        sent = 0
        ended = asyncio.Event()

        async def send(_: Any) -> None:
            nonlocal sent
            if clock.elapsed_us() > 3 * limits.HTTP_ANSWER_S_MAX * 1e6 and holds_room:
                await ended.wait()  # the time is over: it must not be waited for any more
            clock.advance(limits.HTTP_ANSWER_S_MAX * 0.9)
            sent += 1

        wrapped = taken(send, ended.set, clock, holds_room=holds_room)
        with contextlib.suppress(Gone):
            await wrapped({"type": "http.response.body", "body": b"x" * PART_BYTES * parts})
        assert ended.is_set() is holds_room
        return sent

    assert (asyncio.run(run()) == parts) is not holds_room


def _request(path: str, method: str = "GET") -> dict[str, Any]:
    return {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "scheme": "http", "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1),
        "oncelog_abort": lambda: None,
    }  # fmt: skip


def test_downloads_that_nobody_takes_hold_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each held a megabyte or two, for ever, and there was no end of them."""
    monkeypatch.setattr(budget, "WAIT_S", 0.01)
    monkeypatch.setattr(files, "PART_BYTES", 100)
    monkeypatch.setattr(limits, "HTTP_FILES_BYTES_MAX", 400)

    async def work(server: Server) -> None:
        app = build(server)
        log = server.database.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"x" * 1_000)
        log.configure(LogSettings(retention_s=1e9))
        log.seal()
        path = f"/v1/logs/orders/files/{log.files()[0].first_position}"
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def ask(*, takes: bool, method: str = "GET") -> list[Any]:
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)
                if message["type"] == "http.response.body" and not takes:
                    begun.set()
                    await goes_on.wait()

            await app(_request(path, method), receive, send)
            return sent

        waiting = []
        for _ in range(4):
            begun.clear()
            waiting.append(asyncio.create_task(ask(takes=False)))
            await begun.wait()
        assert (await ask(takes=True))[0]["status"] == 503
        goes_on.set()
        for answer in [*await asyncio.gather(*waiting), await ask(takes=True)]:
            data = b"".join(message.get("body", b"") for message in answer)
            assert (answer[0]["status"], len(data)) == (200, log.files()[0].bytes)
        head = await ask(takes=True, method="HEAD")
        assert (head[0]["status"], dict(head[0]["headers"])[b"content-length"]) == (200, b"%d" % log.files()[0].bytes)
        assert not any(message.get("body") for message in head), "the file is not read for its size"
        assert app.files.all.used_bytes == 0

    serving(work)


def test_clients_that_do_not_read_their_pages_do_not_fill_the_memory() -> None:
    """Pages that nobody takes hold room, and who asks for one more is told to come later; when they go, all is well."""
    server = Serving("memory://")
    path = "/v1/logs/large/records"
    try:
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
            client.post("/v1/logs", json={"name": "large"})
            for _ in range(PAGE_BYTES_MAX // limits.MIB):
                assert client.post(path, content=b"x" * limits.MIB).status_code == 201
            host, _, port = server.http.rpartition(":")
            with contextlib.ExitStack() as idle:
                for _ in range(limits.HTTP_ANSWERS_BYTES_MAX // PAGE_BYTES_MAX):
                    one = idle.enter_context(socket.create_connection((host, int(port))))
                    one.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    assert one.recv(8) == b"HTTP/1.1"  # the page is made, and is being sent
                refused = client.get(path)
                assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
                assert client.post(path, content=b"y").status_code == 201, "writes go on"
            pages = (client.get(path) for _ in range(20))  # a few are refused before the server sees that they are gone
            page = next(page for page in pages if page.status_code != 503)
            assert len(page.json()["entries"]) == PAGE_BYTES_MAX // limits.MIB
        assert server.stop() == 0, server.errors()
        assert server.errors() == ""
    finally:
        server.end()
