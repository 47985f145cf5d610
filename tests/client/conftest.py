"""Real servers for the tests of the client: one that most tests share, and others that are stopped and killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.database import RemoteDatabase
from oncelog.connect import Database
from tests.servers import Serving


class Emptied(RemoteDatabase):
    """A database on a server that others have used before: the server's own log of what they did is not shown."""

    def logs(self) -> list[str]:
        """Return the names of the logs, but for the server's own."""
        return [name for name in super().logs() if not name.startswith("_")]


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield a real ``oncelog serve`` on a disk. Tests leave it empty."""
    server = Serving((tmp_path_factory.mktemp("shared") / "db").as_uri())
    yield server
    server.end()


@pytest.fixture
def remote(shared_server: Serving) -> Iterator[Database]:
    """Yield a database on the shared server, and empty it."""
    with _connected(shared_server) as database:
        yield database
    with _connected(shared_server) as database:
        for name in database.queues():
            if not name.startswith("dlq."):
                database.delete_queue(name, force=True)
        for name in database.logs():
            database.delete(name)


def _connected(server: Serving) -> Database:
    return Emptied(Channel(parse(f"oncelog://{server.grpc}", {})))
