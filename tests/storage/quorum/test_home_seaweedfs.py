"""Quorums of three real servers: killed, paused and started again while a client writes and retries."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.storage.base import Storage
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import membership
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.contract import StorageContract

pytestmark = pytest.mark.soak  # three servers take a while to start


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SeaweedFS]]:
    """Run three servers."""
    started: dict[str, SeaweedFS] = {}
    try:
        for name in ("n0", "n1", "n2"):
            started[name] = SeaweedFS(tmp_path_factory.mktemp(name))
        yield started
    finally:
        for server in started.values():
            server.end()


@pytest.fixture
def storage(servers: dict[str, SeaweedFS]) -> Iterator[QuorumStorage]:
    """Return a new quorum on them, whose store is in memory."""
    store = MemoryStorage(in_flight_max=4)
    prefix = SYSTEM.token(8).hex()
    options = {name: dict(server.options) for name, server in servers.items()}
    urls = {name: f"s3://{BUCKET}/{prefix}/{name}" for name in servers}
    membership.create(store, urls, 2, options, SYSTEM)
    made = QuorumStorage(store, options)
    yield made
    made.close()


class TestThreeServers(StorageContract):
    """The contract of every home, on three servers."""

    @pytest.fixture
    def storage(self, storage: QuorumStorage) -> Storage:
        """Return the quorum."""
        return storage


del StorageContract  # pytest would collect it here, without a home


def test_a_client_writes_while_each_server_is_killed_and_comes_back(
    servers: dict[str, SeaweedFS], storage: QuorumStorage
) -> None:
    """One server at a time is gone: every append is acknowledged, every retry gets the first place, nothing is lost."""
    database = Database(storage)
    log = database.log("orders", create=True)
    places = {}
    with log.writer() as writer:
        for turn, server in enumerate(servers.values()):
            server.end()
            for number in range(20):
                places[f"{turn}-{number}"] = writer.append(b"x", id=f"{turn}-{number}").position
            server.start()
        assert {id: writer.append(b"x", id=id).position for id in places} == places
    with log.writer() as writer:
        assert {id: writer.append(b"x", id=id).position for id in places} == places
    assert [entry.id for entry in log.read()] == list(places)
    assert log.verify().ok


def test_a_client_writes_while_a_server_is_stopped(servers: dict[str, SeaweedFS], storage: QuorumStorage) -> None:
    """A server that hangs answers nothing and refuses nothing: appends return all the same."""
    process = servers["n1"]._server._process.pid
    with Database(storage).log("orders", create=True).writer() as writer:
        writer.append(b"before", id="before")
        os.kill(process, signal.SIGSTOP)
        try:
            places = [writer.append(b"x", id=str(number)).position for number in range(20)]
        finally:
            os.kill(process, signal.SIGCONT)
        assert [writer.append(b"x", id=str(number)).position for number in range(20)] == places
