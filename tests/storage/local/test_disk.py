"""A large file is written past the system's cache, where that can be done, and is whole either way."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import oncelog
from oncelog.errors import Unavailable
from oncelog.format.output import output
from oncelog.storage.local.disk import PAST_CACHE_BYTES_MIN, RealDisk
from oncelog.storage.local.home import LocalStorage

PATTERN = bytes(range(251)) * 4096
"""No page of it is like another that is near."""


def made(size_bytes: int) -> pa.Buffer:
    """Return so many bytes at the start of a page."""
    sink = output()
    for start in range(0, size_bytes, len(PATTERN)):
        sink.write(PATTERN[: size_bytes - start])
    return sink.getvalue()


@pytest.mark.parametrize("more", [-1, 0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE, 3 * PAST_CACHE_BYTES_MIN])
def test_all_of_it_is_there(tmp_path: Path, more: int) -> None:
    """Whole pages or not, around the size from which it is done."""
    home = LocalStorage(tmp_path).home("orders")
    data = made(PAST_CACHE_BYTES_MIN + more)
    assert home.create("large", [data])
    assert home.read("large").equals(data)
    assert home.create("pieces", [data.slice(0, 5), data.slice(5)])
    assert home.read("pieces").equals(data)


def test_memory_that_does_not_begin_with_a_page(tmp_path: Path) -> None:
    """It is written as any other."""
    home = LocalStorage(tmp_path).home("orders")
    data = made(PAST_CACHE_BYTES_MIN + 64).slice(64)
    assert home.create("large", [data])
    assert home.read("large").equals(data)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="a system that cannot write past its cache")
def test_the_cache_is_left_to_others(tmp_path: Path) -> None:
    """Nothing of a large file is in the system's memory when it is written but its last bytes, which fill no page."""
    if not writes_past_cache(tmp_path):
        pytest.skip("a file system that has nothing but its cache")
    disk = RealDisk()
    descriptor = disk.open(tmp_path / "large", create=True)
    disk.write_whole(descriptor, [made(PAST_CACHE_BYTES_MIN + 10)])
    assert cached_pages(disk, descriptor) <= 1
    disk.write(descriptor, [bytes(PAST_CACHE_BYTES_MIN)], 0)
    assert cached_pages(disk, descriptor) > PAST_CACHE_BYTES_MIN // mmap.PAGESIZE // 2
    disk.close(descriptor)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
@pytest.mark.parametrize("at", [0, 2])
def test_a_file_system_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, at: int) -> None:
    """What it does not take is written through the cache, from where it was."""
    refuse(monkeypatch, number, at)
    home = LocalStorage(tmp_path).home("orders")
    data = made(4 * PAST_CACHE_BYTES_MIN + 7)
    assert home.create("large", [data])
    assert home.read("large").equals(data)


def test_a_file_system_that_does_not_know_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is written through the cache."""
    real = fcntl.fcntl

    def refusing(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    home = LocalStorage(tmp_path).home("orders")
    data = made(PAST_CACHE_BYTES_MIN + 7)
    assert home.create("large", [data])
    assert home.read("large").equals(data)


def test_a_disk_that_takes_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given the rest, be it of whole pages or not."""
    real = os.pwrite
    portions = iter([mmap.PAGESIZE, 3 * mmap.PAGESIZE, 1000])

    def stingy(descriptor: int, data: memoryview, offset: int) -> int:
        portion = next(portions, None)
        if portion == 1000:  # as a disk that is nearly full may do it; what follows is not at the start of a page
            with Path(f"/proc/self/fd/{descriptor}").open("r+b", buffering=0) as opened_as_any_other:
                return os.pwritev(opened_as_any_other.fileno(), [data[:portion]], offset)
        return real(descriptor, data[:portion], offset)

    monkeypatch.setattr(os, "pwrite", stingy)
    home = LocalStorage(tmp_path).home("orders")
    data = made(PAST_CACHE_BYTES_MIN + 7)
    assert home.create("large", [data])
    assert home.read("large").equals(data)
    assert hasattr(os, "O_DIRECT") is (next(portions, None) is None)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="a system that cannot write past its cache")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is told, and not tried in another way; nothing is left of it."""
    refuse(monkeypatch, number, 1)
    home = LocalStorage(tmp_path).home("orders")
    with pytest.raises(Unavailable) as caught:
        home.create("large", [made(2 * PAST_CACHE_BYTES_MIN)])
    assert caught.value.outcome == "not written"
    assert not home.exists("large")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, at: int) -> None:
    """Let writes past the cache fail from the one with this number on."""
    real = os.pwrite
    calls = iter(range(100))

    def refusing(descriptor: int, data: memoryview, offset: int) -> int:
        if next(calls) >= at:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)


def test_no_room_for_all_of_it(tmp_path: Path) -> None:
    """Nothing is there, nothing is left lying about, and with room it is written."""
    home = LocalStorage(tmp_path).home("orders")
    data = made(2 * PAST_CACHE_BYTES_MIN)
    with files_up_to(PAST_CACHE_BYTES_MIN + 1000), pytest.raises(Unavailable) as caught:
        home.create("large", [data])
    assert caught.value.outcome == "not written"
    assert not home.exists("large")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert home.create("large", [data])
    assert home.read("large").equals(data)


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def writes_past_cache(folder: Path) -> bool:
    """Tell whether a file system does that at all."""
    disk = RealDisk()
    path = folder / "probe"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    except OSError:
        return False
    try:
        os.pwrite(descriptor, memoryview(made(mmap.PAGESIZE)), 0)
        return cached_pages(disk, descriptor) == 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def cached_pages(disk: RealDisk, descriptor: int) -> int:
    """Return how many pages of a file the system has in memory."""
    shown = disk.map(descriptor, disk.size(descriptor))
    pages = -(-shown.size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(shown.address), ctypes.c_size_t(shown.size), flags) == 0
    return sum(flag & 1 for flag in flags)


def test_a_system_that_takes_no_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the device is to begin early is a hint: where it is refused, appends are stored all the same."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        assert writer.append(b"paid", id="1").position == 0
        assert writer.append(b"paid", id="1").duplicate
