"""Every home of logs, under the contract of queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectHome, ObjectStorage
from oncelog.testing.queue_contract import QueueContract


class TestMemory(QueueContract):
    """Queues in memory."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a database in memory."""
        with oncelog.connect("memory://") as db:
            yield db


class TestFiles(QueueContract):
    """Queues on this machine's disk."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Iterator[Database]:
        """Yield a database in a folder."""
        with oncelog.connect(tmp_path) as db:
            yield db


class TestBucket(QueueContract):
    """Queues in a bucket, with their state in PostgreSQL."""

    @pytest.fixture
    def state(self, postgres_url: str) -> str | None:
        """Return the URL of an empty schema."""
        return postgres_url

    @pytest.fixture
    def database(self, memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
        """Yield a database in a bucket."""
        monkeypatch.setattr(ObjectHome, "commit_interval_s", 0.001)
        with Database(ObjectStorage(memory_bucket)) as db:
            yield db


del QueueContract  # pytest would collect it here, without a home
