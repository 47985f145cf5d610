"""A real S3 server, started once a process and only if a test asks for it; buckets of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from obstore.store import MemoryStore

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.log.takeover import handover
from oncelog.storage.bucket.bucket import Bucket


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """Yield a server that every test of this process shares: its buckets are told apart by prefix."""
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.end()


@pytest.fixture
def url(seaweedfs: SeaweedFS, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a URL that nothing is below yet. Credentials are in the environment."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def bucket(url: str) -> Bucket:
    """Return a bucket on the server."""
    return Bucket.connect(url, {})


@pytest.fixture
def memory_bucket() -> Bucket:
    """Return a bucket in memory, as the client itself has it."""
    return Bucket(MemoryStore(), "s3://memory")


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let holders of a log answer at once, and keep it; whoever asks is patient."""
    monkeypatch.setattr(handover, "TENURE_S", 600.0)
    monkeypatch.setattr(handover, "LOOK_S", 0.01)
    monkeypatch.setattr(handover, "ANSWER_S", 60.0)
    monkeypatch.setattr(handover, "POLL_S", 0.005)
