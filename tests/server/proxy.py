"""A TCP proxy that treats connections badly: it cuts them, holds bytes back, and forwards halves of what it got."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class Proxy:
    """Forwards connections to an address. Each connection dies after some bytes, drawn from a seed."""

    def __init__(self, target: str, seed: int, bytes_max: int) -> None:
        """Begin to listen."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.connections = 0
        self.peaceful = False
        """Whether connections live for ever from now on."""
        self._passing = threading.Event()
        self._passing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, target: str) -> None:
        """Forward new connections to another address."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self.connections += 1
                    self._open |= {client, server}
                    life = [self._random.randrange(200, self.bytes_max)]
                    seeds = self._random.random(), self._random.random()
                for source, sink, seed in ((client, server, seeds[0]), (server, client, seeds[1])):
                    threading.Thread(target=self._pump, args=(source, sink, life, seed), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, life: list[int], seed: float) -> None:
        chance = random.Random(seed)
        pause = threading.Event()
        with contextlib.suppress(OSError):
            while data := source.recv(chance.choice((100, 4096, 65536))):
                if chance.random() < 0.05:
                    pause.wait(0.02)  # bytes that are late
                self._passing.wait()
                if source.getpeername() == self._target:
                    self._answering.wait()
                with self._lock:
                    life[0] -= len(data)
                    over = life[0] <= 0 and not self.peaceful
                if over:
                    sink.sendall(data[: chance.randrange(len(data) + 1)])  # a half of them arrives
                    break
                sink.sendall(data)
        self._cut(source, sink)

    def swallow(self) -> None:
        """Let no byte through from now on, and cut nothing: the network is gone."""
        self._passing.clear()

    def hold_answers(self) -> None:
        """Let nothing through from the server, until ``answer``; what clients send arrives."""
        self._answering.clear()

    def answer(self) -> None:
        """Let through what the server said meanwhile."""
        self._answering.set()

    def restore(self) -> None:
        """Let connections be made again; those that were open are dead, and what they held is lost."""
        with self._lock:
            ends = list(self._open)
        self._cut(*ends)
        self._passing.set()

    def _cut(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= set(ends)

    def close(self) -> None:
        """End all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._passing.set()
        self._answering.set()
        with self._lock:
            ends = list(self._open)
        self._cut(*ends)
