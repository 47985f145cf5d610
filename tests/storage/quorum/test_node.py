"""A node and its lane: how much it is asked, how often after a failure, and how long it is believed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from oncelog.errors import Closed, Unavailable
from oncelog.storage.base import Chunk
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import ensemble, node, registers
from oncelog.storage.quorum.home import QuorumHome, QuorumStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from tests.log.watched import LONG_S, until
from tests.storage.quorum.conftest import Cluster


@pytest.fixture
def clock() -> SimulatedClock:
    """Return a clock that stands still until it is moved."""
    return SimulatedClock()


@pytest.fixture
def storage(quorum: Cluster, clock: SimulatedClock) -> QuorumStorage:
    """Return a quorum of three, two acks, with that clock."""
    store = MemoryStorage(in_flight_max=4)
    quorum(3, 2, store)
    return QuorumStorage(store, clock=clock)


@pytest.fixture
def home(storage: QuorumStorage) -> QuorumHome:
    """Return the home of a log."""
    return storage.home("orders")


def path(home: QuorumHome, number: int) -> str:
    """Return where a register of the first segment is."""
    found = ensemble.read(home.store, 0)
    assert found is not None
    return f"logs/orders/{found.folder}/{number:010d}"


def test_a_node_that_is_far_behind_gets_nothing_more(
    storage: QuorumStorage,
    home: QuorumHome,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for a slow node is in memory. Beyond a limit its copies are left out, and appends go on."""
    monkeypatch.setattr(node, "BACKLOG_BYTES_MAX", 1)
    held, real = threading.Event(), nodes["s3://n2"].create

    def create(path: str, data: Sequence[Chunk]) -> bool:
        held.wait(60)
        return real(path, data)

    monkeypatch.setattr(nodes["s3://n2"], "create", create)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    assert writer.append(0, chain.block(b"waits for the node")) == 1
    assert writer.append(1, chain.block(b"is left out")) == 2
    found = ensemble.read(home.store, 0)
    assert found is not None
    assert home.registers(0, found).is_short
    held.set()
    storage.close()
    assert stores["s3://n2"].size(path(home, 1)) is None


def test_an_append_does_not_wait_for_slow_reads_of_its_process(
    storage: QuorumStorage, home: QuorumHome, nodes: dict[str, FaultyBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has as many slow requests at a node as the node is asked at once, and the append needs that node."""
    monkeypatch.setattr(registers, "_ANSWER_S", LONG_S / 2)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    nodes["s3://n2"].cut_off()
    held = threading.Event()
    reads = [storage.nodes[0].ask(lambda: held.wait(LONG_S)) for _ in range(2 * node.LANE_REQUESTS)]
    assert writer.append(0, chain.block(b"is not behind the reads")) == 1
    assert not any(read.done() for read in reads)
    held.set()
    assert all(read.result(LONG_S) for read in reads)
    storage.close()


def test_appends_that_closing_cancels_are_answered_and_no_backlog(storage: QuorumStorage) -> None:
    """Appends wait behind others for their turn when the connection is closed. Nobody waits for them after that."""
    one, held = storage.nodes[0], threading.Event()
    answers: list[object] = []
    for _ in range(node.LANE_REQUESTS + 2):
        one.ask_aside(lambda: held.wait(LONG_S), answers.append, 10)
    one.close()
    assert [type(answer) for answer in answers] == [Closed] * 2
    held.set()
    until(lambda: len(answers) == node.LANE_REQUESTS + 2)
    assert one._backlog_bytes == 0
    storage.close()


def test_a_node_that_failed_is_left_alone_for_a_second(
    storage: QuorumStorage, home: QuorumHome, nodes: dict[str, FaultyBucket], clock: SimulatedClock
) -> None:
    """A node that is away costs a request a second, and not one an append."""
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    (away,) = [one for one in storage.nodes if one.name == "n1"]
    nodes["s3://n1"].cut_off()
    asked = []
    for number in range(6):
        if number == 3:
            clock.advance(node.REST_US / 1e6)
        writer.append(number, chain.block(b"x"))
        until(lambda: away.rests)  # the others were quicker
        asked.append(nodes["s3://n1"].faults.calls)
    assert asked[1:3] == asked[:1] * 2
    storage.close()
    assert nodes["s3://n1"].faults.calls == asked[0] + 1


def test_a_writer_believes_a_node_for_five_seconds(
    home: QuorumHome,
    storage: QuorumStorage,
    stores: dict[str, Bucket],
    nodes: dict[str, FaultyBucket],
    clock: SimulatedClock,
) -> None:
    """A node was wiped. Its copies are counted until the next check of its identity, and not longer."""
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"all nodes are checked"))
    until(lambda: not any(one.unchecked_us for one in storage.nodes))  # an append waits for two of three nodes
    nodes["s3://n1"].cut_off()
    for wiped, _ in stores["s3://n0"].below(""):
        stores["s3://n0"].delete(wiped)
    clock.advance(node.IDENTITY_US / 1e6)
    writer.append(1, chain.block(b"counted"))
    clock.advance(1.0)
    with pytest.raises(Unavailable, match="2 nodes do not answer") as caught:
        writer.append(2, chain.block(b"not counted"))
    assert caught.value.outcome == "unknown"
    assert "is not the one that was formatted" in str(storage.nodes[0].trouble)
    storage.close()
