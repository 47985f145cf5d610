"""Jobs that the console of a server begins, without a browser: how far they are, and what the audit says of them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from oncelog.console.source import Verifying
from oncelog.errors import Unavailable
from oncelog.log.jobs.verify import Finding, Verification
from oncelog.log.log import Log
from oncelog.server.http import app as http_app
from oncelog.server.http.console import ServerSource
from oncelog.server.server import Server
from tests.server.inside import serving


async def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_a_verification_is_shown_as_far_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page learns records done and records in all while the job runs, and the result after it."""
    goes_on = threading.Event()
    sound = Verification(records=10, bytes=100, segments=1, findings=())

    def verify(_log: Log, tell: Any) -> Verification:
        tell(5, 10)
        goes_on.wait()
        return sound

    async def work(server: Server) -> list[Verifying]:
        server.database.log("orders", create=True)
        source = ServerSource(http_app.build(server))
        await server.read(lambda: source.verify("orders", _unexpected))
        shown: list[Verifying] = []
        while (now := source.verifying("orders")) is None or not now.ended:
            if now is not None and now.done and not shown:
                shown.append(now)
                goes_on.set()
            await asyncio.sleep(0.01)
        return [*shown, now]

    monkeypatch.setattr(Log, "verify", verify)
    during, after = serving(work)
    assert during == Verifying(5, 10)
    assert after.result == sound


DAMAGED = Verification(
    records=9,
    bytes=100,
    segments=2,
    findings=(
        Finding("note", "files/1", "nothing refers to it"),
        Finding("error", "segment 1", "block 3 is damaged"),
        Finding("error", "segment 1", "ends at position 7, 9 was expected"),
    ),
)


@pytest.mark.parametrize(
    ("ends", "audited", "shown"),
    [
        (Unavailable("the bucket is away"), "the bucket is away", "the bucket is away"),
        (ZeroDivisionError("secret of a bug"), "the server failed: see its log", "the server failed: see its log"),
        (DAMAGED, "orders is damaged: 2 errors, the first at segment 1: block 3 is damaged", "orders is damaged"),
    ],
)
def test_a_verification_that_fails_after_its_answer_has_a_second_line_in_the_audit(
    ends: Exception | Verification, audited: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who began it, of which log, and what failed where: the page said "is being verified" long before."""
    goes_on = threading.Event()

    def verify(_log: Log, _tell: Any) -> Verification:
        goes_on.wait()
        if isinstance(ends, Exception):
            raise ends
        return ends

    async def work(server: Server) -> tuple[str, list[dict[str, Any]], str]:
        server.database.log("orders", create=True)
        app = httpx.ASGITransport(app=http_app.build(server))
        base = f"http://{server.settings.http}/console/"
        async with httpx.AsyncClient(transport=app, base_url=base, follow_redirects=True) as http:
            page = (await http.get("log?name=orders")).text
            csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
            form = {"csrf": csrf, "act": "verify", "name": "orders", "sure": "yes"}
            said = (await http.post("act", data=form)).text
            goes_on.set()
            while shown not in page:
                page = (await http.get("verify?name=orders")).text
        with server.database.log("_audit").read(start=0) as lines:
            return said, [json.loads(line.value) for line in lines], page

    monkeypatch.setattr(Log, "verify", verify)
    said, lines, page = serving(work)
    assert "orders is being verified" in said
    assert [(line["act"], line["kind"], line["name"]) for line in lines] == [("console.verify", "log", "orders")] * 2
    assert [line.get("failed") for line in lines] == [None, audited]
    assert "secret of a bug" not in page
