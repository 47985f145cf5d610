"""One writer on a local disk: between processes, between openings in one process, and across a fork."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.errors import LogBusy, WriterFenced
from oncelog.storage.base import Claim
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.writing import fill

HOLDER = """
import sys, pathlib
from oncelog.storage.local.home import LocalStorage
claim = LocalStorage(pathlib.Path(sys.argv[1])).home("orders").claim(0, force=False)
print("held", flush=True)
sys.stdin.read()
"""

FORKER = """
import os, sys, pathlib
from oncelog.errors import Closed
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.blocks import BlockChain
home = LocalStorage(pathlib.Path(sys.argv[1])).home("orders")
claim = home.claim(0, force=False)
writer, chain = home.start_segment(0, 1), BlockChain(0)
told, tell = os.pipe()
done, finish = os.pipe()
if os.fork() == 0:
    os.close(finish)
    try:
        writer.append(0, chain.block(b"by the child"))
    except Closed:
        os.write(tell, b"closed")
    claim.release()
    writer.close()
    os.read(done, 1)
    os._exit(0)
os.close(done)
print(os.read(told, 10).decode())
writer.append(0, chain.block(b"by the parent"))
claim.release()
LocalStorage(pathlib.Path(sys.argv[1])).home("orders").claim(0, force=False).release()
print("free while the child lives")
os.close(finish)
os.wait()
"""

WRITER = """
import sys, pathlib
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.blocks import BlockChain
home = LocalStorage(pathlib.Path(sys.argv[1])).home("orders")
claim = home.claim(0, force=False)
writer, chain = home.start_segment(0, 1), BlockChain(0)
for number, line in enumerate(sys.stdin.buffer):
    writer.append(number, chain.block(line))
"""


def start(script: str, root: Path) -> subprocess.Popen[bytes]:
    """Start a Python process that works on a root."""
    command = [sys.executable, "-c", script, str(root)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_two_processes(tmp_path: Path) -> None:
    """A log that another process holds is busy, by its id, forced or not, and free when that process has ended."""
    home = LocalStorage(tmp_path).home("orders")
    with start(HOLDER, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        for force in (False, True):
            with pytest.raises(LogBusy, match=str(tmp_path)) as caught:
                home.claim(0.02, force=force)
            assert caught.value.pid == holder.pid
        holder.stdin.close()
        home.claim(60, force=False).release()
        holder.wait()


def test_two_openings_in_one_process(tmp_path: Path) -> None:
    """Two storages on one path exclude each other, as two processes do."""
    claim = LocalStorage(tmp_path).home("orders").claim(0, force=False)
    other = LocalStorage(tmp_path).home("orders")
    with pytest.raises(LogBusy):
        other.claim(0, force=False)
    claim.release()
    other.claim(0, force=False).release()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A child cannot write with its parent's handle, cannot give its lock back, and does not keep it."""
    with start(FORKER, tmp_path) as forker:
        assert forker.stdout is not None
        assert forker.stdout.read() == b"closed\nfree while the child lives\n"
    assert forker.returncode == 0


def test_a_reader_hears_a_writer_in_another_process(tmp_path: Path) -> None:
    """Blocks that another process appends end a wait, and are read from the same file."""
    home = LocalStorage(tmp_path).home("orders")
    with start(WRITER, tmp_path) as writer:
        assert writer.stdin is not None
        cursor = 0
        for line in (b"one\n", b"two\n", b"three\n"):
            writer.stdin.write(line)
            writer.stdin.flush()
            while not (blocks := home.blocks(0, cursor, None, 1 << 20)[0]):
                home.wait((0, cursor), 60)
            cursor += sum(block.size for block in blocks)
            assert line in blocks[0].to_pybytes()
        writer.stdin.close()
        writer.wait()


def test_waiting_for_a_lock_takes_its_time_from_the_clock(tmp_path: Path) -> None:
    """Who waits in vain waits as long as asked, by the clock that was given."""
    claim = LocalStorage(tmp_path).home("orders").claim(0, force=False)
    clock = SimulatedClock(auto_advance=True)
    with pytest.raises(LogBusy):
        LocalStorage(tmp_path, clock=clock).home("orders").claim(0.05, force=False)
    assert clock.elapsed_us() >= 50_000
    claim.release()


def test_a_writer_without_its_claim_writes_nothing(tmp_path: Path) -> None:
    """Once the right to write is given back, the handles it gave are dead, and none is had without it."""
    home = LocalStorage(tmp_path).home("orders")
    with pytest.raises(WriterFenced):
        home.start_segment(0, 1)
    with pytest.raises(WriterFenced):
        home.fence(0, 1)
    claim = home.claim(0, force=False)
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    writer.append(0, chain.block(b"one"))
    claim.release()
    with pytest.raises(WriterFenced):
        writer.append(1, chain.block(b"two"))
    with pytest.raises(WriterFenced):
        home.fence(0, 2)
    writer.close()


def test_a_lock_on_a_removed_home_excludes_nobody(tmp_path: Path) -> None:
    """Who waited for a log that was removed locks the one that was made in its place."""
    storage = LocalStorage(tmp_path)
    first = storage.home("orders").claim(0, force=False)
    storage.remove_home("orders")
    second = storage.home("orders").claim(0, force=False)
    with pytest.raises(LogBusy):
        LocalStorage(tmp_path).home("orders").claim(0, force=False)
    first.release()
    with pytest.raises(LogBusy):
        LocalStorage(tmp_path).home("orders").claim(0, force=False)
    second.release()
    fill(storage.home("orders"), 0, 1)


def test_a_home_removed_while_its_lock_is_being_taken(tmp_path: Path) -> None:
    """A lock on a file that has lost its name is none: the log made in its place is somebody else's."""
    other = LocalStorage(tmp_path)
    claims: list[Claim] = []

    class Slow(RealDisk):
        def lock(self, descriptor: int) -> bool:
            if not claims:
                other.remove_home("orders")
                claims.append(other.home("orders").claim(0, force=False))
            return super().lock(descriptor)

    with pytest.raises(LogBusy):
        LocalStorage(tmp_path, Slow()).home("orders").claim(0, force=False)
    claims[0].release()


def test_a_claim_tells_whether_its_disk_answers(tmp_path: Path) -> None:
    """An idle writer asks this for a sign of life of its storage: none comes of a disk that fails, or of no folder."""

    class Failing(RealDisk):
        fails = False

        def identity(self, path: Path) -> tuple[int, int] | None:
            if self.fails:
                raise OSError(errno.EIO, "away")
            return super().identity(path)

    disk = Failing()
    claim = LocalStorage(tmp_path, disk).home("orders").claim(0, force=False)
    assert claim.answers()
    disk.fails = True
    assert not claim.answers()
    disk.fails = False
    assert claim.answers()
    shutil.rmtree(tmp_path / "logs")
    assert not claim.answers()
    claim.release()
