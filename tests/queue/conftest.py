"""Queues for the tests: their state in SQLite and in a real PostgreSQL, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from oncelog.connect import Database
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.clock import SimulatedClock

Opener = Callable[[], Database]


class ServersClock(SimulatedClock):
    """A clock whose passing time is a PostgreSQL server's too; what it jumps is a matter of one machine."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._server = psycopg.connect(url, autocommit=True)
        self._server.execute("CREATE TABLE server_time AS SELECT to_timestamp(%s) AS now", (self.now_us() / 1e6,))
        self._server.execute(
            "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now FROM server_time'"
        )

    def advance(self, seconds: float) -> None:
        """Let time pass, everywhere."""
        super().advance(seconds)
        self._server.execute("UPDATE server_time SET now = now + make_interval(secs => %s)", (seconds,))

    def close(self) -> None:
        """Leave the server."""
        self._server.close()


class World:
    """A database on a disk, and where its queues' state is. ``open`` is a process of its own, as far as can be."""

    def __init__(self, folder: Path, state: str | None) -> None:
        self.folder = folder
        self.state = state
        self.clock = SimulatedClock() if state is None else ServersClock(state)
        self._opened: list[Database] = []

    def open(self, clock: SimulatedClock | None = None) -> Database:
        """Open the database once more."""
        opened = Database(LocalStorage(self.folder, clock=clock or self.clock), clock or self.clock)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Close all."""
        for opened in self._opened:
            opened.close()
        if isinstance(self.clock, ServersClock):
            self.clock.close()


@pytest.fixture
def postgres_state(postgres_server: str, postgres_schema: str) -> str:
    """Return the URL of a schema that nobody else uses; what is in it comes before PostgreSQL's own functions."""
    return f"{postgres_server}&options=-csearch_path%3D{postgres_schema},pg_catalog"


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Return a world whose state is in SQLite, then one in PostgreSQL."""
    state = request.getfixturevalue("postgres_state") if request.param == "postgresql" else None
    made = World(tmp_path / "db", state)
    yield made
    made.close()
