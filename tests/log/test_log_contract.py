"""Every home of logs, under the log's own contract."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import OncelogError
from oncelog.storage.base import Storage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.log_contract import LogContract
from oncelog.testing.logs.fixtures import Reopen
from oncelog.testing.storage import FaultyStorage


class Lives:
    """The databases that one test has opened on the same logs, one after the other."""

    def __init__(self, connect: Callable[[], Database], crash: Callable[[], None]) -> None:
        self._connect = connect
        self._crash = crash
        self._opened = [connect()]

    @property
    def newest(self) -> Database:
        """The one that lives."""
        return self._opened[-1]

    def reopen(self, *, crash: bool = False) -> Database:
        """End the newest database and open another."""
        if crash:
            self._crash()
        else:
            self.newest.close()
        self._opened.append(self._connect())
        return self.newest

    def end(self) -> None:
        """Close them all. Those that have crashed may find that they lost their log."""
        self.newest.close()
        for crashed in self._opened:
            with contextlib.suppress(OncelogError):
                crashed.close()


class Homes(LogContract):
    """The contract on databases that ``Lives`` opens: a subclass has a fixture ``lives``."""

    @pytest.fixture
    def lives(self) -> Lives:
        """Return the lives of a new, empty database."""
        raise NotImplementedError

    @pytest.fixture
    def database(self, lives: Lives) -> Iterator[Database]:
        """Yield the first of them."""
        yield lives.newest
        lives.end()

    @pytest.fixture
    def reopen(self, lives: Lives) -> Reopen:
        """Return what ends a life and begins the next."""
        return lives.reopen


del LogContract  # pytest would collect it here, without a home


def in_memory(storage: Storage) -> Lives:
    """Return lives in memory: a crash leaves its writers without their claims, but alive, as sleepers are."""
    faulty = FaultyStorage(storage)
    return Lives(lambda: Database(faulty), faulty.restart)


class TestMemory(Homes):
    """Logs in memory."""

    @pytest.fixture
    def lives(self) -> Lives:
        """Return lives in memory."""
        return in_memory(MemoryStorage())


class TestMemoryInFlight(Homes):
    """Logs in a home that takes several blocks at once, as an object store does."""

    @pytest.fixture
    def lives(self) -> Lives:
        """Return lives in memory."""
        return in_memory(MemoryStorage(in_flight_max=4))


class TestFiles(Homes):
    """Logs on this machine's disk. A crash is a copy of what the disk showed at that moment."""

    @pytest.fixture
    def lives(self, tmp_path: Path) -> Lives:
        """Return lives in a folder, or after a crash in a copy of it."""
        folders = [tmp_path / "0"]

        def crash() -> None:
            folders.append(tmp_path / str(len(folders)))
            shutil.copytree(folders[-2], folders[-1])

        return Lives(lambda: oncelog.connect(folders[-1].as_uri()), crash)


class TestSimulatedDisk(Homes):
    """Logs on a disk that is simulated. A crash is a power cut that loses all that was not synced."""

    @pytest.fixture
    def lives(self) -> Lives:
        """Return lives on one disk."""
        disk = SimulatedDisk()
        return Lives(lambda: Database(LocalStorage(Path("/data/shop"), disk)), disk.power_cut)


del Homes
