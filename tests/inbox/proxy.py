"""A proxy before a server's socket that kills its client at the nth message, on its way there or back."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = 1 << 20


class Proxy:
    """Passes messages on, one connection at a time, and counts them, there and back; ``trips`` are the answers that
    were waited for.
    """

    def __init__(self, listen: Path, server: Path) -> None:
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        listen.chmod(0o777)
        self._listener.listen()
        self.victim = 0
        self.kill_at = 0
        self.messages = 0
        self.trips = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def arm(self, victim: int, kill_at: int) -> None:
        """Kill this process at that message, counted from now; 0 never."""
        self.messages, self.trips, self.victim, self.kill_at = 0, 0, victim, kill_at

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.socket(socket.AF_UNIX) as server:
                server.connect(str(self._server))
                self._pass(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        other, asked = {client: server, server: client}, False
        while True:
            for ready in select.select([client, server], [], [])[0]:
                try:
                    data = ready.recv(_CHUNK)
                except ConnectionError:
                    data = b""
                if not data:
                    return
                self.messages += 1
                self.trips += asked and ready is server
                asked = ready is client
                if self.kill_at and self.messages == self.kill_at:
                    os.kill(self.victim, signal.SIGKILL)
                    return
                other[ready].sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
