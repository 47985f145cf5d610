"""Every home keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.storage.base import Storage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.contract import StorageContract
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.storage import FaultyStorage


class TestMemory(StorageContract):
    """A home in memory."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new one."""
        return MemoryStorage()


class TestMemoryInFlight(StorageContract):
    """A home in memory that takes several blocks at once, as an object store does."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new one."""
        return MemoryStorage(in_flight_max=4)


class TestLocal(StorageContract):
    """A home on this machine's disk."""

    force_fences = False

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """Return a new one, in folders that are not there yet."""
        return LocalStorage(tmp_path / "some" / "where")


class TestLocalOnSimulatedDisk(StorageContract):
    """A home on a disk that is simulated."""

    force_fences = False

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new one."""
        return LocalStorage(Path("/data/shop"), SimulatedDisk())


class TestFaultyWithoutFaults(StorageContract):
    """The wrapper that makes homes fail changes nothing until it is asked to."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new one."""
        return FaultyStorage(MemoryStorage())
