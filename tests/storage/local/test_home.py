"""What is particular to a home on a local disk: full, read-only, forbidden, in the way, and filled ahead."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.errors import InvalidArgument, NotFound, OncelogError, Unavailable
from oncelog.storage.local.disk import RealDisk, explain
from oncelog.storage.local.filler import STEP_BYTES_MIN
from oncelog.storage.local.home import LocalHome, LocalStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.writing import Writing, fill, read_all, seal

ROOT = Path("/data")


def test_nothing_is_made_before_the_first_create(tmp_path: Path) -> None:
    """Looking at a log that is not there leaves no trace of the look."""
    storage = LocalStorage(tmp_path / "shop")
    home = storage.home("orders")
    assert (home.exists("x"), home.list(""), storage.homes()) == (False, [], [])
    home.blocks(0, 0, None, 1)
    home.delete("x")
    home.remove_segment(0)
    assert list(tmp_path.iterdir()) == []


def test_the_layout(tmp_path: Path) -> None:
    """Files are where the documentation says, and nothing else is left lying about."""
    home = LocalStorage(tmp_path).home("orders")
    home.create("manifest/1", [b"x"])
    fill(home, 3, 1)
    folder = tmp_path / "logs" / "orders"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"manifest/1", f"segments/{3:020d}.blocks", "lock", "published"}
    assert home.list("") == ["manifest/1"]


@pytest.mark.parametrize("key", ["lock", "published", "torn/x", "temporary/x", "segments/1.blocks"])
def test_names_of_the_home_itself_are_kept(tmp_path: Path, key: str) -> None:
    """No object takes the place of a lock or a segment."""
    with pytest.raises(InvalidArgument, match="own files"):
        LocalStorage(tmp_path).home("orders").create(key, [b"x"])


def test_a_full_disk_and_room_again() -> None:
    """A full disk hurts nothing that was acknowledged, and appends go on when there is room."""
    disk = SimulatedDisk(size_bytes_max=400_000)
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        number, block = 0, writing.chain.block(b"x" * 20_000)
        while disk.used_bytes() + len(writing.chain.made[-1]) < 400_000:
            writing.writer.append(number, block)
            number, block = number + 1, writing.chain.block(b"x" * 20_000)
        with pytest.raises(Unavailable, match="disk full") as full:
            writing.writer.append(number, block)
        assert full.value.outcome == "unknown"
        assert 10 < number < 100
        assert read_all(home, 0, None) == writing.chain.made[:-1]
        with pytest.raises(Unavailable, match="disk full"):
            home.create("manifest/1", [b"x" * 500_000])
        assert not home.exists("manifest/1")
        with pytest.raises(Unavailable):
            writing.writer.append(number, block)
        disk.free(1_000_000)
        writing.writer.append(number, block)
        assert home.create("manifest/1", [b"x" * 500_000])
        writing.append(b"more")
        assert read_all(home, 0, None) == writing.chain.made
    assert seal(home, 0).torn_bytes == 0


def test_a_full_disk_is_no_matter_to_what_fills_ahead() -> None:
    """When there is room for a block and none for zeros ahead of it, the block is stored."""
    disk = SimulatedDisk(size_bytes_max=12_000_000)
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        stored = 0
        with contextlib.suppress(Unavailable):
            while stored < 40:
                writing.append(b"x" * 700_000)
                stored += 1
        assert 12 <= stored < 40
        assert read_all(home, 0, None) == writing.chain.made[:-1]
    assert seal(home, 0).blocks == stored


def test_a_read_only_disk() -> None:
    """It is told as such, what is there can be read, and appends go on when it can be written again."""
    disk = SimulatedDisk()
    home = LocalStorage(ROOT, disk).home("orders")
    with Writing(home, 0) as writing:
        writing.append(b"one")
        disk.read_only = True
        block = writing.chain.block(b"two")
        with pytest.raises(Unavailable, match="read-only"):
            writing.writer.append(1, block)
        with pytest.raises(Unavailable, match="read-only"):
            home.create("x", [b""])
        assert read_all(home, 0, None) == writing.chain.made[:1]
        disk.read_only = False
        writing.writer.append(1, block)
    disk.read_only = True
    assert read_all(LocalStorage(ROOT, disk).home("orders"), 0, None) == writing.chain.made
    with pytest.raises(Unavailable, match="read-only"):
        LocalStorage(ROOT, disk).home("orders").claim(0, force=False)


OPERATIONS: list[Callable[[LocalHome], object]] = [
    lambda home: home.create("manifest/1", [b"x"]),
    lambda home: home.read("manifest/0"),
    lambda home: home.exists("manifest/0"),
    lambda home: home.list(""),
    lambda home: home.delete("manifest/0"),
    lambda home: home.claim(0, force=False),
    lambda home: home.blocks(0, 0, None, 1),
    lambda home: home.blocks(0, 0, 64, 1),
    lambda home: home.locate(0, 0, 64),
    lambda home: home.remove_segment(0),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_permission_denied(operation: Callable[[LocalHome], object]) -> None:
    """Anybody who may not read or write there learns where, and what to do about it."""
    disk = SimulatedDisk()
    home = LocalStorage(ROOT, disk).home("orders")
    home.create("manifest/0", [b"x"])
    fill(home, 0, 1)
    forbidden = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    disk.faults.fail_forever(lambda _, path: forbidden if path.startswith("/data/logs/orders/") else None)
    with pytest.raises(InvalidArgument, match=r"/data/logs/orders.*permission denied"):
        operation(home)


@pytest.mark.parametrize("place", ["", "logs", "logs/orders"])
@pytest.mark.parametrize("operation", OPERATIONS[:6])
def test_a_file_where_a_folder_should_be(tmp_path: Path, place: str, operation: Callable[[LocalHome], object]) -> None:
    """A file in the way is named, and left alone."""
    blocking = tmp_path / "shop" / place
    blocking.parent.mkdir(parents=True, exist_ok=True)
    blocking.write_bytes(b"somebody's")
    with pytest.raises(InvalidArgument, match=f"{tmp_path}.*file where a folder should be"):
        operation(LocalStorage(tmp_path / "shop").home("orders"))
    assert blocking.read_bytes() == b"somebody's"


def test_homes_of_a_root_that_is_a_file(tmp_path: Path) -> None:
    """Listing logs in a file says what is wrong."""
    (tmp_path / "shop").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="file where a folder should be"):
        LocalStorage(tmp_path / "shop").homes()


@pytest.mark.parametrize("key", ["..", ".", "", "a/b", "x" * 300, "a b"])
def test_bad_names_of_homes(tmp_path: Path, key: str) -> None:
    """A home's key is one part of a path that the file system takes."""
    with pytest.raises(InvalidArgument):
        LocalStorage(tmp_path).home(key).create("x", [b""])


@pytest.mark.parametrize(
    ("number", "expected", "advice"),
    [
        (errno.ENOSPC, Unavailable, "free space"),
        (errno.EDQUOT, Unavailable, "quota"),
        (errno.EROFS, Unavailable, "writable"),
        (errno.EIO, Unavailable, "health"),
        (errno.EMFILE, Unavailable, "ulimit"),
        (errno.EACCES, InvalidArgument, "right to read and write"),
        (errno.ENOTDIR, InvalidArgument, "move it away"),
        (errno.ENOENT, NotFound, "not there"),
        (errno.EBUSY, Unavailable, "busy"),
    ],
)
def test_errors_say_what_to_do(number: int, expected: type[OncelogError], advice: str) -> None:
    """Each error of the system becomes the one that its catcher can act on, with the path."""
    told = explain(OSError(number, os.strerror(number)), Path("/data/x"))
    assert type(told) is expected
    assert "/data/x" in str(told)
    assert advice in str(told)
    unknown = explain(OSError(number, os.strerror(number)), Path("/data/x"), "unknown")
    assert isinstance(unknown, Unavailable)
    assert unknown.outcome == "unknown"


def test_segments_are_filled_with_zeros_ahead(tmp_path: Path) -> None:
    """A file is longer than its blocks: small ones a little, large ones by what a thread has filled; none is harmed."""
    home = LocalStorage(tmp_path).home("orders")
    path = tmp_path / "logs" / "orders" / "segments" / f"{0:020d}.blocks"
    with Writing(home, 0) as writing:
        assert path.stat().st_size == STEP_BYTES_MIN
        for number in range(24):
            writing.append(os.urandom(10), bytes([number]) * 500_000)
        assert read_all(home, 0, None) == writing.chain.made
        writing.writer.close()
        assert read_all(home, 0, None) == writing.chain.made
    tail = seal(home, 0)
    assert (tail.blocks, tail.torn_bytes, tail.end) == (24, 0, writing.chain.end_bytes)
    assert path.stat().st_size > tail.end


def test_a_segment_is_started_once(tmp_path: Path) -> None:
    """A segment that has blocks is not begun again; one whose start was cut short is."""
    home = LocalStorage(tmp_path).home("orders")
    chain = fill(home, 0, 2)
    claim = home.claim(0, force=False)
    with pytest.raises(InvalidArgument, match="started before"):
        home.start_segment(0, 2)
    home.start_segment(1, 2).close()
    writer = home.start_segment(1, 2)
    writer.append(0, BlockChain(1).block(b"x"))
    writer.close()
    claim.release()
    assert read_all(home, 0, None) == chain.made


def test_short_writes_and_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the system divides a write, all of it is written, in order."""
    disk = RealDisk()
    pieces = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    real = os.pwritev

    def stingy(descriptor: int, views: list[memoryview], offset: int) -> int:
        if len(views) > 1024:
            raise OSError(errno.EINVAL, "as the system refuses more at once")
        return real(descriptor, [views[0][:2]] if len(views[0]) else views[:2], offset)

    for write in (real, stingy):
        monkeypatch.setattr(os, "pwritev", write)
        descriptor = disk.open(tmp_path / write.__name__, create=True)
        disk.write(descriptor, pieces, 10)
        disk.write(descriptor, pieces[:50], 0)
        disk.close(descriptor)
        content = (tmp_path / write.__name__).read_bytes()
        start = b"".join(pieces[:50])
        assert content == start + (bytes(10) + b"".join(pieces))[len(start) :]


def test_a_home_removed_by_another_is_made_again(tmp_path: Path) -> None:
    """A storage that knew the folders of a home is not led astray when another one removes them."""
    mine, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    home = mine.home("orders")
    home.create("manifest/1", [b"old"])
    chain = fill(home, 0, 3)
    assert read_all(home, 0, None) == chain.made
    other.remove_home("orders")
    assert home.create("manifest/1", [b"new"])
    assert read_all(home, 0, None) == []
    assert [path.name for path in (tmp_path / "removed").iterdir()] == []
    with Writing(other.home("orders"), 0) as writing:
        for _ in range(3):
            writing.append(b"of the log that took its place")
        assert read_all(home, 0, None) == writing.chain.made


def test_buffers_outlive_the_home(tmp_path: Path) -> None:
    """Blocks and objects that were read stay valid when everything they came from is gone."""
    storage = LocalStorage(tmp_path)
    home = storage.home("orders")
    home.create("large", [b"y" * 200_000])
    chain = fill(home, 0, 5)
    blocks, _ = home.blocks(0, 0, None, 1 << 20)
    large = home.read("large", 5, 150_000)
    storage.remove_home("orders")
    storage.close()
    assert [block.to_pybytes() for block in blocks] == chain.made
    assert large.to_pybytes() == b"y" * 150_000


def test_held_buffers_hold_no_descriptors(tmp_path: Path) -> None:
    """A reader may hold on to more segments than a process may have files open."""
    home = LocalStorage(tmp_path).home("orders")
    before = len(list(Path("/dev/fd").iterdir()))
    chains = [fill(home, segment, 1) for segment in range(40)]
    held = [home.blocks(segment, 0, None, 1)[0][0] for segment in range(40)]
    assert len(list(Path("/dev/fd").iterdir())) <= before
    assert [block.to_pybytes() for block in held] == [chain.made[0] for chain in chains]


def test_an_object_in_the_place_of_a_folder(tmp_path: Path) -> None:
    """A file system cannot hold an object and others below it; anybody who asks for that gets an error."""
    home = LocalStorage(tmp_path).home("orders")
    home.create("a/b", [b"x"])
    with pytest.raises(InvalidArgument, match="folder where a file should be"):
        home.create("a", [b"x"])
    with pytest.raises(InvalidArgument, match="file where a folder should be"):
        home.create("a/b/c", [b"x"])
