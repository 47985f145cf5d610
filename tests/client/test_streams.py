"""Streams over the wire: what is said of an append whose first attempt was cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from oncelog.client.address import parse
from oncelog.client.channel import Broken, Channel
from oncelog.client.streams import RemoteStreams
from oncelog.errors import LogBusy, Unavailable
from oncelog.types import Record


class _Cut(grpc.RpcError):  # type: ignore[misc]
    """A call that was sent, and ended without an answer."""

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"

    def result(self) -> Any:
        raise self


@pytest.mark.parametrize(
    "later", [Broken("failed to connect", sent=False), LogBusy("taken", pid=1)], ids=["away", "busy"]
)
def test_events_that_may_be_stored_are_not_called_unwritten(monkeypatch: pytest.MonkeyPatch, later: Exception) -> None:
    """The first attempt was sent and cut. That no later one reached the server says nothing of the first."""
    channel = Channel(parse("oncelog://127.0.0.1:1", {}))

    def fails(*_: object) -> None:
        raise later

    monkeypatch.setattr(channel, "future", lambda *_: _Cut())
    monkeypatch.setattr(channel, "once", fails)
    streams = RemoteStreams(SimpleNamespace(name="carts", channel=channel))  # type: ignore[arg-type]
    error = streams.submit("cart-7", Record(b"{}", id="1"), timeout_s=0.1).exception()
    assert isinstance(error, Unavailable)
    assert error.outcome == "unknown"
