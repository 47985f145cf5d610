"""Logs on a quorum of nodes, under the log's own contract, with all nodes and with each of them away in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from oncelog.connect import Database
from oncelog.errors import OncelogError
from oncelog.log.takeover import handover
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.log_contract import LogContract
from oncelog.testing.logs.fixtures import Reopen
from tests.storage.quorum.conftest import Cluster, nodes, quorum, stores

__all__ = ["nodes", "quorum", "stores"]


class TestQuorum(LogContract):
    """Three nodes, two acks. A process that crashes gets nothing through to any node any more."""

    away: int | None = None

    @pytest.fixture
    def opened(self) -> list[tuple[FaultyBucket, Database]]:
        """Return where the databases are kept that a test opens, one after the other."""
        return []

    @pytest.fixture
    def store(self, memory_bucket: Bucket) -> Bucket:
        """Return the bucket of the store, which all processes share."""
        return memory_bucket

    @pytest.fixture
    def database(
        self,
        store: Bucket,
        quorum: Cluster,
        nodes: dict[str, FaultyBucket],
        opened: list[tuple[FaultyBucket, Database]],
        prompt: None,  # noqa: ARG002
    ) -> Iterator[Database]:
        """Yield the first of them."""
        opened.append(self._connected(store, quorum, nodes))
        yield opened[0][1]
        for _, database in reversed(opened):
            with contextlib.suppress(OncelogError):
                database.close()

    def _connected(
        self, store: Bucket, quorum: Cluster, nodes: dict[str, FaultyBucket]
    ) -> tuple[FaultyBucket, Database]:
        seen = FaultyBucket(store)
        storage = quorum(3, 2, ObjectStorage(seen))
        if self.away is not None:
            nodes[f"s3://n{self.away}"].cut_off()
        return seen, Database(storage)

    @pytest.fixture
    def reopen(
        self,
        store: Bucket,
        quorum: Cluster,
        nodes: dict[str, FaultyBucket],
        opened: list[tuple[FaultyBucket, Database]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> Reopen:
        """Return what ends a life and begins the next."""

        def again(*, crash: bool = False) -> Database:
            seen, database = opened[-1]
            if crash:
                for bucket in (seen, *nodes.values()):
                    bucket.cut_off()
                monkeypatch.setattr(handover, "ANSWER_S", 0.0)  # there is nobody who could
            else:
                database.close()
            opened.append(self._connected(store, quorum, nodes))
            return opened[-1][1]

        return again


class TestFirstNodeAway(TestQuorum):
    """The node that is read from first does not answer."""

    away = 0


class TestLastNodeAway(TestQuorum):
    """The last node does not answer."""

    away = 2


del LogContract  # pytest would collect it here, without a home
