"""Telling systemd how the server is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from tests.servers import Serving


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
