"""Real clients and real servers: both are killed, servers are paused and cut off, and no retry is a second write."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import oncelog
from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.clock import SYSTEM
from oncelog.storage.quorum import membership
from oncelog.storage.urls import node_options, quorum_store
from tests.server.proxy import Proxy
from tests.storage.quorum.worker import LOG

pytestmark = pytest.mark.soak  # four servers, and faults that last

ROOT = Path(__file__).parents[3]
NODES = ("n0", "n1", "n2")
CLIENTS = ("a", "b")
ROUNDS = int(os.environ.get("ONCELOG_ROUNDS", "2"))
ACKS = 60
LONG_S = 120
"""Longer than any acknowledgement takes, however many servers hang."""


class Heard(NamedTuple):
    """An acknowledgement that a client told of; or what is wrong, if ``wrong`` is there."""

    client: Client
    duplicate: bool = False
    wrong: str | None = None


class Client:
    """A process that writes under a name. It begins where it was when it was killed."""

    def __init__(self, url: str, name: str, heard: queue.SimpleQueue[Heard]) -> None:
        self._url, self.name, self._heard = url, name, heard
        self.acked: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        """Start it; what was sent and not acknowledged is sent again."""
        command = [sys.executable, "-m", "tests.storage.quorum.worker", self._url, self.name, str(len(self.acked))]
        self._is_killed = False
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, position, duplicate = map(int, line.split())
            first = self.acked.setdefault(number, position)
            wrong = f"{self.name}-{number} is at {first}, and at {position}" if first != position else None
            self._heard.put(Heard(self, bool(duplicate), wrong))
        if not self._is_killed:
            self._heard.put(Heard(self, wrong=f"client {self.name} ended by itself"))

    def kill(self) -> None:
        """End it without warning."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, SeaweedFS]]:
    """Run a server for the store, and one for each node."""
    with contextlib.ExitStack() as ending:
        started: dict[str, SeaweedFS] = {}
        for name in ("store", *NODES):
            started[name] = SeaweedFS(tmp_path / name)
            ending.callback(started[name].end)
        yield started


@pytest.fixture
def proxies(servers: dict[str, SeaweedFS]) -> Iterator[dict[str, Proxy]]:
    """Put a proxy before each node."""
    made = {name: Proxy(servers[name].endpoint.removeprefix("http://"), 1, 1000) for name in NODES}
    for proxy in made.values():
        proxy.peaceful = True
    yield made
    for proxy in made.values():
        proxy.close()


@pytest.fixture
def url(servers: dict[str, SeaweedFS], proxies: dict[str, Proxy], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a quorum with a log; the environment tells how to reach its parts."""
    for name, value in servers["store"].environment.items():
        monkeypatch.setenv(name, value)
    for name, proxy in proxies.items():
        for option, value in {**servers[name].options, "endpoint": f"http://{proxy.address}"}.items():
            monkeypatch.setenv(f"ONCELOG_NODE_{name.upper()}_{option.upper()}", value)
    store = quorum_store(f"s3://{BUCKET}/db")
    membership.create(store, {name: f"s3://{BUCKET}/{name}" for name in NODES}, 2, node_options(os.environ), SYSTEM)
    with oncelog.connect(f"quorum:{store.url}") as db:
        db.log(LOG, create=True)
    return f"quorum:{store.url}"


Fault = Callable[[SeaweedFS, Proxy], Callable[[], None]]
"""Does something to a node; returns what undoes it."""


def killed(server: SeaweedFS, _proxy: Proxy) -> Callable[[], None]:
    """Kill a server; start it again."""
    server.end()
    return server.start


def paused(server: SeaweedFS, _proxy: Proxy) -> Callable[[], None]:
    """Stop a server, which answers nothing and refuses nothing; let it go on."""
    pid = server._server._process.pid
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def cut_off(_server: SeaweedFS, proxy: Proxy) -> Callable[[], None]:
    """Let no byte through; let connections be made again."""
    proxy.swallow()
    return proxy.restore


def test_servers_and_clients_fail_while_clients_write_and_retry(
    servers: dict[str, SeaweedFS], proxies: dict[str, Proxy], url: str
) -> None:
    """Each node is killed, paused and cut off, and the client that holds the log is killed meanwhile: one place for
    each id, none lost.
    """
    heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
    counts: Counter[str] = Counter()

    def hear(acks: int) -> Client:
        """Return the client of the last of so many acknowledgements that come from now on."""
        for _ in range(heard.qsize() + acks):
            told = heard.get(timeout=LONG_S)
            assert told.wrong is None, told.wrong
            counts.update(
                acks=1,
                duplicates=told.duplicate,
            )
        return told.client

    clients = [Client(url, name, heard) for name in CLIENTS]
    try:
        for name, fault in itertools.product(NODES * ROUNDS, (killed, paused, cut_off)):
            hear(ACKS)
            heal = fault(servers[name], proxies[name])
            counts[fault.__name__] += 1
            try:
                holder = hear(ACKS)
                holder.kill()
                holder.start()
                counts["clients killed"] += 1
                hear(ACKS)
            finally:
                heal()
    finally:
        for client in clients:
            client.kill()
    expected = {f"{client.name}-{number}": at for client in clients for number, at in client.acked.items()}
    with oncelog.connect(url) as db:
        log = db.log(LOG)
        with log.writer(takeover="force") as writer:
            again = {id: writer.append(id.encode(), id=id) for id in expected}
        assert {id: ack.position for id, ack in again.items()} == expected
        assert all(ack.duplicate for ack in again.values())
        stored = [(entry.id, entry.position) for entry in log.read()]
        assert len({id for id, _ in stored}) == len(stored), "an id is there twice"
        assert expected.items() <= dict(stored).items()
        assert all(entry.value == entry.id.encode() for entry in log.read() if entry.id is not None)
        assert log.verify().ok
    sys.stderr.write(f"{dict(counts)}, {len(expected):,} ids acknowledged, {len(stored):,} records\n")
