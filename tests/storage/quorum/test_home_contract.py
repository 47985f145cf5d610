"""Every home keeps one contract; a quorum keeps it with each of its nodes away, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.clock import SYSTEM
from oncelog.storage.base import Storage
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import membership
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.contract import StorageContract
from tests.storage.quorum.conftest import Cluster


class TestThreeNodes(StorageContract):
    """Three nodes, two acks."""

    @pytest.fixture
    def storage(self, quorum: Cluster) -> Storage:
        """Return a quorum of three."""
        return quorum(3, 2)


@pytest.mark.parametrize("away", [0, 1, 2])
class TestThreeNodesOneAway(StorageContract):
    """Three nodes, two acks, one node that answers nothing."""

    @pytest.fixture
    def storage(self, quorum: Cluster, nodes: dict[str, FaultyBucket], away: int) -> Storage:
        """Return a quorum of three, one of which is away."""
        made = quorum(3, 2)
        nodes[f"s3://n{away}"].cut_off()
        return made


class TestFiveNodesTwoAway(StorageContract):
    """Five nodes, three acks, two nodes that answer nothing."""

    @pytest.fixture
    def storage(self, quorum: Cluster, nodes: dict[str, FaultyBucket]) -> Storage:
        """Return a quorum of five, two of which are away."""
        made = quorum(5, 3)
        for number in (1, 4):
            nodes[f"s3://n{number}"].cut_off()
        return made


class TestFolders(StorageContract):
    """A store and three folders on a disk."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        """Return a quorum of three folders, whose store is in memory."""
        store = MemoryStorage(in_flight_max=4)
        folders = {f"n{n}": (tmp_path / f"n{n}").as_uri() for n in range(3)}
        membership.create(store, folders, 2, {}, SYSTEM)
        made = QuorumStorage(store)
        yield made
        made.close()
