"""Places for inboxes: SQLite in a file, PostgreSQL and Redis as servers that the tests of one process share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.inbox.places import DRIVERS, AnyPlace, Place, RedisPlace, redis_server
from tests.queue.servers import postgresql

_schemas = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Return the URL of a PostgreSQL server."""
    with postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """Return the socket of a Redis server."""
    with redis_server() as socket:
        yield socket


@pytest.fixture
def postgres_url(server: str) -> str:
    """Return the URL of a schema that nobody else uses."""
    schema = f"test_{next(_schemas)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{server}&options=-csearch_path%3D{schema}"


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
