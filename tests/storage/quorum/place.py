"""A store and three nodes that outlive the processes which use them, and fail on demand."""

from __future__ import annotations

from functools import partial

import pytest
from obstore.store import MemoryStore

from oncelog.clock import SYSTEM, Clock
from oncelog.connect import Database
from oncelog.log.stored.unsealed import unsealed
from oncelog.log.takeover import handover
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.quorum import home as quorum_home
from oncelog.storage.quorum import membership, node
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.bucket import FaultyBucket

NODES = ("n0", "n1", "n2")
UNSEALED = partial(unsealed, clock=SYSTEM)


class Place:
    """A store and three nodes. ``stores`` are the buckets; ``seen`` are the same as the newest process sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stores: dict[str, Bucket]) -> None:
        self.stores = stores
        self.seen: dict[str, FaultyBucket] = {}
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(node, "open_bucket", self._open)
        monkeypatch.setattr(quorum_home, "open_bucket", self._open)
        membership.create(self._store(), {name: f"s3://{name}" for name in NODES}, 2, {}, SYSTEM)

    def _open(self, url: str, _options: object) -> Bucket:
        name = url.removeprefix("s3://")
        self.seen[name] = FaultyBucket(self.stores[name])
        return self.seen[name]

    def _store(self) -> ObjectStorage:
        return ObjectStorage(self._open("s3://store", None))

    def process(self, clock: Clock = SYSTEM) -> Database:
        """Return the database as a new process opens it."""
        return Database(QuorumStorage(self._store(), clock=clock), clock)

    def crash(self) -> None:
        """Let nothing of the newest process get through any more: nobody is left who could hand a log over."""
        for bucket in self.seen.values():
            bucket.cut_off()
        self._monkeypatch.setattr(handover, "ANSWER_S", 0.0)


def in_memory() -> dict[str, Bucket]:
    """Return a store and three nodes in memory."""
    return {name: Bucket(MemoryStore(), f"s3://{name}") for name in ("store", *NODES)}
