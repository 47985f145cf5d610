"""What recovery makes of a file that is torn, damaged or full of somebody else's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from oncelog.errors import CorruptionError
from oncelog.storage.base import Chunk
from oncelog.storage.local.home import LocalHome, LocalStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.writing import read_all

HOME = Path("/data/logs/orders")
FILE = HOME / "segments" / f"{0:020d}.blocks"
PUBLISHED = HOME / "published"


class Scene:
    """A segment whose writer died after a few blocks, on a disk that can be tampered with."""

    def __init__(self, *blocks: Sequence[Chunk]) -> None:
        self.disk = SimulatedDisk()
        home = self.open()
        self.claim = home.claim(0, force=False)
        writer = home.start_segment(0, 1)
        for number, block in enumerate(blocks):
            writer.append(number, block)
        self.content = bytes(self.disk.content(FILE))

    def open(self) -> LocalHome:
        """Open the log as a process does that was just started."""
        return LocalStorage(Path("/data"), self.disk).home("orders")

    def reopen(self, content: bytes, *, published: bool) -> LocalHome:
        """Start the machine again with another content of the file, and claim the log."""
        self.disk.power_cut("all")
        self.disk.put(FILE, content)
        if not published:
            self.disk.put(PUBLISHED, bytes(4096))
        home = self.open()
        self.claim = home.claim(0, force=False)
        return home


def test_a_tail_torn_at_every_byte() -> None:
    """However much of the last block is there, it is cut off and kept aside; all of it, and it counts."""
    chain = BlockChain(0)
    blocks = [chain.block(b"one", b"two"), chain.block(b"three")]
    kept = sum(map(len, chain.made))
    chain.block(b"four" * 20)
    last = chain.made[2]
    scene = Scene(*blocks)
    for length in range(len(last) + 1):
        home = scene.reopen(scene.content[:kept] + last[:length] + scene.content[kept + length :], published=True)
        tail = home.fence(0, 2)
        if length >= len(last.rstrip(b"\0")):
            # What is missing are zeros, and zeros are there.
            assert (tail.blocks, tail.torn_bytes) == (3, 0)
            continue
        torn = last[:length].rstrip(b"\0")
        assert (tail.blocks, tail.entries, tail.end, tail.torn_bytes) == (2, 3, kept, len(torn))
        assert home.fence(0, 2) == tail
        assert read_all(home, 0, tail.end) == chain.made[:2]
        assert bytes(scene.disk.content(FILE)[kept:]).strip(b"\0") == b""
        if torn:
            aside = HOME / "torn" / f"{0:020d}-{kept}.bin"
            assert scene.disk.content(aside) == torn
            scene.disk.unlink(aside)


def test_every_byte_of_every_block_flipped() -> None:
    """Damage to what was acknowledged is an error that names file and place: no shorter log, no wrong records."""
    chain = BlockChain(0)
    scene = Scene(chain.block(b"one"), chain.block(b"two", b"three"), chain.block(b"four"))
    for offset in range(chain.end_bytes):
        damaged = bytearray(scene.content)
        damaged[offset] ^= 0x10
        home = scene.reopen(bytes(damaged), published=True)
        with pytest.raises(CorruptionError, match=f"{FILE}.*offset"):
            home.fence(0, 2)
        visible = read_all(home, 0, None)
        assert visible == chain.made[: len(visible)]


def test_damage_before_whole_blocks_is_no_torn_tail() -> None:
    """Even if nobody remembers how far readers were let, a whole block behind the damage tells."""
    chain = BlockChain(0)
    scene = Scene(chain.block(b"one"), chain.block(b"two", b"three"), chain.block(b"four"))
    for offset in range(0, chain.end_bytes - len(chain.made[2]), 7):
        damaged = bytearray(scene.content)
        damaged[offset] ^= 0x10
        home = scene.reopen(bytes(damaged), published=False)
        with pytest.raises(CorruptionError, match=f"{FILE}.*offset"):
            home.fence(0, 2)


def test_a_hole_before_whole_blocks_is_no_torn_tail() -> None:
    """A sector of zeros in the midst of a segment is damage too."""
    chain = BlockChain(0)
    scene = Scene(*(chain.block(b"x" * 1500) for _ in range(4)))
    damaged = scene.content[:1024] + bytes(1024) + scene.content[2048:]
    with pytest.raises(CorruptionError):
        scene.reopen(damaged, published=False).fence(0, 2)


def test_a_torn_block_may_hold_a_copy_of_a_block() -> None:
    """A value that is itself a block of a segment of that number does not pass for one behind the damage."""
    other = BlockChain(0)
    for _ in range(3):
        other.block(b"backup")
    chain = BlockChain(0)
    scene = Scene(chain.block(b"one"))
    kept = chain.end_bytes
    chain.block(*(bytes(shift) + other.made[2] for shift in range(64)))
    torn = chain.made[1][:-1000]
    home = scene.reopen(scene.content[:kept] + torn + bytes(65536), published=True)
    tail = home.fence(0, 2)
    assert (tail.blocks, tail.end) == (1, kept)


def test_blocks_of_another_segment_are_empty_space() -> None:
    """A file that was used before is as good as one full of zeros."""
    old = BlockChain(7)
    for _ in range(5):
        old.block(b"old" * 100)
    chain = BlockChain(0)
    scene = Scene(chain.block(b"one"))
    home = scene.reopen(b"".join(old.made) + bytes(4096), published=False)
    assert home.fence(0, 2).blocks == 0
    home = scene.reopen(chain.made[0] + b"".join(old.made[1:]) + bytes(4096), published=False)
    for _ in range(2):
        tail = home.fence(0, 2)
        assert (tail.blocks, tail.torn_bytes) == (1, 0)


def test_closed_segments_are_checked_up_to_their_end() -> None:
    """What does not frame up to exactly the end that was recorded is damage, with its place."""
    chain = BlockChain(0)
    scene = Scene(*(chain.block(b"x" * 300) for _ in range(5)))
    size = len(chain.made[0])
    cut = scene.reopen(scene.content[: 2 * size] + bytes(len(scene.content) - 2 * size), published=False)
    assert len(cut.blocks(0, 0, chain.end_bytes, 1 << 20)[0]) == 2
    with pytest.raises(CorruptionError, match=f"{FILE}.*offset {2 * size}"):
        cut.blocks(0, 2 * size, chain.end_bytes, 1 << 20)
    with pytest.raises(CorruptionError, match=f"{FILE}.*offset {2 * size}"):
        cut.locate(0, 4, chain.end_bytes)
    whole = scene.reopen(scene.content, published=False)
    with pytest.raises(CorruptionError, match=f"{FILE}"):
        whole.blocks(0, 4 * size, chain.end_bytes - 64, 1 << 20)
    with pytest.raises(CorruptionError, match=f"{FILE}"):
        whole.blocks(0, 0, 1 << 40, 1 << 20)
    with pytest.raises(CorruptionError, match=f"{FILE}.*offset 64"):
        whole.blocks(0, 64, chain.end_bytes, 1 << 20)
