"""A simulated world: stores, nodes, a disk, and the processes that use them, on one kind of home."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

from oncelog import handle
from oncelog.connect import Database
from oncelog.queue import open_queue
from oncelog.queue.state.open_state import SharedState
from oncelog.storage.base import Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.storage.quorum import membership
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.simulation.clock import VirtualClock
from oncelog.testing.simulation.network import Network, VirtualBucket, VirtualStore
from oncelog.testing.simulation.scheduler import Process, Scheduler, current_task
from oncelog.testing.simulation.swap import swapped

Kind = Literal["memory", "local", "bucket", "quorum"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NODES = ("n0", "n1", "n2")
STORE = "store"
LOADED = (open_queue,)
"""Rooms that ``Database`` loads when they are asked for: they must be there before names in them are swapped."""

_FILE_BYTES_MAX = 8 << 20
_KEPT: dict[str, Callable[[], Any]] = {
    "oncelog.log.stored.secrets._known": dict,
    "oncelog.log.upkeep.sealing._raw_sizes": dict,
    "oncelog.storage.local.home._bells": weakref.WeakValueDictionary,
    "oncelog.storage.local.lock._held": set,
}
"""What modules keep as long as a process lives: a run must not know what a run before it knew."""


class ProcessDisk:
    """The disk of a machine as one process sees it: its descriptors and locks end with the process."""

    def __init__(self, disk: SimulatedDisk, scheduler: Scheduler) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._open: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._disk, name)
        if not callable(call):
            return call

        def called(*args: Any, **kwargs: Any) -> Any:
            self._scheduler.pause()
            result = call(*args, **kwargs)
            if name in ("open", "open_to_read", "open_nameless") and result is not None:
                self._open.add(result)
            elif name == "close":
                self._open.discard(args[0])
            return result

        return called

    def end(self) -> None:
        """Close what the process had open."""
        for descriptor in self._open:
            self._disk.drop(descriptor)
        self._open.clear()


class VirtualState(SharedState):
    """The database of queues' state, as one server would have it: it outlives every process that uses it."""

    def roll_back(self, process: Process) -> None:
        """End the transaction that a process was in when it died, as a server does."""
        for file in (self._database._state, self._database._gate):  # noqa: SLF001
            lock: Any = file._lock  # noqa: SLF001
            if lock.is_held_in(process) and file._connection.in_transaction:  # noqa: SLF001
                file._connection.rollback()  # noqa: SLF001


class World:
    """One kind of home, and the processes on it."""

    def __init__(self, kind: Kind, seed: int, *, keep_trace: bool = False) -> None:
        self.kind = kind
        self.seed = f"{kind} {seed}"
        self.random = random.Random(f"world {self.seed}")
        self.scheduler = Scheduler(self.seed, keep_trace=keep_trace)
        self.network = Network(self.scheduler, self.seed)
        self.stores = {name: VirtualStore(name) for name in (STORE, *NODES)}
        self.crashes = 0
        self.processes: list[Process] = []
        self._clocks: dict[str, VirtualClock] = {}
        self._disk: SimulatedDisk | None = None
        self._disks: dict[str, ProcessDisk] = {}
        self._memory: MemoryStorage | None = None
        self._state: VirtualState | None = None

    def process(self, name: str) -> Process:
        """Start a process. Its wall clock is wrong by up to a second."""
        process = Process(f"{name}.{len(self.processes)}")
        process.wall_offset_us = self.random.randrange(-1_000_000, 1_000_000)
        self.processes.append(process)
        return process

    def clock(self, process: Process) -> VirtualClock:
        """Return the clock of a process."""
        if process.name not in self._clocks:  # one a process: a second one would repeat the tokens of the first
            self._clocks[process.name] = VirtualClock(self.scheduler, process, self.seed)
        return self._clocks[process.name]

    def crash(self, process: Process) -> None:
        """End a process as ``kill -9`` does."""
        process.alive = False
        self.crashes += 1
        self.scheduler.note(f"crash {process.name}")
        if process.name in self._disks:
            self._disks[process.name].end()
        if self._state is not None:
            self._state.roll_back(process)

    def pause(self, process: Process, duration_us: int) -> None:
        """Stop a process for a while, as SIGSTOP does."""
        process.paused_until_us = self.scheduler.now_us + duration_us
        process.paused_us += duration_us
        self.scheduler.note(f"pause {process.name}")

    def power_cut(self) -> None:
        """End the machine: of what was not synced, a part is left."""
        for process in self.processes:
            if process.alive and process.name in self._disks:
                self.crash(process)
        assert self._disk is not None
        self._disk.power_cut("some", self.random.randrange(1 << 30))

    # Called by a task of the process.

    def connect(self, process: Process) -> Database:
        """Open the database in a process."""
        return Database(self.storage(process), self.clock(process))

    def storage(self, process: Process) -> Storage:
        """Open the home in a process."""
        opened: dict[Kind, Callable[[Process], Storage]] = {
            "memory": self._in_memory,
            "local": self._on_disk,
            "bucket": self.store,
            "quorum": self._on_quorum,
        }
        return opened[self.kind](process)

    def _in_memory(self, process: Process) -> Storage:
        if self._memory is None:
            self._memory = MemoryStorage(clock=self.clock(process), in_flight_max=3)
        return self._memory

    def _on_disk(self, process: Process) -> Storage:
        if self._disk is None:
            self._disk = SimulatedDisk(file_bytes_max=_FILE_BYTES_MAX)
            self._disk.make_directory(Path("/shop"))
        disk: Any = self._disks.setdefault(process.name, ProcessDisk(self._disk, self.scheduler))
        return LocalStorage(Path("/shop"), disk, self.clock(process))

    def store(self, process: Process) -> Storage:
        """Open the store, without its nodes."""
        return ObjectStorage(self._bucket(process, f"s3://{STORE}"), self.clock(process))

    def _on_quorum(self, process: Process) -> Storage:
        store, clock = self.store(process), self.clock(process)
        if membership.newest(store) is None:
            membership.create(store, {name: f"s3://{name}" for name in NODES}, 2, {}, clock)
        return QuorumStorage(store, clock=clock, near=self.random.choice((None, *NODES)))

    def _bucket(self, process: Process, url: str) -> Bucket:
        name = url.removeprefix("s3://")
        store = self.stores.setdefault(name, VirtualStore(name))
        return VirtualBucket(self.network, process, store, url)

    def open_state(self, _url: object, _storage: Storage, _clock: object) -> VirtualState:
        """Return the state of all queues: stands in the place of ``open_state``."""
        if self._state is None:
            self._state = VirtualState(self.clock(Process("state")))
        return self._state

    def open_bucket(self, url: str, _options: object) -> Bucket:
        """Open a node in the process that asks: stands in the place of ``node.open_bucket``."""
        task = current_task()
        assert task is not None
        return self._bucket(task.process, url)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Put the world in the place of the real one, and end all that is left of it afterwards."""
    left_open = set(handle._left_open)  # noqa: SLF001
    with contextlib.ExitStack() as stack:
        stack.enter_context(swapped())
        for name in ("node", "home"):
            stack.enter_context(mock.patch(f"oncelog.storage.quorum.{name}.open_bucket", world.open_bucket))
        stack.enter_context(mock.patch("oncelog.queue.state.open_state.open_state", world.open_state))
        stack.enter_context(mock.patch("oncelog.queue.state.open_state.is_made", return_value=True))
        for name, empty in _KEPT.items():
            stack.enter_context(mock.patch(name, empty()))
        try:
            yield
        finally:
            world.scheduler.end()
            for one in set(handle._left_open) - left_open:  # noqa: SLF001
                handle._left_open.discard(one)  # noqa: SLF001
