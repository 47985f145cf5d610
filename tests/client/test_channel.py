"""Connections: streams have room, however many there are, and give it back."""

from __future__ import annotations

import pytest

from oncelog.client import channel as channel_module
from oncelog.connect import Database


def test_streams_beyond_a_connections_room_get_another(remote: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that a connection has no room for would wait for ever: tails do not end by themselves."""
    monkeypatch.setattr(channel_module, "STREAMS_MAX", 2)
    log = remote.log("orders", create=True)
    channel = remote._channel  # type: ignore[attr-defined]
    with log.writer() as writer:
        writer.append(b"first")
        tails = [log.tail("earliest") for _ in range(5)]
        assert [entry.value for tail in tails if (entry := tail.poll(60)) is not None] == [b"first"] * 5
        assert channel._streams == [2, 2, 2], "a session and five tails"
        for tail in tails:
            tail.close()
        for _ in range(3):  # calls that end give their room back: no connection is added for the next ones
            assert [entry.value for entry in log.read()] == [b"first"]
        assert len(channel._streams) == 3
