"""Three real servers on one real bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.client import database as client
from tests.log.watched import until
from tests.servers import Serving

if TYPE_CHECKING:
    from benchmarks.seaweedfs import SeaweedFS

Start = Callable[..., list[Serving]]


def started(url: str, names: str, **environment: str) -> list[Serving]:
    """Start servers of these names at once: each takes seconds to import what it needs."""
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: Serving(url, ("--name", name), environment), names))


def _sees_all(server: Serving, count: int) -> bool:
    """Tell whether a server has seen all others: it looks when it starts, and then with every beat."""
    with oncelog.connect(f"oncelog://{server.grpc}") as db:
        return len(client.servers(db)) == count


@pytest.fixture(scope="session")
def fleet(seaweedfs: SeaweedFS) -> Iterator[list[Serving]]:
    """Yield three servers that the tests share, and do not harm.

    They beat so seldom that none is taken for dead on a machine that is ten times too busy.
    """
    from benchmarks.seaweedfs import BUCKET

    environment = {**seaweedfs.environment, "ONCELOG_SERVE_BEAT_S": "10"}
    servers = started(f"s3://{BUCKET}/fleet", "abc", **environment)
    for server in servers:
        until(partial(_sees_all, server, len(servers)))
    yield servers
    for server in servers:
        server.end()
