"""One real server for the tests of this room that do not harm it, and a bare client of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.server.clients import Wire
from tests.servers import Serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield a server that tests share; each test has logs of its own."""
    serving = Serving(tmp_path_factory.mktemp("server").as_uri())
    yield serving
    serving.end()


@pytest.fixture
def wire(server: Serving) -> Iterator[Wire]:
    """Yield a client of the shared server."""
    with Wire(server.grpc) as client:
        yield client


@pytest.fixture
def log(wire: Wire) -> str:
    """Return the name of a new log on the shared server."""
    name = f"log-{os.urandom(8).hex()}"
    wire.call("Database.Create", name=name, kind="log", create=True)
    return name
