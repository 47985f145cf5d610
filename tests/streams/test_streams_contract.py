"""Every home of logs, under the contract of streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectHome, ObjectStorage
from oncelog.testing.streams_contract import StreamsContract


class TestMemory(StreamsContract):
    """Streams in memory."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a database in memory."""
        with oncelog.connect("memory://") as db:
            yield db


class TestFiles(StreamsContract):
    """Streams on this machine's disk."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Iterator[Database]:
        """Yield a database in a folder."""
        with oncelog.connect(tmp_path) as db:
            yield db


class TestBucket(StreamsContract):
    """Streams in a bucket."""

    @pytest.fixture
    def database(self, memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
        """Yield a database in a bucket."""
        monkeypatch.setattr(ObjectHome, "commit_interval_s", 0.001)
        with Database(ObjectStorage(memory_bucket)) as db:
            yield db


del StreamsContract  # pytest would collect it here, without a home
