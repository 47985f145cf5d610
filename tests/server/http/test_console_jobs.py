"""Jobs that the console of a server begins, without a browser: how far they are."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from oncelog.console.source import Verifying
from oncelog.log.jobs.verify import Verification
from oncelog.log.log import Log
from oncelog.server.http import app as http_app
from oncelog.server.http.console import ServerSource
from oncelog.server.server import Server
from tests.server.inside import serving


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
        await server.read(lambda: source.verify("orders"))
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
