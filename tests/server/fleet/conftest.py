"""Three real servers on one real bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.servers import Serving

if TYPE_CHECKING:
    from benchmarks.seaweedfs import SeaweedFS

Start = Callable[..., list[Serving]]


def started(url: str, names: str, **environment: str) -> list[Serving]:
    """Start servers of these names at once: each takes seconds to import what it needs."""
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: Serving(url, ("--name", name), environment), names))


@pytest.fixture(scope="session")
def fleet(seaweedfs: SeaweedFS) -> Iterator[list[Serving]]:
    """Yield three servers that the tests share, and do not harm.

    They beat so seldom that none is taken for dead on a machine that is ten times too busy.
    """
    from benchmarks.seaweedfs import BUCKET

    environment = {**seaweedfs.environment, "ONCELOG_SERVE_BEAT_S": "10"}
    servers = started(f"s3://{BUCKET}/fleet", "abc", **environment)
    yield servers
    for server in servers:
        server.end()
