"""How far readers go in an open segment, whatever happens to the file that tells them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.errors import Unavailable
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.local.published import Publisher, boot_of, read_published
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed
from oncelog.testing.writing import Writing, read_all

ROOT = Path("/data")
FILE = ROOT / "logs" / "orders" / "published"


def test_every_byte_of_the_file_damaged() -> None:
    """Damage hides blocks at worst, until the next append; it never shows what is not there."""
    disk = SimulatedDisk()
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        for _ in range(3):
            writing.append(b"value")
        for offset in [*range(48), *range(2040, 2096), 4095]:
            for mask in (0x01, 0x80, 0xFF):
                damaged = disk.content(FILE)
                damaged[offset] ^= mask
                disk.put(FILE, damaged)
                visible = read_all(home, 0, None)
                assert visible == writing.chain.made[: len(visible)]
                assert len(visible) >= len(writing.chain.made) - 1
                damaged[offset] ^= mask
                disk.put(FILE, damaged)
        writing.append(b"after")
        assert read_all(home, 0, None) == writing.chain.made


@pytest.mark.parametrize("content", [b"\0" * 4096, b"\xff" * 4096, bytes(range(256)) * 16])
def test_the_file_is_lost(content: bytes) -> None:
    """Without it nothing of an open segment is shown, and the next append puts it right."""
    disk = SimulatedDisk()
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        writing.append(b"before")
        disk.put(FILE, content)
        assert read_all(home, 0, None) == []
        writing.append(b"after")
        assert read_all(home, 0, None) == writing.chain.made


@pytest.mark.parametrize("published_before", [1, 2, 3])
def test_a_slot_that_is_torn_leaves_the_other_whatever_a_power_cut_takes(published_before: int) -> None:
    """Readers find a slot after every power cut: without one, acknowledged records would be hidden from them."""
    for seed in range(100):
        disk = SimulatedDisk()
        for folder in reversed([FILE.parent, *FILE.parent.parents[:-1]]):
            disk.make_directory(folder)
            disk.sync_directory(folder.parent)
        publisher = Publisher(disk, FILE)
        publisher.begin(0, 0, 0)
        for number in range(1, published_before + 1):
            publisher.publish(0, 100 * number, number)
        disk.faults.kill_at(1, "during")
        with pytest.raises(Killed):
            publisher.publish(0, 1000, 10)
        disk.power_cut("some", seed)
        assert read_published(disk, FILE), f"no slot is left, seed {seed}"


def test_a_block_that_is_not_synced_is_not_visible() -> None:
    """A whole block in the page cache, not yet durable, is not shown to anybody."""
    disk = SimulatedDisk()
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        writing.append(b"durable")
        disk.faults.fail_forever(lambda operation, _: OSError(errno.EIO, "no") if operation == "sync" else None)
        with pytest.raises(Unavailable):
            writing.append(b"not durable")
        assert writing.chain.made[1] in bytes(disk.content(ROOT / "logs/orders/segments" / f"{0:020d}.blocks"))
        assert read_all(home, 0, None) == writing.chain.made[:1]
        disk.faults.heal()


def test_after_a_start_of_the_machine_whole_blocks_are_visible() -> None:
    """What is in the file then is on disk: readers need not wait for a writer to tell them."""
    disk = SimulatedDisk()
    with Writing(LocalStorage(ROOT, disk).home("orders"), 0) as writing:
        for _ in range(3):
            writing.append(b"value")
    disk.power_cut("none")
    home = LocalStorage(ROOT, disk).home("orders")
    assert read_all(home, 0, None) == writing.chain.made
    assert home.locate(0, 2, None) == sum(map(len, writing.chain.made[:2]))


def test_the_furthest_slot_of_this_start_counts() -> None:
    """Slots are written in turn, and one of an earlier start of the machine does not outlive the first of this one."""
    disk = SimulatedDisk()
    folder = Path("/published")
    disk.make_directory(folder)
    publisher = Publisher(disk, folder / "file")
    publisher.begin(0, 0, 0)
    for end in range(1, 6):
        publisher.publish(0, end, end)
        assert [slot.end for slot in read_published(disk, folder / "file")] == [end - 1, end]
    disk.power_cut("all")
    assert [slot.end for slot in read_published(disk, folder / "file")] == [4, 5]
    Publisher(disk, folder / "file").begin(0, 5, 5)
    slots = read_published(disk, folder / "file")
    assert [slot.end for slot in slots] == [5, 5]
    assert {slot.boot for slot in slots} == {boot_of(disk)}
