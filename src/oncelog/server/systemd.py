"""Telling systemd how the server is: ``READY=1`` when it serves, ``STOPPING=1`` when it drains (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), target)
