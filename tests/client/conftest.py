"""Real servers for the tests of the client: one that most tests share, and others that are stopped and killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oncelog
from oncelog.connect import Database
from tests.servers import Serving


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield a real ``oncelog serve`` on a disk. Tests leave it empty."""
    server = Serving((tmp_path_factory.mktemp("shared") / "db").as_uri())
    yield server
    server.end()


@pytest.fixture
def remote(shared_server: Serving) -> Iterator[Database]:
    """Yield a database on the shared server, and empty it."""
    with oncelog.connect(f"oncelog://{shared_server.grpc}") as database:
        yield database
    with oncelog.connect(f"oncelog://{shared_server.grpc}") as database:
        for name in database.queues():
            if not name.startswith("dlq."):
                database.delete_queue(name, force=True)
        for name in database.logs():
            database.delete(name)
