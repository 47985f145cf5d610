"""Logs in a bucket, under the log's own contract."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from oncelog.connect import Database
from oncelog.errors import OncelogError
from oncelog.log.takeover import handover
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectHome, ObjectStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.log_contract import LogContract
from oncelog.testing.logs.fixtures import Reopen


class Buckets(LogContract):
    """The contract on one bucket. A process that crashes gets nothing through to it any more."""

    @pytest.fixture
    def inner(self, memory_bucket: Bucket) -> Bucket:
        """Return a bucket that nothing is in."""
        return memory_bucket

    @pytest.fixture
    def opened(self) -> list[tuple[FaultyBucket, Database]]:
        """Return where the databases are kept that a test opens, one after the other."""
        return []

    @pytest.fixture
    def database(
        self,
        inner: Bucket,
        opened: list[tuple[FaultyBucket, Database]],
        prompt: None,  # noqa: ARG002
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[Database]:
        """Yield the first of them."""
        monkeypatch.setattr(ObjectHome, "commit_interval_s", 0.001)
        opened.append(_connected(inner))
        yield opened[0][1]
        for _, database in reversed(opened):
            with contextlib.suppress(OncelogError):
                database.close()

    @pytest.fixture
    def reopen(
        self, inner: Bucket, opened: list[tuple[FaultyBucket, Database]], monkeypatch: pytest.MonkeyPatch
    ) -> Reopen:
        """Return what ends a life and begins the next."""

        def again(*, crash: bool = False) -> Database:
            bucket, database = opened[-1]
            if crash:
                bucket.cut_off()
                monkeypatch.setattr(handover, "ANSWER_S", 0.0)  # there is nobody who could
            else:
                database.close()
            opened.append(_connected(inner))
            return opened[-1][1]

        return again


def _connected(inner: Bucket) -> tuple[FaultyBucket, Database]:
    bucket = FaultyBucket(inner)
    return bucket, Database(ObjectStorage(bucket))


class TestInMemory(Buckets):
    """The client's own store in memory."""


class TestSeaweedFS(Buckets):
    """A real S3 server, with authentication."""

    @pytest.fixture
    def inner(self, bucket: Bucket) -> Bucket:
        """Return a bucket on the server."""
        return bucket


del Buckets, LogContract  # pytest would collect them here, without a home
