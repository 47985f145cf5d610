"""The registers of a segment: what is acknowledged is kept, whatever nodes do; what is decided stays decided."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from unittest import mock

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import CorruptionError, Unavailable, WriterFenced
from oncelog.storage.base import Chunk, SegmentEnd
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import ensemble, registers
from oncelog.storage.quorum.home import QuorumHome, QuorumStorage
from oncelog.storage.quorum.node import fence_of
from oncelog.testing.blocks import BlockChain
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.writing import fill
from tests.log.watched import until
from tests.storage.quorum.conftest import Cluster
from tests.storage.quorum.place import Place, in_memory

PLENTY = 1 << 30


@pytest.fixture
def store() -> MemoryStorage:
    """Return the store, which all processes share."""
    return MemoryStorage(in_flight_max=4)


def home_of(storage: QuorumStorage) -> QuorumHome:
    """Return the home of a log."""
    return storage.home("orders")


def path(home: QuorumHome, number: int, segment: int = 0) -> str:
    """Return where a register is on a node."""
    found = ensemble.read(home.store, segment)
    assert found is not None
    return f"logs/orders/{found.folder}/{number:010d}"


def test_an_append_needs_only_its_acks(quorum: Cluster, nodes: dict[str, FaultyBucket], store: MemoryStorage) -> None:
    """With one node away an append returns; with two it is unknown, and the same bytes succeed when one is back."""
    home = home_of(quorum(3, 2, store))
    writer = home.start_segment(0, 1)
    nodes["s3://n0"].cut_off()
    chain = BlockChain(0)
    assert writer.append(0, chain.block(b"a")) == 1
    nodes["s3://n1"].cut_off()
    block = chain.block(b"b")
    with pytest.raises(Unavailable) as caught:
        writer.append(1, block)
    assert caught.value.outcome == "unknown"
    nodes["s3://n1"].faults.heal()
    assert writer.append(1, block) == 2
    assert home.visible(0) == 2


def test_fewer_copies_than_acks_are_no_acknowledgement(
    quorum: Cluster, nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """One copy of the two that were asked for is lost with its node: an append that has it is not acknowledged."""
    home = home_of(quorum(3, 2, store))
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    assert writer.append(0, chain.block(b"all")) == 1
    for url in ("s3://n1", "s3://n2"):
        nodes[url].cut_off()
    with pytest.raises(Unavailable) as unknown:
        writer.append(1, chain.block(b"one"))
    assert unknown.value.outcome == "unknown"


@pytest.mark.parametrize("away", [0, 1, 2])
def test_what_was_acknowledged_survives_a_takeover_with_any_node_away(
    away: int, quorum: Cluster, nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """Blocks were acknowledged with node 1 away; another node is lost before the takeover: every block is kept."""
    home = home_of(quorum(3, 2, store))
    nodes["s3://n1"].cut_off()
    chain = fill(home, 0, 5)
    again = home_of(quorum(3, 2, store))
    if away == 1:
        nodes["s3://n1"].cut_off()
        tail = again.fence(0, 2)
    else:
        nodes[f"s3://n{away}"].cut_off()
        tail = again.fence(0, 2)
    assert (tail.blocks, tail.entries, tail.checksum) == (5, chain.entries, chain.checksum)
    blocks, _ = again.blocks(0, 0, tail.end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made


def test_a_block_that_one_node_holds_is_kept_for_everybody_or_for_nobody(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """An append of unknown outcome left one copy. The first who decides keeps it, in the store: all others agree."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 2)
    lone = b"".join(bytes(memoryview(piece)) for piece in chain.block(b"lone"))
    stores["s3://n2"].create(path(home, 2), [lone])
    again = home_of(quorum(3, 2, store))
    tail = again.fence(0, 2)
    assert tail.blocks == 3
    assert again.store.list("rescued/") == [ensemble.rescued_key(0, 2)]
    stores["s3://n2"].delete(path(home, 2))  # the only node that held it is lost
    last = home_of(quorum(3, 2, store))
    assert last.fence(0, 3) == tail
    blocks, _ = last.blocks(0, 2, tail.end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == [lone]


def test_a_create_that_arrives_after_the_decision_changes_nothing(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """A late upload lands behind the tail: readers and later takeovers never see it."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 2)
    tail = home_of(quorum(3, 2, store)).fence(0, 2)
    late = b"".join(bytes(memoryview(piece)) for piece in chain.block(b"late"))
    for number in (2, 3):
        for node in stores.values():
            node.create(path(home, number), [late])
    again = home_of(quorum(3, 2, store))
    assert again.fence(0, 3) == tail
    assert len(again.blocks(0, 0, tail.end, PLENTY)[0]) == 2


def test_a_fenced_writer_learns_it(quorum: Cluster, store: MemoryStorage) -> None:
    """The writer of before gets no further block through, also on the nodes that were away during the fencing."""
    home = home_of(quorum(3, 2, store))
    writer = home.start_segment(0, 1)
    chain = BlockChain(0)
    writer.append(0, chain.block(b"a"))
    assert home_of(quorum(3, 2, store)).fence(0, 2).blocks == 1
    with pytest.raises(WriterFenced):
        writer.append(1, chain.block(b"b"))


def test_a_segment_that_is_fenced_before_it_is_started_is_never_started(quorum: Cluster, store: MemoryStorage) -> None:
    """A tombstone stands in the place of the ensemble: the sleeper that wakes up cannot begin the segment."""
    home = home_of(quorum(3, 2, store))
    assert home.fence(7, 2) == SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
    with pytest.raises(WriterFenced):
        home_of(quorum(3, 2, store)).start_segment(7, 1)


def test_a_wiped_node_is_no_answer(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """A node that lost everything says that nothing is there. Believed, it would hide a block that was acknowledged."""
    home = home_of(quorum(3, 2, store))
    nodes["s3://n1"].cut_off()
    fill(home, 0, 3)
    stores["s3://n0"] = Bucket(MemoryStore(), "s3://n0")
    again = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    with pytest.raises(Unavailable):
        again.fence(0, 2)
    nodes["s3://n2"].faults.heal()
    assert again.fence(0, 2).blocks == 3


def test_a_wiped_node_does_not_say_that_a_block_is_gone(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """Of a block's two nodes one was wiped, the other is away: it cannot be read now, and is not lost."""
    home = home_of(quorum(3, 2, store))
    nodes["s3://n1"].cut_off()
    fill(home, 0, 3)
    tail = home.fence(0, 2)
    stores["s3://n0"] = Bucket(MemoryStore(), "s3://n0")
    again = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    with pytest.raises(Unavailable):
        again.blocks(0, 0, tail.end, PLENTY)
    nodes["s3://n2"].faults.heal()
    assert len(again.blocks(0, 0, tail.end, PLENTY)[0]) == 3


def test_what_one_reader_saw_another_sees_with_any_node_away(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """A block has two copies; a reader that reaches one of them, and a node without it, does not say that it is not
    there: it stores the block on that node, and then two hold it.
    """
    home = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    fill(home, 0, 2)
    assert home.visible(0) == 6
    again = home_of(quorum(3, 2, store))
    nodes["s3://n0"].cut_off()
    assert again.visible(0) == 6
    assert stores["s3://n2"].size(path(home, 1)) is not None


def test_a_reader_does_not_complete_what_was_fenced(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """One node holds a block, the next one a fence, the third is away: the block was never chosen; nobody sees it."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 1)
    lone = b"".join(bytes(memoryview(piece)) for piece in chain.block(b"lone"))
    stores["s3://n0"].create(path(home, 1), [lone])
    for name in ("n1", "n2"):
        stores[f"s3://{name}"].create(path(home, 1), [fence_of(2)])
    again = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    assert again.visible(0) == chain.entries - 1


def test_a_block_beside_a_quorum_of_fences_is_behind_the_end(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """One node holds a block, the two others fences: the block was never chosen, and a takeover ends before it."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 1)
    lone = b"".join(bytes(memoryview(piece)) for piece in chain.block(b"lone"))
    stores["s3://n0"].create(path(home, 1), [lone])
    for name in ("n1", "n2"):
        stores[f"s3://{name}"].create(path(home, 1), [fence_of(2)])
    assert home_of(quorum(3, 2, store)).fence(0, 3).blocks == 1


def test_fences_of_a_takeover_before_are_not_made_again(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """A takeover was killed before it stored the end, and a node with its fence takes no writes now: the next one reads
    the fences. It tried to make them, saw a block on the third node, and looked again for ever.
    """
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 1)
    stores["s3://n0"].create(path(home, 1), [b"".join(bytes(memoryview(piece)) for piece in chain.block(b"lone"))])
    for name in ("n1", "n2"):
        stores[f"s3://{name}"].create(path(home, 1), [fence_of(2)])
    refused = mock.Mock(side_effect=[*[Unavailable("no space")] * 9, AssertionError("again and again")])
    again = home_of(quorum(3, 2, store))
    with mock.patch.object(nodes["s3://n2"], "create", refused):
        assert again.fence(0, 3).blocks == 1


def test_a_reader_does_not_believe_a_wiped_node(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """A block was on two nodes: one was wiped, the other is away. Whether it is there cannot be said."""
    home = home_of(quorum(3, 2, store))
    nodes["s3://n1"].cut_off()
    fill(home, 0, 1)
    stores["s3://n0"] = Bucket(MemoryStore(), "s3://n0")
    again = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    with pytest.raises(Unavailable):
        again.visible(0)


def test_a_bad_copy_falls_back_to_a_good_one(quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage) -> None:
    """A flipped byte on the node that is read first is not handed out, and not the end either."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 2)
    bad = bytearray(chain.made[1])
    bad[-1] ^= 1
    stores["s3://n0"].delete(path(home, 1))
    stores["s3://n0"].create(path(home, 1), [bytes(bad)])
    again = home_of(quorum(3, 2, store))
    tail = again.fence(0, 2)
    blocks, _ = again.blocks(0, 0, tail.end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made


def damage(stores: dict[str, Bucket], url: str, where: str, size_bytes: int | None = None) -> None:
    """Flip the last byte of a copy, or cut the copy short."""
    until(lambda: stores[url].size(where) is not None)  # an append that fails does not wait for nodes that answer
    data = bytearray(stores[url].get(where).to_pybytes())
    data[-1] ^= 1
    stores[url].delete(where)
    stores[url].create(where, [bytes(data[:size_bytes])])


@pytest.mark.parametrize("size_bytes", [300, 20, 0])
def test_a_damaged_copy_is_no_copy(
    size_bytes: int, quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """A block was acknowledged by two nodes, and one of the copies was cut short: recovery puts a copy into the store.

    Then the node with the sound copy is lost, and the block is still there.
    """
    home = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    chain = fill(home, 0, 2)
    damage(stores, "s3://n0", path(home, 1), size_bytes)
    again = home_of(quorum(3, 2, store))
    tail = again.fence(0, 2)
    assert tail.blocks == 2
    stores["s3://n1"].delete(path(home, 1))
    blocks, _ = home_of(quorum(3, 2, store)).blocks(0, 0, tail.end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made


@pytest.mark.parametrize("size_bytes", [None, 300, 20, 0])
def test_a_damaged_copy_is_no_fence(
    size_bytes: int | None,
    quorum: Cluster,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    store: MemoryStorage,
) -> None:
    """A block was acknowledged by two nodes: one copy is damaged, the node of the other is away. Recovery waits for it:
    a block that was cut short is as short as a fence, and must not be counted as one.
    """
    home = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    chain = fill(home, 0, 2)
    damage(stores, "s3://n0", path(home, 1), size_bytes)
    again = home_of(quorum(3, 2, store))
    nodes["s3://n1"].cut_off()
    with pytest.raises(Unavailable):
        again.fence(0, 2)
    nodes["s3://n1"].faults.heal()
    tail = again.fence(0, 2)
    blocks, _ = again.blocks(0, 0, tail.end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made


def with_damage_at_one_node(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> QuorumHome:
    """Store block 0 on three nodes and block 1 on one, which damages it: nobody acknowledged block 1."""
    home = home_of(quorum(3, 2, store))
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    assert writer.append(0, chain.block(b"all")) == 1
    for url in ("s3://n1", "s3://n2"):
        nodes[url].cut_off()
    with pytest.raises(Unavailable):
        writer.append(1, chain.block(b"one"))
    damage(stores, "s3://n0", path(home, 1))
    return home_of(quorum(3, 2, store))


def test_a_damaged_block_that_was_never_acknowledged_does_not_stop_a_takeover(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """One node has a damaged copy, the two others nothing: it was not acknowledged, and fences say that it never is."""
    again = with_damage_at_one_node(quorum, stores, nodes, store)
    assert again.fence(0, 2).blocks == 1


def test_a_damaged_block_that_was_never_acknowledged_is_not_there_for_readers(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """One node has a damaged copy, the two others nothing: a reader sees the blocks before it, and no damage."""
    again = with_damage_at_one_node(quorum, stores, nodes, store)
    found = ensemble.read(again.store, 0)
    assert found is not None
    assert again.registers(0, found).block(1) is None
    assert again.registers(0, found).block(0) is not None


def test_a_block_of_which_all_copies_are_damaged_is_lost_and_not_the_end(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """Both copies of an acknowledged block are damaged: that is told. To end the log before it would hide the loss."""
    home = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    fill(home, 0, 2)
    damage(stores, "s3://n0", path(home, 1), 300)
    damage(stores, "s3://n1", path(home, 1), 200)
    with pytest.raises(CorruptionError, match="block 1: 2 nodes hold a damaged copy"):
        home_of(quorum(3, 2, store)).fence(0, 2)


def test_a_damaged_copy_on_the_way_is_one_node_that_failed(
    quorum: Cluster, stores: dict[str, Bucket], nodes: dict[str, FaultyBucket], store: MemoryStorage
) -> None:
    """The same block is offered again, and a node has a damaged copy of it: the two others are enough."""
    home = home_of(quorum(3, 2, store))
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    for url in ("s3://n1", "s3://n2"):
        nodes[url].cut_off()
    block = chain.block(b"a")
    with pytest.raises(Unavailable):
        writer.append(0, block)
    damage(stores, "s3://n0", path(home, 0))
    for url in ("s3://n1", "s3://n2"):
        nodes[url].faults.heal()
    assert writer.append(0, block) == 1


def test_a_segment_of_which_a_reader_met_a_damaged_copy_is_at_risk(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """A list does not show a flipped bit. The reader that falls back to another copy says so: the segment is sealed."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 2)
    tail = home.fence(0, 2)
    until(lambda: not home.at_risk(0, tail.end))  # the third copy may still be on its way
    damage(stores, "s3://n0", path(home, 1))
    assert not home.at_risk(0, tail.end)
    home.blocks(0, 0, tail.end, PLENTY)
    assert home.at_risk(0, tail.end)


def test_a_lost_block_is_damage_and_not_the_end(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """A block that is on no node, with many behind it, was acknowledged: to end the log there would lose the others."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 8)
    for node in stores.values():
        node.delete(path(home, 1))
    with pytest.raises(CorruptionError, match="block 1"):
        home_of(quorum(3, 2, store)).fence(0, 2)


def test_two_who_take_over_agree(quorum: Cluster, nodes: dict[str, FaultyBucket], store: MemoryStorage) -> None:
    """Two recoveries see different nodes; the first decision in the store holds for both."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 4)
    first = home_of(quorum(3, 2, store))
    nodes["s3://n0"].cut_off()
    one = first.fence(0, 2)
    second = home_of(quorum(3, 2, store))
    nodes["s3://n2"].cut_off()
    assert second.fence(0, 3) == one


def test_a_fence_is_never_deleted_with_its_segment(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """A freed number could be won by a writer that slept through the removal."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 2)
    home.fence(0, 2)
    fences = path(home, 2)
    home.remove_segment(0)
    assert [node.get(fences).to_pybytes() for node in stores.values()] == [fence_of(2)] * 3
    assert all(node.size(path(home, 0)) is None for node in stores.values())


def test_a_node_that_is_away_during_a_removal_is_swept_later(
    quorum: Cluster, nodes: dict[str, FaultyBucket], stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """The removal does not wait for the node; its blocks go when it is back."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 2)
    home.fence(0, 2)
    nodes["s3://n1"].cut_off()
    first = path(home, 0)
    home.remove_segment(0)
    assert stores["s3://n1"].size(first) is not None
    assert home.sweep() == 1
    nodes["s3://n1"].faults.heal()
    assert home.sweep() == 0
    assert stores["s3://n1"].size(first) is None


def test_an_idle_reader_asks_few_nodes(quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage) -> None:
    """A look for the next block asks as few nodes as can say no: two of three."""
    home = home_of(quorum(3, 2, store))
    fill(home, 0, 2)
    assert home.visible(0) == 6
    before = sum(node.requests.total() for node in stores.values())
    assert home.visible(0) == 6
    assert sum(node.requests.total() for node in stores.values()) - before <= 3


def test_an_idle_tail_asks_the_nodes_less_than_once_a_second(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """A tail asked two nodes four times a second, whether anything came lately or not."""
    clock = SimulatedClock(auto_advance=True)
    writing = quorum(3, 2, store)
    reading = QuorumStorage(store, clock=clock)
    log = Database(writing).log("orders", create=True)
    with log.writer() as writer, Database(reading, clock).log("orders").tail(0) as tail:
        writer.append(b"first")
        assert tail.poll(10) is not None
        assert tail.poll(10) is None, "it asks more often after a block came"
        before = {url: node.requests.total() for url, node in stores.items()}
        assert [tail.poll(1.0) for _ in range(120)] == [None] * 120
        asked = [node.requests.total() - before[url] for url, node in stores.items()]
        assert 40 <= max(asked) <= 124
        writer.append(b"second")
        assert tail.poll(10) is not None
    reading.close()


def test_a_poll_with_nothing_new_costs_at_most_a_request_more_than_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each poll of a second asks two nodes, and besides them an identity or the manifest: never more at once.

    Every half minute one request more: whether the log was deleted, and one of its name was made.
    """
    clock = SimulatedClock(auto_advance=True)
    place = Place(monkeypatch, in_memory())
    with (
        place.process() as writing,
        writing.log("orders", create=True).writer() as writer,
        place.process(clock) as reading,
        reading.log("orders").tail(0) as tail,
    ):
        faults = [bucket.faults for bucket in place.seen.values()]  # of the reader
        writer.append(b"first")
        assert tail.poll(10) is not None
        assert tail.poll(10) is None, "it asks more often after a block came"
        asked = []
        for _ in range(120):
            before = sum(one.calls for one in faults)
            assert tail.poll(1.0) is None
            asked.append(sum(one.calls for one in faults) - before)
        assert sum(count > 2 + 1 for count in asked) <= 120 // 30
        assert max(asked) <= 2 + 2
        assert sum(asked) > 120
        writer.append(b"second")
        assert tail.poll(10) is not None


def test_a_damaged_copy_that_nobody_waits_for_ends_the_segment_early(
    quorum: Cluster,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    store: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes acknowledged a block; then the third finds a damaged copy of it, of the right size. Lists do not show
    that: the writer must remember it, or the segment is never sealed early.
    """
    monkeypatch.setattr("oncelog.storage.quorum.home.SHORT_US", 0)
    storage = quorum(3, 2, store)
    home = home_of(storage)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    block = chain.block(b"a")
    bad = bytearray(chain.made[0])
    bad[-1] ^= 1
    stores["s3://n2"].create(path(home, 0), [bytes(bad)])
    held, real = threading.Event(), nodes["s3://n2"].create

    def create(path: str, data: Sequence[Chunk]) -> bool:
        held.wait(60)
        return real(path, data)

    monkeypatch.setattr(nodes["s3://n2"], "create", create)
    assert writer.append(0, block) == 1
    before = writer.ends_early
    held.set()
    for one in storage.nodes:
        one.catch_up(SYSTEM.elapsed_us() + 60_000_000)
    assert (before, writer.ends_early) == (False, True)
    assert home.at_risk(0, home.fence(0, 2).end)


def test_a_recovery_that_gets_no_further_waits_and_then_gives_up(
    quorum: Cluster,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    store: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One node holds a block and cannot list it; another takes no fence. Recovery looked again at once, for ever."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 1)
    lone = b"".join(bytes(memoryview(piece)) for piece in chain.block(b"lone"))
    stores["s3://n0"].create(path(home, 1), [lone])
    quorum(3, 2, store)
    clock = SimulatedClock(auto_advance=True)
    again = QuorumStorage(store, clock=clock)
    monkeypatch.setattr("oncelog.storage.quorum.node.LATE_S", 60.0)  # however busy the machine is
    lists = mock.Mock(side_effect=Unavailable("no list"))
    began_us = clock.elapsed_us()
    with (
        mock.patch.object(nodes["s3://n0"], "below", lists),
        mock.patch.object(nodes["s3://n1"], "create", mock.Mock(side_effect=Unavailable("no space"))),
        pytest.raises(Unavailable, match="block 1: a node holds it, and does not list it"),
    ):
        again.home("orders").fence(0, 2)
    assert lists.call_count <= registers._LOOKS_MAX + 1
    assert clock.elapsed_us() - began_us >= 1_000_000
    assert again.home("orders").fence(0, 2).blocks == 2
    again.close()


def test_blocks_of_a_closed_segment_are_read_several_at_once(
    quorum: Cluster,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    store: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A takeover of many small blocks does not wait for one answer after the other."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 9)
    until(lambda: len(stores["s3://n0"].below("logs/")) == 9)  # an append waits for two of three nodes
    again = home_of(quorum(3, 2, store))
    end = again.fence(0, 2).end
    together, real = threading.Barrier(4), nodes["s3://n0"].get

    def get(path: str) -> pa.Buffer:
        if not path.endswith("0000000000"):  # the first alone tells how large blocks are
            together.wait(60)
        return real(path)

    monkeypatch.setattr("oncelog.storage.quorum.node.LATE_S", 60.0)
    monkeypatch.setattr(nodes["s3://n0"], "get", get)
    blocks, _ = again.blocks(0, 0, end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made


def test_blocks_that_the_nearest_node_lacks_come_from_the_others(
    quorum: Cluster, stores: dict[str, Bucket], store: MemoryStorage
) -> None:
    """Among blocks that are read at once one is missing on the nearest node, and one is damaged there."""
    home = home_of(quorum(3, 2, store))
    chain = fill(home, 0, 6)
    end = home.fence(0, 2).end
    damage(stores, "s3://n0", path(home, 2))
    stores["s3://n0"].delete(path(home, 3))
    again = home_of(quorum(3, 2, store))
    blocks, _ = again.blocks(0, 0, end, PLENTY)
    assert [block.to_pybytes() for block in blocks] == chain.made
    assert again.at_risk(0, end)


def test_closing_waits_for_the_last_copies(
    quorum: Cluster,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    store: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that appends and ends leaves all copies behind, not only those that its append has waited for."""
    monkeypatch.setattr("oncelog.storage.quorum.home.CATCH_UP_US", 60_000_000)  # however busy the machine is
    storage = quorum(3, 2, store)
    held, real = threading.Event(), nodes["s3://n2"].create

    def create(path: str, data: Sequence[Chunk]) -> bool:
        held.wait(60)
        return real(path, data)

    nodes["s3://n2"].create = create  # type: ignore[method-assign]
    home = home_of(storage)
    home.start_segment(0, 1).append(0, BlockChain(0).block(b"a"))
    threading.Timer(0.05, held.set).start()
    storage.close()
    assert stores["s3://n2"].size(path(home, 0)) is not None


def test_nodes_that_never_answer_are_an_unknown_outcome(
    quorum: Cluster, nodes: dict[str, FaultyBucket], store: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that hangs is told as such: the same bytes are offered again, and nothing else is raised."""
    monkeypatch.setattr(registers, "_ANSWER_S", 0.01)
    writer = home_of(quorum(3, 2, store)).start_segment(0, 1)
    released = threading.Event()
    for node in nodes.values():
        monkeypatch.setattr(node, "create", lambda _path, _data: released.wait(60))
    with pytest.raises(Unavailable) as caught:
        writer.append(0, BlockChain(0).block(b"a"))
    released.set()
    assert caught.value.outcome == "unknown"
