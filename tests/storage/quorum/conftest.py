"""Quorums of nodes in memory, each of which can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from obstore.store import MemoryStore

from oncelog.clock import SYSTEM
from oncelog.storage.base import Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import membership, node
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.bucket import FaultyBucket

Cluster = Callable[..., QuorumStorage]


@pytest.fixture
def stores() -> dict[str, Bucket]:
    """Return what the nodes hold, by URL: it survives the processes that use it."""
    return {}


@pytest.fixture
def nodes() -> dict[str, FaultyBucket]:
    """Return the nodes as the newest process sees them, by URL: each can be made to fail."""
    return {}


@pytest.fixture
def quorum(
    stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """Return what connects to a quorum of nodes in memory, and makes it the first time. Each call is a new process."""
    opened: list[QuorumStorage] = []

    def bucket(url: str, _options: object) -> Bucket:
        inner = stores.setdefault(url, Bucket(MemoryStore(), url))
        nodes[url] = FaultyBucket(inner)
        return nodes[url]

    def made(count: int, ack: int, store: Storage | None = None) -> QuorumStorage:
        store = store or MemoryStorage(in_flight_max=4)
        if membership.newest(store) is None:
            membership.create(store, {f"n{n}": f"s3://n{n}" for n in range(count)}, ack, {}, SYSTEM)
        opened.append(QuorumStorage(store))
        return opened[-1]

    monkeypatch.setattr(node, "open_bucket", bucket)
    monkeypatch.setattr("oncelog.storage.quorum.home.open_bucket", bucket)
    yield made
    for storage in opened:
        storage.close()
