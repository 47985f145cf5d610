"""The server itself over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.errors import NotAuthenticated
from oncelog.server.http.calls import server
from oncelog.server.http.request import Call
from oncelog.server.security import scopes
from oncelog.server.security.authorize import Authorizer, Credentials
from oncelog.testing.clock import SimulatedClock


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


def _metrics(peer: str, sans: tuple[str, ...]) -> int:
    """Ask for the metrics as a caller with a certificate of these names; return the status."""
    known = Authorizer(SimulatedClock(), certificates={"dashboard.example": [scopes.parse("look:*")]})
    app = SimpleNamespace(
        principal=lambda _, peer, sans: known.principal(Credentials(None, sans, peer)),
        metrics=SimpleNamespace(exposition=lambda _: (b"", "text/plain")),
    )
    call = SimpleNamespace(app=app, headers={}, peer=peer, sans=sans, read=_at_once)
    return asyncio.run(server.metrics(cast("Call", call))).status_code


def test_a_certificate_that_may_look_reads_the_metrics_from_elsewhere() -> None:
    """No address but loopback is left out: a certificate is a caller as good as a token."""
    assert _metrics("10.0.0.7:5000", ("dashboard.example",)) == 200
    assert _metrics("127.0.0.1:5000", ()) == 200
    with pytest.raises(NotAuthenticated):
        _metrics("10.0.0.7:5000", ("other.example",))
