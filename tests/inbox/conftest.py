"""Places for inboxes: SQLite in a file, PostgreSQL and Redis as servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inbox.places import DRIVERS, AnyPlace, Place, RedisPlace


def make(driver: str, request: pytest.FixtureRequest, folder: Path) -> AnyPlace:
    """Make a place for a driver."""
    if driver == "redis":
        return RedisPlace(request.getfixturevalue("redis_socket"))
    on_server = "psycopg" in driver or "PostgreSQL" in driver
    return Place(driver, request.getfixturevalue("postgres_url") if on_server else str(folder / "shop.sqlite"))


@pytest.fixture(params=[*DRIVERS, "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyPlace]:
    """Return each place there is."""
    made = make(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=DRIVERS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyPlace]:
    """Return each place that has transactions."""
    made = make(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite3", "psycopg", "redis"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyPlace]:
    """Return one place of each kind of database."""
    made = make(request.param, request, tmp_path)
    yield made
    made.close()
