"""What is particular to a home in memory: names that share it, force, and several blocks in flight."""

from __future__ import annotations

import pytest

from oncelog.errors import WriterFenced
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.writing import fill, read_all


def test_a_name_is_shared_within_the_process() -> None:
    """The same name is the same storage; no name is a new one every time."""
    MemoryStorage.named("test_memory").home("orders").create("x", [b"shared"])
    again = MemoryStorage.named("test_memory")
    assert again.url == "memory://test_memory"
    assert again.home("orders").read("x").to_pybytes() == b"shared"
    assert MemoryStorage.named("").homes() == []
    again.remove_home("orders")


def test_a_forced_holder_is_stopped_by_the_fence() -> None:
    """Who lost the log by force keeps writing until the fence, and never after it."""
    home = MemoryStorage().home("orders")
    home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"one"))
    home.claim(0, force=True)
    writer.append(1, chain.block(b"two"))
    assert home.fence(0, 2).blocks == 2
    with pytest.raises(WriterFenced) as caught:
        writer.append(2, chain.block(b"three"))
    assert caught.value.outcome == "unknown"
    with pytest.raises(WriterFenced):
        home.start_segment(0, 1).append(2, chain.block(b"four"))


def test_blocks_behind_a_gap_are_not_visible_and_lost_to_a_fence() -> None:
    """A block whose predecessor is on its way is shown only behind it, and is not in the tail."""
    home = MemoryStorage(in_flight_max=3).home("orders")
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    blocks = [chain.block(b"v%d" % number) for number in range(3)]
    writer.append(2, blocks[2])
    writer.append(0, blocks[0])
    assert read_all(home, 0, None) == chain.made[:1]
    assert home.fence(0, 2).blocks == 1
    with pytest.raises(WriterFenced):
        writer.append(1, blocks[1])
    assert read_all(home, 0, None) == chain.made[:1]


def test_a_number_that_is_taken_by_other_bytes() -> None:
    """The same number with other bytes is another writer's block, not a retry."""
    home = MemoryStorage().home("orders")
    writer = home.start_segment(0, 1)
    writer.append(0, BlockChain(0).block(b"mine"))
    with pytest.raises(WriterFenced):
        writer.append(0, BlockChain(0).block(b"not mine"))


def test_a_removed_home_stops_its_writer() -> None:
    """What is appended after a home was removed does not turn up in the one made in its place."""
    storage = MemoryStorage()
    home = storage.home("orders")
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"one"))
    storage.remove_home("orders")
    with pytest.raises(WriterFenced):
        writer.append(1, chain.block(b"two"))
    fresh = fill(home, 0, 1)
    assert read_all(home, 0, None) == fresh.made
