"""Segments of which a node lacks blocks, or that name a replaced node, are sealed by themselves, however small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.quorum import health, home
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.writing import fill
from tests.log.watched import until
from tests.storage.quorum.conftest import Cluster
from tests.storage.quorum.place import UNSEALED


@pytest.fixture
def storage(quorum: Cluster, memory_bucket: Bucket) -> QuorumStorage:
    """Return a quorum of three, two acks, whose store is a bucket."""
    return quorum(3, 2, ObjectStorage(memory_bucket))


@pytest.fixture
def log(storage: QuorumStorage) -> Iterator[Log]:
    """Return a log on it."""
    with Database(storage) as database:
        yield database.log("orders", create=True)


def test_a_segment_that_a_node_lacks_is_closed_and_sealed(
    log: Log, nodes: dict[str, FaultyBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is away: its copies are missing for good. The records go into the store, without anybody's help."""
    monkeypatch.setattr(home, "SHORT_US", 0)
    nodes["s3://n1"].cut_off()
    with log.writer() as writer:
        writer.append(b"first", id="first")
        for number in itertools.count():
            if log.files():
                break
            writer.append(b"more", id=str(number))
    assert [entry.id for entry in log.read(limit=1)] == ["first"]
    assert log.verify().ok


def test_a_young_segment_is_left_open(log: Log, nodes: dict[str, FaultyBucket]) -> None:
    """While a node is away every segment lacks its copies: not each of them is closed after its first block."""
    nodes["s3://n1"].cut_off()
    with log.writer() as writer:
        acks = [writer.append(b"x", id=str(number)) for number in range(20)]
    assert {ack.segment for ack in acks} == {acks[0].segment}


def test_a_whole_segment_waits_until_it_is_worth_a_file(storage: QuorumStorage) -> None:
    """All nodes hold all blocks: nothing is at risk. A segment that lacks one copy is."""
    orders = storage.home("orders")
    fill(orders, 0, 3)
    end = orders.fence(0, 2).end
    waited = storage.home("orders")
    until(lambda: not waited.at_risk(0, end))  # the third copy may still be on its way
    assert not waited.at_risk(7, 0)  # there is no such segment


def test_a_segment_with_a_missing_copy_is_at_risk(storage: QuorumStorage, nodes: dict[str, FaultyBucket]) -> None:
    """One block of one node is enough; a node that does not answer is as one that has nothing."""
    orders = storage.home("orders")
    writer, chain = orders.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"a"))
    nodes["s3://n2"].cut_off()
    writer.append(1, chain.block(b"b"))
    end = orders.fence(0, 2).end
    assert orders.at_risk(0, end)
    nodes["s3://n2"].faults.heal()
    assert orders.at_risk(0, end)


def test_a_writer_leaves_a_replaced_node(log: Log, storage: QuorumStorage, stores: dict[str, Bucket]) -> None:
    """A living writer learns that a node was replaced, and its next block is on the new one; the old one is sealed."""
    with log.writer() as writer:
        first = writer.append(b"first", id="first")
        health.replace(storage, "n1", "s3://new", UNSEALED, SYSTEM)
        storage.refresh()  # as the writer itself does every ten seconds
        writer.append(b"last of the old segment", id="second")
        third = writer.append(b"third", id="third")
        assert third.segment != first.segment
        for number in itertools.count():
            if log.files() and len(stores["s3://new"].below("logs/")) > 0:
                break
            writer.append(b"more", id=str(number))
    assert log.verify().ok


def test_the_writer_looks_for_replacements_by_itself(
    log: Log, storage: QuorumStorage, quorum: Cluster, memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process replaced the node; nobody tells the writer."""
    monkeypatch.setattr(home, "MEMBERSHIP_US", 0)
    with log.writer() as writer:
        first = writer.append(b"first", id="first")
        health.replace(quorum(3, 2, ObjectStorage(memory_bucket)), "n1", "s3://new", UNSEALED, SYSTEM)
        for number in itertools.count():
            if writer.append(b"more", id=str(number)).segment != first.segment:
                break
    assert storage.membership.version == 2


def test_the_next_writer_seals_what_the_one_before_left_at_risk(
    log: Log, storage: QuorumStorage, quorum: Cluster, memory_bucket: Bucket, nodes: dict[str, FaultyBucket]
) -> None:
    """A writer was killed while a node was away. Its successor does not wait until it has a file's worth."""
    nodes["s3://n1"].cut_off()
    log.writer().append(b"left", id="left")
    storage.close()  # nothing gets through any more, as after a kill
    nodes["s3://n1"].faults.heal()
    with Database(quorum(3, 2, ObjectStorage(memory_bucket))) as database:
        taken = database.log("orders")
        with taken.writer(takeover="force") as writer:
            while not taken.files():
                writer._find("left")
        assert [entry.value for entry in taken.read()] == [b"left"]
