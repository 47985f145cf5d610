"""A simulated disk loses what a real one would lose, and nothing else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import cast

import pytest

from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed, When
from oncelog.testing.simulation.scheduler import Scheduler
from oncelog.testing.simulation.world import ProcessDisk

FILE = Path("/file")


def written(disk: SimulatedDisk, content: bytes, *, name_synced: bool = True, synced: bool = True) -> int:
    """Write a file and leave it open."""
    descriptor = disk.open(FILE, create=True)
    disk.write(descriptor, [content], 0)
    if synced:
        disk.sync(descriptor)
    if name_synced:
        disk.sync_directory(FILE.parent)
    return descriptor


def test_a_power_cut_takes_what_was_not_synced() -> None:
    """Content without a sync is gone, a name without a sync of its folder too."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one")
    disk.write(descriptor, [b"ONE more"], 0)
    disk.power_cut("none")
    assert disk.content(FILE) == b"one"
    unnamed = SimulatedDisk()
    written(unnamed, b"one", name_synced=False)
    unnamed.power_cut("none")
    assert unnamed.list_directory(Path("/")) == []


def test_a_power_cut_may_leave_everything_or_a_part() -> None:
    """All of it, or single sectors of it: every outcome between comes up, each from its seed."""
    outcomes = set()
    for seed in range(200):
        disk = SimulatedDisk()
        descriptor = written(disk, bytes(1536))
        disk.write(descriptor, [b"x" * 1536], 0)
        disk.power_cut("some", seed)
        outcomes.add(tuple(disk.content(FILE)[offset] for offset in (0, 512, 1024)))
    assert len(outcomes) == 8
    disk = SimulatedDisk()
    written(disk, b"one", name_synced=False, synced=False)
    disk.power_cut("all")
    assert disk.content(FILE) == b"one"


def test_a_crash_keeps_the_page_cache_and_drops_locks() -> None:
    """When a process dies, what it wrote is there and what it held is free."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one", name_synced=False, synced=False)
    assert disk.lock(descriptor)
    assert not disk.lock(disk.open(FILE))
    process = disk.process()
    disk.crash()
    assert disk.content(FILE) == b"one"
    assert disk.lock(disk.open(FILE))
    assert not disk.is_alive(process)
    with pytest.raises(OSError, match="descriptor"):
        disk.read(descriptor, 1, 0)


def test_a_failed_sync_loses_its_pages_and_says_so_once_to_each() -> None:
    """The next sync succeeds without having stored anything; another descriptor is told once as well."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one")
    other = disk.open(FILE)
    disk.write(descriptor, [b"two"], 0)
    disk.faults.fail_at(1, OSError(errno.EIO, "worn out"))
    with pytest.raises(OSError, match="worn out"):
        disk.sync(descriptor)
    disk.sync(descriptor)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(other)
    disk.sync(other)
    assert disk.content(FILE) == b"two"
    disk.power_cut("none")
    assert disk.content(FILE) == b"one"


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_close_that_fails_has_closed(when: When) -> None:
    """The descriptor and its lock are gone whatever close says, as on Linux: nobody could close it again."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one")
    assert disk.lock(descriptor)
    disk.faults.fail_at(1, OSError(errno.EIO, "simulated"), when)
    with pytest.raises(OSError, match="simulated"):
        disk.close(descriptor)
    assert disk.lock(disk.open(FILE))


def test_a_page_written_again_is_stored_by_the_next_sync() -> None:
    """After a failed sync, writing makes pages dirty again."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one")
    disk.write(descriptor, [b"two"], 0)
    disk.faults.fail_at(1, OSError(errno.EIO, "worn out"))
    with pytest.raises(OSError, match="worn out"):
        disk.sync(descriptor)
    disk.write(descriptor, [b"two"], 0)
    disk.sync(descriptor)
    disk.power_cut("none")
    assert disk.content(FILE) == b"two"


def test_killed_is_for_good() -> None:
    """From the call that kills, everything raises, until the process is started again."""
    disk = SimulatedDisk()
    disk.faults.kill_at(2, "after")
    descriptor = disk.open(FILE, create=True)
    with pytest.raises(Killed):
        disk.write(descriptor, [b"one"], 0)
    with pytest.raises(Killed):
        disk.read(descriptor, 3, 0)
    with pytest.raises(Killed):
        disk.open(FILE)
    disk.crash()
    assert disk.content(FILE) == b"one"


@pytest.mark.parametrize(("when", "expected"), [("before", b""), ("during", b"on"), ("after", b"one!")])
def test_a_call_fails_before_during_or_after_its_work(when: str, expected: bytes) -> None:
    """A write that fails has written nothing, the half, or all."""
    disk = SimulatedDisk()
    descriptor = disk.open(FILE, create=True)
    disk.faults.fail_at(1, OSError(errno.EIO, "no"), when)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no"):
        disk.write(descriptor, [b"one!"], 0)
    assert disk.content(FILE) == expected


def test_full_and_read_only() -> None:
    """A full disk refuses growth, not rewriting; a read-only one refuses every change."""
    disk = SimulatedDisk(size_bytes_max=10)
    descriptor = written(disk, b"0123456789")
    with pytest.raises(OSError, match="space") as caught:
        disk.write(descriptor, [b"x"], 10)
    assert caught.value.errno == errno.ENOSPC
    disk.write(descriptor, [b"x"], 9)
    disk.free(1)
    disk.write(descriptor, [b"x"], 10)
    assert disk.used_bytes() == 11
    disk.read_only = True
    with pytest.raises(OSError, match="Read-only"):
        disk.write(descriptor, [b"x"], 0)
    with pytest.raises(OSError, match="Read-only"):
        disk.make_directory(Path("/folder"))
    assert disk.read(descriptor, 1, 0) == b"0"


def test_a_map_shows_later_writes_and_outlives_the_name() -> None:
    """As with real memory maps."""
    disk = SimulatedDisk()
    descriptor = written(disk, b"one")
    mapped = disk.map(descriptor, 3)
    disk.write(descriptor, [b"two"], 0)
    disk.unlink(FILE)
    disk.close(descriptor)
    assert mapped.to_pybytes() == b"two"


def test_names_that_are_linked_and_moved() -> None:
    """A link has one winner; a folder moves with all in it; only an empty one can be removed."""
    disk = SimulatedDisk()
    written(disk, b"one")
    disk.make_directory(Path("/a"))
    assert disk.link(FILE, Path("/a/b"))
    assert not disk.link(FILE, Path("/a/b"))
    disk.rename(Path("/a"), Path("/c"))
    assert disk.content(Path("/c/b")) == b"one"
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(Path("/c"))
    disk.unlink(Path("/c/b"))
    disk.remove_directory(Path("/c"))
    assert disk.list_directory(Path("/")) == [("file", False)]
    with pytest.raises(FileNotFoundError):
        disk.open(Path("/c/b"), create=True)
    with pytest.raises(NotADirectoryError):
        disk.open(FILE / "x", create=True)


def nameless(disk: SimulatedDisk, content: bytes) -> int:
    """Write a file without a name, synced, and leave it open."""
    descriptor = disk.open_nameless(FILE.parent)
    assert descriptor is not None
    disk.write(descriptor, [content], 0)
    disk.sync(descriptor)
    return descriptor


def test_a_file_without_a_name_is_gone_with_its_process() -> None:
    """It takes room while it is open, and nothing of it is left; a disk without such files says so."""
    disk = SimulatedDisk(nameless=True, size_bytes_max=4)
    descriptor = nameless(disk, b"one")
    assert disk.used_bytes() == 3
    with pytest.raises(OSError, match="No space left"):
        disk.write(descriptor, [b"more"], 3)
    disk.crash()
    assert disk.used_bytes() == 0
    assert disk.list_directory(FILE.parent) == []
    assert SimulatedDisk().open_nameless(FILE.parent) is None


def test_a_file_that_is_named_stays() -> None:
    """Its content by its own sync, its name by the sync of its folder; a name that is taken stays as it is."""
    disk = SimulatedDisk(nameless=True)
    assert disk.name(nameless(disk, b"one"), FILE)
    assert not disk.name(nameless(disk, b"two"), FILE)
    assert disk.used_bytes() == 6
    disk.power_cut("none")
    assert disk.content(FILE) == b"one"
    assert disk.used_bytes() == 3


def test_a_name_that_was_not_synced_is_lost() -> None:
    """The power is cut between the naming and the sync of the folder; and a file that was not synced is empty."""
    disk = SimulatedDisk(nameless=True)
    descriptor = nameless(disk, b"one")
    disk.faults.kill_at(1, "after")
    with pytest.raises(Killed):
        disk.name(descriptor, FILE)
    disk.power_cut("none")
    assert disk.list_directory(FILE.parent) == []
    unsynced = disk.open_nameless(FILE.parent)
    assert unsynced is not None
    disk.write(unsynced, [b"one"], 0)
    assert disk.name(unsynced, FILE)
    disk.power_cut("none")
    assert disk.content(FILE) == b""


def test_a_file_without_a_name_ends_with_the_process_that_made_it() -> None:
    """One process of a simulated machine dies: its files without a name go, those of the others stay."""
    disk = SimulatedDisk(nameless=True)
    scheduler = Scheduler("seed")
    first, second = ProcessDisk(disk, scheduler), ProcessDisk(disk, scheduler)
    nameless(cast("SimulatedDisk", first), b"one")
    kept = nameless(cast("SimulatedDisk", second), b"four")
    first.end()
    assert disk.used_bytes() == 4
    assert second.name(kept, FILE)


@pytest.mark.parametrize("call", ["read", "size", "identity_of", "map", "lock", "write", "sync", "close"])
def test_a_crash_in_the_midst_of_a_call_is_an_error_of_the_system(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of a process that ends meanwhile finds its descriptor closed: an ``OSError``, not a bug."""
    disk = SimulatedDisk()
    descriptor = disk.open(FILE, create=True)
    look = disk._path

    def crash_after(descriptor: int) -> Path:
        path = look(descriptor)
        disk.crash()
        return path

    monkeypatch.setattr(disk, "_path", crash_after)
    given = {"read": (1, 0), "map": (1,), "write": ([b"x"], 0)}
    with pytest.raises(OSError, match="Bad file descriptor"):
        getattr(disk, call)(descriptor, *given.get(call, ()))
