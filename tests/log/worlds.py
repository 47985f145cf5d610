"""Machines on which a log can live and die: a simulated disk, or a home that fails on demand."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from obstore.store import MemoryStore

from oncelog.connect import Database
from oncelog.errors import NotFound, OncelogError
from oncelog.limits import MIB
from oncelog.log.writer import Writer
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import FETCHER, ObjectHome, ObjectStorage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Faults, Killed, When
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Entry

Ending = Literal["crash", "none", "all", "some"]
"""How a process ends: alone, or with the machine, and what of the unsynced is left then."""

LOG = "orders"
ROOT = Path("/db")
THREADS_S = 60.0


class World(Protocol):
    """A machine whose nth call fails or kills. ``database`` is what a new process on it opens."""

    clock: SimulatedClock
    faults: Faults

    def database(self) -> Database:
        """Open the database, as a process does that has just been started."""
        ...

    def fail_at(self, number: int, when: When, error: int) -> None:
        """Let a call fail once."""
        ...

    def end(self, ending: Ending, seed: int) -> None:
        """End the process, or the machine, and start it again. Its threads must have ended."""
        ...


class DiskWorld:
    """A local disk under simulation."""

    def __init__(self, seed: int = 0, *, disk: SimulatedDisk | None = None, auto_advance: bool = True) -> None:
        self.clock = SimulatedClock(seed=seed, auto_advance=auto_advance)
        self.disk = SimulatedDisk(file_bytes_max=MIB) if disk is None else disk
        self.faults = self.disk.faults

    def database(self) -> Database:
        """Open the database on this disk."""
        return Database(LocalStorage(ROOT, self.disk, self.clock), self.clock)

    def fail_at(self, number: int, when: When, error: int = errno.EIO) -> None:
        """Let a system call fail once."""
        self.faults.fail_at(number, OSError(error, os.strerror(error)), when)

    def end(self, ending: Ending, seed: int) -> None:
        """End the process alone, or cut the power."""
        if ending == "crash":
            self.disk.crash()
        else:
            self.disk.power_cut(ending, seed)


class MemoryWorld:
    """A home in memory, which failures are put in front of: what a bucket or a quorum does, as the contract has it."""

    def __init__(
        self, seed: int = 0, *, in_flight_max: int = 1, duplicate_creates: bool = False, auto_advance: bool = True
    ) -> None:
        self.clock = SimulatedClock(seed=seed, auto_advance=auto_advance)
        inner = MemoryStorage(clock=self.clock, in_flight_max=in_flight_max)
        self.storage = FaultyStorage(inner, duplicate_creates=duplicate_creates)
        self.faults = self.storage.faults

    def database(self) -> Database:
        """Open the database in this home."""
        return Database(self.storage, self.clock)

    def fail_at(self, number: int, when: When, error: int = errno.EIO) -> None:  # noqa: ARG002  a home has one failure
        """Let an operation fail once, or its answer be lost."""
        self.storage.fail_at(number, when)

    def end(self, ending: Ending, seed: int) -> None:  # noqa: ARG002  what is stored in a home is stored
        """Start the process that died again."""
        self.storage.restart()


class BucketWorld:
    """A bucket, of which every request may fail. Nobody is asked for a log here: the fence alone decides."""

    def __init__(self, seed: int = 0, *, duplicate_creates: bool = False, auto_advance: bool = True) -> None:
        self.clock = SimulatedClock(seed=seed, auto_advance=auto_advance)
        self.bucket = FaultyBucket(Bucket(MemoryStore(), "s3://memory"), duplicate_creates=duplicate_creates)
        self.faults = self.bucket.faults
        self._opened: list[ObjectStorage] = []

    def database(self) -> Database:
        """Open the database in this bucket."""
        self._opened.append(_Unasked(self.bucket, self.clock))
        return Database(self._opened[-1], self.clock)

    def fail_at(self, number: int, when: When, error: int = errno.EIO) -> None:  # noqa: ARG002  a bucket has one failure
        """Let a request fail once, or its answer be lost."""
        self.bucket.fail_at(number, when)

    def end(self, ending: Ending, seed: int) -> None:  # noqa: ARG002  what is stored in a bucket is stored
        """Start the process that died again. The threads with which it fetched end."""
        while self._opened:
            self._opened.pop().close()
        self.faults.heal()


class _Unasked(ObjectStorage):
    def home(self, key: str) -> ObjectHome:
        home = super().home(key)
        home.exclusive = True
        home.commit_interval_s = (
            0.0 if isinstance(self._clock, SimulatedClock) and not self._clock.auto_advance else 0.1
        )
        return home


def read(world: World) -> list[Entry]:
    """Return what another process, just started, can read; nothing where no log is."""
    try:
        log = world.database().log(LOG)
    except NotFound:
        return []
    with log.read() as entries:
        return list(entries)


@contextlib.contextmanager
def living(world: World) -> Iterator[Callable[[Writer], Writer]]:
    """Let a process live: pass it its writers. On leaving it is dead, and so are its threads, wherever they were."""
    before = set(threading.enumerate())
    writers: list[Writer] = []
    broken: list[threading.ExceptHookArgs] = []

    def noted(arguments: threading.ExceptHookArgs) -> None:
        if not isinstance(arguments.exc_value, Killed):
            broken.append(arguments)

    hook, threading.excepthook = threading.excepthook, noted

    def born(writer: Writer) -> Writer:
        writers.append(writer)
        return writer

    try:
        yield born
    finally:
        if not world.faults.is_killed:
            world.faults.heal()
            world.faults.kill_at(1)
        for writer in writers:
            bury(writer)
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith(FETCHER):
                continue  # it belongs to the database, and only fetches what it is told to
            thread.join(THREADS_S)
            assert not thread.is_alive(), f"{thread.name} outlives its writer"
        threading.excepthook = hook
        assert not broken, f"a thread ended on {broken[0].exc_value!r}"
        world.faults.heal()


def bury(writer: Writer) -> None:
    """End the threads of a writer whose process was killed; it touches nothing any more."""
    with contextlib.suppress(Killed, OncelogError):
        writer.close(timeout_s=None)
    with contextlib.suppress(Killed):
        writer._ending._claim.release()
