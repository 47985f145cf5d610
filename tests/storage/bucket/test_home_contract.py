"""A bucket keeps the contract of every home: one in memory, and one on a real server."""

from __future__ import annotations

import pytest

from oncelog.storage.base import LogHome, Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.contract import SegmentsContract, StorageContract


class TestInMemory(StorageContract):
    """The client's own store in memory."""

    @pytest.fixture
    def storage(self, memory_bucket: Bucket) -> Storage:
        """Return a new one."""
        return ObjectStorage(memory_bucket)


class TestSeaweedFS(StorageContract):
    """A real S3 server, with authentication."""

    @pytest.fixture
    def storage(self, bucket: Bucket) -> Storage:
        """Return a new one."""
        return ObjectStorage(bucket)


class TestRepeatedUnderneath(SegmentsContract):
    """A client that sends every create twice, and learns of the second only: blocks and fences do not mind."""

    @pytest.fixture
    def home(self, memory_bucket: Bucket) -> LogHome:
        """Return the home of a log."""
        return ObjectStorage(FaultyBucket(memory_bucket, duplicate_creates=True)).home("orders")


del SegmentsContract, StorageContract  # pytest would collect them here, without a home
